"""The GPUs nominated for a job that does not fit now, and when the job could start there (I11).

`earliest_start` finds for every GPU the time at which enough of its tenants are expected to have
ended. The nomination takes the GPUs that are ready first. All are of one model, and those of one
worker are on one node. A nomination holds for the rest of the cycle. Jobs that are expected to
finish before the nominated job starts may still run there (backfill).
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from math import inf

from gpujob_operator.decide.backfill.earliest_start import CandidateGpus, Candidates, candidates
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import Tenancy
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.packing.apart import DomainLimit, first_apart
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.node_filter import spread_limits
from gpujob_operator.decide.placement.requirements import JobRequirements

# The time until an agent has read its GPUs again and published the reading.
READING_SECONDS = 5.0
# How many pending jobs may have nominated GPUs.
NOMINATIONS_MAX = 8
# How many GPUs are read in a cycle to find candidates. At least `CANDIDATES_MIN` classes of jobs
# are searched.
CANDIDATE_GPUS_MAX, CANDIDATES_MIN = 64_000, 2


@dataclass(frozen=True, slots=True)
class Nomination:
    """The GPUs to keep, and the seconds until the job could start on them. Infinity: unknown.

    `being_preempted` has the jobs on them that are being stopped. The job certainly cannot start
    there for `closed_seconds`, even if its start is unknown. `is_estimated` means that the start
    depends on how long jobs are expected to run.
    """

    gpus: frozenset[Place]
    start_seconds: float
    being_preempted: tuple[str, ...] = ()
    closed_seconds: float = 0.0
    is_estimated: bool = False

    @property
    def not_before_seconds(self) -> float:
        return self.start_seconds if self.start_seconds < inf else self.closed_seconds


def earliest_start(
    requirements: JobRequirements,
    candidates: Iterable[Iterable[CandidateGpus]],
    releases: ReleaseTimes,
    nominated: frozenset[Place] = frozenset(),
    limits: Callable[[], list[DomainLimit[str]]] = list,
) -> Nomination | None:
    """Returns the nomination with the earliest start among the candidates of each model, or None.

    None means that the job would not fit even without other GPUJobs. GPUs in `nominated` belong to
    an earlier job. `limits` define how far apart its workers must be.
    """
    workers = requirements.job.spec.workers
    best: list[CandidateGpus] | None = None
    for of_model in candidates:
        free = (one for one in of_model if nominated.isdisjoint(one.places))
        chosen = sorted(first_apart(free, workers, limits(), lambda one: one.node))
        if len(chosen) == workers and (best is None or chosen[-1] < best[-1]):
            best = chosen
    if best is None:
        return None
    tenants = {tenant.job_uid for candidate in best for tenant in candidate.tenants}
    readings = [READING_SECONDS for candidate in best if candidate.awaiting_reading]
    starts = [candidate.soon.at - releases.now_seconds for candidate in best]
    start_seconds = max(starts[-1], *readings, 0.0)
    being_preempted = tuple(sorted(uid for uid in tenants if releases.stopping(uid)))
    known = max([one for one in starts if one < inf], default=0.0)
    return Nomination(
        gpus=frozenset(place for candidate in best for place in candidate.held),
        start_seconds=start_seconds,
        being_preempted=being_preempted,
        closed_seconds=max(known, 0.0) if start_seconds == inf else 0.0,
        is_estimated=len(being_preempted) < len(tenants),
    )


def describe_start(nomination: Nomination) -> str:
    """Returns the estimated start as text for the job's condition, or "" if it is unknown."""
    if nomination.start_seconds == inf:
        return ""
    return f"could start in about {max(nomination.start_seconds, 1.0):.0f} s"


@dataclass(slots=True)
class Nominations:
    """GPUs that are kept for waiting jobs in one cycle.

    The earliest start is computed for a bounded number of jobs and classes, because the search
    reads every GPU.
    """

    assumed: AssumedCapacity
    releases: ReleaseTimes
    tenancy_of: Callable[[Capacity], Tenancy]
    configuration: Configuration
    _made: int = 0
    _kept: int = 0
    _candidates: dict[Hashable, tuple[Candidates, ...]] = field(
        default_factory=dict[Hashable, tuple[Candidates, ...]]
    )
    _starts: dict[tuple[Hashable, int], Nomination | None] = field(
        default_factory=dict[tuple[Hashable, int], Nomination | None]
    )

    @property
    def are_exhausted(self) -> bool:
        """True if nothing more is nominated for jobs that have waited for a long time."""
        return max(self._made, self._kept) >= NOMINATIONS_MAX

    def next(self, requirements: JobRequirements) -> Nomination | None:
        """Returns the earliest start of one more job that stops no others, or None if a bound is
        reached.
        """
        if self.are_exhausted:
            return None
        self._made += 1
        return self.of(requirements)

    def of(self, requirements: JobRequirements) -> Nomination | None:
        """Returns the earliest start of the job. Its class is searched at most once a cycle."""
        signature = requirements.scheduling_signature
        if signature not in self._candidates:
            capacity = self.assumed.capacity
            if len(self._candidates) >= capacity.size.scans(CANDIDATE_GPUS_MAX, CANDIDATES_MIN):
                return None
            self._candidates[signature] = candidates(
                requirements,
                self.tenancy_of(capacity),
                capacity,
                self.assumed.memo,
                self.configuration,
            )
        # Nominated GPUs only become more during a cycle, so their number identifies them.
        key = signature, len(self.assumed.nominated)
        if key not in self._starts:
            self._starts[key] = earliest_start(
                requirements,
                self._candidates[signature],
                self.releases,
                self.assumed.nominated,
                lambda: spread_limits(requirements, self.assumed.capacity),
            )
        return self._starts[key]

    def keep(self, nomination: Nomination) -> None:
        """Holds the GPUs for a job that has waited for a long time, within the bound."""
        if self._kept < NOMINATIONS_MAX:
            self._kept += 1
            self.hold(nomination)

    def hold(self, nomination: Nomination) -> None:
        """Keeps the GPUs from jobs that would not end in time."""
        self.assumed.nominate(nomination.gpus, nomination.not_before_seconds)
