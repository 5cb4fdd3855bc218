"""What a snapshot shows of one job, for the decision on its next step."""

from dataclasses import dataclass
from datetime import datetime

from gpujob_api.gpujob import StopReason
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.snapshot import CardUsage, PodView, ReceivedReport


@dataclass(frozen=True, slots=True)
class Seen:
    """`pods` are the job's workers, of all attempts (see `workers`)."""

    pods: tuple[PodView, ...] = ()
    # Pods of others that have the name of a worker of the current attempt.
    in_the_way: tuple[PodView, ...] = ()
    report: ReceivedReport | None = None
    usage: CardUsage | None = None
    profile: GPUProfile | None = None
    # Why the attempt must leave its cards, found by `trouble.find`, or None.
    trouble: StopReason | None = None
    # Those of the attempt's nodes that are there no more.
    lost_nodes: frozenset[str] = frozenset()
    listening_since: datetime | None = None
