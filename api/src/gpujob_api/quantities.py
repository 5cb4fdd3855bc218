"""Amounts that carry their unit and refuse nonsense: memory and GPU identities."""

import re
from dataclasses import dataclass
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

_BINARY = {"": 1, "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 1024**4}
_SUFFIXES = _BINARY | {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MEMORY = re.compile(QUANTITY_PATTERN)
# Python refuses to make texts of numbers that are very large; these are beyond every bound.
_TEXT_MAX = 10**18
_GPU_UUID = re.compile(GPU_UUID_PATTERN)


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
        decimals = fraction[1:]
        scaled = int(whole + decimals) * _SUFFIXES[suffix]
        try:
            # Rounded up, as Kubernetes rounds quantities.
            return cls(-(-scaled // 10 ** len(decimals)))
        except FieldError as error:
            raise FieldError(path, error.problem) from None

    def to_json(self) -> str:
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if self.bytes % _SUFFIXES[suffix] == 0:
                return f"{self.bytes // _SUFFIXES[suffix]}{suffix}"
        return str(self.bytes)


@dataclass(frozen=True, slots=True, order=True)
class FleetMemory(Memory):
    """GPU memory over many GPUs: 0 to 16 Pi."""

    bytes_min: ClassVar[int] = 0
    bytes_max: ClassVar[int] = FLEET_MEMORY_BYTES_MAX


def format_memory(amount_bytes: int) -> str:
    """Memory for people, three digits: 1.23 GiB, 512 MiB, 0 B."""
    for unit, size in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(amount_bytes) >= size:
            return f"{amount_bytes / size:.3g} {unit}"
    return f"{amount_bytes} B"


def is_gpu_uuid(text: str) -> bool:
    """True for the identity of a GPU: GPU-... and MIG-... from NVML, CPU-... for CPU cards."""
    return _GPU_UUID.fullmatch(text) is not None
