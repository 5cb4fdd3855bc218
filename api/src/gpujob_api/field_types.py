"""The fields of a noun: their names in JSON, their types, and the bounds on these."""

import dataclasses
import types
import typing
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from gpujob_api.bounds import Bound

_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


def camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


@cache
def json_fields(kind: type) -> dict[str, tuple[str, Any]]:
    """Returns the fields of a noun: JSON name -> (Python name, type)."""
    hints = typing.get_type_hints(kind)
    return {camel_case(f.name): (f.name, hints[f.name]) for f in dataclasses.fields(kind)}


@cache
def bounded_fields(kind: type) -> dict[str, tuple[str, Any]]:
    """Like `json_fields`, with the bounds. Types are `Annotated` if a field has any."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {camel_case(f.name): (f.name, hints[f.name]) for f in dataclasses.fields(kind)}


@cache
def bare_and_bounds(hint: Any) -> tuple[Any, tuple[Bound, ...]]:
    """Returns the type of a field's value, without bounds and None, and the bounds."""
    if get_origin(hint) in _UNIONS:
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Annotated:
        bare, *extras = get_args(hint)
        return bare, tuple(extra for extra in extras if isinstance(extra, Bound))
    return hint, ()


def bare_type(hint: Any) -> Any:
    """Returns the type of a field's value, without bounds and None."""
    return bare_and_bounds(hint)[0]
