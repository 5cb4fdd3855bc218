"""Utilization between two readings is the mean of samples, whatever keeps pace with readings."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpujob_api.gpunode import GPU
from gpujob_operator.agent.agent import Agent, AgentMustEndError
from gpujob_operator.agent.nvml_surface import NvmlSurface
from gpujob_operator.agent.session import NvmlSession
from gpujob_operator.agent.utilization import SAMPLES_MAX, Busy, UtilizationSamples, mean
from tests.harness.fake_nvml import GIB, GPU_IS_LOST, NOT_SUPPORTED, FakeGPU, FakeNvml, reader_of
from tests.harness.publisher_bench import PublisherBench
from tests.harness.waiting import eventually

percents = st.floats(0, 100)
processes = st.dictionaries(st.integers(1, 4), st.none() | percents, max_size=4)


class Pulsing(FakeNvml):
    """Its GPU computes in each fourth sample, for one of its processes."""

    def __init__(self, *gpus: FakeGPU) -> None:
        super().__init__(*gpus)
        self.asked = self.readings = 0
        self.answers = threading.Event()
        self.answers.set()

    def nvmlDeviceGetName(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self.readings += 1
        return super().nvmlDeviceGetName(gpu)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self.asked += 1
        self.answers.wait(60.0)
        gpu.samples = [(11, self.asked, 100 if self.asked % 4 == 0 else 0)]
        return SimpleNamespace(gpu=100 if self.asked % 4 == 0 else 0)


def pulsing() -> Pulsing:
    return Pulsing(FakeGPU(compute={11: GIB, 12: GIB}))


def test_one_sample_is_itself() -> None:
    busy = Busy(30.0, {11: 5.0, 12: None})
    assert mean([busy]) is busy


def test_the_mean_is_divided_as_in_the_samples_of_the_processes() -> None:
    samples = [Busy(100.0, {11: 60.0, 12: 20.0}), Busy(0.0, {}), Busy(20.0, {11: 20.0})]
    found = mean(samples)
    assert found.percent == 40
    assert found.processes == {11: pytest.approx(32), 12: pytest.approx(8)}


def test_processes_without_a_sound_sample_are_unknown() -> None:
    found = mean([Busy(50.0, {11: None}), Busy(50.0, {11: None, 12: 50.0})])
    assert found.processes == {11: None, 12: 50.0}


@pytest.mark.parametrize("others", [None, {}, {11: 0.0}])
def test_a_busy_gpu_whose_processes_are_not_seen_to_compute_tells_them_not_apart(
    others: dict[int, float | None] | None,
) -> None:
    assert mean([Busy(100.0, others), Busy(0.0, others)]) == Busy(50.0, None)


def test_an_idle_gpu_has_idle_processes() -> None:
    assert mean([Busy(0.0, {11: 0.0}), Busy(0.0, {})]) == Busy(0.0, {11: 0.0})


@example([Busy(0.0, None), Busy(3.0, {1: 5e-324})])
@given(st.lists(st.builds(Busy, percents, st.none() | processes), min_size=1, max_size=20))
def test_processes_have_no_more_than_the_gpu(samples: list[Busy]) -> None:
    found = mean(samples)
    assert 0 <= found.percent <= 100
    known = [value for value in (found.processes or {}).values() if value is not None]
    assert all(value >= 0 for value in known)
    if len(samples) > 1:
        assert sum(known) <= found.percent + 1e-6


def test_samples_are_bounded() -> None:
    samples = UtilizationSamples()
    for number in range(SAMPLES_MAX + 10):
        samples.add("GPU-0", Busy(100.0 if number < 10 else 0.0, {}))
    assert samples.mean("GPU-0").percent == 0, "the oldest ones are dropped"
    samples.clear()
    samples.add("GPU-0", Busy(30.0, {}))
    assert samples.mean("GPU-0").percent == 30


def test_a_reading_has_the_mean_since_the_last_published_one() -> None:
    """Also of readings that were not published. The operator gets one in ten seconds."""
    nvml = pulsing()
    reader = reader_of(nvml, lambda pid: None)
    reader.read()
    reader.published()
    readings: list[GPU] = []
    for _ in range(3):
        reader.sample()
        reader.read()
        reader.sample()
        readings += reader.read()
        reader.published()
    assert [gpu.utilization_percent for gpu in readings] == [25.0] * 3
    assert [gpu.processes[0].utilization_percent for gpu in readings] == [25.0] * 3
    assert [gpu.processes[1].utilization_percent for gpu in readings] == [0.0] * 3


def test_without_samples_a_reading_is_of_one_moment() -> None:
    reader = reader_of(pulsing(), lambda pid: None)
    found: list[float] = []
    for _ in range(8):
        found.append(reader.read()[0].utilization_percent)
        reader.published()
    assert found == [0, 0, 0, 100] * 2


@pytest.mark.parametrize("code", [GPU_IS_LOST, NOT_SUPPORTED])
def test_a_gpu_that_does_not_answer_is_not_sampled(code: int) -> None:
    nvml = FakeNvml(FakeGPU(uuid="GPU-0"), FakeGPU(uuid="GPU-1", utilization=60))
    reader = reader_of(nvml, lambda pid: None)
    reader.read()
    reader.published()
    nvml.gpus[0].errors["nvmlDeviceGetHandleByIndex"] = code
    reader.sample()
    del nvml.gpus[0].errors["nvmlDeviceGetHandleByIndex"]
    nvml.gpus[1].utilization = 20
    assert [gpu.utilization_percent for gpu in reader.read()] == [40, 40]


def test_a_gpu_at_another_index_is_not_taken_for_the_one_before() -> None:
    nvml = FakeNvml(FakeGPU(uuid="GPU-0", utilization=0), FakeGPU(uuid="GPU-1", utilization=80))
    reader = reader_of(nvml, lambda pid: None)
    reader.read()
    reader.published()
    nvml.gpus.reverse()
    reader.sample()
    assert {gpu.uuid: gpu.utilization_percent for gpu in reader.read()} == {"GPU-0": 0, "GPU-1": 80}


def test_a_source_that_has_means_is_not_sampled() -> None:
    session = NvmlSession(pulsing(), lambda pid: None)
    assert not session.is_sampled, "nothing was read yet"
    session.read()
    assert session.is_sampled
    assert NvmlSurface.reads_means


async def test_the_agent_samples_between_its_readings() -> None:
    """A job whose steps keep pace with the readings is not seen as idle or as busy all the time."""
    bench, nvml = PublisherBench(), pulsing()
    agent = Agent(nvml, bench.publisher, lambda pid: None, interval_seconds=1.5)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: nvml.asked >= nvml.readings + 4, what="four samples")
    assert nvml.readings >= 1
    agent.stop()
    await task


async def test_a_driver_that_hangs_in_a_sample_ends_the_agent() -> None:
    bench, nvml = PublisherBench(), pulsing()
    agent = Agent(nvml, bench.publisher, lambda pid: None, interval_seconds=60.0, hang_seconds=0.2)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: nvml.asked > 0, what="a reading")
    nvml.answers.clear()
    try:
        with pytest.raises(AgentMustEndError, match="has not answered"):
            await asyncio.wait_for(task, 60.0)
    finally:
        nvml.answers.set()


async def test_a_published_reading_is_no_part_of_the_next_one() -> None:
    bench, nvml = PublisherBench(), FakeNvml(FakeGPU(utilization=100, compute={11: GIB}))
    agent = Agent(nvml, bench.publisher, lambda pid: None, interval_seconds=60.0)
    await agent.step()
    assert bench.node.status.gpus[0].utilization_percent == 100
    nvml.gpus[0].utilization = 0
    nvml.gpus[0].compute[12] = 2 * GIB
    nvml.gpus[0].used = 3 * GIB
    await agent.step()
    assert len(bench.node.status.gpus[0].processes) == 2, "it was published"
    assert bench.node.status.gpus[0].utilization_percent == 0
    agent.stop()
