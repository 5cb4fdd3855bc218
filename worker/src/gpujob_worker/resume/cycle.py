"""`itertools.cycle` with a readable position. Scripts repeat a loader with it."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any


class cycle:  # noqa: N801 - stands for Python's own
    """Yields the items of an iterable, keeps them, and repeats them endlessly."""

    def __init__(self, iterable: Iterable[Any], /) -> None:
        self._iterator: Iterator[Any] | None = iter(iterable)
        self._kept: list[Any] = []
        self._next = 0

    def __iter__(self) -> "cycle":
        return self

    def __next__(self) -> Any:
        if self._iterator is not None:
            try:
                item = next(self._iterator)
            except StopIteration:
                self._iterator = None
            else:
                self._kept.append(item)
                return item
        if not self._kept:
            raise StopIteration
        item = self._kept[self._next]
        self._next = (self._next + 1) % len(self._kept)
        return item


cycle.__module__ = "itertools"


def replace_cycle() -> None:
    """Replaces `itertools.cycle` by the class above."""
    itertools.cycle = cycle  # type: ignore[misc, assignment]
