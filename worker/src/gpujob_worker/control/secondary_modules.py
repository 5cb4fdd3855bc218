"""Modules that train beside the first one (a critic, a discriminator) under a memory limit.

Each has a model of its own memory and is split or computed again by it, as the first one is
(`startup`). What others hold while it is called is in what is resident then. Nothing else is
chosen for them.
"""

from dataclasses import dataclass

from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.tune.registry import put_in_force
from gpujob_worker.tune.tuner import Tuner


@dataclass(slots=True)
class SecondaryModule:
    """One such module, what was chosen for it, and where that is said."""

    root: Root
    tuner: Tuner
    # None where nothing may be measured.
    fit: MemoryFit | None
    explanation: DecisionLog
    # What its first step took is known.
    refined: bool = False

    def put(self) -> None:
        """What was chosen is in force from its next call on."""
        if not self.tuner.recommends:
            put_in_force(self.root, None, self.tuner.applied)

    def correct(self, observed_bytes: int) -> bool:
        """As `MemoryFit.correct`, on the call that was recorded last."""
        recorded, self.root.recorded = self.root.recorded, None
        if self.fit is None or recorded is None:
            return False
        settled = self.fit.correct(self.root, recorded, observed_bytes, ends=False)
        self.put()
        return settled


def name_beside(root: Root, before: list[Root]) -> str:
    """Its kind; with a number where the kind was there before."""
    name = type(root.module).__name__
    same = sum(type(other.module).__name__ == name for other in before if other is not root)
    return f"{name} {same + 1}" if same else name
