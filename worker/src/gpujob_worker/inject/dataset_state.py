"""The values that a dataset and its objects hold, to detect changes by the script between
batches.
"""

from collections import deque
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

_DEPTH_MAX = 4
_OBJECTS_MAX = 256
_ITEMS_MAX = 64
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType)


class DatasetState:
    """Holds references to the values it has seen, so that no other object can get their
    identity.
    """

    def __init__(self, *starts: Any, depth: int = _DEPTH_MAX) -> None:
        self._starts, self._depth = starts, depth
        self._seen = list(_held(starts, depth))

    def change(self) -> str | None:
        """Returns the name of an attribute or item that has changed, or None if all are
        the same.
        """
        now = list(_held(self._starts, self._depth))
        for (name, value, mark), (of_now, value_now, mark_now) in zip(
            self._seen, now, strict=False
        ):
            if name != of_now or mark != mark_now or not _is_same(value, value_now):
                return str(of_now)
        return None if len(now) == len(self._seen) else "its number of attributes"


def _held(starts: tuple[Any, ...], depth_max: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yields the nearest values first: name, value, and a mark that changes if the value changes in
    place.
    """
    waiting = deque((one, 0) for one in starts)
    seen: set[int] = set()
    while waiting and len(seen) < _OBJECTS_MAX:
        holder, depth = waiting.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in _items(holder):
            yield name, value, _mark(value)
            if depth < depth_max and not isinstance(value, (*_LEAVES, torch.Tensor)):
                waiting.append((value, depth + 1))


def _items(holder: Any) -> list[tuple[Any, Any]]:
    items: Any = getattr(holder, "__dict__", {})
    if isinstance(holder, dict):
        items = holder
    elif isinstance(holder, (list, tuple)):
        items = dict(enumerate(holder)) if len(holder) <= _ITEMS_MAX else {}
    return list(items.items()) if isinstance(items, dict) and len(items) <= _ITEMS_MAX else []


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    return len(value) if isinstance(value, (dict, list, set, deque)) else None


def _is_same(value: Any, now: Any) -> bool:
    if value is now:
        return True
    plain = isinstance(value, _LEAVES) and type(value) is type(now)
    return plain and (value == now or repr(value) == repr(now))
