"""The bounds of fields, written next to their types: `Annotated[int, Range(1, 1024)]`.

The CRD schemas state the same bounds; a test keeps both equal. `codec.decode` rejects values out of
bounds. Two kinds of value are made to fit instead, because they are for people or come from noisy
measurement and must never cost a whole report or status: texts and lists with `clip`, and numbers
with `clamp`. Texts with `clip` come from users and programs, so their control characters are
replaced.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Protocol, runtime_checkable

from gpujob_api.visible import visible

# Whole numbers up to here survive every JSON reader, including those with 64-bit floats.
INTEGER_MAX = 2**53 - 1
INT32_MAX = 2**31 - 1
# The API server compares whole numbers as 64-bit integers, so bounds of fractions must fit into
# them.
FRACTION_MAX = 10**18
# Times outside these years overflow in some zone or reader.
YEAR_MIN, YEAR_MAX = 1000, 8999
GPU_MEMORY_BYTES_MAX = 16 * 1024**4

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
GPU_UUID_PATTERN = r"^(GPU|MIG|CPU)-[0-9A-Za-z][0-9A-Za-z-]{0,62}$"
_CLIPPED = "..."
_SHOWN_CHARACTERS_MAX = 120


def shown(value: object) -> str:
    """Returns a value for an error message: short, and a text for any value."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python writes no number of more than 4,300 digits, and no deeply nested value.
        return f"{type(value).__name__} too large to show"
    is_short = len(text) <= _SHOWN_CHARACTERS_MAX
    return text if is_short else text[:_SHOWN_CHARACTERS_MAX] + _CLIPPED


@runtime_checkable
class Bound(Protocol):
    """A condition on a value. `fitted` makes the value fit if the bound allows that."""

    def problem(self, value: Any) -> str | None:
        """Returns what is wrong with the value, or None."""
        ...

    def fitted(self, value: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `minimum` to `maximum`, both included.

    Bounds are whole, because the API server cuts off their fraction when it compares a whole
    number.
    """

    minimum: int
    maximum: int
    clamp: bool = False

    def problem(self, value: float) -> str | None:
        if self.minimum <= value <= self.maximum:
            return None
        return f"must be from {self.minimum} to {self.maximum}; got {shown(value)}"

    def fitted(self, value: float) -> float | None:
        if not self.clamp or self.minimum <= value <= self.maximum:
            return value
        return (
            None
            if isinstance(value, float) and math.isnan(value)
            else min(max(value, self.minimum), self.maximum)
        )


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most `characters_max` Unicode characters, as the API server counts them."""

    characters_max: int
    pattern: str | None = None
    characters_min: int = 0
    clip: bool = False

    def problem(self, value: str) -> str | None:
        if len(value) > self.characters_max:
            return f"must have at most {self.characters_max} characters; got {len(value)}"
        if len(value) < self.characters_min:
            return f"must have at least {self.characters_min} characters; got {len(value)}"
        if self.pattern is not None and _compiled(self.pattern).fullmatch(value) is None:
            return f"must match {self.pattern}; got {shown(value)}"
        return None

    def fitted(self, value: str) -> str:
        if not self.clip:
            return value
        value = visible(value)
        if len(value) <= self.characters_max:
            return value
        return value[: self.characters_max - len(_CLIPPED)] + _CLIPPED


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most `items_max` entries. `keys` are the fields that identify an entry.

    `unique` is for lists of plain values that must all differ.
    """

    items_max: int
    keys: tuple[str, ...] = ()
    unique: bool = False
    clip: bool = False

    def problem(self, value: tuple[Any, ...]) -> str | None:
        if len(value) > self.items_max:
            return f"must have at most {self.items_max} items; got {len(value)}"
        identities = [self._identity(entry) for entry in value]
        if (self.keys or self.unique) and len(set(identities)) != len(identities):
            return f"has two entries with the same {', '.join(self.keys) or 'value'}"
        return None

    def fitted(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return value[: self.items_max] if self.clip else value

    def _identity(self, entry: Any) -> object:
        return tuple(getattr(entry, key) for key in self.keys) if self.keys else entry


@cache
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern)


GPUMemoryBytes = Annotated[int, Range(0, GPU_MEMORY_BYTES_MAX)]
Count = Annotated[int, Range(0, INTEGER_MAX)]
SmallCount = Annotated[int, Range(0, INT32_MAX)]
Percent = Annotated[float, Range(0, 100)]
Label = Annotated[str, Text(63, LABEL_PATTERN, 1)]
Subdomain = Annotated[str, Text(253, SUBDOMAIN_PATTERN, 1)]
Message = Annotated[str, Text(1024, clip=True)]
Model = Annotated[str, Text(128, clip=True)]
Version = Annotated[str, Text(64, clip=True)]
GPUUUID = Annotated[str, Text(67, GPU_UUID_PATTERN)]
