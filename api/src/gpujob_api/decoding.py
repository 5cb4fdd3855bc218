"""Reads nouns from parsed JSON, with a function for each type that is made once.

The operator reads some objects of each job. Most values have the right type and are within their
bounds, and pass after one check. The path of a field is only built for an error.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from functools import cache, lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_args, get_origin

from gpujob_api.bounds import YEAR_MAX, YEAR_MIN, Bound, Range, Text, shown
from gpujob_api.field_types import bare_and_bounds, bounded_fields, camel_case
from gpujob_api.json_values import ANY_INTEGER, FieldError, clean_text, is_text, read_plain

# Larger numbers, and values that are not numbers, exceed every field.
_FRACTION_MAX = 1e300


UTC = timezone.utc  # noqa: UP017 - the worker reads nouns under Python 3.9 too


TEXTS_MAX = 4096
# Longer texts rarely repeat, and would be kept without use.
CHARACTERS_MAX = 128


def shared_text(text: str) -> str:
    """Returns the text. Equal texts that were read recently are the same object."""
    return _shared(text) if len(text) <= CHARACTERS_MAX else text


@lru_cache(maxsize=TEXTS_MAX)
def _shared(text: str) -> str:
    return text


def format_time(moment: datetime) -> str:
    """Returns RFC 3339 in UTC, with microseconds only if there are any, as Kubernetes writes it."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat().replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Reads an ISO 8601 time, in UTC if it has no zone. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text} is beyond the calendar in UTC") from None


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


# Reads a JSON value. Raises `FieldError` with the path within the value.
_Reader = Callable[[Any], Any]
DataT = TypeVar("DataT", bound=Dataclass)


def decode(kind: type[DataT], data: object, path: str = "") -> DataT:
    """Reads a noun from parsed JSON. Raises `FieldError` with the field that does not fit."""
    if not isinstance(data, Mapping):
        raise FieldError(path or kind.__name__, f"must be an object, not {_json_type(data)}")
    try:
        return cast("DataT", _object_reader(kind)(data))
    except FieldError as error:
        raise error.within(path) from None


@cache
def _object_reader(kind: type) -> _Reader:
    fields = {
        json_name: (name, _value_reader(hint))
        for json_name, (name, hint) in bounded_fields(kind).items()
    }
    required = [
        (f.name, camel_case(f.name))
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]

    def read(data: Any) -> Any:
        if type(data) is not dict and not isinstance(data, Mapping):
            raise FieldError("", f"must be an object, not {_json_type(data)}")
        values: dict[str, Any] = {}
        for json_name, value in cast("Mapping[str, object]", data).items():
            if value is None or json_name not in fields:
                continue
            name, read_value = fields[json_name]
            try:
                values[name] = read_value(value)
            except FieldError as error:
                raise error.within(json_name) from None
        for name, json_name in required:
            if name not in values:
                raise FieldError(json_name, "is required")
        return kind(**values)

    return read


@cache
def _value_reader(hint: Any) -> _Reader:
    bare, stated = bare_and_bounds(hint)
    bounds: tuple[Bound, ...] = stated or ((ANY_INTEGER,) if bare is int else ())
    thorough = _thorough_reader(bare, bounds)
    if len(bounds) == 1:
        (bound,) = bounds
        if isinstance(bound, Range) and bare in (int, float):
            return _number_reader(bare, bound, thorough)
        if isinstance(bound, Text) and bare is str:
            return _text_reader(bound, thorough)
    return thorough


def _number_reader(bare: type, bound: Range, thorough: _Reader) -> _Reader:
    least, most = bound.minimum, bound.maximum

    def read(value: Any) -> Any:
        return value if type(value) is bare and least <= value <= most else thorough(value)

    return read


def _text_reader(bound: Text, thorough: _Reader) -> _Reader:
    least, most = bound.characters_min, bound.characters_max
    matches = re.compile(bound.pattern).fullmatch if bound.pattern is not None else None

    def read(value: Any) -> Any:
        plain = type(value) is str and value.isascii() and value.isprintable()
        if plain and least <= len(value) <= most and (matches is None or matches(value)):
            return shared_text(value)
        return thorough(value)

    return read


def _thorough_reader(bare: Any, bounds: tuple[Bound, ...]) -> _Reader:
    """Returns a reader that converts or rejects a value which does not fit as it is."""
    read_bare = _bare_reader(bare)
    if not bounds:
        return read_bare

    def read(value: Any) -> Any:
        result = read_bare(value)
        for bound in bounds:
            result = bound.fitted(result)
            problem = None if result is None else bound.problem(result)
            if problem is not None:
                raise FieldError("", problem)
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
        if custom is None:
            return _object_reader(cast("type[Any]", hint))
        return lambda value: custom(value, "")
    return _scalar_reader(hint)


def _list_reader(read_item: _Reader) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FieldError("", f"must be a list, not {_json_type(value)}")
        found: list[Any] = []
        for entry in cast("list[object]", value):
            try:
                found.append(read_item(entry))
            except FieldError as error:
                raise error.within(f"[{len(found)}]") from None
        return tuple(found)

    return read


def _map_reader(read_item: _Reader) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise FieldError("", f"must be an object, not {_json_type(value)}")
        found: dict[str, Any] = {}
        for key, entry in cast("Mapping[str, object]", value).items():
            if not is_text(key):
                raise FieldError("", f"has a name that is no text: {shown(key)}")
            try:
                found[key] = read_item(entry)
            except FieldError as error:
                raise error.within(key) from None
        return found

    return read


def _scalar_reader(hint: Any) -> _Reader:
    if hint is Any or hint is object:
        return lambda value: read_plain(value, "")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    if hint is datetime:
        return _read_time
    return lambda value: _read_scalar(hint, value)


def _read_scalar(hint: Any, value: object) -> Any:
    if hint is str and isinstance(value, str):
        return shared_text(clean_text(value))
    if type(value) is hint and hint is not float:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise FieldError("", "must be a number of at most 308 digits") from None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise FieldError("", f"must be {hint.__name__}, not {_json_type(value)}")
    if isinstance(value, float) and not -_FRACTION_MAX < value < _FRACTION_MAX:
        raise FieldError("", f"must be a finite number, not {value}")
    return value


def _read_time(value: object) -> datetime:
    if not isinstance(value, str):
        raise FieldError("", f"must be a time, not {_json_type(value)}")
    try:
        moment = parse_time(value)
    except ValueError:
        raise FieldError("", f"must be an RFC 3339 time, not {shown(value)}") from None
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise FieldError("", f"must be from the year {YEAR_MIN} to {YEAR_MAX}; got {shown(value)}")
    return moment


def _enum_reader(hint: type[Enum]) -> _Reader:
    # YAML 1.1 reads an unquoted Off as false and On as true, and users write both.
    names = {False: "Off", True: "On"}
    members = {member.value: member for member in hint}

    def read(value: Any) -> Enum:
        text = names[value] if isinstance(value, bool) else value
        found = members.get(text) if isinstance(text, str) else None
        if found is None:
            allowed = ", ".join(str(member.value) for member in hint)
            raise FieldError("", f"must be one of {allowed}; got {shown(value)}")
        return found

    return read


_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (str, "a string"),
    (Mapping, "an object"),
    (Sequence, "a list"),
)


def _json_type(value: object) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "a number")
