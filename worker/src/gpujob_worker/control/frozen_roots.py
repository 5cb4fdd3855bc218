"""The modules of which nothing learns: met in the first steps, lowered by tuning, rolled back."""

from collections.abc import Callable

import torch

from gpujob_worker.control.secondary_modules import name_beside
from gpujob_worker.inject.compiled_parts import has_compiled_part
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import Session

# More of them run as written.
FROZEN_MAX = 8
_PRECISION = "precision"


class FrozenRoots:
    """Those of one process."""

    def __init__(self, session: Session, nested: Callable[[], bool]) -> None:
        """`nested`: whether a call of a trained module is under way."""
        self._session = session
        self._nested = nested
        self._logs: list[DecisionLog] = []
        self.roots: list[FrozenRoot] = []

    @property
    def lowered(self) -> bool:
        """Whether one runs in another type than written."""
        return any(root.plan != RootPlan() for root in self.roots)

    @property
    def explained(self) -> list[tuple[FrozenRoot, DecisionLog]]:
        """Each with the log of its decisions."""
        return list(zip(self.roots, self._logs, strict=True))

    def met(self, module: torch.nn.Module) -> FrozenRoot | None:
        """One is called; None where it runs as written."""
        if len(self.roots) >= FROZEN_MAX or has_compiled_part(module):
            return None
        root = FrozenRoot(module, self._nested)
        said = self._session.explanation.about(f"frozen {name_beside(root, [*self.roots])}")

        def failed(error: Exception) -> None:
            root.plan = RootPlan()
            kind = type(error).__name__
            said.skipped(_PRECISION, f"rolled back: a call failed with it, {kind}")

        root.failed = failed
        root.install()
        root.let_go()
        self.roots.append(root)
        self._logs.append(said)
        return root

    def record(self) -> None:
        """Their calls are kept from now on."""
        for root in self.roots:
            root.recording = True

    def roll_back(self, why: str) -> None:
        """They run as written again."""
        for root, said in self.explained:
            if root.plan != RootPlan():
                root.plan = RootPlan()
                said.skipped(_PRECISION, f"rolled back{why}")

    def release(self) -> None:
        """Drops all references to the script's objects."""
        for root in self.roots:
            root.remove()
            root.recorded = None
        self.roots.clear()
        self._logs.clear()
