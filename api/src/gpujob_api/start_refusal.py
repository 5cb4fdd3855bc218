"""What kept a job's pods from starting, as its status remembers it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from gpujob_api.bounds import SmallCount, Subdomain, Text

START_REFUSALS_MAX = 32


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """What kept the job's pods from starting on a node; without a node, wherever they are.

    The node is avoided `until` then. `count` is how often it happened since the job last ran.
    """

    reason: Annotated[str, Text(256, clip=True)]
    message: Annotated[str, Text(256, clip=True)]
    count: SmallCount
    until: datetime
    node: Subdomain | None = None
