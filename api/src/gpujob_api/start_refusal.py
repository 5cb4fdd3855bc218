"""What kept a job's pods from starting, and which jobs were stopped for it, as recorded in its
status.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from gpujob_api.bounds import Count, Items, SmallCount, Subdomain, Text

# A job whose pods are refused on more nodes than this never tries all of them, because a node that
# is forgotten is tried again before the others.
START_REFUSALS_MAX = 128
BESIDE_MAX = 16


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """What kept the job's pods from starting on a node, or on any node if `node` is None.

    The node is avoided `until` then. `count` is how often it happened since the job last ran.
    `beside` are the nodes on which other workers of the gang were accepted. The combination was
    refused then, and not the node alone. `generation` is that of the refused spec.
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
    """Other jobs were last stopped for this one at the time `at`, after its attempt of this number.

    It has not run since. `count` is how often that was in vain.
    """

    at: datetime
    attempt: SmallCount
    generation: Count
    count: SmallCount = 0
