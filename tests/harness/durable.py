"""I6: the durable step never goes back, unless what it counted is lost."""

from gpujob_api.gpujob import GPUJobStatus
from gpujob_api.report import Protection


def went_back(before: GPUJobStatus, after: GPUJobStatus) -> bool:
    """Whether the durable step fell although no attempt began again behind it, and no worker
    reported that its checkpoints do not bring the run back."""
    saved = 0 if before.checkpoint is None else before.checkpoint.step
    if (0 if after.checkpoint is None else after.checkpoint.step) >= saved:
        return False
    began_again = after.resumed_from_step == 0 != before.resumed_from_step
    # Of an attempt that ended in the same cycle the status does not say how it began.
    ended = before.placement is not None and after.placement is None
    began_again |= ended and before.attempt > 1 and before.resumed_from_step is None
    return not began_again and after.protection is not Protection.FROM_BEGINNING
