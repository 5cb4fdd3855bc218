"""A module without trained parameters that a script calls next to the trained ones: a teacher, the
encoder of a diffusion model, a feature extractor.
"""

from collections.abc import Callable
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.functional import is_traced, transforms
from gpujob_worker.inject.wrapped_module import Root, RootPlan

_PLAIN = RootPlan()


class FrozenRoot(Root):
    """Replaces the module's call while none of its parameters is trained."""

    def __init__(self, module: torch.nn.Module, nested: Callable[[], bool]) -> None:
        """`nested` returns whether a trained module's call is running, whose plan then applies."""
        super().__init__(module, lambda _: None, asks=False)
        self._nested = nested
        # A recorded call had gradients to pass on.
        self.passes_gradients = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.inside or self._nested() or transforms() or is_traced(args, kwargs):
            return self.module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        self.inside = True
        try:
            if not self._acts:
                return self.module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
            inputs = CallInputs.of(args, kwargs)
            if self.recording or self.asks:
                self._keep(inputs)
            return self._run_or_fall_back(inputs, self._plan_for(inputs))
        finally:
            self.inside = False

    @property
    def _acts(self) -> bool:
        if not self.recording and self._plan == _PLAIN:
            return False
        return is_frozen(self.module)  # a script may begin to train it

    def _plan_for(self, inputs: CallInputs) -> RootPlan:
        """Returns the plan of the call. Calls that pass on gradients or run under the script's
        autocast stay plain, because neither was tried.
        """
        plain = torch.is_autocast_enabled(self.device.type)
        return _PLAIN if plain else self.plan_without_gradients(inputs)

    def plan_without_gradients(self, inputs: CallInputs) -> RootPlan:
        """Returns the chosen plan, or the plain one for a call that passes on gradients."""
        return _PLAIN if _passes_gradients(inputs) else self._plan

    def _keep(self, inputs: CallInputs) -> None:
        self.rows = inputs.rows
        self.user_autocast = torch.is_autocast_enabled(self.device.type)
        self.passes_gradients = self.passes_gradients or _passes_gradients(inputs)
        if self._is_largest(inputs):
            self._record(inputs)


def is_frozen(module: torch.nn.Module) -> bool:
    """Returns whether the module has parameters and none of them is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _passes_gradients(inputs: CallInputs) -> bool:
    learning = (leaf.requires_grad for leaf in inputs.leaves if isinstance(leaf, torch.Tensor))
    return torch.is_grad_enabled() and any(learning)
