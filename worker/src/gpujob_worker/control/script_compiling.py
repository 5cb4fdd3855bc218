"""Handles code that the script compiles itself: its model, whose graph is left alone, or
functions.
"""

from gpujob_worker.control.inference import Inference
from gpujob_worker.control.module_watch import ModuleWatch
from gpujob_worker.control.own_work import OwnWork
from gpujob_worker.control.trained_model import TrainedModel


class ScriptCompiling:
    """Called when the script compiles something, and around each compilation."""

    def __init__(
        self,
        model: TrainedModel,
        module_watch: ModuleWatch,
        inference: Inference,
        own_work: OwnWork,
    ) -> None:
        self._model = model
        self._inference = inference
        self._module_watch = module_watch
        self._own_work = own_work

    def module(self) -> None:
        """Called when the script compiles a module that is trained."""
        if not self._own_work.under_way:
            self._model.facts.compiles = True
            self._module_watch.discovery.finish()

    def starts(self) -> None:
        """Called when a function that the script compiled, or a module that is not trained, is
        called.

        It may compute the model's call or a part of it. Before models are known, only later calls
        show that.
        """
        facts, roots = self._model.facts, self._model.roots
        compiles_ours = any(root.plan.compiles for root in roots)
        if self._own_work.under_way or facts.compiles or compiles_ours:
            return
        facts.compiles_functions = True
        self._inference.compiles()
        if any(root.inside for root in roots):
            self.module()
        elif self._module_watch.discovery.active:
            self._module_watch.discovery.pause()

    def ends(self) -> None:
        self._module_watch.discovery.resume()
