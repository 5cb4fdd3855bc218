"""Decides which optimizer's steps count as the steps of the training, if a script has several."""

import weakref
from typing import Generic, TypeVar

# Steps by another optimizer after which the first one is considered finished.
STEPS_OF_ANOTHER = 100

Stepper = TypeVar("Stepper")


class StepClock(Generic[Stepper]):
    """Counts the steps of the first optimizer that steps, as long as the script keeps and steps it.

    If a script trains one model after another (folds, phases, a search for a learning rate), the
    next optimizer takes over. If two alternate, as in adversarial training, the first one stays.
    The modules of a script that only answers count in the same way.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[Stepper] | None = None
        self.fresh = False  # the step that just ended was the first after another's
        self._others: weakref.WeakKeyDictionary[Stepper, int] = weakref.WeakKeyDictionary()

    @property
    def optimizer(self) -> Stepper | None:
        return self._of() if self._of is not None else None

    def ticks(self, optimizer: Stepper) -> bool:
        """Returns whether this step of `optimizer` counts as a step of the training."""
        of = self.optimizer
        if of is not None and of is not optimizer:
            steps = self._others[optimizer] = self._others.get(optimizer, 0) + 1
            if steps < STEPS_OF_ANOTHER:
                return False
        self.fresh = of is not optimizer
        if self.fresh:
            self._of = weakref.ref(optimizer)
        self._others.clear()
        return True
