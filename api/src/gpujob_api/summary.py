"""The columns of a job in `kubectl get gpujobs`."""

from dataclasses import dataclass
from typing import Annotated

from gpujob_api.bounds import Text

# The end of `progress` while training stands still for trials.
STANDS_STILL = "tuning"


@dataclass(frozen=True, slots=True)
class Summary:
    """The texts of the printer columns."""

    where: Annotated[str, Text(256, clip=True)] = ""
    progress: Annotated[str, Text(64, clip=True)] = ""
    # The time until the last step at the current step time, while the job runs.
    eta: Annotated[str, Text(16, clip=True)] = ""
    speed: Annotated[str, Text(128, clip=True)] = ""
    memory: Annotated[str, Text(128, clip=True)] = ""
    cost: Annotated[str, Text(128, clip=True)] = ""
    reason: Annotated[str, Text(256, clip=True)] = ""
