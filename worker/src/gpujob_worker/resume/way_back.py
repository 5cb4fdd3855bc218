"""The way of a resumed script to its place: which loop comes next, and at which turn it begins."""

import itertools
from collections.abc import Iterator
from types import FrameType
from typing import Any

from gpujob_worker.resume.loop_items import differs
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.script_place import NoPlaceError, function_key, functions_of
from gpujob_worker.resume.script_source import Loop, source_of


class NotReachedError(Exception):
    """The script does not reach its place. The text is the reason."""


class WayBack:
    """The loops on the way, the outermost first. They are met in this order."""

    def __init__(
        self, place: list[dict[str, Any]], over: list[dict[str, Any]], passes: Passes
    ) -> None:
        """`place` comes from `Place.saved`. `over` are training loops that ended."""
        self._place, self._over, self._passes = place, over, passes
        self._way = [(depth, loop) for depth, each in enumerate(place) for loop in each["loops"]]
        self._next = 0
        # The part of the next loop's expression that differs, before variables are restored.
        self._differs: str | None = None

    @property
    def files(self) -> set[str]:
        """The files in which loops have to begin elsewhere."""
        return {self._place[depth]["file"] for depth, _ in self._way}

    @property
    def reached(self) -> bool:
        return self._next >= len(self._way)

    @property
    def depth(self) -> int:
        """The number of the function whose loop comes next. The module's is 0."""
        return self._way[self._next][0]

    def is_over(self, file: str, line: int, frame: FrameType) -> bool:
        """Returns whether it is a loop whose steps were all made."""
        code = frame.f_code
        key = function_key(file, code.co_name, code.co_firstlineno)
        return any(
            line == loop["loop"] and key == function_key(loop["file"], loop["code"], loop["first"])
            for loop in self._over
        )

    def expects(self, line: int, frame: FrameType) -> bool:
        """Returns whether it is the next loop on the way, reached by the same calls."""
        if self.reached:
            return False
        depth, loop = self._way[self._next]
        if line != loop["line"]:
            return False
        try:
            functions = functions_of(frame)
        except NoPlaceError:
            return False
        wanted = self._place[: depth + 1]
        if len(functions) != len(wanted):
            return False
        last = functions[-1]
        for at, each in zip(functions, wanted, strict=True):
            if at.key != function_key(each["file"], each["code"], each["first"]):
                return False
            if at is not last and at.call != each["call"]:
                return False
        self._differs = differs(frame, loop.get("given", {}))
        return True

    def passes_while(self) -> None:
        """Passes a `while`, which has no turn apart from the script's variables."""
        self._next += 1

    def advance(self, frame: FrameType, iterable: Any) -> Any:
        """Returns the loop's items from its turn on. Raises `NotReachedError`."""
        _, saved = self._way[self._next]
        self._next += 1
        if self._differs is not None:
            raise NotReachedError(_other(saved["line"], self._differs))
        return advanced(frame, saved, iterable, self._passes, innermost=self.reached)


def advanced(
    frame: FrameType, saved: dict[str, Any], iterable: Any, passes: Passes, *, innermost: bool
) -> Any:
    """Returns the items of the loop in `frame` from a saved turn on.

    In the innermost loop they begin with the turn after that, else with the turn itself. Raises
    `NotReachedError`.
    """
    line, kind = saved["line"], saved["kind"]
    loop = _loop_at(frame.f_code.co_filename, line)
    other = differs(frame, saved["given"])
    if other is not None:
        raise NotReachedError(_other(line, other))
    if kind == "passes":
        passes.bring_back(frame, loop.header, saved["passes"])
        iterator = iter(iterable)
        _take(iterator, saved["count"], line)
        if not passes.awaits_none() and saved["count"]:
            raise NotReachedError(f"the loop in line {line} read other loaders")
        return iterator
    iterator = iter(iterable)
    if kind == "index":
        index = int(saved["value"])
        _take(iterator, index + 1 if innermost else index, line)
        return iterator
    item = _item_with(iterator, saved["value"], loop, line)
    return iterator if innermost else itertools.chain([item], iterator)


def _other(line: int, name: str) -> str:
    return f"{name} is not what it was where the loop in line {line} began"


def _loop_at(file: str, line: int) -> Loop:
    source = source_of(file)
    loop = source.loop_at(line) if source is not None else None
    if loop is None:
        raise NotReachedError(f"{file} has no loop in line {line}")
    return loop


def _take(iterator: Iterator[Any], count: int, line: int) -> None:
    taken = sum(1 for _ in itertools.islice(iterator, count))
    if taken < count:
        raise NotReachedError(f"the loop in line {line} ended after {taken} of {count} turns")


def _item_with(iterator: Iterator[Any], value: Any, loop: Loop, line: int) -> Any:
    for item in iterator:
        number = item if loop.takes_whole_item else item[0]
        if type(number) is type(value) and repr(number) == repr(value):
            return item
    raise NotReachedError(f"the loop in line {line} ended before {value!r:.100} came")
