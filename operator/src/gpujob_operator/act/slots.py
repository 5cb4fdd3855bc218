"""Slots for writes in flight, divided among namespaces so that a slow namespace cannot take them
all.

One namespace gets at most a fixed part of the slots. All namespaces whose last write was slow, for
example because an admission webhook hangs, together get half of them. Waiting writes are served
round-robin by namespace, and in order of arrival within a namespace.

A patient write is only informative and may be read a little later. Patient writes are served after
all others. While the API server is busy, they are few in proportion to the others, because the CPU
time for a status is then missing for pods, and the next status usually overtakes a waiting one.
Patient writes that have waited for `PATIENT_SECONDS` alternate with the others, so none waits
forever. A patient write may become urgent while it waits (`Deferral.hurry`), or be given up
(`Deferral.withdraw`).

The API server counts as busy while there are many other writes per second, or many at a time
because each takes long. If it asks to slow down (429), patient writes wait as long as it asks, and
the others get half of the slots.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from gpujob_operator.client.api_errors import Throttled
from gpujob_operator.rate_limit import RateLimit

SLOTS = 64
# More pods at a time come too fast for the watches of a young API server, which then closes them.
NAMESPACE_SLOTS = 8
SLOW_SLOTS = 32
# A healthy API server answers a write within milliseconds.
SLOW_SECONDS = 0.5
# Only a user who looks at a job waits for such a write. The job's GPUs are already assigned.
PATIENT_SECONDS = 30.0
# More urgent writes than this at once, and then per second, are a burst. It ends this long after
# the last one.
BURST_PER_SECOND = 32.0
BURST_SECONDS = 1.0
# This many urgent writes at a time are also a burst, because a slow API server accepts few per
# second.
BURST_SLOTS = 4
# Patient writes during a burst: how many at once, then per urgent one, and per second.
PATIENT_BURST = 16.0
PATIENT_PER_URGENT = 1 / 32
PATIENT_PER_SECOND = 1.0
_LOOK_AGAIN_SECONDS = 0.125
NAMESPACES_MAX = 1000


@dataclass(slots=True, eq=False)
class _Turn:
    """A write that waits for its slot or has it."""

    granted: asyncio.Future[None]
    since: float
    # Whether it was urgent when it got its slot.
    urgent: bool = False


class WithdrawnError(Exception):
    """The write was given up while it waited for its slot."""


@dataclass(slots=True)
class Deferral:
    """The deferral of one write, for `WriteSlots.held`, which sets both functions.

    `hurry` makes the write urgent from then on. `withdraw` gives it up, and `held` raises
    `WithdrawnError`. Neither has an effect after the write has its slot. `withdraw` has none on an
    urgent write. It returns whether it had an effect.
    """

    hurry: Callable[[], None] = lambda: None
    withdraw: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class _Namespace:
    in_use: int = 0
    slow: bool = False
    # Whether the last write that was served was a patient one.
    patient_was_last: bool = False
    urgent: deque[_Turn] = field(default_factory=deque[_Turn])
    patient: deque[_Turn] = field(default_factory=deque[_Turn])

    @property
    def is_idle(self) -> bool:
        return self.in_use == 0 and not self.urgent and not self.patient

    def next_queue(self, now: float, *, with_patient: bool) -> deque[_Turn]:
        """Returns the queue that is served next. It may be empty."""
        if self.is_overdue(now) and not (self.urgent and self.patient_was_last):
            return self.patient
        return self.patient if with_patient and not self.urgent else self.urgent

    def is_overdue(self, now: float) -> bool:
        return bool(self.patient) and now - self.patient[0].since >= PATIENT_SECONDS


class WriteSlots:
    """The slots of one event loop. Namespaces without writes in flight are removed."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        total: int = SLOTS,
        of_a_namespace: int = NAMESPACE_SLOTS,
        of_slow_ones: int = SLOW_SLOTS,
    ) -> None:
        self._monotonic = monotonic
        self._total = total
        self._of_a_namespace = of_a_namespace
        self._of_slow_ones = of_slow_ones
        self._in_use = 0
        self._urgent_in_use = 0
        now = monotonic()
        self._urgent_limit = RateLimit(now, per_second=BURST_PER_SECOND, burst=BURST_PER_SECOND)
        self._burst_until = now
        self._slow_until = now
        self._patient_limit = RateLimit(now, per_second=PATIENT_PER_SECOND, burst=PATIENT_BURST)
        self._defers = True
        self._timer: asyncio.TimerHandle | None = None
        # In the order in which they are served next.
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()

    def __len__(self) -> int:
        """Number of namespaces in memory."""
        return len(self._namespaces)

    @asynccontextmanager
    async def held(
        self, namespace: str, *, deferral: Deferral | None = None
    ) -> AsyncGenerator[None]:
        """Holds one slot for one request. Waits for the namespace's turn."""
        entry = self._namespaces.setdefault(namespace, _Namespace())
        turn = await self._acquire(entry, deferral)
        started = self._monotonic()
        try:
            yield
        except Throttled as error:
            self.slow_down(error.pause_seconds)
            raise
        finally:
            entry.slow = self._monotonic() - started > SLOW_SECONDS
            self._release(namespace, entry, turn)

    def slow_down(self, seconds: float) -> None:
        """Handles the API server's request to slow down for this many seconds."""
        self._slow_until = max(self._slow_until, self._monotonic() + seconds)

    def stop_deferring(self) -> None:
        """Makes patient writes wait only for free slots from now on, because the process
        is ending.
        """
        self._defers = False
        self._grant()

    async def _acquire(self, entry: _Namespace, deferral: Deferral | None) -> _Turn:
        turn = _Turn(asyncio.get_running_loop().create_future(), self._monotonic())
        if deferral is None:
            entry.urgent.append(turn)
        else:
            entry.patient.append(turn)
            deferral.hurry = lambda: self._hurry(entry, turn)
            deferral.withdraw = lambda: self._withdraw(entry, turn)
        self._grant()
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.cancelled():
                for queue in (entry.urgent, entry.patient):
                    with suppress(ValueError):
                        queue.remove(turn)
            else:
                # The slot was granted at the same time as the cancellation.
                self._give_back(entry, turn)
            raise
        return turn

    def _hurry(self, entry: _Namespace, turn: _Turn) -> None:
        if turn in entry.patient:
            entry.patient.remove(turn)
            entry.urgent.append(turn)
            self._grant()

    @staticmethod
    def _withdraw(entry: _Namespace, turn: _Turn) -> bool:
        if turn not in entry.patient or turn.granted.done():
            return False
        entry.patient.remove(turn)
        turn.granted.set_exception(WithdrawnError())
        return True

    def _release(self, namespace: str, entry: _Namespace, turn: _Turn) -> None:
        self._give_back(entry, turn)
        # An idle namespace is removed, unless its last write was slow.
        if entry.is_idle and not entry.slow:
            self._namespaces.pop(namespace, None)
        elif len(self._namespaces) > NAMESPACES_MAX:
            for name in [name for name, one in self._namespaces.items() if one.is_idle]:
                del self._namespaces[name]

    def _give_back(self, entry: _Namespace, turn: _Turn) -> None:
        self._in_use -= 1
        self._urgent_in_use -= turn.urgent
        entry.in_use -= 1
        self._grant()

    def _grant(self) -> None:
        """Grants free slots to waiting writes, one namespace after the other."""
        slow = self._defers and self._monotonic() < self._slow_until
        total = max(1, self._total // 2) if slow else self._total
        for with_patient in (False,) if slow else (False, True):
            while self._in_use < total and self._grant_round(
                total, with_patient=with_patient, only_urgent=slow
            ):
                pass
        waits = any(one.patient or (slow and one.urgent) for one in self._namespaces.values())
        if self._timer is None and waits:
            # The limits allow more after some time, even if no slot becomes free.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LOOK_AGAIN_SECONDS, self._grant_in_time)

    def _grant_in_time(self) -> None:
        self._timer = None
        self._grant()

    def _grant_round(self, total: int, *, with_patient: bool, only_urgent: bool) -> bool:
        """Grants at most one slot to each namespace. Returns whether any was granted."""
        now, granted = self._monotonic(), False
        slow = sum(entry.in_use for entry in self._namespaces.values() if entry.slow)
        for name, entry in list(self._namespaces.items()):
            if self._in_use >= total:
                break
            queue = entry.next_queue(now, with_patient=with_patient)
            queue = entry.urgent if only_urgent else queue
            if not queue or entry.in_use >= self._of_a_namespace:
                continue
            if entry.slow and slow >= self._of_slow_ones:
                continue
            if queue is entry.patient and not self._may_be_served(entry, now):
                continue
            granted = True
            slow += entry.slow
            self._give(name, entry, queue)
        return granted

    def _may_be_served(self, entry: _Namespace, now: float) -> bool:
        burst = now < self._burst_until or self._urgent_in_use > BURST_SLOTS
        if not self._defers or not burst or entry.is_overdue(now):
            return True
        return self._patient_limit.take(now)

    def _give(self, name: str, entry: _Namespace, queue: deque[_Turn]) -> None:
        self._namespaces.move_to_end(name)
        entry.patient_was_last = queue is entry.patient
        now = self._monotonic()
        turn = queue.popleft()
        if turn.granted.done():
            return
        turn.urgent = queue is entry.urgent
        if turn.urgent:
            self._count_urgent(now)
        self._in_use += 1
        entry.in_use += 1
        turn.granted.set_result(None)

    def _count_urgent(self, now: float) -> None:
        self._urgent_in_use += 1
        self._patient_limit.earn(PATIENT_PER_URGENT)
        if not self._urgent_limit.take(now) or self._urgent_in_use > BURST_SLOTS:
            self._burst_until = now + BURST_SECONDS
