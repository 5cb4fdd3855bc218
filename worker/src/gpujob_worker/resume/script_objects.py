"""Models, optimizers, schedulers and loss scalers of a script, in the order they were made."""

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.sharded import (
    joined_module,
    joined_optimizer,
    shape_of,
    sharding_refusal,
    with_own_parts,
)


class ScriptObjects:
    """What the script made and still has; held weakly."""

    def __init__(self) -> None:
        # By identity, in the order they were made: scripts make and drop many.
        self._made: dict[int, weakref.ref[Any]] = {}

    def install(self) -> None:
        schedulers = torch.optim.lr_scheduler.LRScheduler
        for kind in (torch.nn.Module, torch.optim.Optimizer, schedulers, torch.amp.GradScaler):
            _after(kind, "__init__", self._add)
        # A copy is not made by `__init__`: an average of the weights, a model of an earlier step.
        _after(torch.nn.Module, "__setstate__", self._add)

    def _add(self, made: Any) -> None:
        known = self._made.get(id(made))
        if known is None or known() is not made:
            self._made.pop(id(made), None)
            self._made[id(made)] = weakref.ref(made, functools.partial(self._gone, id(made)))

    def _gone(self, identity: int, reference: Any) -> None:
        # Another object may have the place of one that is gone.
        if self._made.get(identity) is reference:
            del self._made[identity]

    def all(self) -> list[Any]:
        """Modules that are in no other one, if they have a state, and all others."""
        references = list(self._made.values())
        made = [found for found in (one() for one in references) if found is not None]
        modules = [found for found in made if isinstance(found, torch.nn.Module)]
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        return [
            found
            for found in made
            if not isinstance(found, torch.nn.Module)
            or (id(found) not in inner and len(found.state_dict()))
        ]

    def spread(self) -> str | None:
        """Why the part that this process has of them cannot be saved; None where it can."""
        for found in self.all():
            if isinstance(found, torch.nn.Module):
                refusal = sharding_refusal(found)
                if refusal is not None:
                    return f"{_kind(found)}: {refusal}"
        return None

    def states(self) -> list[dict[str, Any]]:
        """Of tensors that are spread over processes, the part that this process has."""
        return [
            {"kind": _kind(found), "state": with_own_parts(found.state_dict())}
            for found in self.all()
        ]

    def mismatch(self, saved: list[dict[str, Any]]) -> str | None:
        """How the objects differ from those that were saved; None where they are alike."""
        found = self.all()
        kinds, wanted = [_kind(each) for each in found], [each["kind"] for each in saved]
        if kinds != wanted:
            return f"the script has {', '.join(kinds)}, saved were {', '.join(wanted)}"
        for each, state in zip(found, saved, strict=True):
            if isinstance(each, torch.nn.Module) and _shapes(each.state_dict()) != _shapes(
                state["state"]
            ):
                return f"{_kind(each)} has other parameters than were saved"
        return None

    def restore(self, saved: list[dict[str, Any]]) -> None:
        """Raises `MismatchError`; then some may be restored and others not."""
        mismatch = self.mismatch(saved)
        if mismatch is not None:
            raise MismatchError(mismatch)
        for found, state in zip(self.all(), saved, strict=True):
            try:
                # An optimizer takes the tensors that it is given, and steps change them.
                found.load_state_dict(_joined(copy.deepcopy(state["state"]), found))
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise MismatchError(f"{_kind(found)}: {error}") from None


def _kind(found: Any) -> str:
    return type(found).__name__


def _joined(saved: dict[str, Any], found: Any) -> dict[str, Any]:
    if isinstance(found, torch.nn.Module):
        return joined_module(saved, found)
    if isinstance(found, torch.optim.Optimizer):
        return joined_optimizer(saved, found)
    return saved


def _shapes(state: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, shape_of(value)) for name, value in state.items()]


def _after(kind: Any, method: str, call: Callable[[Any], None]) -> None:
    plain = getattr(kind, method)

    @functools.wraps(plain)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call(self)
        return plain(self, *arguments, **keywords)

    setattr(kind, method, wrapped)
