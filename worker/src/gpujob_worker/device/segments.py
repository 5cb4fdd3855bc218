"""Expandable segments of torch's caching allocator for CUDA.

They must be requested before the GPU is initialized. A run requests them for the next one if large
parts of its segments are unused.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass

from gpujob_api.quantities import format_memory

ENV_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# A user configures the allocator with either variable. Newer versions of torch read both.
_ENV_NAMES = (ENV_ALLOCATOR, "PYTORCH_ALLOC_CONF")
_SETTING = "expandable_segments:True"
# Part of the reserved memory at the peak. Rounding alone keeps some percent.
UNUSED_PART = 0.2
UNUSED_BYTES = 64 * 1024**2


def segments_refusal(environment: MutableMapping[str, str]) -> str | None:
    """Returns why the allocator is left as it is, or None."""
    chosen = next((name for name in _ENV_NAMES if environment.get(name)), None)
    if chosen is None or environment[chosen] == _SETTING:
        return None
    return f"the user chose {chosen}={environment[chosen]}"


def segments_in_force(environment: MutableMapping[str, str]) -> bool:
    """Returns whether they were requested as below. Any other value is the user's."""
    return environment.get(ENV_ALLOCATOR) == _SETTING


def expand_segments(environment: MutableMapping[str, str]) -> None:
    """Requests expandable segments. Call it before torch is imported.

    Torch reads the variable once, with the first memory on the GPU.
    """
    if segments_refusal(environment) is None:
        environment[ENV_ALLOCATOR] = _SETTING


@dataclass(frozen=True, slots=True)
class Unused:
    """Memory that the allocator reserved at its peak, and the most that was in use at once."""

    reserved_bytes: int
    allocated_bytes: int

    @property
    def is_large(self) -> bool:
        unused = self.reserved_bytes - self.allocated_bytes
        return unused >= max(UNUSED_BYTES, UNUSED_PART * self.reserved_bytes)

    def __str__(self) -> str:
        unused = max(0, self.reserved_bytes - self.allocated_bytes)
        part = 100 * unused / max(1, self.reserved_bytes)
        reserved = format_memory(self.reserved_bytes)
        return f"{part:.0f} % of the {reserved} that the allocator reserved was in no use"
