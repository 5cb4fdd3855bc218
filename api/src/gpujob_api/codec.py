"""Frozen dataclasses to and from the camelCase JSON that Kubernetes stores.

One codec for all nouns keeps the Python types and the CRD schemas comparable field by field.
Unknown fields are ignored when reading: an older reader must accept what a newer writer says.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_args, get_origin


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


def decode(kind: type[DataT], data: object, path: str = "") -> DataT:
    """Reads a noun from parsed JSON. Raises `FieldError` naming the field that does not fit."""
    if not isinstance(data, Mapping):
        raise FieldError(path or kind.__name__, f"must be an object, not {_json_type(data)}")
    values: dict[str, Any] = {}
    mapping = cast("Mapping[str, object]", data)
    for json_name, (name, hint) in json_fields(kind).items():
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
    """Writes a noun as JSON. Fields that are None are left out."""
    result: dict[str, Any] = {}
    for json_name, (name, _) in json_fields(type(noun)).items():
        value = getattr(noun, name)
        if value is not None:
            result[json_name] = _encode_value(value)
    return result


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds only where there are any, as Kubernetes writes it."""
    text = moment.astimezone(UTC).isoformat()
    return text.replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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


def _decode_value(hint: Any, value: object, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return _decode_value(inner, value, path)
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
        if not isinstance(value, str):
            raise FieldError(path, f"must be a time, not {_json_type(value)}")
        try:
            return parse_time(value)
        except ValueError:
            raise FieldError(path, f"must be an RFC 3339 time, not {value!r}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise FieldError(path, f"must be {hint.__name__}, not {_json_type(value)}")
    if isinstance(value, float) and not -1e300 < value < 1e300:
        raise FieldError(path, f"must be a finite number, not {value}")
    return value


def _decode_enum(hint: type[Enum], value: object, path: str) -> Enum:
    # YAML 1.1 reads an unquoted Off as false and On as true; users write both.
    names = {False: "Off", True: "On"}
    text = names.get(value, value) if isinstance(value, bool) else value
    try:
        return hint(text)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in hint)
        raise FieldError(path, f"must be one of {allowed}; got {value!r}") from None
