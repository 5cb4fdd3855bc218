"""What keeps an admission pass short, whatever is pending.

`CycleBudget` has the bounds of what one pass may still do. `RefusedClasses` has the refusals that
hold for every job of an equivalence class, which keep thousands of pending jobs cheap.
"""

from dataclasses import dataclass, field

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.lanes import Lanes
from gpujob_operator.decide.model.pending_reasons import PendingReason

# A cycle that placed ten thousand jobs would block everything else for seconds, including the
# Lease, and many of its jobs could not be written before the next cycle. The rest follows in the
# next cycle without delay.
PLACEMENTS_MAX = 512
# How many jobs get a new reason why they wait, if nothing else depends on it.
EXPLAINED_MAX = 512
# How many jobs that cannot be written now keep the capacity that they would get. They come in
# order, so jobs with victims and the longest waiting jobs come first.
UNWRITTEN_MAX = 8

# What a refusal depends on.
State = tuple[int, ...]


@dataclass(slots=True)
class CycleBudget:
    """The bounds of one cycle. `lanes` is what can be written.

    Jobs in `backing_off` count towards no bound, because nothing of them is written now.
    """

    lanes: Lanes
    backing_off: frozenset[str]
    _placements_left: int = field(init=False)
    _explanations_left: int = field(init=False)
    _unwritten_left: int = field(init=False)
    # Lanes left by namespace, for namespaces with writes in flight.
    _lanes_left: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        tells_left = self.lanes.tells_left
        self._placements_left = PLACEMENTS_MAX
        self._explanations_left = min(
            EXPLAINED_MAX, EXPLAINED_MAX if tells_left is None else tells_left
        )
        self._unwritten_left = UNWRITTEN_MAX
        self._lanes_left = {one.namespace: one.lanes for one in self.lanes.left}

    @property
    def may_place(self) -> bool:
        return self._placements_left > 0

    @property
    def may_explain(self) -> bool:
        return self._explanations_left > 0

    def may_decide(self, job: GPUJob) -> bool:
        """Returns False for a job of which nothing could be written, beyond the first few. Counts
        the job.
        """
        if self._lanes_left.get(job.metadata.namespace, 1) > 0:
            return True
        self._unwritten_left -= 1
        return self._unwritten_left >= 0

    def count_placed(self, job: GPUJob) -> None:
        if self._is_written(job):
            self._placements_left -= 1
            if job.metadata.namespace in self._lanes_left:
                self._lanes_left[job.metadata.namespace] -= 1

    def count_explained(self, job: GPUJob) -> None:
        if self._is_written(job):
            self._explanations_left -= 1

    def _is_written(self, job: GPUJob) -> bool:
        lanes = self._lanes_left.get(job.metadata.namespace, 1)
        return lanes > 0 and job.metadata.uid not in self.backing_off


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the jobs of a class wait.

    The refusal holds for `state`: until a job is placed, GPUs are nominated or a job is preempted.
    """

    reason: PendingReason
    state: State
    # Also refuses short jobs, which may backfill nominated GPUs.
    by_backfill: bool


@dataclass(slots=True)
class RefusedClasses:
    """The refusals that hold now, by equivalence class."""

    _refused: dict[int, Refused] = field(default_factory=dict[int, Refused])
    _state: State = ()

    def get(self, equivalence_class: int) -> Refused | None:
        return self._refused.get(equivalence_class)

    def remember(self, equivalence_class: int, refused: Refused) -> None:
        self._refused[equivalence_class] = refused

    def forget_others(self, state: State) -> None:
        """Forgets the refusals of other states.

        A state never comes back, because free capacity only decreases during a pass.
        """
        if state != self._state:
            self._refused = {key: one for key, one in self._refused.items() if one.state == state}
            self._state = state
