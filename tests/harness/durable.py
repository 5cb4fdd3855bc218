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
    return not began_again and after.protection is not Protection.FROM_BEGINNING
