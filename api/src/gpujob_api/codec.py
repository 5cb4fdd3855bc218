"""Frozen dataclasses to and from the camelCase JSON that Kubernetes stores.

One codec for all nouns keeps the Python types and the CRD schemas comparable field by field.
Unknown fields are ignored when reading: an older reader must accept what a newer writer says.
Bounds stand beside the types (`bounds`): reading refuses what breaks them, and writing shortens the
texts and lists that are for people, so that no write is refused for a long message.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, cast, get_args, get_origin

from gpujob_api.bounds import YEAR_MAX, YEAR_MIN, Bound


class FieldError(ValueError):
    """A value that a field cannot hold; `field` is its JSON path, such as `spec.gpu.memory`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


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
    if not isinstance(data, Mapping):
        raise FieldError(path or kind.__name__, f"must be an object, not {_json_type(data)}")
    values: dict[str, Any] = {}
    mapping = cast("Mapping[str, object]", data)
    for json_name, (name, hint) in bounded_fields(kind).items():
        value = mapping.get(json_name)
        if value is not None:
            values[name] = _decode_value(hint, value, _join(path, json_name))
    missing = [
        camel_case(f.name)
        for f in dataclasses.fields(kind)
        if f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise FieldError(_join(path, missing[0]), "is required")
    try:
        return kind(**values)
    except FieldError as error:
        raise FieldError(_join(path, error.field), error.problem) from None


def encode(noun: _Dataclass) -> dict[str, Any]:
    """Writes a noun as JSON. Fields that are None are left out; what may be clipped fits."""
    result: dict[str, Any] = {}
    for json_name, (name, hint) in bounded_fields(type(noun)).items():
        value = _fitted(hint, getattr(noun, name))
        if value is not None:
            result[json_name] = _encode_value(value)
    return result


def check(noun: _Dataclass) -> None:
    """Refuses a noun built in Python as `decode` would (for `__post_init__`)."""
    for json_name, (name, hint) in bounded_fields(type(noun)).items():
        value = getattr(noun, name)
        if value is not None:
            _check_value(hint, value, json_name)


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


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (str, "a string"),
    (Mapping, "an object"),
    (Sequence, "a list"),
)


def _json_type(value: object) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "a number")


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


@cache
def _inner(hint: Any) -> Any:
    """The type of an optional field's value."""
    if get_origin(hint) in (types.UnionType, typing.Union):
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


def _fitted(hint: Any, value: Any) -> Any:
    """Shortens what may be shortened."""
    bare, bounds = _bounds(_inner(hint))
    if value is None:
        return None
    for bound in bounds:
        value = bound.fitted(value)
    if get_origin(bare) is tuple and _bounds(get_args(bare)[0])[1]:
        return tuple(_fitted(get_args(bare)[0], entry) for entry in value)
    return value


def _check_value(hint: Any, value: Any, path: str) -> None:
    bare, bounds = _bounds(_inner(hint))
    for problem in (bound.problem(bound.fitted(value)) for bound in bounds):
        if problem is not None:
            raise FieldError(path, problem)
    if get_origin(bare) is tuple:
        for position, entry in enumerate(value):
            _check_value(get_args(bare)[0], entry, f"{path}[{position}]")


def _decode_value(hint: Any, value: object, path: str) -> Any:
    bare, bounds = _bounds(_inner(hint))
    result = _decode_bare(bare, value, path)
    for bound in bounds:
        result = bound.fitted(result)
        problem = None if result is None else bound.problem(result)
        if problem is not None:
            raise FieldError(path, problem)
    return result


def _decode_bare(hint: Any, value: object, path: str) -> Any:
    origin = get_origin(hint)
    if origin is tuple:
        return _decode_list(get_args(hint)[0], value, path)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_map(get_args(hint)[1], value, path)
    if dataclasses.is_dataclass(hint):
        custom = getattr(hint, "from_json", None)
        if custom is not None:
            return custom(value, path)
        return decode(cast("type[Any]", hint), value, path)
    return _decode_scalar(hint, value, path)


def _decode_list(item: Any, value: object, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise FieldError(path, f"must be a list, not {_json_type(value)}")
    items = cast("list[object]", value)
    return tuple(_decode_value(item, entry, f"{path}[{n}]") for n, entry in enumerate(items))


def _decode_map(item: Any, value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise FieldError(path, f"must be an object, not {_json_type(value)}")
    entries = cast("Mapping[str, object]", value)
    return {key: _decode_value(item, entry, _join(path, key)) for key, entry in entries.items()}


def _decode_scalar(hint: Any, value: object, path: str) -> Any:
    if hint is Any or hint is object:
        return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decode_enum(hint, value, path)
    if hint is datetime:
        return _decode_time(value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
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
        raise FieldError(path, f"must be an RFC 3339 time, not {value!r}") from None
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise FieldError(path, f"must be from the year {YEAR_MIN} to {YEAR_MAX}; got {value!r}")
    return moment


def _decode_enum(hint: type[Enum], value: object, path: str) -> Enum:
    # YAML 1.1 reads an unquoted Off as false and On as true; users write both.
    names = {False: "Off", True: "On"}
    text = names.get(value, value) if isinstance(value, bool) else value
    try:
        return hint(text)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in hint)
        raise FieldError(path, f"must be one of {allowed}; got {value!r}") from None
