"""What a benchmark says while it runs, and how it waits for a part of the stack."""

import asyncio
import sys
import time
from collections.abc import Callable

from bench.throughput.stack import Stack

WAIT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.5

_started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _started:7.1f} s  {text}", file=sys.stderr, flush=True)


async def wait_until(
    condition: Callable[[], bool],
    what: str,
    stack: Stack,
    *,
    limit_seconds: float = WAIT_SECONDS_MAX,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Polls in a thread. Raises `RuntimeError` after the limit, or if a process ends."""
    deadline = time.monotonic() + limit_seconds
    while not await asyncio.to_thread(condition):
        await asyncio.to_thread(stack.check)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not there after {limit_seconds:.0f} s")
        await asyncio.sleep(poll_seconds)
