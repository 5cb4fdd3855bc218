"""Frozen dataclasses to and from the camelCase JSON that Kubernetes stores.

One codec for all nouns keeps the Python types and the CRD schemas comparable field by field.
Unknown fields are ignored when reading: an older reader must accept what a newer writer says.
Bounds stand beside the types (`bounds`): reading refuses what breaks them, and writing shortens the
texts and lists that are for people, so that no write is refused for a long message.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, cast, get_args, get_origin

from gpujob_api.bounds import YEAR_MAX, YEAR_MIN, Bound, shown
from gpujob_api.json_values import (
    ANY_INTEGER,
    clean_text,
    is_text,
    join,
    read_plain,
)
from gpujob_api.json_values import FieldError as FieldError
from gpujob_api.json_values import parse_json as parse_json

UTC = timezone.utc  # noqa: UP017 - the worker reads nouns under Python 3.9 too
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


# From a JSON value and its path.
_Reader = Callable[[object, str], Any]
DataT = TypeVar("DataT", bound=_Dataclass)


def camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


@cache
def json_fields(kind: type) -> dict[str, tuple[str, Any]]:
    """The fields of a noun: JSON name -> (Python name, type)."""
    hints = typing.get_type_hints(kind)
    return {camel_case(f.name): (f.name, hints[f.name]) for f in dataclasses.fields(kind)}


@cache
def bounded_fields(kind: type) -> dict[str, tuple[str, Any]]:
    """As `json_fields`, with the bounds: types are `Annotated` where a field has any."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {camel_case(f.name): (f.name, hints[f.name]) for f in dataclasses.fields(kind)}


def decode(kind: type[DataT], data: object, path: str = "") -> DataT:
    """Reads a noun from parsed JSON. Raises `FieldError` naming the field that does not fit."""
    return cast("DataT", _object_reader(kind)(data, path))


def encode(noun: _Dataclass) -> dict[str, Any]:
    """Writes a noun as JSON. Fields that are None are left out; what may be clipped fits."""
    result: dict[str, Any] = {}
    for json_name, name, write in _writers(type(noun)):
        value = getattr(noun, name)
        if value is not None:
            value = write(value)
            if value is not None:
                result[json_name] = value
    return result


def encode_given(noun: _Dataclass) -> dict[str, Any]:
    """As `encode`, without what is at its default: reading gives that back. Nouns in lists are
    written in full.
    """
    result: dict[str, Any] = {}
    defaults = _defaults(type(noun))
    for json_name, name, write in _writers(type(noun)):
        value = getattr(noun, name)
        if value is None or (name in defaults and value == defaults[name]):
            continue
        plain = dataclasses.is_dataclass(value) and not hasattr(value, "to_json")
        written = encode_given(cast("_Dataclass", value)) if plain else write(value)
        if written is not None:
            result[json_name] = written
    return result


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """By name, of the fields that have one."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(kind):
        if one.default is not dataclasses.MISSING:
            found[one.name] = one.default
        elif one.default_factory is not dataclasses.MISSING:
            found[one.name] = one.default_factory()
    return found


def check(noun: _Dataclass) -> None:
    """Refuses a noun built in Python as `decode` would (for `__post_init__`)."""
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


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds only where there are any, as Kubernetes writes it."""
    text = moment.astimezone(UTC).isoformat()
    return text.replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Reads an ISO 8601 time, in UTC where it names no zone. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text} is beyond the calendar in UTC") from None


_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (str, "a string"),
    (Mapping, "an object"),
    (Sequence, "a list"),
)


def _json_type(value: object) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "a number")


@cache
def _inner(hint: Any) -> Any:
    """The type of an optional field's value."""
    if get_origin(hint) in _UNIONS:
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return inner
    return hint


@cache
def _bounds(hint: Any) -> tuple[Any, tuple[Bound, ...]]:
    """The bare type and the bounds on it."""
    if get_origin(hint) is Annotated:
        bare, *extras = get_args(hint)
        return bare, tuple(extra for extra in extras if isinstance(extra, Bound))
    return hint, ()


def bare_type(hint: Any) -> Any:
    """The type of a field's value, without bounds, where there is a value."""
    return _bounds(_inner(hint))[0]


@cache
def _fitter(hint: Any) -> Callable[[Any], Any] | None:
    """Shortens what may be shortened; None where nothing may be."""
    bare, bounds = _bounds(_inner(hint))
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
    """Refuses what breaks its bounds; None where there are none."""
    bare, bounds = _bounds(_inner(hint))
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


# -- writing: what each field needs is found out once for a kind


@cache
def _writers(kind: type) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    return tuple(
        (json_name, name, _writer(hint)) for json_name, (name, hint) in bounded_fields(kind).items()
    )


def _writer(hint: Any) -> Callable[[Any], Any]:
    bare, _ = _bounds(_inner(hint))
    fit = _fitter(hint) or _as_it_is
    if bare is float:
        return lambda value: _finite_or_none(fit(value))
    if bare in (bool, float, int, str):
        return fit

    def write(value: Any) -> Any:
        fitted = fit(value)
        return None if fitted is None else _encode_value(fitted)

    return write


def _as_it_is(value: Any) -> Any:
    return value


def _finite_or_none(value: float | None) -> float | None:
    """JSON has no other numbers: the API server would refuse the whole write."""
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


# -- reading: a function for each type, made once


@cache
def _object_reader(kind: type) -> _Reader:
    fields = [
        (json_name, name, _value_reader(hint))
        for json_name, (name, hint) in bounded_fields(kind).items()
    ]
    required = [
        (f.name, camel_case(f.name))
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]

    def read(data: object, path: str) -> Any:
        if not isinstance(data, Mapping):
            raise FieldError(path or kind.__name__, f"must be an object, not {_json_type(data)}")
        mapping = cast("Mapping[str, object]", data)
        values: dict[str, Any] = {}
        for json_name, name, read_value in fields:
            value = mapping.get(json_name)
            if value is not None:
                values[name] = read_value(value, join(path, json_name))
        for name, json_name in required:
            if name not in values:
                raise FieldError(join(path, json_name), "is required")
        try:
            return kind(**values)
        except FieldError as error:
            raise FieldError(join(path, error.field), error.problem) from None

    return read


@cache
def _value_reader(hint: Any) -> _Reader:
    bare, stated = _bounds(_inner(hint))
    bounds: tuple[Bound, ...] = stated or ((ANY_INTEGER,) if bare is int else ())
    read_bare = _bare_reader(bare)
    if not bounds:
        return read_bare

    def read(value: object, path: str) -> Any:
        result = read_bare(value, path)
        for bound in bounds:
            result = bound.fitted(result)
            problem = None if result is None else bound.problem(result)
            if problem is not None:
                raise FieldError(path, problem)
        return result

    return read


def _bare_reader(hint: Any) -> _Reader:
    origin = get_origin(hint)
    if origin is tuple:
        return _list_reader(_value_reader(get_args(hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _map_reader(_value_reader(get_args(hint)[1]))
    if dataclasses.is_dataclass(hint):
        custom = getattr(hint, "from_json", None)
        return custom if custom is not None else _object_reader(cast("type[Any]", hint))
    return _scalar_reader(hint)


def _list_reader(read_item: _Reader) -> _Reader:
    def read(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FieldError(path, f"must be a list, not {_json_type(value)}")
        items = cast("list[object]", value)
        return tuple(read_item(entry, f"{path}[{n}]") for n, entry in enumerate(items))

    return read


def _map_reader(read_item: _Reader) -> _Reader:
    def read(value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise FieldError(path, f"must be an object, not {_json_type(value)}")
        entries = cast("Mapping[str, object]", value)
        for key in entries:
            if not is_text(key):
                raise FieldError(path, f"has a name that is no text: {shown(key)}")
        return {key: read_item(entry, join(path, key)) for key, entry in entries.items()}

    return read


def _scalar_reader(hint: Any) -> _Reader:
    if hint is Any or hint is object:
        return read_plain
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value, path: _decode_enum(hint, value, path)
    if hint is datetime:
        return _decode_time
    return lambda value, path: _decode_scalar(hint, value, path)


def _decode_scalar(hint: Any, value: object, path: str) -> Any:
    if hint is str and isinstance(value, str):
        return clean_text(value)
    if type(value) is hint and hint is not float:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise FieldError(path, "must be a number of at most 308 digits") from None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise FieldError(path, f"must be {hint.__name__}, not {_json_type(value)}")
    if isinstance(value, float) and not -1e300 < value < 1e300:
        raise FieldError(path, f"must be a finite number, not {value}")
    return value


def _decode_time(value: object, path: str) -> datetime:
    if not isinstance(value, str):
        raise FieldError(path, f"must be a time, not {_json_type(value)}")
    try:
        moment = parse_time(value)
    except ValueError:
        raise FieldError(path, f"must be an RFC 3339 time, not {shown(value)}") from None
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise FieldError(
            path, f"must be from the year {YEAR_MIN} to {YEAR_MAX}; got {shown(value)}"
        )
    return moment


def _decode_enum(hint: type[Enum], value: object, path: str) -> Enum:
    # YAML 1.1 reads an unquoted Off as false and On as true; users write both.
    names = {False: "Off", True: "On"}
    text = names.get(value, value) if isinstance(value, bool) else value
    try:
        return hint(text)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in hint)
        raise FieldError(path, f"must be one of {allowed}; got {shown(value)}") from None
