"""Refusals that hold for every job of an equivalence class.

They keep thousands of pending jobs cheap.
"""

from dataclasses import dataclass, field

from gpujob_operator.decide.model.pending_reasons import PendingReason

State = tuple[int, ...]


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
