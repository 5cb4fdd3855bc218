"""What kept a job's pods from starting, and who was stopped for it, as its status remembers it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from gpujob_api.bounds import Count, Items, SmallCount, Subdomain, Text

START_REFUSALS_MAX = 32
BESIDE_MAX = 16


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """What kept the job's pods from starting on a node; without a node, wherever they are.

    The node is avoided `until` then. `count` is how often it happened since the job last ran.
    `beside`: the nodes on which other workers of the gang were taken. Then it is the combination
    that was refused, and not the node alone. `generation` is that of the spec that was refused.
    """

    reason: Annotated[str, Text(256, clip=True)]
    message: Annotated[str, Text(256, clip=True)]
    count: SmallCount
    until: datetime
    node: Subdomain | None = None
    beside: Annotated[tuple[Subdomain, ...], Items(BESIDE_MAX)] = ()
    generation: Count | None = None


@dataclass(frozen=True, slots=True)
class OthersStopped:
    """Other jobs were last stopped for this one `at` that time, after its attempt of this number,
    and it has not run since. `count` is how often that was in vain.
    """

    at: datetime
    attempt: SmallCount
    generation: Count
    count: SmallCount = 0
