"""The ways of training, for real on tiny models: by hand, with finders, and in a race."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import worker
from bench.speed import finders, hand
from bench.speed.finders import Training, with_accelerate, with_lightning
from bench.speed.hand import Bench, Point, search
from bench.speed.ways import AGAIN, AUTO, BY_HAND, PLAIN, scale_of

pytestmark = pytest.mark.any_torch

FITS = 6


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_every_point_by_hand_makes_sense(name: str) -> None:
    points = Bench(name, "tiny").points(compiled=True)
    assert Point() in points
    assert len(points) == len(set(points))
    convolutions = name == "resnet50"
    assert any(point.channels_last for point in points) == convolutions
    # BatchNorm in parts of a batch would learn from other statistics.
    assert any(point.parts > 1 for point in points) != convolutions


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_on_a_gpu_each_workload_is_compiled_once(name: str) -> None:
    bench = Bench(name, "tiny")
    bench.device = "cuda"
    points = bench.points(compiled=True)
    compiled = {(p.precision, p.channels_last) for p in points if p.compiled}
    assert compiled == {("bfloat16", name == "resnet50")}
    assert {p.precision for p in points} == {"float32", "tf32", "bfloat16"}
    assert len(points) <= 24


@pytest.mark.parametrize("point", [Point(parts=2), Point(fused=True), Point(workers=1)])
def test_a_point_learns_what_the_script_learns(point: Point) -> None:
    def loss_after_steps(point: Point) -> float:
        bench = Bench("gpt2", "tiny")
        batches = bench.batches(point)
        return [bench.step(point, next(batches)) for _ in range(6)][-1]

    torch.manual_seed(0)
    expected = loss_after_steps(Point())
    assert loss_after_steps(point) == pytest.approx(expected, rel=1e-4)


def test_a_restart_begins_with_the_first_step() -> None:
    bench = Bench("gpt2", "tiny")
    batch = next(bench.batches(Point()))
    bench.restart()
    first = bench.step(Point(), batch)
    assert bench.step(Point(fused=True), batch) < first
    bench.restart()
    assert bench.step(Point(), batch) == first


def test_starting_a_pass_is_no_part_of_the_steps_that_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Slow(Bench):
        """Its workers take a hundred seconds to start, a batch two, and what is computed one."""

        def batches(self, point: Point) -> Iterator[Any]:
            wait(100.0)
            while True:
                wait(2.0)
                yield None

        def step(self, point: Point, batch: Any) -> float:
            wait(1.0)
            return 0.0

    monkeypatch.setattr(hand, "time", SimpleNamespace(process_time=lambda: now))
    bench = Slow("gpt2", "tiny")
    bench.device = "cpu"
    assert bench.seconds(Point(workers=4), 3) == 9.0, "three batches, three steps"


def test_the_fastest_point_is_found_and_one_that_fails_is_left_out() -> None:
    class Timed(Bench):
        def seconds(self, point: Point, steps: int) -> float:
            if point.precision == "bfloat16":
                raise RuntimeError("not here")
            return 1.0 if point.fused else 2.0

    points = [Point(), Point(fused=True), Point(precision="bfloat16")]
    assert search(Timed("gpt2", "tiny"), points, 1.0, 2) == (points[1], 2)


def test_a_point_that_was_lucky_is_not_taken_for_the_fastest() -> None:
    """A co-tenant slows single rounds; the best three are timed again, by which it is decided."""
    taken = {Point(): [4.0] * 3 + [4.0] * 3, Point(fused=True): [3.0] * 3 + [3.0] * 3}
    taken[Point(channels_last=True)] = [9.0, 2.0, 2.0] + [5.0] * 3
    taken[Point(precision="bfloat16")] = [8.0] * 3
    left = {point: iter(seconds) for point, seconds in taken.items()}

    class Scripted(Bench):
        def seconds(self, point: Point, steps: int) -> float:
            return next(left[point]) if steps == 4 else 0.0

    assert search(Scripted("gpt2", "tiny"), list(taken), 0.0, 4) == (Point(fused=True), 4)
    assert all(next(rest, None) is None for rest in left.values()), "three rounds of each"


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Training:
    """A workload whose batches above `FITS` do not fit, as the CPU's allocator says it."""
    training = Training("gpt2", "tiny")
    plain = training.workload.compute_loss

    def compute_loss(model: Any, batch: Any, device: str) -> Any:
        if len(batch[0]) > FITS:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return plain(model, batch, device)

    monkeypatch.setattr(training.workload, "compute_loss", compute_loss)
    return training


@pytest.mark.trainers
def test_accelerates_finder_is_run_and_counted(
    small_memory: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.utils import memory

    monkeypatch.setattr(memory, "should_reduce_batch_size", memory.should_reduce_batch_size)
    batch, errors = with_accelerate(small_memory, 16)
    # 16, 14, 12, 10, 9, 8, 7, 6: every trial begins the training again.
    assert (batch, errors, small_memory.trials) == (6, 7, 8)


@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.filterwarnings("ignore")
def test_lightnings_scaler_is_run_and_counted(
    small_memory: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytorch_lightning.tuner import batch_size_scaling

    name = "is_oom_error"
    monkeypatch.setattr(batch_size_scaling, name, getattr(batch_size_scaling, name))
    batch, errors = with_lightning(small_memory, 64)
    assert (batch, errors, small_memory.trials) == (4, 1, 3)


def test_a_batch_larger_than_the_data_is_an_error() -> None:
    with pytest.raises(SystemExit, match="more than all samples"):
        next(Training("gpt2", "tiny").steps(10_000))


def test_finders_are_those_that_can_be_chosen() -> None:
    assert set(finders.FINDERS) == {"accelerate", "lightning"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_race_says_of_every_way_how_fast_it_was_and_what_it_learned() -> None:
    scale = replace(
        scale_of("cpu", quick=True), rounds=6, hand_seconds=0.5, tuning_seconds=1.0, block_steps=2
    )
    rows = worker.measure(["gpt2"], scale, None)
    ways = {row["way"]: row for row in rows}
    assert {PLAIN, AUTO, BY_HAND, AGAIN} <= set(ways)
    for row in rows:
        assert row["low"] <= row["speedup"] <= row["high"]
        assert row["peak_mib"] > 50
    assert ways[PLAIN]["speedup"] == 1.0
    assert ways[AGAIN]["loss"] == ways[PLAIN]["loss"]
    assert ways[AUTO]["loss"] == pytest.approx(ways[PLAIN]["loss"], rel=0.05)
    assert ways[AUTO]["probes"] > 0
    assert ways[AUTO]["explain"]
    assert ways[BY_HAND]["probes"] == 16
    assert ways[BY_HAND]["compiles"] is False
    share = ways[AUTO]["speedup"] / ways[BY_HAND]["speedup"]
    assert worker.summary(rows)[worker.SHARE] == pytest.approx(share)
