"""Slots for writes: no namespace takes them all, and who waits is served by turns."""

import asyncio
from collections import Counter

import pytest

from gpujob_operator.act.slots import (
    BURST_PER_SECOND,
    BURST_SECONDS,
    BURST_SLOTS,
    PATIENT_BURST,
    PATIENT_PER_SECOND,
    PATIENT_PER_URGENT,
    PATIENT_SECONDS,
    SLOW_SECONDS,
    Deferral,
    WithdrawnError,
    WriteSlots,
)
from gpujob_operator.client.api_errors import SLOW_DOWN_SECONDS
from tests.harness.clocks import FakeClock

pytestmark = pytest.mark.promise("I15")


class _Bench:
    """Writers that hold their slot until they are told to let go."""

    def __init__(self, total: int = 8, of_a_namespace: int = 4, of_slow_ones: int = 4) -> None:
        self.clock = FakeClock()
        self.slots = WriteSlots(
            self.clock.monotonic,
            total=total,
            of_a_namespace=of_a_namespace,
            of_slow_ones=of_slow_ones,
        )
        self.deferral = Deferral()
        self.inside: Counter[str] = Counter()
        self.served: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def write(self, namespace: str, patient: bool = False) -> None:
        async with self.slots.held(namespace, deferral=self.deferral if patient else None):
            self.inside[namespace] += 1
            self.served.append(namespace)
            await self.gates[namespace].wait()
            self.inside[namespace] -= 1

    async def start(self, namespace: str, count: int) -> None:
        self.gates.setdefault(namespace, asyncio.Event())
        self.tasks += [asyncio.create_task(self.write(namespace)) for _ in range(count)]
        await self.settle()

    async def start_patient(self, namespace: str) -> None:
        self.gates[namespace] = asyncio.Event()
        self.gates[namespace].set()
        self.tasks.append(asyncio.create_task(self.write(namespace, patient=True)))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def let_go(self, namespace: str) -> None:
        self.gates[namespace].set()
        await self.settle()

    async def end(self) -> None:
        for gate in self.gates.values():
            gate.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def make_busy(self) -> None:
        """More urgent writes at once than those of quiet times."""
        for _ in range(int(BURST_PER_SECOND) + 1):
            async with self.slots.held("busy"):
                pass

    async def make_urgent(self) -> None:
        async with self.slots.held("busy"):
            pass
        await self.settle()

    async def make_slow(self, namespace: str) -> None:
        async with self.slots.held(namespace):
            self.clock.advance(2 * SLOW_SECONDS)


async def test_a_namespace_gets_a_part_of_the_slots_at_most() -> None:
    bench = _Bench()
    await bench.start("busy", 20)
    await bench.start("other", 1)
    assert bench.inside == {"busy": 4, "other": 1}
    await bench.end()
    assert bench.inside == {"busy": 0, "other": 0}


async def test_slow_namespaces_leave_half_of_the_slots() -> None:
    bench = _Bench()
    for number in range(5):
        await bench.make_slow(f"slow-{number}")
        await bench.start(f"slow-{number}", 3)
    assert sum(bench.inside.values()) == 4
    await bench.start("quick", 4)
    assert bench.inside["quick"] == 4
    await bench.end()
    assert sum(bench.inside.values()) == 0


async def test_a_namespace_is_slow_until_a_quick_write() -> None:
    bench = _Bench(of_slow_ones=1)
    await bench.make_slow("a")
    await bench.start("a", 3)
    assert bench.inside["a"] == 1
    await bench.let_go("a")
    bench.gates["a"].clear()
    await bench.start("a", 3)
    assert bench.inside["a"] == 3
    await bench.end()


async def test_those_that_wait_are_served_by_turns() -> None:
    bench = _Bench(total=2, of_a_namespace=2)
    await bench.start("first", 2)
    for namespace, count in (("a", 3), ("b", 1), ("c", 1)):
        bench.gates[namespace] = asyncio.Event()
        bench.gates[namespace].set()
        await bench.start(namespace, count)
    await bench.let_go("first")
    await bench.end()
    assert bench.served[2:5] == ["a", "b", "c"]


async def served_after(seconds: float) -> list[str]:
    """Who is served in which order, if a patient write came so long before two others."""
    bench = _Bench(total=1, of_a_namespace=1)
    await bench.start("first", 1)
    await bench.start_patient("patient")
    bench.clock.advance(seconds)
    for namespace in ("a", "b"):
        bench.gates[namespace] = asyncio.Event()
        bench.gates[namespace].set()
        await bench.start(namespace, 1)
    await bench.let_go("first")
    await bench.end()
    return bench.served[1:]


async def test_patient_writes_are_served_after_all_others() -> None:
    assert await served_after(PATIENT_SECONDS / 2) == ["a", "b", "patient"]


async def test_no_patient_write_waits_for_ever() -> None:
    assert await served_after(PATIENT_SECONDS) == ["patient", "a", "b"]


async def test_a_deferred_write_may_become_urgent_while_it_waits() -> None:
    bench = _Bench(total=1, of_a_namespace=1)
    await bench.start("first", 1)
    await bench.start_patient("patient")
    bench.deferral.hurry()
    bench.gates["a"] = asyncio.Event()
    bench.gates["a"].set()
    await bench.start("a", 1)
    await bench.let_go("first")
    bench.deferral.hurry()
    await bench.end()
    assert bench.served[1:] == ["patient", "a"]


async def order_in_one_namespace(patient_ones: list[bool], seconds: float) -> list[bool]:
    """In which order patient and urgent writes get the only slot, if they waited for so long."""
    bench = _Bench(total=1, of_a_namespace=1)
    order: list[bool] = []

    async def write(patient: bool) -> None:
        async with bench.slots.held("team", deferral=Deferral() if patient else None):
            order.append(patient)
            await asyncio.sleep(0)

    async with bench.slots.held("team"):
        tasks = [asyncio.create_task(write(patient)) for patient in patient_ones]
        await bench.settle()
        bench.clock.advance(seconds)
    await asyncio.gather(*tasks)
    return order


async def test_patient_and_urgent_writes_of_one_namespace() -> None:
    order = await order_in_one_namespace([True, True, False, False], seconds=0)
    assert order == [False, False, True, True]


async def test_patient_writes_do_not_wait_where_slots_are_free() -> None:
    bench = _Bench(total=1, of_a_namespace=1)
    await bench.start_patient("patient")
    assert bench.served == ["patient"]
    await bench.end()


async def served_after_seconds(bench: _Bench, seconds: float) -> int:
    """The clock of the slots goes on, and a timer of the event loop looks at it."""
    before = len(bench.served)
    bench.clock.advance(seconds)
    for _ in range(100):
        if len(bench.served) > before:
            break
        await asyncio.sleep(0.02)
    await bench.settle()
    return len(bench.served) - before


async def test_patient_writes_are_few_in_a_burst_even_where_slots_are_free() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    await bench.start("slow", BURST_SLOTS + 1)
    for _ in range(int(PATIENT_BURST) + 5):
        await bench.start_patient("patient")
    assert bench.served.count("patient") == int(PATIENT_BURST)
    assert await served_after_seconds(bench, 2.5 / PATIENT_PER_SECOND) == 2
    await bench.start("urgent", 1)
    assert bench.served[-1] == "urgent"
    assert await served_after_seconds(bench, PATIENT_SECONDS) == 3
    await bench.end()


async def test_patient_writes_are_more_in_a_burst_of_more() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    await bench.make_busy()
    for _ in range(int(PATIENT_BURST) + 5):
        await bench.start_patient("patient")
    before = len(bench.served)
    for _ in range(round(3 / PATIENT_PER_URGENT)):
        await bench.make_urgent()
    assert len(bench.served) - before == 3
    assert await served_after_seconds(bench, BURST_SECONDS) == 2
    await bench.end()


async def test_a_few_writes_at_a_time_that_take_long_are_a_burst() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    await bench.start("slow", BURST_SLOTS)
    count = 2 * int(PATIENT_BURST)
    for _ in range(count):
        await bench.start_patient("patient")
    assert len(bench.served) == BURST_SLOTS + count
    await bench.start("slow", 1)
    for _ in range(count):
        await bench.start_patient("patient")
    assert len(bench.served) == BURST_SLOTS + count + 1 + int(PATIENT_BURST)
    await bench.let_go("slow")
    assert await served_after_seconds(bench, BURST_SECONDS) == count - int(PATIENT_BURST)
    await bench.start_patient("patient")
    assert bench.served[-1] == "patient"
    await bench.end()


async def test_patient_writes_of_many_jobs_wait_for_nothing_in_quiet_times() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    count = 3 * int(PATIENT_BURST)
    for _ in range(count):
        await bench.start_patient("patient")
    assert len(bench.served) == count
    await bench.end()


async def test_a_burst_is_over_a_second_after_its_last_write() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    await bench.make_busy()
    count = 3 * int(PATIENT_BURST)
    for _ in range(count):
        await bench.start_patient("patient")
    assert await served_after_seconds(bench, BURST_SECONDS) == count - int(PATIENT_BURST)
    await bench.end()


async def test_patient_writes_that_waited_too_long_take_turns_with_the_others() -> None:
    order = await order_in_one_namespace(3 * [True] + 3 * [False], seconds=PATIENT_SECONDS)
    assert order == [True, False, True, False, True, False]


async def test_after_a_429_others_have_half_of_the_slots_and_patient_writes_wait() -> None:
    bench = _Bench(total=4, of_a_namespace=4)
    bench.slots.slow_down(2.0)
    await bench.start_patient("patient")
    await bench.start("team", 4)
    assert bench.served == ["team", "team"]
    await bench.let_go("team")
    assert bench.served == ["team"] * 4, "what was served leaves its slot to the others"
    bench.clock.advance(1.9)
    await bench.settle()
    assert bench.served == ["team"] * 4, "not before the time that was asked for"
    assert await served_after_seconds(bench, 0.2) == 1
    assert bench.served[-1] == "patient"
    await bench.end()


async def test_a_shorter_429_does_not_end_a_longer_one() -> None:
    bench = _Bench(total=4)
    bench.slots.slow_down(5.0)
    bench.slots.slow_down(SLOW_DOWN_SECONDS)
    bench.clock.advance(SLOW_DOWN_SECONDS + 1.0)
    await bench.start_patient("patient")
    assert bench.served == []
    bench.slots.stop_deferring()
    await bench.settle()
    assert bench.served == ["patient"], "nothing waits at the end"


async def test_at_the_end_patient_writes_wait_for_free_slots_only() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    await bench.make_busy()
    count = 3 * int(PATIENT_BURST)
    for _ in range(count - 1):
        await bench.start_patient("patient")
    bench.slots.stop_deferring()
    await bench.settle()
    await bench.start_patient("patient")
    assert len(bench.served) == count
    await bench.end()


async def test_a_patient_write_over_the_limit_that_becomes_urgent_is_served_at_once() -> None:
    bench = _Bench(total=100, of_a_namespace=100)
    await bench.make_busy()
    for _ in range(int(PATIENT_BURST)):
        await bench.start_patient("first")
    bench.deferral = Deferral()
    await bench.start_patient("next")
    assert "next" not in bench.served
    bench.deferral.hurry()
    await bench.settle()
    assert bench.served[-1] == "next"
    await bench.end()


async def test_a_patient_write_is_given_up_while_it_waits() -> None:
    bench = _Bench(total=1)
    await bench.start("busy", 1)
    await bench.start_patient("patient")
    assert bench.deferral.withdraw()
    with pytest.raises(WithdrawnError):
        await bench.tasks.pop()
    await bench.let_go("busy")
    assert bench.served == ["busy"]


@pytest.mark.parametrize("state", ["served", "urgent", "cancelled"])
async def test_a_write_that_does_not_wait_patiently_is_not_given_up(state: str) -> None:
    bench = _Bench(total=1)
    if state != "served":
        await bench.start("busy", 1)
    await bench.start_patient("patient")
    if state == "urgent":
        bench.deferral.hurry()
    if state == "cancelled":
        bench.tasks.pop().cancel()
    assert not bench.deferral.withdraw()
    await bench.end()
    assert ("patient" in bench.served) is (state != "cancelled")


@pytest.mark.parametrize("patient", [True, False])
async def test_a_patient_writer_that_is_cancelled_leaves_its_queue(patient: bool) -> None:
    bench = _Bench(total=1, of_a_namespace=1)
    await bench.start("a", 1)
    waiting = asyncio.create_task(bench.write("b", patient))
    bench.gates["b"] = asyncio.Event()
    await bench.settle()
    waiting.cancel()
    await bench.settle()
    await bench.let_go("a")
    assert len(bench.slots) == 0 or bench.inside["b"] == 0
    await bench.start("c", 1)
    assert bench.inside["c"] == 1
    await bench.end()


@pytest.mark.parametrize("granted", [True, False])
async def test_a_writer_that_is_cancelled_gives_its_turn_back(granted: bool) -> None:
    bench = _Bench(total=1, of_a_namespace=1)
    await bench.start("a", 1)
    await bench.start("b", 1)
    await bench.start("c", 1)
    if granted:
        bench.gates["a"].set()
        await asyncio.sleep(0)
    bench.tasks[1].cancel()
    await bench.settle()
    await bench.let_go("a")
    assert bench.inside["c"] == 1
    await bench.end()


async def test_idle_namespaces_are_forgotten() -> None:
    bench = _Bench()
    for number in range(3000):
        await bench.make_slow(f"slow-{number}")
        async with bench.slots.held(f"quick-{number}"):
            pass
    assert len(bench.slots) <= 1001
