"""Runs a training script: injects settings, measures, reports, saves checkpoints and resumes.

`gpujob-run -- python train.py` needs no change in the script. For exact resumption and for
splitting any loss there is a small interface, `gpujob_worker.prepare`. torch is imported only when
it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # even `typing` is imported only if something trains
    from typing import Any

    from gpujob_worker.resume.training_job import Job, prepare

__all__ = ["Job", "prepare"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gpujob_worker.resume import training_job

        return getattr(training_job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
