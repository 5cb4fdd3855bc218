"""Slots for writes under way, divided among namespaces so that a slow namespace cannot take them
all.

One namespace gets at most a fixed part of the slots. All namespaces whose last write was slow (for
example because an admission webhook hangs) together get half of them. Waiting writes are served
round-robin by namespace, and in order of arrival within a namespace.

A patient write only tells what may be read a little later. Patient writes are served after all
others. One that has waited for `PATIENT_SECONDS` is served first, so that none waits for ever. It
may become urgent while it waits (`Deferral.hurry`).
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

SLOTS = 64
NAMESPACE_SLOTS = 16
SLOW_SLOTS = 32
# A healthy API server answers a write within milliseconds.
SLOW_SECONDS = 0.5
# In a burst, what waits is a user who looks at a job whose GPUs are assigned already.
PATIENT_SECONDS = 10.0
NAMESPACES_MAX = 1000


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A write that waits for its slot."""

    granted: asyncio.Future[None]
    since: float


@dataclass(slots=True)
class Deferral:
    """That of one write, for `WriteSlots.held`, which says how to end it: `hurry` makes the write
    urgent from then on. Without effect once the write has its slot.
    """

    hurry: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Namespace:
    in_use: int = 0
    slow: bool = False
    urgent: deque[_Turn] = field(default_factory=deque[_Turn])
    patient: deque[_Turn] = field(default_factory=deque[_Turn])

    @property
    def is_idle(self) -> bool:
        return self.in_use == 0 and not self.urgent and not self.patient

    def next_queue(self, now: float, *, with_patient: bool) -> deque[_Turn]:
        """The queue that is served next; it may be empty."""
        if self.patient and now - self.patient[0].since >= PATIENT_SECONDS:
            return self.patient
        return self.patient if with_patient and not self.urgent else self.urgent


class WriteSlots:
    """The slots of one event loop. Namespaces without writes under way are forgotten."""

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
        # In the order in which they are served next.
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()

    def __len__(self) -> int:
        """Number of namespaces that are remembered."""
        return len(self._namespaces)

    @asynccontextmanager
    async def held(
        self, namespace: str, *, deferral: Deferral | None = None
    ) -> AsyncGenerator[None]:
        """Holds one slot for one request. Waits for the namespace's turn."""
        entry = self._namespaces.setdefault(namespace, _Namespace())
        await self._acquire(entry, deferral)
        started = self._monotonic()
        try:
            yield
        finally:
            entry.slow = self._monotonic() - started > SLOW_SECONDS
            self._release(namespace, entry)

    async def _acquire(self, entry: _Namespace, deferral: Deferral | None) -> None:
        turn = _Turn(asyncio.get_running_loop().create_future(), self._monotonic())
        if deferral is None:
            entry.urgent.append(turn)
        else:
            entry.patient.append(turn)
            deferral.hurry = lambda: self._hurry(entry, turn)
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
                self._give_back(entry)
            raise

    def _hurry(self, entry: _Namespace, turn: _Turn) -> None:
        if turn in entry.patient:
            entry.patient.remove(turn)
            entry.urgent.append(turn)
            self._grant()

    def _release(self, namespace: str, entry: _Namespace) -> None:
        self._give_back(entry)
        # An idle namespace is forgotten, unless its last write was slow.
        if entry.is_idle and not entry.slow:
            self._namespaces.pop(namespace, None)
        elif len(self._namespaces) > NAMESPACES_MAX:
            for name in [name for name, one in self._namespaces.items() if one.is_idle]:
                del self._namespaces[name]

    def _give_back(self, entry: _Namespace) -> None:
        self._in_use -= 1
        entry.in_use -= 1
        self._grant()

    def _grant(self) -> None:
        """Grants free slots to waiting writes, one namespace after the other."""
        for with_patient in (False, True):
            while self._in_use < self._total and self._grant_round(with_patient):
                pass

    def _grant_round(self, with_patient: bool) -> bool:
        """Grants at most one slot to each namespace; whether any was granted."""
        now, granted = self._monotonic(), False
        slow = sum(entry.in_use for entry in self._namespaces.values() if entry.slow)
        for name, entry in list(self._namespaces.items()):
            if self._in_use >= self._total:
                break
            queue = entry.next_queue(now, with_patient=with_patient)
            if not queue or entry.in_use >= self._of_a_namespace:
                continue
            if entry.slow and slow >= self._of_slow_ones:
                continue
            granted = True
            slow += entry.slow
            self._give(name, entry, queue)
        return granted

    def _give(self, name: str, entry: _Namespace, queue: deque[_Turn]) -> None:
        self._namespaces.move_to_end(name)
        turn = queue.popleft().granted
        if turn.done():
            return
        self._in_use += 1
        entry.in_use += 1
        turn.set_result(None)
