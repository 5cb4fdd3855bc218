"""Waits for a condition with a deadline: no test sleeps for a guessed time."""

import asyncio
import time
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """Returns as soon as the condition holds. Raises AssertionError at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.02)
