"""Expandable segments of the caching allocator, for the next process (`control.rollback_guard`)."""

from typing import Any

from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Setting


class ExpandableSegmentsSetting(Setting):
    NAME = "expandable_segments"
    ITEM = "expandable segments"
    FIELDS = ("expandable_segments",)
    ORDER = 95
    SAID_WITHOUT_ROOT = False
    FOR_MEMORY = True
    OWN = True

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"expandable_segments": applied.expandable_segments}

    def drop(self, applied: Applied) -> None:
        applied.expandable_segments = False


SETTING = ExpandableSegmentsSetting()
