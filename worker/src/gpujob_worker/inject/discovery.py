"""Finds the root modules: they are called from outside any module, with gradients, and have
trainable parameters.

Some are trained in evaluation mode, so that statistics stay as they are. `on_root` decides whether
an optimizer steps such a module. Modules without trainable parameters go to `on_frozen`, with or
without gradients.

A call that only leads to calls of other modules, such as a wrapper's around a training step, is
passed over. The modules inside count as called from outside.

In the first steps a class-wide `_compiled_call_impl` sees every call of every module. Then the root
gets its own replacement, and the class is restored.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpujob_worker.inject.answering import answers
from gpujob_worker.inject.frozen import is_frozen
from gpujob_worker.inject.functional import is_traced, transforms
from gpujob_worker.inject.wrapped_module import Root


class Discovery:
    """Watches calls until `finish`; calls `on_root` with each root before its first call runs."""

    def __init__(
        self,
        on_root: Callable[[torch.nn.Module], Root | None],
        known: Sequence[Root] = (),
        on_frozen: Callable[[torch.nn.Module], Root | None] = lambda _: None,
        passes: Callable[[torch.nn.Module], bool] = lambda _: False,
    ) -> None:
        self._on_root = on_root
        self._passes = passes
        self._on_frozen = on_frozen
        self._depth = 0
        self.active = False
        self._seen: set[int] = set()
        self._roots = list(known)

    def start(self) -> None:
        self.active = True
        self.resume()

    def resume(self) -> None:
        """Watches calls again after `pause`, unless finished meanwhile."""
        if not self.active:
            return
        discovery = self

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            return discovery.call(module, args, kwargs)

        torch.nn.Module._compiled_call_impl = call  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def finish(self) -> None:
        if self.active:
            self.active = False
            self.pause()

    def pause(self) -> None:
        """Stops watching calls while torch compiles, because it would trace the watch too."""
        torch.nn.Module._compiled_call_impl = None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def forget(self) -> None:
        self._roots.clear()

    def call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # The class-wide hook does not see calls of a root found earlier. Modules inside that root
        # are no roots.
        outermost = self._depth == 0 and not any(root.inside for root in self._roots)
        if outermost and self._passes(module):
            return module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        root = self._root(module) if outermost and not is_traced(args, kwargs) else None
        self._depth += 1
        try:
            # A root inside a wrapper is called by the wrapper.
            if root is not None and root.module is module:
                return root(*args, **kwargs)
            return module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        finally:
            self._depth -= 1

    def _root(self, module: torch.nn.Module) -> Root | None:
        if id(module) in self._seen or transforms():
            return None
        if is_frozen(module):
            self._meet_frozen(module)
            return None
        if not torch.is_grad_enabled():
            return None
        if torch._C._current_graph_task_id() != -1:  # pyright: ignore[reportPrivateUsage]
            return None  # a recomputation inside backward, ours or the script's own
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return None  # nothing to learn
        root = self._on_root(module)
        if root is not None:
            self._roots.append(root)
        if root is not None or module.training:
            self._seen.add(id(module))
        return root

    def _meet_frozen(self, module: torch.nn.Module) -> None:
        """Reports a frozen module. Its first call runs as written."""
        root = self._on_frozen(module)
        if root is not None:
            self._seen.add(id(module))
            self._roots.append(root)


# Where modules of `torch.ao.nn.quantized` keep weights that are no parameters.
_PACKED = ("_packed_params", "_all_weight_values")


def _has_weights(module: torch.nn.Module) -> bool:
    """Returns whether the module has weights. Those of a quantized one may all be packed."""
    if next(module.parameters(), None) is not None:
        return True
    return any(hasattr(each, name) for each in module.modules() for name in _PACKED)


class AnswerDiscovery(Discovery):
    """Watches the calls of a script without an optimizer: without gradients, or in evaluation mode.

    `on_root` may be called again for a module for which it returned None.
    """

    def _root(self, module: torch.nn.Module) -> Root | None:
        if transforms() or not answers(module) or not _has_weights(module):
            return None
        root = self._on_root(module)
        if root is not None:
            self._roots.append(root)
        return root
