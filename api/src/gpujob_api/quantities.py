"""Amounts with their unit that reject invalid values: quantities, memory and GPU identities."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from gpujob_api.bounds import GPU_MEMORY_BYTES_MAX, GPU_UUID_PATTERN, shown
from gpujob_api.codec import FieldError

if TYPE_CHECKING:
    from typing import Self  # which Python 3.10 does not have

KIB = 1024
MIB = 1024**2
GIB = 1024**3
MEMORY_BYTES_MAX = GPU_MEMORY_BYTES_MAX
FLEET_MEMORY_BYTES_MAX = 16 * 1024**5
QUANTITY_PATTERN = r"^([0-9]{1,17})(\.[0-9]{1,6})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"

# More than any node has, and small enough for exact sums and differences.
AMOUNT_MAX = 2**60

# The value of each suffix as a numerator and a denominator.
_SCALES: Mapping[str, tuple[int, int]] = {
    "": (1, 1),
    "n": (1, 10**9),
    "u": (1, 10**6),
    "m": (1, 1000),
    **{suffix: (1000 ** (n + 1), 1) for n, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": (1024 ** (n + 1), 1) for n, suffix in enumerate("KMGTPE")},
}
_AMOUNT = re.compile(
    r"\+?([0-9]{0,18})(?:\.([0-9]{0,18}))?"
    r"(m|u|n|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE]([+-]?[0-9]{1,2}))?"
)
_MEMORY = re.compile(QUANTITY_PATTERN)
# Python refuses to format very large numbers. These are beyond every bound.
_TEXT_MAX = 10**18
_GPU_UUID = re.compile(GPU_UUID_PATTERN)


def quantity(value: object, per_unit: int = 1) -> int | None:
    """Returns a Kubernetes quantity in whole parts, of which a unit has `per_unit`.

    It is rounded up as in Kubernetes: "250m" is 250 per 1000, "1Ki" is 1024. It is at most
    `AMOUNT_MAX`. A missing quantity is 0. None if it cannot be read or is negative.
    """
    if value is None:
        return 0
    if type(value) is str:
        return _amount(value, per_unit)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        value = str(value) if 0 <= value <= AMOUNT_MAX else ""
    return _amount(value, per_unit)


# Thousands of jobs request the same few amounts.
@lru_cache(maxsize=1024)
def _amount(text: str, per_unit: int) -> int | None:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    whole, decimals, suffix, exponent = match.groups(default="")
    if not whole and not decimals:
        return None
    scale = _SCALES[suffix] if suffix in _SCALES else _power_of_ten(int(exponent))
    return min(AMOUNT_MAX, _rounded_up(whole, decimals, scale, per_unit))


def _power_of_ten(exponent: int) -> tuple[int, int]:
    return (10**exponent, 1) if exponent >= 0 else (1, 10**-exponent)


def _rounded_up(whole: str, decimals: str, scale: tuple[int, int], per_unit: int) -> int:
    numerator, denominator = scale
    amount = int(whole + decimals) * numerator * per_unit
    return -(-amount // (denominator * 10 ** len(decimals)))


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """GPU memory as the user wrote it: 20Gi, 512Mi, 1.5G. At least 1 byte, at most 16 Ti."""

    bytes: int
    bytes_min: ClassVar[int] = 1
    bytes_max: ClassVar[int] = MEMORY_BYTES_MAX

    def __post_init__(self) -> None:
        if not self.bytes_min <= self.bytes <= self.bytes_max:
            at_most = self.bytes_max // 1024**4
            raise FieldError(
                "", f"must be from {self.bytes_min} byte to {at_most}Ti; got {self.bytes} bytes"
            )

    @classmethod
    def from_json(cls, value: object, path: str) -> "Self":
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _TEXT_MAX:
            value = str(value)
        match = _MEMORY.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise FieldError(path, f"must be a quantity such as 20Gi or 512Mi; got {shown(value)}")
        whole, fraction, suffix = match.groups(default="")
        try:
            return cls(_rounded_up(whole, fraction[1:], _SCALES[suffix], 1))
        except FieldError as error:
            raise FieldError(path, error.problem) from None

    def to_json(self) -> str:
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            scale, _ = _SCALES[suffix]
            if self.bytes % scale == 0:
                return f"{self.bytes // scale}{suffix}"
        return str(self.bytes)


@dataclass(frozen=True, slots=True, order=True)
class FleetMemory(Memory):
    """GPU memory over many GPUs, from 0 to 16 Pi."""

    bytes_min: ClassVar[int] = 0
    bytes_max: ClassVar[int] = FLEET_MEMORY_BYTES_MAX


def format_memory(amount_bytes: int) -> str:
    """Returns memory for people with three digits: 1.23 GiB, 512 MiB, 0 B. From 1000 to 1023 there
    are four: 1010 MiB.
    """
    for unit, size in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(amount_bytes) >= size:
            amount = amount_bytes / size
            return f"{amount:.0f} {unit}" if abs(amount) >= 999.5 else f"{amount:.3g} {unit}"
    return f"{amount_bytes} B"


def format_seconds(seconds: float) -> str:
    """Returns seconds with three digits: 1.23 s, 412 ms."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def format_duration(seconds: float) -> str:
    """Returns a duration for a column: 42s, 19m, 2h10m, 4d3h."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours else f"{days}d"


def format_ratio(ratio: float) -> str:
    """Returns a ratio with three significant digits: 1.40, 12.3, 0.00412."""
    return f"{ratio:#.3g}".rstrip(".")


def is_gpu_uuid(text: str) -> bool:
    """Returns whether it is the identity of a GPU: GPU-... and MIG-... from NVML, CPU-... for CPU
    cards.
    """
    return _GPU_UUID.fullmatch(text) is not None


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun, in the plural if needed: 1 worker, 2 workers."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"
