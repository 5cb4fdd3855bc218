"""JSON as it comes, before a noun is made of it: nothing in it may break a reader or a writer.

Python reads more than JSON can hold (NaN, halves of surrogate pairs), less than a text can say
(numbers of more than 4,300 digits, nesting beyond its own stack), and neither with one exception.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from gpujob_api.bounds import Bound, Range, shown

# No number that the API server can hold is outside, whatever the field.
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1
ANY_INTEGER: Bound = Range(_INTEGER_MIN, _INTEGER_MAX)
# A pod template has about ten levels.
_DEPTH_MAX = 100


class FieldError(ValueError):
    """A value that a field cannot hold; `field` is its JSON path, such as `spec.gpu.memory`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def within(self, path: str) -> "FieldError":
        """The same error of the value at this path, whose own field it names so far."""
        is_entry = self.field.startswith("[")
        return FieldError(path + self.field if is_entry else join(path, self.field), self.problem)


def parse_json(text: str | bytes, path: str = "") -> Any:
    """Reads JSON. Raises `FieldError` for whatever Python cannot read: what is no JSON, numbers of
    thousands of digits, nesting without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise FieldError(path, "is not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise FieldError(path, f"is not JSON: {clean_text(str(error))}") from None


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def read_plain(value: object, path: str) -> object:
    """A value that nobody here knows the type of, such as a part of a pod template: what can be
    written again as JSON, and what code that calls itself can walk through."""
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
    """A copy of parsed JSON to be changed: each object and list in it is one of its own, also where
    the same one stood in several places."""
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
    """A string without halves of surrogate pairs, which no UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    return value.isascii() or clean_text(value) == value


def clean_text(value: str) -> str:
    """The text with halves of surrogate pairs replaced: Python and JSON let them in."""
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
