"""Models, optimizers, schedulers, loss scalers and loaders of a script, in the order of their
creation.
"""

import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.made_at import MadeAt, made_at, turn_mark
from gpujob_worker.resume.random_numbers import random_state, restore_random
from gpujob_worker.resume.script_place import At, current_frame
from gpujob_worker.resume.sharded import (
    is_spread_possible,
    joined_module,
    joined_optimizer,
    shape_of,
    sharding_refusal,
    with_own_parts,
)


class ScriptObjects:
    """The objects that the script made and still has, held weakly."""

    def __init__(self) -> None:
        # By identity, in the order of their creation. Scripts make and drop many.
        self._made: dict[int, tuple[weakref.ref[Any], MadeAt]] = {}
        self._on_made: Callable[[], None] = lambda: None
        self.random = TurnRandom()

    def install(self, on_made: Callable[[], None]) -> None:
        """Watches creations. `on_made` is called before an object is made."""
        self._on_made = on_made
        schedulers = torch.optim.lr_scheduler.LRScheduler
        for kind in (torch.nn.Module, torch.optim.Optimizer, schedulers, torch.amp.GradScaler):
            _after(kind, "__init__", self._add)
        _after(DataLoader, "__init__", self._add)
        # A copy is not made by `__init__`, such as an average of the weights, or a model of an
        # earlier step.
        _after(torch.nn.Module, "__setstate__", self._add)

    def _add(self, made: Any) -> None:
        self._on_made()
        known = self._made.get(id(made))
        if known is None or known[0]() is not made:
            self._made.pop(id(made), None)
            reference = weakref.ref(made, functools.partial(self._gone, id(made)))
            at = made_at(current_frame(2))
            self._made[id(made)] = reference, at
            self.random.sees(at)

    def adopt(self, made: Any) -> None:
        """Adopts an object that was restored and that no resume makes where the script did."""
        reference = weakref.ref(made, functools.partial(self._gone, id(made)))
        self._made[id(made)] = reference, MadeAt("put back", (), made_elsewhere=True)

    def _gone(self, identity: int, reference: Any) -> None:
        # Another object may have the identity of one that is gone.
        known = self._made.get(identity)
        if known is not None and known[0] is reference:
            del self._made[identity]

    def made_again(self, functions: Sequence[At]) -> tuple[list[Any], list[Any]]:
        """Returns the objects that a resume at this place makes again, and those that it
        does not.
        """
        made, lost = [], []
        for found in self.all():
            (lost if self._made[id(found)][1].is_lost(functions) else made).append(found)
        loaders = [found for found in self._alive() if isinstance(found, DataLoader)]
        lost += [found for found in loaders if self._made[id(found)][1].is_lost(functions)]
        return made, lost

    def all(self) -> list[Any]:
        """Returns the objects with their own state: modules that are in no other one, and
        everything except loaders.
        """
        made = [found for found in self._alive() if not isinstance(found, DataLoader)]
        modules = [found for found in made if isinstance(found, torch.nn.Module)]
        inner: set[int] = set()
        for module in modules:
            if id(module) not in inner:  # its parts belong to another one
                inner.update(id(part) for part in module.modules() if part is not module)
        return [
            found
            for found in made
            if not isinstance(found, torch.nn.Module)
            or (id(found) not in inner and _has_memory(found))
        ]

    def _alive(self) -> list[Any]:
        references = [reference for reference, _ in list(self._made.values())]
        return [found for found in (one() for one in references) if found is not None]

    def spread(self) -> str | None:
        """Returns why this process's part of them cannot be saved, or None."""
        for found in self.all():
            if isinstance(found, torch.nn.Module):
                refusal = sharding_refusal(found)
                if refusal is not None:
                    return f"{_kind(found)}: {refusal}"
        return None

    def refusal(self) -> str | None:
        """Returns why one of them cannot be saved by its own state, with its library's name, or
        None.
        """
        for found in self.all():
            for kind in type(found).__mro__:
                why = _STATES_OF_THEIR_OWN.get(
                    f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
                )
                why = why or _STATES_OF_THEIR_OWN.get(kind.__module__.partition(".")[0])
                if why is not None:
                    return f"{kind.__module__}.{kind.__name__}: {why}"
        return None

    def states(self, made: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns the objects' states. For tensors that are spread over processes, it is this
        process's part.

        Raises `UnsavableError` if an object of the script does not return its state.
        """
        return [
            {"kind": _kind(found), "at": self._made[id(found)][1].key, "state": _state_of(found)}
            for found in made
        ]

    def _found(self, saved: list[dict[str, Any]]) -> list[Any]:
        """Returns the saved objects, each found by where the script made it.

        Raises `MismatchError`.
        """
        left = self.all()
        found: list[Any] = []
        for state in saved:
            key = state["kind"], state["at"]
            each = next(
                (one for one in left if key == (_kind(one), self._made[id(one)][1].key)), None
            )
            if each is None:
                kinds = ", ".join(map(_kind, self.all()))
                wanted = ", ".join(str(one["kind"]) for one in saved)
                raise MismatchError(f"the script has {kinds}, saved were {wanted}")
            left = [one for one in left if one is not each]
            found.append(each)
        return found

    def restore(self, saved: list[dict[str, Any]]) -> list[Any]:
        """Restores the objects, and returns them in the order in which they were saved.

        Raises `MismatchError`; then some may be restored and others not.
        """
        made = self._found(saved)
        for found, state in zip(made, saved, strict=True):
            of_module = isinstance(found, torch.nn.Module)
            if of_module and _shapes(found.state_dict()) != _shapes(state["state"]):
                raise MismatchError(f"{_kind(found)} has other parameters than were saved")
        groups = [_Groups(each) for each in made if isinstance(each, torch.optim.Optimizer)]
        for found, state in zip(made, saved, strict=True):
            try:
                # An optimizer takes the tensors that it is given, and steps change them.
                found.load_state_dict(_joined(copy.deepcopy(state["state"]), found))
            except Exception as error:  # a class of the script may raise anything
                raise MismatchError(f"{_kind(found)}: {error}"[:500]) from None
        for each in groups:
            each.keep()
        return made


class _Groups:
    """The groups and the state of an optimizer, into which a loaded state is put.

    Another optimizer may share them, and must then see the changes of a schedule.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups, self._state = optimizer.param_groups, optimizer.state
        self._each = list(self._groups)

    def keep(self) -> None:
        made = self._optimizer
        for group, taken in zip(self._each, list(made.param_groups), strict=True):
            if taken is not group:
                group.clear()
                group.update(taken)
        self._groups[:] = self._each
        if made.state is not self._state:
            taken = dict(made.state)
            self._state.clear()
            self._state.update(taken)
        made.param_groups, made.state = self._groups, self._state


# Libraries whose objects have more state than they return, or return it only to all processes
# together.
_STATES_OF_THEIR_OWN = {
    "deepspeed": "DeepSpeed keeps float32 weights that its engine alone can save",
    "apex": "Apex keeps float32 weights of its own",
    "colossalai": "Colossal-AI keeps states that its booster alone can save",
    "torch.FullyShardedDataParallel": "FSDP1 tells its state only to all processes together; FSDP2"
    " (fully_shard) can be saved",
    "torch.ZeroRedundancyOptimizer": "its state is spread over processes, which would have to"
    " collect it together",
}


def _has_memory(module: torch.nn.Module) -> bool:
    """Returns whether it has a state. A skeleton for `functional_call` has none."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    if any(tensor.device.type != "meta" for tensor in tensors):
        return True
    values = module.state_dict().values()
    return any(getattr(value, "device", None) != torch.device("meta") for value in values)


def _state_of(found: Any) -> Any:
    try:
        state = found.state_dict()
        return with_own_parts(state) if is_spread_possible() else state
    except Exception as error:  # a class of the script may raise anything
        text = f"the state of {_kind(found)} cannot be read: {type(error).__name__}: {error}"
        raise UnsavableError(text[:500]) from None


def _kind(found: Any) -> str:
    return type(found).__name__


def _joined(saved: dict[str, Any], found: Any) -> dict[str, Any]:
    if isinstance(found, torch.nn.Module):
        return joined_module(saved, found)
    if isinstance(found, torch.optim.Optimizer):
        return joined_optimizer(saved, found)
    return saved


def _shapes(state: dict[str, Any]) -> list[tuple[str, Any, str]]:
    found = [(name, shape_of(value), value) for name, value in state.items()]
    return [
        (name, shape, str(value.dtype) if isinstance(shape, torch.Size) else "")
        for name, shape, value in found
    ]


def _after(kind: Any, method: str, call: Callable[[Any], None]) -> None:
    plain = getattr(kind, method)

    @functools.wraps(plain)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call(self)
        return plain(self, *arguments, **keywords)

    setattr(kind, method, wrapped)


TURNS_MAX = 64
_Key = tuple[int, int]


class TurnRandom:
    """`sees` is called before each object is made. `expect` sets the states to restore."""

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[Any, str, dict[str, Any]]] = {}
        self._expected: list[dict[str, Any]] = []
        # In the loop of the steps themselves nothing is run again.
        self.innermost: _Key | None = None

    def sees(self, made: MadeAt) -> None:
        expected = [each for each in self._expected if each["at"] == made.key]
        if expected:
            self._expected = [each for each in self._expected if each["at"] != made.key]
            restore_random(expected[-1]["random"])
        state: dict[str, Any] | None = None
        for frame, line, turn in made.turns:
            key = frame, line
            known = self._known.get(key)
            if turn is None or key == self.innermost or (known is not None and known[0] == turn):
                continue
            state = state or random_state()
            self._known.pop(key, None)
            self._known[key] = turn, made.key, state
        while len(self._known) > TURNS_MAX:
            del self._known[next(iter(self._known))]

    def saved(self, functions: Sequence[At]) -> list[dict[str, Any]]:
        """Returns the states of the turns on the way to a place, the outermost first."""
        found: list[dict[str, Any]] = []
        for at in functions:
            for loop in at.loops:
                known = self._known.get((id(at.frame), loop.line))
                if known is not None and known[0] == turn_mark(at.frame, loop):
                    found.append({"at": known[1], "random": known[2]})
        return found

    def expect(self, saved: Sequence[dict[str, Any]]) -> None:
        """Sets the states for the way back; empty at its end."""
        self._expected = list(saved)
