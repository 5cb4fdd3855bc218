"""What the script compiles itself: its model, whose graph is left alone, or something beside it."""

from collections.abc import Callable

from gpujob_worker.control.applied_settings import AppliedSettings
from gpujob_worker.inject.discovery import Discovery


class ScriptCompiling:
    """Called when the script compiles something, and around each compilation."""

    def __init__(
        self,
        in_force: AppliedSettings,
        discovery: Callable[[], Discovery],
        is_ours: Callable[[], bool],
    ) -> None:
        self._in_force = in_force
        self._discovery = discovery
        # Work of ours is under way.
        self._is_ours = is_ours

    def module(self) -> None:
        """The script asks for a compiled module that is trained."""
        if not self._is_ours():
            self._in_force.facts.compiles = True
            self._discovery().finish()

    def starts(self) -> None:
        """A function that the script compiles, or a module that is not trained, is called: what it
        computes may be the model's call, or a part of it. Before models are known, only the calls
        that follow tell.
        """
        facts, roots = self._in_force.facts, self._in_force.roots
        compiles_ours = any(root.plan.compiles for root in roots)
        if self._is_ours() or facts.compiles or compiles_ours:
            return
        facts.compiles_functions = True
        if any(root.inside for root in roots):
            self.module()
        elif self._discovery().active:
            self._discovery().pause()

    def ends(self) -> None:
        self._discovery().resume()
