"""Frozen dataclasses to and from the camelCase JSON that Kubernetes stores.

One codec for all nouns keeps the Python types and the CRD schemas comparable field by field.
Unknown fields are ignored when reading (`decoding`), because an older reader must accept a newer
writer's fields. Bounds are next to the types (`bounds`). Reading rejects values that break them.
Writing shortens texts and lists for people, so that no write is rejected for a long message.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, cast, get_args, get_origin

from gpujob_api.decoding import UTC as UTC
from gpujob_api.decoding import Dataclass
from gpujob_api.decoding import DataT as DataT
from gpujob_api.decoding import decode as decode
from gpujob_api.decoding import format_time as format_time
from gpujob_api.decoding import parse_time as parse_time
from gpujob_api.field_types import bare_and_bounds, bare_type, bounded_fields
from gpujob_api.json_values import FieldError as FieldError
from gpujob_api.json_values import parse_json as parse_json

# Turns a value into its JSON. None is left out.
_Writer = Callable[[Any], Any]


def encode(noun: Dataclass) -> dict[str, Any]:
    """Writes a noun as JSON. Fields that are None are left out, and values with `clip` are
    shortened.
    """
    result: dict[str, Any] = {}
    for json_name, name, write in _writers(type(noun)):
        value = getattr(noun, name)
        if value is not None:
            value = write(value)
            if value is not None:
                result[json_name] = value
    return result


def encode_given(noun: Dataclass) -> dict[str, Any]:
    """Like `encode`, but without fields at their default, which reading restores. Nouns in lists
    are written in full.
    """
    result: dict[str, Any] = {}
    defaults = _defaults(type(noun))
    for json_name, name, write in _writers(type(noun)):
        value = getattr(noun, name)
        if value is None or (name in defaults and value == defaults[name]):
            continue
        plain = dataclasses.is_dataclass(value) and not hasattr(value, "to_json")
        written = encode_given(cast("Dataclass", value)) if plain else write(value)
        if written is not None:
            result[json_name] = written
    return result


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """Returns the defaults by name, for fields that have one."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(kind):
        if one.default is not dataclasses.MISSING:
            found[one.name] = one.default
        elif one.default_factory is not dataclasses.MISSING:
            found[one.name] = one.default_factory()
    return found


def check(noun: Dataclass) -> None:
    """Rejects a noun built in Python as `decode` would (for `__post_init__`)."""
    for json_name, name, check_value in _checkers(type(noun)):
        value = getattr(noun, name)
        if value is not None:
            check_value(value, json_name)


@cache
def _checkers(kind: type) -> tuple[tuple[str, str, Callable[[Any, str], None]], ...]:
    return tuple(
        (json_name, name, check_value)
        for json_name, (name, hint) in bounded_fields(kind).items()
        if (check_value := _checker(hint)) is not None
    )


@cache
def _fitter(hint: Any) -> Callable[[Any], Any] | None:
    """Returns a function that shortens values, or None if nothing may be shortened."""
    bare, bounds = bare_and_bounds(hint)
    fit_item = _fitter(get_args(bare)[0]) if get_origin(bare) is tuple else None
    if not bounds and fit_item is None:
        return None

    def fit(value: Any) -> Any:
        for bound in bounds:
            value = bound.fitted(value)
        return value if fit_item is None else tuple(fit_item(entry) for entry in value)

    return fit


@cache
def _checker(hint: Any) -> Callable[[Any, str], None] | None:
    """Returns a function that rejects values out of bounds, or None without bounds."""
    bare, bounds = bare_and_bounds(hint)
    check_item = _checker(get_args(bare)[0]) if get_origin(bare) is tuple else None
    if not bounds and check_item is None:
        return None

    def check_value(value: Any, path: str) -> None:
        for bound in bounds:
            problem = bound.problem(bound.fitted(value))
            if problem is not None:
                raise FieldError(path, problem)
        if check_item is not None:
            for position, entry in enumerate(value):
                check_item(entry, f"{path}[{position}]")

    return check_value


# -- writing: the needs of each field are determined once per type


@cache
def _writers(kind: type) -> tuple[tuple[str, str, _Writer], ...]:
    return tuple(
        (json_name, name, _writer(hint)) for json_name, (name, hint) in bounded_fields(kind).items()
    )


def _writer(hint: Any) -> _Writer:
    bare = bare_type(hint)
    fit, write = _fitter(hint), _finite_or_none if bare is float else _bare_writer(bare)
    if fit is None or write is None:
        return write or fit or _as_it_is

    def fit_and_write(value: Any) -> Any:
        fitted = fit(value)
        return None if fitted is None else write(fitted)

    return fit_and_write


def _bare_writer(bare: Any) -> _Writer | None:
    """Returns a writer, or None for values that JSON has itself."""
    origin = get_origin(bare)
    if bare in (bool, float, int, str):
        return None
    if bare is datetime:
        return format_time
    if origin is tuple:
        write_item = _bare_writer(bare_type(get_args(bare)[0])) or _as_it_is
        return lambda value: [write_item(entry) for entry in value]
    if dataclasses.is_dataclass(bare):
        custom = getattr(bare, "to_json", None)
        return encode if custom is None else custom
    if isinstance(bare, type) and issubclass(bare, Enum):
        return lambda value: value.value
    return _encode_value


def _as_it_is(value: Any) -> Any:
    return value


def _finite_or_none(value: float | None) -> float | None:
    """Returns None for numbers that JSON does not have, because the API server would reject the
    whole write.
    """
    return value if value is not None and math.isfinite(value) else None


def _encode_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return format_time(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        custom = getattr(value, "to_json", None)
        return custom() if custom is not None else encode(value)
    if isinstance(value, Mapping):
        return {key: _encode_value(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encode_value(item) for item in cast("Sequence[Any]", value)]
    return value
