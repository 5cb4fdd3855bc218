"""Expandable segments of torch's caching allocator for CUDA: asked for before the GPU is
initialized, and wanted by a run whose segments are in pieces that are in no use.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass

from gpujob_api.quantities import format_memory

ENV_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# Either is the user's own word about the allocator; newer versions of torch read both.
_ENV_NAMES = (ENV_ALLOCATOR, "PYTORCH_ALLOC_CONF")
_SETTING = "expandable_segments:True"
# Of what is reserved at the peak; rounding alone keeps some percent.
UNUSED_PART = 0.2
UNUSED_BYTES = 64 * 1024**2


def segments_refusal(environment: MutableMapping[str, str]) -> str | None:
    """Why the allocator is left as it is."""
    chosen = next((name for name in _ENV_NAMES if environment.get(name)), None)
    if chosen is None or environment[chosen] == _SETTING:
        return None
    return f"the user chose {chosen}={environment[chosen]}"


def segments_in_force(environment: MutableMapping[str, str]) -> bool:
    """Whether they were asked for as below; a value of the user's own is the user's."""
    return environment.get(ENV_ALLOCATOR) == _SETTING


def expand_segments(environment: MutableMapping[str, str]) -> None:
    """Before torch is imported. It reads the variable once, with the first memory on the GPU."""
    if segments_refusal(environment) is None:
        environment[ENV_ALLOCATOR] = _SETTING


@dataclass(frozen=True, slots=True)
class Unused:
    """What the allocator held at its peak, and how much of it was ever in use at once."""

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
