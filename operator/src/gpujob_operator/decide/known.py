"""What is remembered of one job from cycle to cycle, and what its step was decided from."""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.capacity import Capacity, Card, marks
from gpujob_operator.decide.changes import Roll
from gpujob_operator.decide.fragmentation import Demand
from gpujob_operator.decide.lifecycle import Step
from gpujob_operator.decide.needs import Needs
from gpujob_operator.decide.snapshot import CardUsage, PodView, ReceivedReport
from gpujob_operator.decide.workers import Crew
from gpujob_operator.decide.workload import HostRequests

ProfileKey = tuple[str, str]
# Of each worker's node, what matters to the job: its marks, None if it is gone, and its cards.
Around = tuple[tuple[tuple[object, ...] | None, tuple[Card, ...]], ...]
_Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a job's step was decided from, besides the job, its pods and its profile."""

    report: ReceivedReport | None
    usage: CardUsage | None
    around: Around


@dataclass(slots=True)
class Known:
    """One job, with what follows from it alone; the rest is set as it is found out."""

    job: GPUJob
    requests: HostRequests
    profile_key: ProfileKey
    held: bool
    # Those that the job names, and those where its cards are.
    nodes: frozenset[str]
    crew: Crew = field(default_factory=Crew)
    profile: GPUProfile | None = None
    needs: Needs | None = None
    demand: Demand | None = None
    # The last decision, which was to write nothing, and until when nothing else can follow.
    inputs: Inputs | None = None
    step: Step | None = None
    quiet_until: datetime | None = None

    @property
    def pods(self) -> tuple[PodView, ...]:
        return self.crew.pods

    @property
    def waits(self) -> bool:
        """True for a job that admission looks at."""
        job = self.job
        return not self.held and job.metadata.deletion_timestamp is None and not job.finished


@dataclass(slots=True)
class Rolls:
    """The objects of the last snapshot."""

    jobs: Roll[GPUJob] = field(default_factory=lambda: Roll[GPUJob]())
    profiles: Roll[GPUProfile] = field(default_factory=lambda: Roll[GPUProfile]())
    reports: Roll[ReceivedReport] = field(default_factory=lambda: Roll[ReceivedReport]())


def spec_version(job: GPUJob) -> _Version:
    """A spec changes with its generation; without one (0) nothing is known to be the same."""
    generation = job.metadata.generation
    return (generation, 0) if generation else (0, id(job))


def around(job: GPUJob, capacity: Capacity) -> Around:
    """What a running job sees of its nodes; what else changes there is nothing to it."""
    found: list[tuple[tuple[object, ...] | None, tuple[Card, ...]]] = []
    placement = job.status.placement
    for worker in placement.workers if placement is not None else ():
        node = capacity.nodes.get(worker.node)
        if node is None:
            found.append((None, ()))
            continue
        cards = tuple([card for card in node.cards if card.uuid in worker.gpus])
        found.append((marks(node), cards))
    return tuple(found)
