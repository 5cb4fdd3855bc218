"""The global random generators of a process as values. They can be compared, restored, and moved
forward by a number of draws without repeating them.

Python, numpy and torch's generator on the CPU each draw 32-bit numbers from a Mersenne twister. A
position in a stream therefore follows from an earlier one and the count of numbers between them.
"""

import ctypes
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Maximum count of numbers that one batch may draw from one generator.
DRAWS_MAX = 20_000

Streams = Mapping[str, Any]


def streams_now() -> dict[str, Any]:
    """Returns the state of each generator. Equal states are equal values."""
    numpy = sys.modules.get("numpy")
    found = {"python": random.getstate(), "torch": _bytes_of(torch.get_rng_state())}
    if numpy is not None:
        found["numpy"] = _plain(numpy.random.get_state())
    return found


def put_streams(states: Streams) -> None:
    """Sets the given states. Generators that are not named keep their own."""
    if "python" in states:
        random.setstate(states["python"])
    if "torch" in states:
        torch.set_rng_state(_tensor_of(states["torch"]))
    numpy = sys.modules.get("numpy")
    if "numpy" in states and numpy is not None:
        numpy.random.set_state(_numpy_state(states["numpy"]))


def changed_streams(before: Streams, after: Streams) -> dict[str, tuple[Any, Any]]:
    """Returns the generators that were drawn from, each with its state before and after."""
    same = object()
    return {
        name: (before.get(name), state)
        for name, state in after.items()
        if before.get(name, same) != state
    }


@dataclass(frozen=True, slots=True)
class DrawCounts:
    """The count of 32-bit numbers that a batch draws from each generator."""

    counts: Mapping[str, int]

    @classmethod
    def between(cls, before: Streams, after: Streams) -> "DrawCounts | None":
        """Returns the counts, or None if a generator was set anew or drew too many numbers."""
        counts: dict[str, int] = {}
        for name, (first, last) in changed_streams(before, after).items():
            count = _count(name, first, last) if first is not None else None
            if count is None:
                return None
            counts[name] = count
        return cls(counts)

    def after(self, states: Streams) -> dict[str, Any]:
        """Returns the states one batch later, for the generators that a batch draws from."""
        return {name: _KINDS[name](states[name])(count) for name, count in self.counts.items()}


def _count(name: str, first: Any, last: Any) -> int | None:
    advance = _KINDS[name](first)
    return next((n for n in range(1, DRAWS_MAX + 1) if advance(1) == last), None)


def _python_stream(state: Any) -> Callable[[int], Any]:
    generator = random.Random()  # noqa: S311
    generator.setstate(state)

    def advance(count: int) -> Any:
        generator.getrandbits(32 * count)
        return generator.getstate()

    return advance


def _torch_stream(state: bytes) -> Callable[[int], Any]:
    generator = torch.Generator()
    generator.set_state(_tensor_of(state))

    def advance(count: int) -> Any:
        torch.empty(count, dtype=torch.int32).random_(generator=generator)
        return _bytes_of(generator.get_state())

    return advance


def _numpy_stream(state: Any) -> Callable[[int], Any]:
    generator = sys.modules["numpy"].random.RandomState()
    generator.set_state(_numpy_state(state))

    def advance(count: int) -> Any:
        generator.bytes(4 * count)
        return _plain(generator.get_state())

    return advance


_KINDS: dict[str, Callable[[Any], Callable[[int], Any]]] = {
    "python": _python_stream,
    "torch": _torch_stream,
    "numpy": _numpy_stream,
}


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


def _tensor_of(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _plain(state: Any) -> tuple[Any, ...]:
    kind, key, *rest = state
    return (kind, key.tobytes(), *rest)


def _numpy_state(state: Any) -> tuple[Any, ...]:
    kind, key, *rest = state
    return (kind, sys.modules["numpy"].frombuffer(key, dtype="uint32"), *rest)
