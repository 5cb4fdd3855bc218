"""Limits of what the server takes in: requests in progress, the bytes of their bodies, and the time
that a body may take.
"""

import asyncio
from collections.abc import AsyncIterable, Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = 64 * 1024**2
    # Of all requests in progress. A body of unknown length counts as the largest one.
    bodies_bytes: int = 1024**3
    requests: int = 2048
    body_seconds: float = 60.0


class BodyError(Exception):
    """A body that was not read. `status` is the response's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Full(RuntimeError):  # noqa: N818 - a state, as Overloaded is
    """Too many requests, or too many bytes of them, are in progress."""


class Intake:
    """The requests in progress. Used by one thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = self.bytes = 0
        # Requests that are in progress and not queued yet, because they are read and converted.
        self.arriving = 0
        # Requests that were refused before they were read, since the start.
        self.refused = 0

    @contextmanager
    def request(self, body_bytes: int | None) -> Generator[None]:
        """Counts a request while the block runs. Raises `BodyError` if the body is too large, and
        `Full` if others have to end first.
        """
        limits = self.limits
        if body_bytes is not None and body_bytes > limits.body_bytes:
            raise too_large(limits, body_bytes)
        size = limits.body_bytes if body_bytes is None else body_bytes
        if self.requests >= limits.requests:
            self.refused += 1
            raise Full(f"{self.requests} requests are in progress, which is the limit")
        if self.bytes + size > max(limits.bodies_bytes, size):
            self.refused += 1
            raise Full(f"the requests in progress have {self.bytes} bytes, which is near the limit")
        self.requests += 1
        self.bytes += size
        try:
            yield
        finally:
            self.requests -= 1
            self.bytes -= size

    @contextmanager
    def arrival(self) -> Generator[None]:
        """Counts a request as arriving while the block runs."""
        self.arriving += 1
        try:
            yield
        finally:
            self.arriving -= 1


def too_large(limits: Limits, size: int | None = None) -> BodyError:
    got = f"; got {size}" if size is not None else ""
    return BodyError(413, f"the body must have at most {limits.body_bytes} bytes{got}")


async def read_body(chunks: AsyncIterable[bytes], limits: Limits) -> bytearray:
    """Returns the whole body. Raises `BodyError` if it is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in chunks:
                if len(body) + len(chunk) > limits.body_bytes:
                    raise too_large(limits)
                body += chunk
    except TimeoutError:
        raise BodyError(
            408,
            f"the body must arrive within {limits.body_seconds:g} s; {len(body)} bytes arrived",
        ) from None
    return body
