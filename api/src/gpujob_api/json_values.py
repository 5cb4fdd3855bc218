"""JSON before a noun is made of it. No value in it may break a reader or a writer.

Python reads more than JSON permits (NaN, halves of surrogate pairs), and less than a text may
contain (numbers of more than 4,300 digits, nesting beyond its own stack). It raises different
exceptions for these.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from gpujob_api.bounds import Bound, Range, shown

# The range of numbers that the API server can hold in any field.
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1
ANY_INTEGER: Bound = Range(_INTEGER_MIN, _INTEGER_MAX)
# A pod template has about ten levels.
_DEPTH_MAX = 100


class FieldError(ValueError):
    """A value that a field cannot hold. `field` is its JSON path, such as `spec.gpu.memory`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def within(self, path: str) -> "FieldError":
        """Returns the same error with its path inside `path`. So far it is relative to the value
        there.
        """
        is_entry = self.field.startswith("[")
        return FieldError(path + self.field if is_entry else join(path, self.field), self.problem)


def parse_json(text: str | bytes, path: str = "") -> Any:
    """Reads JSON. Raises `FieldError` for anything that Python cannot read: text that is not JSON,
    numbers of thousands of digits, endless nesting.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise FieldError(path, "is not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise FieldError(path, f"is not JSON: {clean_text(str(error))}") from None


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def read_plain(value: object, path: str) -> object:
    """Reads a value of unknown type, such as a part of a pod template.

    The result can be written as JSON again, and is shallow enough for recursive code.
    """
    stack: list[tuple[object, str, int]] = [(value, path, 0)]
    while stack:
        one, place, depth = stack.pop()
        if depth > _DEPTH_MAX:
            raise FieldError(path, f"must not be nested deeper than {_DEPTH_MAX} levels")
        if isinstance(one, Mapping):
            for key, entry in cast("Mapping[object, object]", one).items():
                if not is_text(key):
                    raise FieldError(place, f"has a name that is no text: {shown(key)}")
                stack.append((entry, join(place, str(key)), depth + 1))
        elif isinstance(one, list):
            entries = cast("list[object]", one)
            stack += [(entry, f"{place}[{n}]", depth + 1) for n, entry in enumerate(entries)]
        elif not _is_plain_scalar(one):
            raise FieldError(place, f"must be a value that JSON can hold; got {shown(one)}")
    return value


def json_copy(value: Any) -> Any:
    """Returns a copy of parsed JSON that may be changed. All objects and lists in it are distinct,
    even if one was shared before.
    """
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: json_copy(entry) for name, entry in fields.items()}
    if isinstance(value, list):
        return [json_copy(entry) for entry in cast("list[Any]", value)]
    return value


def _is_plain_scalar(value: object) -> bool:
    if isinstance(value, int):
        return _INTEGER_MIN <= value <= _INTEGER_MAX
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or is_text(value)


def is_text(value: object) -> bool:
    """Returns whether it is a string without halves of surrogate pairs, which UTF-8 cannot hold."""
    if not isinstance(value, str):
        return False
    return value.isascii() or clean_text(value) == value


def clean_text(value: str) -> str:
    """Returns the text with halves of surrogate pairs replaced, which Python and JSON permit."""
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
