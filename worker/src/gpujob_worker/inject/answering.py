"""A module of a script that only answers: it is called without gradients, or in evaluation mode."""

from collections.abc import Callable
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import CallInputs, map_tensors
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.functional import is_traced, transforms
from gpujob_worker.inject.surroundings import GradMode
from gpujob_worker.inject.wrapped_module import Root, RootPlan

_PLAIN = RootPlan()


class AnsweringRoot(FrozenRoot):
    """Replaces the module's call, and reports each one."""

    def __init__(
        self,
        module: torch.nn.Module,
        nested: Callable[[], bool],
        before: Callable[["AnsweringRoot"], None],
        after: Callable[["AnsweringRoot", int | None, Any], None],
        before_call: Callable[[Root], None] = lambda _: None,
    ) -> None:
        """`nested` returns whether another root's call is running. `after` is called with the
        number of samples and the output. `before_call` is called once with the recorded call, if
        it is asked for.
        """
        super().__init__(module, nested)
        self._before, self._after, self._before_call = before, after, before_call
        self.answered = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outermost = not (self.inside or self._nested())
        if not outermost or not answers(self.module) or transforms() or is_traced(args, kwargs):
            return self.module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        if self.shapes.watches:
            self.shapes.saw(CallInputs.of(args, kwargs))
        self._before(self)
        output = super().__call__(*args, **kwargs)
        self.answered += 1
        self._after(self, _samples(args, kwargs), output)
        return output

    @property
    def _acts(self) -> bool:
        return self.recording or self.asks or self._plan != _PLAIN

    def _plan_for(self, inputs: CallInputs) -> RootPlan:
        """Returns the plan of the call. Calls under another autocast than the recorded one, and
        calls that pass on gradients, stay plain, because neither was tried.
        """
        other = torch.is_autocast_enabled(self.device.type) != self.user_autocast
        return _PLAIN if other else self.plan_without_gradients(inputs)

    def _keep(self, inputs: CallInputs) -> None:
        super()._keep(inputs)
        if self.asks:
            self.asks = False
            self._before_call(self)
            self.recorded = self.recorded if self.recording else None

    def _record(self, inputs: CallInputs) -> None:
        """Records copies, because a script may fill the same tensors again before they are
        used, and tensors of inference mode cannot be used outside it.
        """
        mode = GradMode.now()
        with torch.inference_mode(False), torch.no_grad():
            leaves = tuple(map_tensors(torch.clone, leaf) for leaf in inputs.leaves)
        super()._record(inputs.with_leaves(leaves))
        assert self.recorded is not None
        self.recorded.grad_mode = mode


def _samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Returns the first dimension of the first tensor, without flattening the usual call."""
    first = args[0] if args else None
    if isinstance(first, torch.Tensor) and first.dim() > 0:
        return int(first.size(0))
    return CallInputs.of(args, kwargs).rows


def answers(module: torch.nn.Module) -> bool:
    """Returns whether a call of the module now is an evaluation: no backward pass can follow, or
    the module is in evaluation mode.
    """
    return not (torch.is_grad_enabled() and module.training)
