"""Worker processes of the data loader. `data_loader_policy` decides about them from pass
to pass.
"""

from typing import Any

from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Setting


class DataLoaderSetting(Setting):
    NAME = "data_loader"
    ITEM = "data loading"
    FIELDS = ("data_loader_workers",)
    ORDER = 90
    SAID_WITHOUT_ROOT = False
    OWN = True

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"data_loader_workers": applied.loader_workers}

    def drop(self, applied: Applied) -> None:
        applied.loader_workers = None


SETTING = DataLoaderSetting()
