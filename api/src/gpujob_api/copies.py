"""Copies of large nouns with some fields changed, without looking at every field by name."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def changed(noun: T, **changes: Any) -> T:
    """`dataclasses.replace` for a dataclass of at least two fields, all of which `__init__` takes.

    Thousands of statuses change in a cycle. Raises KeyError for a field that there is not.
    """
    cls = type(noun)
    read, places = _layout(cls)
    values = list(read(noun))
    for name, value in changes.items():
        values[places[name]] = value
    return cls(*values)


@cache
def _layout(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, int]]:
    """What reads all fields in the order of `__init__`, and the place of each."""
    names = [field.name for field in fields(cls)]
    return attrgetter(*names), {name: place for place, name in enumerate(names)}
