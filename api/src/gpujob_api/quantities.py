"""Amounts that carry their unit and refuse nonsense: memory and GPU identities."""

import re
from dataclasses import dataclass
from typing import Self

from gpujob_api.codec import FieldError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
MEMORY_BYTES_MAX = 16 * 1024**4

_BINARY = {"": 1, "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 1024**4}
_SUFFIXES = _BINARY | {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MEMORY = re.compile(r"^([0-9]{1,15})(\.[0-9]{1,6})?(Ki|Mi|Gi|Ti|k|M|G|T)?$")
_GPU_UUID = re.compile(r"^(GPU|MIG|CPU)-[0-9A-Za-z][0-9A-Za-z-]{0,62}$")


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """GPU memory as the user wrote it: 20Gi, 512Mi, 1.5G. At least 1 byte, at most 16 Ti."""

    bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.bytes <= MEMORY_BYTES_MAX:
            raise FieldError("", f"must be above 0 and at most 16Ti; got {self.bytes} bytes")

    @classmethod
    def from_json(cls, value: object, path: str) -> Self:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        match = _MEMORY.match(value) if isinstance(value, str) else None
        if match is None:
            raise FieldError(path, f"must be a quantity such as 20Gi or 512Mi; got {value!r}")
        whole, fraction, suffix = match.groups()
        amount = float(whole + (fraction or "")) * _SUFFIXES[suffix or ""]
        try:
            return cls(round(amount) if fraction else int(whole) * _SUFFIXES[suffix or ""])
        except FieldError as error:
            raise FieldError(path, error.problem) from None

    def to_json(self) -> str:
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if self.bytes % _SUFFIXES[suffix] == 0:
                return f"{self.bytes // _SUFFIXES[suffix]}{suffix}"
        return str(self.bytes)


def format_memory(amount_bytes: int) -> str:
    """Memory for people, three digits: 1.23 GiB, 512 MiB, 0 B."""
    for unit, size in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(amount_bytes) >= size:
            return f"{amount_bytes / size:.3g} {unit}"
    return f"{amount_bytes} B"


def is_gpu_uuid(text: str) -> bool:
    """True for the identity of a card: GPU-... and MIG-... from NVML, CPU-... for CPU cards."""
    return _GPU_UUID.match(text) is not None
