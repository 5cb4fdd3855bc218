"""Times are those of a device, by a clock that only the device moves."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.choosing.clock import Effort, clock
from gpujob_worker.serving.choosing.timing import SizeTime, Timing, fit, level, levelled

SIZES = (1, 2, 4, 8)


class LateDevice:
    """Works beside the host: a call returns at once, and `synchronize` waits for its end."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pending = 0.0
        self.unsynchronized = 0

    def now(self) -> float:
        self.unsynchronized += self.pending > 0
        return self.time

    def synchronize(self) -> None:
        self.time += self.pending
        self.pending = 0.0

    def backend(self, fixed: float, per_sample: float) -> Callable[[Tensors], Tensors]:
        def run(inputs: Tensors) -> Tensors:
            self.pending += fixed + per_sample * len(inputs["x"])
            return inputs

        return run


def batch_of(size: int) -> Tensors:
    return {"x": torch.zeros(size, 1)}


QUICK = Effort(warm_ups=2, batches_max=5, size_seconds=100.0, seconds=1000.0)


def test_a_batch_takes_until_the_device_has_done_it() -> None:
    device = LateDevice()
    ours, eager = device.backend(0.002, 0.001), device.backend(0.004, 0.002)
    found = clock(ours, eager, batch_of, SIZES, device, QUICK)
    assert [one.size for one in found] == list(SIZES)
    for one in found:
        assert one.seconds == pytest.approx(0.002 + 0.001 * one.size)
        assert one.eager_seconds == pytest.approx(2 * one.seconds)
        assert one.p99_seconds == pytest.approx(one.seconds)
        assert one.batches == 5


def test_no_batch_begins_or_ends_while_the_device_works() -> None:
    device = LateDevice()
    effort = Effort(warm_ups=0, batches_max=20, size_seconds=100.0, seconds=1000.0)
    clock(device.backend(1, 0), device.backend(1, 0), batch_of, (1,), device, effort)
    # Only the look at the remaining time before the first batch is free of work.
    assert device.unsynchronized == 0


def test_both_run_in_turns_with_the_first_place_alternating() -> None:
    calls: list[str] = []
    device = LateDevice()

    def named(name: str) -> Callable[[Tensors], Tensors]:
        def run(inputs: Tensors) -> Tensors:
            calls.append(name)
            return inputs

        return run

    effort = Effort(warm_ups=0, batches_max=4, size_seconds=100.0, seconds=100.0)
    clock(named("ours"), named("eager"), batch_of, (1,), device, effort)
    assert calls == ["eager", "ours", "ours", "eager", "eager", "ours", "ours", "eager"]


def test_time_ends_the_measurement_but_one_size_is_always_timed() -> None:
    device = LateDevice()
    slow = device.backend(50.0, 0.0)
    effort = Effort(warm_ups=10, batches_max=100, size_seconds=10.0, seconds=20.0)
    found = clock(slow, slow, batch_of, SIZES, device, effort)
    assert [one.size for one in found] == [1]
    assert found[0].batches == 1


def test_one_hiccup_does_not_change_the_median_but_shows_in_the_tail() -> None:
    device = LateDevice()
    calls = 0

    def run(inputs: Tensors) -> Tensors:
        nonlocal calls
        calls += 1
        device.pending += 10.0 if calls == 7 else 0.01
        return inputs

    effort = Effort(warm_ups=0, batches_max=20, size_seconds=100.0, seconds=100.0)
    (one,) = clock(run, device.backend(0.01, 0), batch_of, (1,), device, effort)
    assert one.seconds == pytest.approx(0.01)
    assert one.p99_seconds == pytest.approx(10.0)


def test_an_effort_without_batches_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1; got 0"):
        Effort(batches_max=0)


@given(fixed=st.floats(0.0, 0.1), per_sample=st.floats(1e-6, 0.01))
def test_a_line_is_found_again(fixed: float, per_sample: float) -> None:
    found = fit([(size, fixed + per_sample * size) for size in SIZES])
    assert found.fixed_milliseconds == pytest.approx(1000 * fixed, rel=1e-4, abs=1e-3)
    assert found.per_sample_milliseconds == pytest.approx(1000 * per_sample, rel=1e-3, abs=1e-6)


@given(st.lists(st.tuples(st.integers(1, 256), st.floats(1e-6, 10.0)), max_size=12))
def test_no_coefficient_is_negative(points: list[tuple[int, float]]) -> None:
    found = fit(points)
    assert found.fixed_milliseconds >= 0
    assert found.per_sample_milliseconds >= 0


def test_a_busy_machine_is_taken_out_by_the_model_as_written() -> None:
    # The second process had half of the machine's speed.
    quiet = Timing((SizeTime(4, 1.0, 1.2, 2.0, 50),), 7, 3.0)
    busy = Timing((SizeTime(4, 1.6, 2.0, 4.0, 50),), 8, 5.0)
    levels = level([quiet, busy])
    assert levels == {4: 3.0}
    first, second = levelled(quiet, levels), levelled(busy, levels)
    assert first.sizes[0].seconds == pytest.approx(1.5)
    assert second.sizes[0].seconds == pytest.approx(1.2)
    assert second.sizes[0].p99_seconds == pytest.approx(1.5)
    assert (second.memory_bytes, second.start_seconds) == (8, 5.0)


def test_a_candidate_does_not_gain_from_disturbing_the_model_as_written() -> None:
    # Its threads spin, so the model as written took a hundred times as long beside it.
    spinning = Timing((SizeTime(4, 0.5, 0.5, 100.0, 50),))
    (one,) = levelled(spinning, {4: 1.0}).sizes
    assert one.seconds == pytest.approx(0.25)


def test_a_size_that_no_other_process_timed_keeps_its_time() -> None:
    timing = Timing((SizeTime(4, 1.0, 1.0, 2.0, 1),))
    assert levelled(timing, {}).sizes[0].seconds == 1.0
