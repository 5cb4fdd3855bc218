"""The replicas that take requests, and the requests that wait for one."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gpujob_api.gate import GateReply
from gpujob_operator.gate.traffic import Traffic

READ_AHEAD_BYTES = 16 * 1024
# What is read of the body of a request that waits: twice READ_AHEAD_BYTES, and a chunk of 256 KiB.
HELD_REQUEST_BYTES_MAX = 2 * READ_AHEAD_BYTES + 256 * 1024
# Before the operator's first reply.
UNKNOWN_COLD_START_SECONDS = 60.0
# A replica that refused a connection is tried again after this time.
REFUSED_SECONDS = 0.5


class NoReplica(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """No replica takes the request. The client may send it again."""


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """What all held requests may have together."""

    requests_max: int = 1000
    bytes_max: int = 64 * 1024**2


class Replicas:
    """The addresses in the operator's latest reply. They stay if the operator is unreachable."""

    def __init__(
        self,
        traffic: Traffic,
        monotonic: Callable[[], float],
        limits: HoldLimits | None = None,
    ) -> None:
        self._traffic = traffic
        self._monotonic = monotonic
        self._limits = limits or HoldLimits()
        self._addresses: tuple[str, ...] = ()
        # Requests in progress, by address.
        self._busy: Counter[str] = Counter()
        # When an address that refused a connection is tried again.
        self._refused_until: dict[str, float] = {}
        self._cold_start_seconds = UNKNOWN_COLD_START_SECONDS
        # Whether the operator has replied.
        self.known = False
        # Above the time of every request, unless the process ends.
        self._hold_until = float("inf")
        self._changed = asyncio.Event()

    def update(self, reply: GateReply) -> None:
        self._addresses = reply.replicas
        self._cold_start_seconds = reply.cold_start_seconds
        self.known = True
        for gone in self._refused_until.keys() - set(reply.replicas):
            del self._refused_until[gone]
        self._wake()

    @property
    def count(self) -> int:
        """How many replicas requests are sent to."""
        return len(self._addresses)

    def hold_until(self, moment: float) -> None:
        """Holds no request after this moment of the monotonic clock."""
        self._hold_until = moment
        self._wake()

    @contextmanager
    def use(self, address: str) -> Generator[None]:
        """Covers the time in which a replica has a request."""
        self._busy[address] += 1
        try:
            yield
        finally:
            self._busy[address] -= 1
            if not self._busy[address]:
                del self._busy[address]

    def refused(self, address: str) -> None:
        """Notes that the replica refused a connection."""
        self._refused_until[address] = self._monotonic() + REFUSED_SECONDS

    async def next(self, arrived_at: float, body_bytes: int | None) -> str:
        """Returns the address with the fewest requests. Waits for one if there is none.

        `body_bytes` is None if the size of the body is unknown. Raises `NoReplica` if too many
        requests wait, or if the request has waited for the cold start of a replica.
        """
        found = self._free()
        if found is not None:
            return found
        size = HELD_REQUEST_BYTES_MAX
        if body_bytes is not None:
            size = min(size, body_bytes)
        self._check_room(size)
        with self._traffic.hold(size):
            while True:
                until = min(self._hold_until, arrived_at + self._cold_start_seconds)
                left = until - self._monotonic()
                if left <= 0:
                    waited = self._monotonic() - arrived_at
                    raise NoReplica(f"no replica was ready within {waited:.1f} s")
                await self._wait(min(left, REFUSED_SECONDS))
                found = self._free()
                if found is not None:
                    return found

    def _check_room(self, size_bytes: int) -> None:
        limits, traffic = self._limits, self._traffic
        if traffic.held >= limits.requests_max:
            raise NoReplica(f"{traffic.held} requests wait for a replica, the most that may")
        if traffic.held_bytes + size_bytes > limits.bytes_max:
            text = f"{traffic.held_bytes} bytes of requests wait for a replica"
            raise NoReplica(f"{text}, and {size_bytes} more are above the limit")

    def _free(self) -> str | None:
        now = self._monotonic()
        open_ones = [one for one in self._addresses if self._refused_until.get(one, now) <= now]
        return min(open_ones, key=lambda one: self._busy[one], default=None)

    async def _wait(self, seconds: float) -> None:
        """Waits for a change, or for this time."""
        # In Python 3.11, wait_for loses a cancellation that comes with the change.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _wake(self) -> None:
        """Wakes all that wait now. Later ones wait for the next change."""
        self._changed.set()
        self._changed = asyncio.Event()
