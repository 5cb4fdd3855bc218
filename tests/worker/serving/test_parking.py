"""A batcher parks between requests, loses none of them, and tries what failed when it is asked
again.
"""

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from gpujob_api.serving import Batching, BatchingPolicy, Objective
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.batcher import Batcher, Draining, Parked
from tests.worker.serving.backends import SECONDS_MAX, Doubling, Gated, samples, values

HOUR = Objective(3_600_000)


@dataclass
class CountedMover:
    """Writes down its moves. Each waits for one `let_on` if `waits`, and fails if it has to."""

    waits: bool = False
    can_park: bool = True
    moves: list[str] = field(default_factory=list[str])
    failures: list[str] = field(default_factory=list[str])
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def _move(self, name: str) -> bool:
        self.moves.append(name)
        self.entered.release()
        if self.waits:
            assert self.gate.acquire(timeout=SECONDS_MAX)
        if name not in self.failures:
            return True
        self.failures.remove(name)
        self.can_park = name != "park"
        return False

    def park(self) -> bool:
        return self._move("park")

    def wake(self) -> bool:
        return self._move("wake")

    def wait_for_move(self) -> None:
        assert self.entered.acquire(timeout=SECONDS_MAX)

    def let_on(self) -> None:
        self.gate.release()


@dataclass
class Started:
    batcher: Batcher
    mover: CountedMover
    # Whether it was parked at the end of each attempt.
    reported: list[bool] = field(default_factory=list[bool])

    def wait_for_attempts(self, count: int) -> None:
        wait_until(lambda: len(self.reported) == count)

    @property
    def parked_seconds(self) -> float | None:
        return self.batcher.statistics().parked_seconds


Start = Callable[..., Started]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def answer(future: Future[Tensors]) -> list[float]:
    return values(future.result(SECONDS_MAX))


@pytest.fixture
def start() -> Generator[Start]:
    made: list[Started] = []

    def make(backend: Backend | None = None, mover: CountedMover | None = None) -> Started:
        batcher = Batcher(backend or Doubling(), HOUR, Batching(BatchingPolicy.IMMEDIATE))
        found = Started(batcher, mover or CountedMover())
        batcher.parks_by(found.mover, lambda: found.reported.append(batcher.is_parked))
        made.append(found)
        batcher.start()
        return found

    yield make
    for found in made:
        for _ in range(10):
            found.mover.let_on()
        found.batcher.close()


def test_an_idle_batcher_parks_refuses_and_wakes(start: Start) -> None:
    found = start()
    assert found.batcher.statistics().can_park
    assert found.parked_seconds is None
    found.batcher.park(True)
    found.wait_for_attempts(1)
    assert found.batcher.is_parked
    first = found.parked_seconds
    assert first is not None
    wait_until(lambda: (found.parked_seconds or 0.0) > first)
    with pytest.raises(Parked, match="the operator wakes it"):
        found.batcher.submit(samples(1), 1)
    found.batcher.park(False)
    found.wait_for_attempts(2)
    assert found.parked_seconds is None
    assert answer(found.batcher.submit(samples(1), 1)) == [2]
    assert found.reported == [True, False]
    assert found.batcher.statistics().refused == 0, "the load needs no more replicas"


def test_what_is_already_so_changes_nothing(start: Start) -> None:
    found = start()
    found.batcher.park(False)
    for _ in range(3):
        found.batcher.park(True)
    found.wait_for_attempts(1)
    found.batcher.park(True)
    found.batcher.park(False)
    found.wait_for_attempts(2)
    found.batcher.park(False)
    assert answer(found.batcher.submit(samples(1), 1)) == [2]
    assert found.mover.moves == ["park", "wake"]


def test_requests_before_it_are_answered_first(start: Start) -> None:
    backend = Gated()
    found = start(backend)
    first = found.batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    found.batcher.park(True)
    # It goes on answering until no request is left.
    others = [found.batcher.submit(samples(value), 1) for value in (2, 3)]
    assert found.mover.moves == []
    backend.let_on(3)
    assert [answer(one) for one in (first, *others)] == [[2], [4], [6]]
    found.wait_for_attempts(1)
    assert found.batcher.is_parked


def test_it_does_not_park_while_a_request_arrives(start: Start) -> None:
    found = start()
    with found.batcher.arrival(), found.batcher.arrival():
        found.batcher.park(True)
        # The thread has looked at it: a batch is executed by the same thread.
        assert answer(found.batcher.submit(samples(1), 1)) == [2]
        assert answer(found.batcher.submit(samples(2), 1)) == [4]
        assert found.mover.moves == []
    found.wait_for_attempts(1)
    assert found.batcher.is_parked
    with pytest.raises(Parked), found.batcher.arrival():
        raise AssertionError("it did arrive")


def test_a_failed_arrival_does_not_keep_it_from_parking(start: Start) -> None:
    found = start()
    arrival = found.batcher.arrival()
    arrival.__enter__()
    found.batcher.park(True)
    assert not arrival.__exit__(ValueError, ValueError("no JSON"), None)
    found.wait_for_attempts(1)
    assert found.batcher.is_parked


def test_an_answer_before_it_cancels_it(start: Start) -> None:
    found = start()
    with found.batcher.arrival():
        found.batcher.park(True)
        found.batcher.park(False)
    assert answer(found.batcher.submit(samples(1), 1)) == [2]
    assert found.mover.moves == []


def test_a_reply_without_a_request_cancels_what_waits_and_undoes_nothing(start: Start) -> None:
    found = start()
    with found.batcher.arrival():
        found.batcher.park(True)
        found.batcher.park(None)
    assert answer(found.batcher.submit(samples(1), 1)) == [2]
    assert found.mover.moves == []
    found.batcher.park(True)
    found.wait_for_attempts(1)
    found.batcher.park(None)
    assert found.batcher.is_parked
    found.batcher.park(False)
    found.wait_for_attempts(2)
    assert found.mover.moves == ["park", "wake"]


def test_it_is_not_reported_as_parked_before_the_memory_is_free(start: Start) -> None:
    found = start(mover=CountedMover(waits=True))
    found.batcher.park(True)
    found.mover.wait_for_move()
    assert found.parked_seconds is None
    with pytest.raises(Parked):
        found.batcher.submit(samples(1), 1)
    found.mover.let_on()
    wait_until(lambda: found.parked_seconds is not None)
    found.batcher.park(False)
    found.mover.wait_for_move()
    # It holds its reservation, and answers nothing before all of it is back.
    assert found.parked_seconds is not None
    with pytest.raises(Parked):
        found.batcher.submit(samples(1), 1)
    found.mover.let_on()
    found.wait_for_attempts(2)
    assert answer(found.batcher.submit(samples(1), 1)) == [2]


def test_a_wake_during_the_move_follows_it(start: Start) -> None:
    found = start(mover=CountedMover(waits=True))
    found.batcher.park(True)
    found.mover.wait_for_move()
    for parks in (False, True, False):
        found.batcher.park(parks)
    found.mover.let_on()
    found.mover.let_on()
    found.wait_for_attempts(2)
    assert found.mover.moves == ["park", "wake"]
    assert answer(found.batcher.submit(samples(1), 1)) == [2]


def test_a_wake_that_fails_is_tried_again_at_the_next_reply(start: Start) -> None:
    found = start(mover=CountedMover(failures=["wake"]))
    found.batcher.park(True)
    found.wait_for_attempts(1)
    found.batcher.park(False)
    found.wait_for_attempts(2)
    assert found.batcher.is_parked
    assert found.parked_seconds is not None
    with pytest.raises(Parked):
        found.batcher.submit(samples(1), 1)
    assert found.mover.moves == ["park", "wake"], "it is not tried by itself"
    found.batcher.park(False)
    found.wait_for_attempts(3)
    assert answer(found.batcher.submit(samples(1), 1)) == [2]
    assert found.reported == [True, True, False]


def test_what_cannot_park_goes_on_answering_and_is_not_tried_again(start: Start) -> None:
    found = start(mover=CountedMover(failures=["park"]))
    found.batcher.park(True)
    found.wait_for_attempts(1)
    assert not found.batcher.is_parked
    assert not found.batcher.statistics().can_park
    found.batcher.park(True)
    assert answer(found.batcher.submit(samples(1), 1)) == [2]
    assert found.mover.moves == ["park"]


def test_without_a_mover_it_cannot_park() -> None:
    batcher = Batcher(Doubling(), HOUR, Batching())
    batcher.start()
    batcher.park(True)
    assert answer(batcher.submit(samples(1), 1)) == [2]
    assert not batcher.statistics().can_park
    batcher.close()


def test_a_drain_while_parked_is_over_at_once(start: Start) -> None:
    found = start()
    found.batcher.park(True)
    found.wait_for_attempts(1)
    assert found.batcher.drain(0.0)
    found.batcher.park(False)
    with pytest.raises(Draining):
        found.batcher.submit(samples(1), 1)
    found.batcher.close()
    assert found.mover.moves == ["park"], "what ends is not woken"


@pytest.mark.parametrize("parks", [True, False])
def test_a_drain_waits_for_the_move(start: Start, parks: bool) -> None:
    found = start(mover=CountedMover(waits=True))
    found.batcher.park(True)
    found.mover.wait_for_move()
    if not parks:
        found.mover.let_on()
        found.wait_for_attempts(1)
        found.batcher.park(False)
        found.mover.wait_for_move()
    assert not found.batcher.drain(0.0)
    found.mover.let_on()
    assert found.batcher.drain(SECONDS_MAX)


def test_each_request_in_the_moment_of_parking_is_answered_or_refused(start: Start) -> None:
    """Eight threads send while it parks and wakes as fast as it can."""
    backend = Doubling()
    found = start(backend)
    done = threading.Event()
    wrong: list[object] = []
    answered = [0] * 8
    refused = [0] * 8

    def send(number: int) -> None:
        value = 0
        while not done.is_set() or not (answered[number] and refused[number]):
            value += 1
            try:
                with found.batcher.arrival():
                    future = found.batcher.submit(samples(value), 1)
            except Parked:
                refused[number] += 1
                continue
            except BaseException as error:
                wrong.append(error)
                return
            answered[number] += 1
            if answer(future) != [2 * value]:
                wrong.append(value)
            time.sleep(0.001)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(1, 21):
        found.batcher.park(turn % 2 == 1)
        found.wait_for_attempts(turn)
    done.set()
    # Whoever was only answered or only refused until now gets the other, too.
    while any(thread.is_alive() for thread in threads):
        found.batcher.park(not found.batcher.is_parked)
        time.sleep(0.02)
    found.batcher.park(False)
    wait_until(lambda: not found.batcher.is_parked)
    assert not wrong
    assert found.batcher.drain(SECONDS_MAX)
    assert found.batcher.statistics().answered == sum(answered)
    assert found.batcher.statistics().failed == 0
