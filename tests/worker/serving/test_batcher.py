"""The thread between futures and the backend: nothing is lost, whatever fails or is cancelled."""

import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
import torch

from gpujob_api.serving import Batching, BatchingPolicy, BatchTime, Objective
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.batcher import Batcher, Draining, Overloaded
from gpujob_worker.serving.signature import InputError
from gpujob_worker.serving.statistics import BOUND_RATIO
from tests.worker.serving.backends import (
    POISON,
    SECONDS_MAX,
    Doubling,
    Failing,
    Gated,
    samples,
    values,
)

Start = Callable[..., Batcher]
# So long that no test waits for it, and none is late.
HOUR = Objective(3_600_000)


@pytest.fixture
def start() -> Generator[Start]:
    made: list[Batcher] = []

    def make(
        backend: Backend,
        policy: BatchingPolicy = BatchingPolicy.IMMEDIATE,
        objective: Objective = HOUR,
        max_size: int | None = None,
        **options: Any,
    ) -> Batcher:
        batcher = Batcher(backend, objective, Batching(policy, max_size), **options)
        made.append(batcher)
        batcher.start()
        return batcher

    yield make
    for batcher in made:
        batcher.close()


def answer(future: Future[Tensors]) -> list[float]:
    return values(future.result(SECONDS_MAX))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_part_of_the_objective_is_left_for_reading_and_sending() -> None:
    queue = Batcher(Doubling(), Objective(100), Batching())._queue
    assert queue._objective_seconds == pytest.approx(0.095)
    assert Batcher(Doubling(), Objective(1), Batching())._queue._objective_seconds == 0.001


def test_a_request_is_answered(start: Start) -> None:
    batcher = start(Doubling())
    assert answer(batcher.submit(samples(1, 2), 2)) == [2, 4]


def test_what_arrives_during_a_batch_is_the_next_one(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    others = [batcher.submit(samples(value), 1) for value in (2, 3, 4)]
    backend.let_on(2)
    assert answer(first) == [2]
    assert [answer(other) for other in others] == [[4], [6], [8]]
    assert backend.batches == [[1], [2, 3, 4]]


def test_requests_of_many_threads_get_their_own_answers(start: Start) -> None:
    batcher = start(Doubling())
    wrong: list[object] = []

    def ask(number: int) -> None:
        futures = [
            (value, batcher.submit(samples(value), 1))
            for value in range(1000 * number, 1000 * number + 100)
        ]
        wrong.extend(value for value, future in futures if answer(future) != [2 * value])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert not wrong
    assert batcher.drain(SECONDS_MAX)
    assert batcher.statistics().answered == 800


def test_a_cancelled_request_is_not_executed(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    gone, other = batcher.submit(samples(2), 1), batcher.submit(samples(3), 1)
    assert gone.cancel()
    # In mid-batch it is too late.
    assert not first.cancel()
    backend.let_on(2)
    assert answer(first) == [2]
    assert answer(other) == [6]
    assert backend.batches == [[1], [3]]
    with pytest.raises(CancelledError):
        gone.result(0)


def test_a_batch_of_cancelled_requests_is_skipped(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    gone = [batcher.submit(samples(2), 1) for _ in range(3)]
    assert all(future.cancel() for future in gone)
    backend.let_on()
    answer(first)
    assert batcher.drain(SECONDS_MAX)
    assert backend.batches == [[1]]
    statistics = batcher.statistics()
    assert (statistics.answered, statistics.failed) == (1, 0)


def test_a_poisoned_request_fails_alone(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    futures = [batcher.submit(samples(value), 1) for value in (2, POISON, 4, 5)]
    backend.let_on(100)
    assert answer(first) == [2]
    with pytest.raises(ValueError, match="poisoned"):
        futures[1].result(SECONDS_MAX)
    assert [answer(futures[index]) for index in (0, 2, 3)] == [[4], [8], [10]]
    assert batcher.drain(SECONDS_MAX)
    statistics = batcher.statistics()
    assert (statistics.answered, statistics.failed) == (4, 1)
    assert (statistics.recent_requests, statistics.recent_failed) == (5, 1)
    assert statistics.recent_error == "ValueError: poisoned"
    assert statistics.within_objective_percent == pytest.approx(80)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_model_that_ends_its_thread_does_not(start: Start, error: BaseException) -> None:
    batcher = start(Failing(error=error))
    with pytest.raises(RuntimeError, match=f"ended its thread: {type(error).__name__}"):
        batcher.submit(samples(POISON), 1).result(SECONDS_MAX)
    assert answer(batcher.submit(samples(1), 1)) == [2]


def test_out_of_memory_halves_the_batches(start: Start) -> None:
    backend = Failing(memory_samples=4)
    batcher = start(backend, max_size=16)
    assert answer(batcher.submit(samples(*range(16)), 16)) == [2 * n for n in range(16)]
    backend.batches.clear()
    assert answer(batcher.submit(samples(*range(16)), 16)) == [2 * n for n in range(16)]
    assert [len(batch) for batch in backend.batches] == [4, 4, 4, 4]


def test_a_large_request_is_answered_as_a_whole(start: Start) -> None:
    backend = Doubling(sizes=(2, 4))
    batcher = start(backend)
    assert answer(batcher.submit(samples(*range(11)), 11)) == [2 * n for n in range(11)]
    assert [len(batch) for batch in backend.batches] == [4, 4, 4]
    with pytest.raises(InputError, match=r"samples: must be 1 to 16, 4 times .*; got 17"):
        batcher.submit(samples(*range(17)), 17)
    assert batcher.drain(SECONDS_MAX)
    assert batcher.statistics().answered == 1


def test_a_large_request_with_a_failing_part_fails_once(start: Start) -> None:
    backend = Failing(sizes=(2,))
    batcher = start(backend)
    future = batcher.submit(samples(1, 2, 3, POISON, 5, 6, 7, 8), 8)
    with pytest.raises(ValueError, match="poisoned"):
        future.result(SECONDS_MAX)
    assert answer(batcher.submit(samples(9), 1)) == [18]
    # The other parts are not executed.
    assert backend.batches == [[1, 2], [3, POISON], [9, 9]]
    assert batcher.drain(SECONDS_MAX)
    statistics = batcher.statistics()
    assert (statistics.answered, statistics.failed) == (1, 1)


def test_a_full_queue_is_an_overload(start: Start) -> None:
    backend = Gated()
    batcher = start(backend, queue_max=2)
    futures = [batcher.submit(samples(1), 1)]
    backend.wait_for_batch()
    futures += [batcher.submit(samples(1), 1) for _ in range(2)]
    with pytest.raises(Overloaded, match="try again in ") as raised:
        batcher.submit(samples(1), 1)
    assert raised.value.retry_after_seconds > 0
    statistics = batcher.statistics()
    assert (statistics.refused, statistics.queued) == (1, 2)
    backend.let_on(3)
    assert all(answer(future) == [2] for future in futures)


def test_a_caller_without_time_is_refused_at_once(start: Start) -> None:
    backend = Doubling()
    batcher = start(backend)
    with pytest.raises(Overloaded):
        batcher.submit(samples(1), 1, seconds=0.0)
    assert answer(batcher.submit(samples(1), 1, seconds=3000.0)) == [2]
    assert backend.batches == [[1]]


def test_auto_waits_while_the_gpu_is_shared(start: Start) -> None:
    batcher = start(Doubling(), BatchingPolicy.AUTO)
    assert not batcher.shared
    assert answer(batcher.submit(samples(1), 1)) == [2]
    batcher.shared = True
    assert batcher.statistics().policy is BatchingPolicy.DEADLINE
    future = batcher.submit(samples(1), 1)
    with pytest.raises(TimeoutError):
        future.result(0.2)
    assert batcher.statistics().queued == 1
    batcher.shared = False
    assert answer(future) == [2]
    assert batcher.statistics().policy is BatchingPolicy.IMMEDIATE


def needed_milliseconds(batcher: Batcher) -> float:
    """What the requests needed of an objective of an hour."""
    percent = batcher.statistics().needed_percent
    assert percent is not None
    return percent / 100 * HOUR.latency_milliseconds


def test_a_wait_for_a_larger_batch_is_not_needed(start: Start) -> None:
    batcher = start(Doubling(), BatchingPolicy.DEADLINE)
    future = batcher.submit(samples(1), 1)
    with pytest.raises(TimeoutError):
        future.result(0.2)
    assert batcher.drain(SECONDS_MAX)
    latency = batcher.statistics().latency
    assert latency is not None
    assert latency.p50_milliseconds >= 200
    assert needed_milliseconds(batcher) <= BOUND_RATIO * (latency.p50_milliseconds - 200)


def test_a_wait_for_the_device_is_needed(start: Start) -> None:
    """The smaller one of two needs is that of the request that was executed at once, in the end."""
    backend = Gated()
    batcher = start(backend, objective=Objective(HOUR.latency_milliseconds, percentile=50))
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    second = batcher.submit(samples(2), 1)
    with pytest.raises(TimeoutError):
        second.result(0.2)
    backend.let_on(2)
    assert [answer(future) for future in (first, second)] == [[2], [4]]
    wait_until(lambda: batcher.statistics().answered == 2)
    assert needed_milliseconds(batcher) >= 200


def test_a_refusal_counts_as_need_unless_the_caller_is_in_a_hurry(start: Start) -> None:
    backend = Gated()
    batcher = start(backend, queue_max=1)
    batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    batcher.submit(samples(2), 1)
    with pytest.raises(Overloaded):
        batcher.submit(samples(3), 1, seconds=1e-9)
    assert batcher.statistics().needed_percent is None
    with pytest.raises(Overloaded):
        batcher.submit(samples(3), 1)
    assert batcher.statistics().needed_percent == pytest.approx(200, rel=BOUND_RATIO - 1)
    backend.let_on(2)


def test_a_full_batch_wakes_the_waiting_thread(start: Start) -> None:
    backend = Doubling()
    batcher = start(backend, BatchingPolicy.DEADLINE, max_size=3)
    futures = [batcher.submit(samples(value), 1) for value in (1, 2)]
    with pytest.raises(TimeoutError):
        futures[0].result(0.2)
    futures.append(batcher.submit(samples(3), 1))
    assert [answer(future) for future in futures] == [[2], [4], [6]]
    assert backend.batches == [[1, 2, 3]]


def test_deadline_answers_within_the_objective(start: Start) -> None:
    """It waits for a second, and the answer comes: the thread wakes up by itself."""
    batcher = start(Doubling(), BatchingPolicy.DEADLINE, Objective(1000))
    assert answer(batcher.submit(samples(1), 1)) == [2]


def test_drain_executes_the_queue_at_once_and_takes_no_more(start: Start) -> None:
    backend = Doubling()
    batcher = start(backend, BatchingPolicy.DEADLINE)
    futures = [batcher.submit(samples(value), 1) for value in range(20)]
    assert batcher.drain(SECONDS_MAX)
    assert [answer(future) for future in futures] == [[2 * value] for value in range(20)]
    with pytest.raises(Draining, match="try another"):
        batcher.submit(samples(1), 1)
    assert batcher.statistics().refused == 1
    assert batcher.drain(0.0)


def test_a_drain_that_takes_too_long_returns(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    second = batcher.submit(samples(2), 1)
    assert not batcher.drain(0.05)
    backend.let_on(2)
    assert batcher.drain(SECONDS_MAX)
    assert answer(first) == [2]
    assert answer(second) == [4]


def test_close_answers_what_runs_and_fails_the_rest(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    second = batcher.submit(samples(2), 1)
    second.add_done_callback(lambda _: backend.let_on())
    batcher.close()
    batcher.close()
    assert answer(first) == [2]
    with pytest.raises(Draining, match="the process ended"):
        second.result(0)
    with pytest.raises(Draining):
        batcher.submit(samples(3), 1)
    batcher.start()
    assert backend.batches == [[1]]


def test_close_in_a_callback_does_not_wait_for_itself(start: Start) -> None:
    batcher = start(Doubling())
    closed = threading.Event()

    def close(_: Future[Tensors]) -> None:
        batcher.close()
        closed.set()

    batcher.submit(samples(1), 1).add_done_callback(close)
    assert closed.wait(SECONDS_MAX)


def test_a_callback_may_submit(start: Start) -> None:
    batcher = start(Doubling())
    ended: list[Future[Tensors]] = []
    done = threading.Event()

    def again(future: Future[Tensors]) -> None:
        ended.append(batcher.submit({"x": future.result()["y"]}, 1))
        done.set()

    batcher.submit(samples(1), 1).add_done_callback(again)
    assert done.wait(SECONDS_MAX)
    assert answer(ended[0]) == [4]


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit()])
def test_a_callback_that_raises_does_not_end_the_thread(start: Start, error: BaseException) -> None:
    batcher = start(Doubling())

    def fail(_: Future[Tensors]) -> None:
        raise error

    batcher.submit(samples(1), 1).add_done_callback(fail)
    assert batcher.drain(SECONDS_MAX)


def test_parts_whose_outputs_cannot_be_joined_fail_their_request(start: Start) -> None:
    class Growing(Doubling):
        def run(self, inputs: Tensors) -> Tensors:
            x = super().run(inputs)["y"]
            return {"y": x[:, : len(self.batches)]}

    batcher = start(Growing(), max_size=2)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        batcher.submit(samples(1, 2, 3), 3).result(SECONDS_MAX)
    assert answer(batcher.submit(samples(4), 1)) == [8]


def test_tensors_of_the_last_batch_are_released(start: Start) -> None:
    batcher = start(Doubling())
    inputs = samples(1)
    watched = weakref.ref(inputs["x"])
    future = batcher.submit(inputs, 1)
    del inputs
    future.result(SECONDS_MAX)
    assert batcher.drain(SECONDS_MAX)
    wait_until(lambda: watched() is None)


def test_without_start_requests_wait_and_close_fails_them() -> None:
    batcher = Batcher(Doubling(), HOUR, Batching())
    future = batcher.submit(samples(1), 1)
    assert not batcher.drain(0.0)
    batcher.close()
    with pytest.raises(Draining):
        future.result(0)


def test_statistics_before_the_first_request() -> None:
    found = Batcher(Doubling(), HOUR, Batching()).statistics()
    assert found.within_objective_percent is None
    assert found.latency is None
    assert found.batch_samples is None
    assert found.time is None
    assert (found.answered, found.failed, found.refused, found.queued) == (0, 0, 0, 0)


def test_statistics_count_requests_and_batches(start: Start) -> None:
    backend = Gated()
    batcher = start(backend)
    first = batcher.submit(samples(1), 1)
    backend.wait_for_batch()
    others = [batcher.submit(samples(2, 3), 2), batcher.submit(samples(4), 1)]
    backend.let_on(2)
    for future in (first, *others):
        answer(future)
    assert batcher.drain(SECONDS_MAX)
    found = batcher.statistics()
    assert found.answered == 3
    assert found.within_objective_percent == 100
    assert found.batch_samples == 2
    assert 0 < found.busy_percent <= 100
    assert found.samples_per_second == pytest.approx(found.requests_per_second * 4 / 3)
    assert found.latency is not None
    assert 0 < found.latency.p50_milliseconds <= found.latency.p99_milliseconds
    assert found.time is not None


def test_a_warm_up_measures_the_sizes() -> None:
    backend = Doubling(sizes=(1, 4, 16))
    batcher = Batcher(backend, HOUR, Batching(), prior=BatchTime(1e6, 1e6))
    batcher.warm_up(samples(1, 2))
    assert {len(batch) for batch in backend.batches} == {1, 4, 16}
    assert backend.batches[-1] == [1, 2] * 8
    batcher.start()
    assert answer(batcher.submit(samples(1), 1)) == [2]
    assert batcher.drain(SECONDS_MAX)
    found = batcher.statistics().time
    batcher.close()
    assert found is not None
    assert found.fixed_milliseconds < 60_000


def test_a_warm_up_without_fixed_sizes_doubles_until_the_objective_or_the_memory_ends() -> None:
    backend = Failing(memory_samples=20)
    Batcher(backend, HOUR, Batching()).warm_up(samples(1))
    assert [len(batch) for batch in backend.batches[::4]][:5] == [1, 2, 4, 8, 16]
    assert max(len(batch) for batch in backend.batches) == 32


def test_a_warm_up_ends_in_time() -> None:
    backend = Doubling()
    Batcher(backend, HOUR, Batching()).warm_up(samples(1), seconds=0.0)
    assert {len(batch) for batch in backend.batches} == {1}


def test_a_warm_up_of_a_broken_model_raises_its_error() -> None:
    batcher = Batcher(Failing(), HOUR, Batching())
    with pytest.raises(ValueError, match="poisoned"):
        batcher.warm_up(samples(POISON))


def test_real_models_answer_the_same_in_any_batch(start: Start) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 3).eval()

    class Linear(Doubling):
        def run(self, inputs: Tensors) -> Tensors:
            with torch.inference_mode():
                return {"y": model(inputs["x"])}

    batcher = start(Linear(sizes=(1, 8)))
    inputs = [samples(*range(number, number + 3)) for number in range(40)]
    futures = [batcher.submit(one, 3) for one in inputs]
    for one, future in zip(inputs, futures, strict=True):
        with torch.inference_mode():
            expected = model(one["x"])
        torch.testing.assert_close(future.result(SECONDS_MAX)["y"], expected)
