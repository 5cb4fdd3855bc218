"""GPUs that are kept for waiting jobs.

The earliest start is computed for a bounded number of jobs and classes, because the search reads
every GPU.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from gpujob_operator.decide.backfill.earliest_start import Candidates, candidates
from gpujob_operator.decide.backfill.nomination import Nomination, earliest_start
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import Tenancy
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.node_filter import spread_limits
from gpujob_operator.decide.placement.requirements import JobRequirements

# How many pending jobs may have nominated GPUs.
NOMINATIONS_MAX = 8
# How many classes of jobs are searched in a cycle.
CANDIDATES_MAX = 2


@dataclass(slots=True)
class Nominations:
    assumed: AssumedCapacity
    releases: ReleaseTimes
    tenancy_of: Callable[[Capacity], Tenancy]
    configuration: Configuration
    _made: int = 0
    _candidates: dict[Hashable, tuple[Candidates, ...]] = field(
        default_factory=dict[Hashable, tuple[Candidates, ...]]
    )

    @property
    def are_exhausted(self) -> bool:
        return self._made >= NOMINATIONS_MAX

    def next(self, requirements: JobRequirements) -> Nomination | None:
        """Returns the earliest start of one more job, or None if a bound is reached."""
        if self.are_exhausted:
            return None
        self._made += 1
        return self.of(requirements)

    def of(self, requirements: JobRequirements) -> Nomination | None:
        """Returns the earliest start of the job. Its class is searched at most once a cycle."""
        signature = requirements.scheduling_signature
        if signature not in self._candidates:
            if len(self._candidates) >= CANDIDATES_MAX:
                return None
            capacity = self.assumed.capacity
            self._candidates[signature] = candidates(
                requirements,
                self.tenancy_of(capacity),
                capacity,
                self.assumed.memo,
                self.configuration,
            )
        return earliest_start(
            requirements,
            self._candidates[signature],
            self.releases,
            self.assumed.nominated,
            lambda: spread_limits(requirements, self.assumed.capacity),
        )

    def hold(self, nomination: Nomination) -> None:
        """Keeps the GPUs from jobs that would not end in time."""
        self.assumed.nominate(nomination.gpus, nomination.not_before_seconds)
