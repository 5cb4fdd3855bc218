"""A caching allocator's counters: blocks out of segments, peaks, a limit, and out of memory.

As torch's allocator for CUDA: sizes are rounded to 512 bytes, small blocks share segments of 2 MiB,
middle ones of 20 MiB, large ones get a segment of their own. What is freed stays reserved until
`empty_cache`, or until an allocation would fail otherwise. With expandable segments there is one of
small blocks and one of all others, which grows by whole pages; the variable is read with the first
allocation, as torch does.
"""

import os
from dataclasses import dataclass, field

import torch

MIB = 1024**2
_ROUND_BYTES = 512
_SMALL_BYTES, _MIDDLE_BYTES = MIB, 10 * MIB
_SMALL_SEGMENT_BYTES, _MIDDLE_SEGMENT_BYTES, _LARGE_ROUND_BYTES = 2 * MIB, 20 * MIB, 2 * MIB
_ENV_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(slots=True)
class _Segment:
    size: int
    small: bool
    # Free ranges as (start, end), in order, none touching the next.
    free: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.size)]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment, rounded."""

    segment: _Segment
    start: int
    size: int


class CachingAllocator:
    """Bytes only: the memory itself is the host's."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.fraction = 1.0
        self.expandable: bool | None = None
        self.segments: list[_Segment] = []
        self.allocated = self.reserved = 0
        self.allocated_peak = self.reserved_peak = 0
        self.retries = self.failures = 0

    def allocate(self, size: int) -> Block:
        """Raises `torch.OutOfMemoryError` where the limit would be overstepped."""
        if self.expandable is None:
            self.expandable = "expandable_segments:True" in os.environ.get(_ENV_SETTINGS, "")
        rounded = max(_ROUND_BYTES, -(-size // _ROUND_BYTES) * _ROUND_BYTES)
        new = self._from_growth if self.expandable else self._from_new
        block = self._from_free(rounded) or new(rounded)
        self.allocated += rounded
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        return block

    def free(self, block: Block) -> None:
        self.allocated -= block.size
        ranges = sorted([*block.segment.free, (block.start, block.start + block.size)])
        merged: list[tuple[int, int]] = []
        for start, end in ranges:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        block.segment.free = merged

    def empty_cache(self) -> None:
        for segment in [segment for segment in self.segments if segment.empty]:
            self.segments.remove(segment)
            self.reserved -= segment.size

    def reset_peaks(self) -> None:
        self.allocated_peak, self.reserved_peak = self.allocated, self.reserved

    def statistics(self) -> dict[str, int]:
        """Under the names of `torch.cuda.memory_stats`."""
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.allocated_peak,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.reserved_peak,
            "segment.all.current": len(self.segments),
            "num_alloc_retries": self.retries,
            "num_ooms": self.failures,
        }

    def _from_free(self, size: int) -> Block | None:
        small = size <= _SMALL_BYTES
        fits = [
            (end - start, number, start)
            for number, segment in enumerate(self.segments)
            if segment.small is small
            for start, end in segment.free
            if end - start >= size
        ]
        if not fits:
            return None
        _, number, start = min(fits)
        return self._cut(self.segments[number], start, size)

    def _cut(self, segment: _Segment, start: int, size: int) -> Block:
        at = next(i for i, piece in enumerate(segment.free) if piece[0] == start)
        end = segment.free[at][1]
        segment.free[at : at + 1] = [(start + size, end)] if start + size < end else []
        return Block(segment, start, size)

    def _from_new(self, size: int) -> Block:
        small = size <= _SMALL_BYTES
        if small:
            wanted = _SMALL_SEGMENT_BYTES
        elif size < _MIDDLE_BYTES:
            wanted = _MIDDLE_SEGMENT_BYTES
        else:
            wanted = -(-size // _LARGE_ROUND_BYTES) * _LARGE_ROUND_BYTES
        self._reserve(wanted)
        segment = _Segment(wanted, small, [(0, wanted)])
        self.segments.append(segment)
        return self._cut(segment, 0, size)

    def _from_growth(self, size: int) -> Block:
        """From the end of the pool's one segment, which becomes as long as needed."""
        small = size <= _SMALL_BYTES
        segment = next((found for found in self.segments if found.small is small), None)
        if segment is None:
            segment = _Segment(0, small)
            self.segments.append(segment)
        last = segment.free[-1] if segment.free else (0, 0)
        start = last[0] if last[1] == segment.size and segment.free else segment.size
        page = _SMALL_SEGMENT_BYTES if small else _MIDDLE_SEGMENT_BYTES
        wanted = -(-(start + size - segment.size) // page) * page
        self._reserve(wanted)
        if start < segment.size:
            segment.free.pop()
        segment.size += wanted
        segment.free.append((start, segment.size))
        return self._cut(segment, start, size)

    def _reserve(self, wanted: int) -> None:
        limit = int(self.fraction * self.total_bytes)
        if self.reserved + wanted > limit:
            self.retries += 1
            self.empty_cache()
        if self.reserved + wanted > limit:
            self.failures += 1
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {wanted / MIB:.2f} MiB. The limit is "
                f"{limit / MIB:.2f} MiB, of which {self.reserved / MIB:.2f} MiB are reserved."
            )
        self.reserved += wanted
        self.reserved_peak = max(self.reserved_peak, self.reserved)
