"""Modules that train beside the first one (a critic, a discriminator) under a memory limit.

Each has a memory model of its own and is split or recomputed by it, like the first module
(`startup`). Memory of other modules during its call counts as resident. No other settings are
chosen for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.tuner import Tuner

NAMED_MAX = 4


@dataclass(slots=True)
class SecondaryModule:
    """One such module, its settings, and the log of its decisions."""

    root: Root
    tuner: Tuner
    # None where nothing may be measured.
    fit: MemoryFit | None
    explanation: DecisionLog
    # The memory of its first step is known.
    refined: bool = False

    def put(self) -> None:
        """Applies the choice from the next call on."""
        if not self.tuner.recommends:
            apply_settings(self.root, None, self.tuner.applied)

    def correct(self, observed_bytes: int) -> bool:
        """Like `MemoryFit.correct`, on the call that was recorded last."""
        recorded, self.root.recorded = self.root.recorded, None
        if self.fit is None or recorded is None:
            return False
        settled = self.fit.correct(self.root, recorded, observed_bytes, ends=False)
        self.put()
        return settled


def name_beside(root: Root, before: list[Root]) -> str:
    """The module's kind, with a number if the kind occurred before."""
    name = type(root.module).__name__
    same = sum(type(other.module).__name__ == name for other in before if other is not root)
    return f"{name} {same + 1}" if same else name


def names_of(roots: Sequence[Root]) -> str:
    """The classes of the modules, for people."""
    names = [type(root.module).__name__ for root in roots]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
