"""Open Now pages while jobs change: processor time of the server, and the delay of a change."""

import asyncio
import random
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from bench.dashboard.cluster import Size, change
from tests.harness.http_api import HttpApi

# The cell of a marked change.
_STEP = re.compile(rb"\b(5\d{5})/1000000 ")
_FIRST_STEP = 500_000
# The first job is the first one of the Now page.
_MARKED = 0
OPEN_SECONDS_MAX = 60.0
COLUMNS = (
    "viewers", "changes_a_second", "seconds", "processor_percent", "p50_s", "p99_s", "max_s",
    "kilobytes_a_viewer_a_second", "memory_mib",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """So many open pages, and changes of random jobs, for so many seconds."""

    viewers: int
    changes_a_second: float
    seconds: float


@dataclass(slots=True)
class Seen:
    """The times at which marked changes were written, and their delays at all viewers."""

    closed: int
    all_open: asyncio.Event = field(default_factory=asyncio.Event)
    written_at: dict[int, float] = field(default_factory=dict[int, float])
    delays: list[float] = field(default_factory=list[float])
    bytes: int = 0


async def measure(
    session: ClientSession, origin: str, api: HttpApi, server: psutil.Process, size: Size,
    load: Load,
) -> Mapping[str, Any]:  # fmt: skip
    seen = Seen(load.viewers)
    viewers = [asyncio.create_task(_view(session, origin, seen)) for _ in range(load.viewers)]
    try:
        async with asyncio.timeout(OPEN_SECONDS_MAX):
            await seen.all_open.wait()
        seen.bytes = 0
        before, start = _processor_seconds(server), time.monotonic()
        changes = await _change(api, size, load, seen)
        seconds = time.monotonic() - start
        used = _processor_seconds(server) - before
    finally:
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
    return {
        "viewers": load.viewers,
        "changes_a_second": round(changes / seconds, 1),
        "seconds": round(seconds, 1),
        "processor_percent": round(100 * used / seconds, 1),
        **_delays(seen),
        "kilobytes_a_viewer_a_second": round(seen.bytes / 1000 / load.viewers / seconds, 1),
        "memory_mib": round(server.memory_info().rss / 2**20),
    }


async def _view(session: ClientSession, origin: str, seen: Seen) -> None:
    timeout = ClientTimeout(total=None)
    async with session.get(f"{origin}/stream", params={"page": "/"}, timeout=timeout) as stream:
        newest = 0
        await _next_sections(stream, seen)
        seen.closed -= 1
        if not seen.closed:
            seen.all_open.set()
        while True:
            text = await _next_sections(stream, seen)
            now, found = time.monotonic(), _STEP.search(text)
            step = int(found[1]) if found else 0
            # A later state shows all earlier changes.
            for one in range(max(newest + 1, _FIRST_STEP), step + 1):
                if one in seen.written_at:
                    seen.delays.append(now - seen.written_at[one])
            newest = max(newest, step)


async def _next_sections(stream: ClientResponse, seen: Seen) -> bytes:
    while True:
        block = await stream.content.readuntil(b"\n\n")
        seen.bytes += len(block)
        if block.startswith(b"event: sections"):
            return block


async def _change(api: HttpApi, size: Size, load: Load, seen: Seen) -> int:
    """Changes random jobs at this rate, and the marked one at random moments among them."""
    chosen = random.Random(0)
    start, count, step = time.monotonic(), 0, _FIRST_STEP
    next_mark = start
    while (now := time.monotonic()) < start + load.seconds:
        if now >= next_mark:
            seen.written_at[step] = time.monotonic()
            change(api, _MARKED, size, step)
            step, count = step + 1, count + 1
            next_mark = now + chosen.uniform(0.2, 1.2)
        while count < (now - start) * load.changes_a_second:
            change(api, chosen.randrange(1, size.jobs), size, count)
            count += 1
        await asyncio.sleep(0.5 / load.changes_a_second)
    return count


def _delays(seen: Seen) -> Mapping[str, float | None]:
    if len(seen.delays) < 2:
        return {"p50_s": None, "p99_s": None, "max_s": None}
    return {
        "p50_s": round(statistics.median(seen.delays), 2),
        "p99_s": round(statistics.quantiles(seen.delays, n=100)[98], 2),
        "max_s": round(max(seen.delays), 2),
    }


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
