"""The agent writes what matters at once, the rest now and then, and never falls silent unsaid."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from gpujob_api.gpunode import GPU, GPUProcess
from gpujob_api.meta import ConditionStatus
from gpujob_api.quantities import GIB, MIB
from gpujob_operator.agent.agent import Agent
from gpujob_operator.agent.publish import (
    Publisher,
    Readiness,
)
from gpujob_operator.agent.session import NvmlSession, Reading
from gpujob_operator.client.api_errors import NotFound, Unavailable
from gpujob_operator.client.kube import GPU_NODES, NODES
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import make_gpu
from tests.harness.fake_nvml import FakeGPU, FakeNvml
from tests.harness.publisher_bench import A_GPU, PublisherBench, with_more
from tests.harness.waiting import eventually


@pytest.fixture
def bench() -> PublisherBench:
    return PublisherBench()


async def test_the_first_reading_creates_the_node(bench: PublisherBench) -> None:
    assert await bench.publish(A_GPU)
    status = bench.node.status
    assert status.gpus == (A_GPU,)
    assert (status.observed_at, status.sample_interval_seconds) == (bench.clock.now(), 2.0)
    assert status.conditions[0].status is ConditionStatus.TRUE
    verbs = [(call.verb, call.subresource) for call in bench.kube.writes()]
    assert verbs == [("patch", "status"), ("create", ""), ("patch", "status")]


async def test_a_gpu_node_goes_with_its_node(bench: PublisherBench) -> None:
    await bench.publish(A_GPU)
    (owner,) = bench.kube.stored(GPU_NODES, "n0")["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "node-n0"}


async def test_a_node_that_is_gone_gets_no_gpu_node(bench: PublisherBench) -> None:
    """An agent may outlive its Node for a moment; nobody would delete what it made."""
    bench.kube.remove(NODES, "n0")
    with pytest.raises(NotFound):
        await bench.publish(A_GPU)
    assert bench.kube.names(GPU_NODES) == []
    bench.kube.put(NODES, {"metadata": {"name": "n0"}})
    assert await bench.publish(A_GPU)


async def test_an_existing_node_keeps_its_spec(bench: PublisherBench) -> None:
    bench.kube.put(GPU_NODES, {"metadata": {"name": "n0"}, "spec": {"pricePerGpuHour": 2.5}})
    await bench.publish(A_GPU)
    assert bench.node.spec.price_per_gpu_hour == 2.5


async def test_noise_waits_for_the_heartbeat(bench: PublisherBench) -> None:
    await bench.publish(A_GPU)
    written: list[int] = []
    for reading in range(1, 12):
        bench.clock.advance(2.0)
        noisy = replace(
            A_GPU,
            utilization_percent=float(reading),
            memory_used_bytes=A_GPU.memory_used_bytes + reading * MIB,
        )
        if await bench.publish(noisy):
            written.append(reading)
    assert written == [5, 10]


@pytest.mark.parametrize("interval_seconds", [0.5, 2.0, 5.0, 10.0, 15.0])
async def test_a_gpu_on_which_nothing_happens_does_not_grow_stale(interval_seconds: float) -> None:
    """I14: what is written less often than the operator believes it would place nothing here."""
    bench = PublisherBench(interval_seconds)
    await bench.publish(A_GPU)
    oldest = 0.0
    for _ in range(round(120 / interval_seconds)):
        bench.clock.advance(interval_seconds)
        observed_at = bench.node.status.observed_at
        assert observed_at is not None
        oldest = max(oldest, (bench.clock.now() - observed_at).total_seconds())
        await bench.publish(A_GPU)
    assert oldest <= Configuration().telemetry_stale_seconds / 2


@pytest.mark.parametrize(
    "changed",
    [
        (with_more(A_GPU, 300 * MIB),),
        (replace(A_GPU, memory_used_bytes=A_GPU.memory_used_bytes + 300 * MIB),),
        (replace(A_GPU, processes=()),),
        (replace(A_GPU, processes=(*A_GPU.processes, GPUProcess(5, 0))),),
        (replace(A_GPU, processes=(replace(A_GPU.processes[0], pod_uid="pod-b"),)),),
        (replace(A_GPU, processes=(replace(A_GPU.processes[0], memory_estimated=True),)),),
        (replace(A_GPU, healthy=False, health_message="XID 79"),),
        (replace(A_GPU, memory_reserved_bytes=GIB),),
        (A_GPU, make_gpu("GPU-1")),
        (),
    ],
)
async def test_what_matters_is_written_at_once(
    bench: PublisherBench, changed: tuple[GPU, ...]
) -> None:
    await bench.publish(A_GPU)
    bench.clock.advance(2.0)
    assert await bench.publish(*changed)
    assert bench.node.status.gpus == changed


async def test_small_gpus_have_a_floor_for_noise(bench: PublisherBench) -> None:
    """1 % of a small GPU is less than any allocator's chunk."""
    small = make_gpu(total=GIB, ours=[("pod-a", 100 * MIB)])
    await bench.publish(small)
    assert not await bench.publish(with_more(small, 31 * MIB))
    assert await bench.publish(with_more(small, 33 * MIB))


async def test_creeping_memory_is_seen_against_what_was_written(bench: PublisherBench) -> None:
    await bench.publish(A_GPU)
    published = [await bench.publish(with_more(A_GPU, step * 100 * MIB)) for step in range(1, 6)]
    assert published == [False, False, True, False, False]


async def test_a_write_that_failed_is_made_up_for(bench: PublisherBench) -> None:
    await bench.publish(A_GPU)
    bench.clock.advance(2.0)
    bench.kube.fail("patch", "gpunodes")
    with pytest.raises(Unavailable):
        await bench.publish(replace(A_GPU, processes=()))
    assert await bench.publish(replace(A_GPU, processes=()))


async def test_a_race_to_create_the_node(bench: PublisherBench) -> None:
    bench.kube.fail("create", "gpunodes", after_effect=True)
    with pytest.raises(Unavailable):
        await bench.publish(A_GPU)
    assert await bench.publish(A_GPU)


async def test_a_condition_keeps_its_time_until_it_turns(bench: PublisherBench) -> None:
    await bench.publish(A_GPU)
    since = bench.node.status.conditions[0].last_transition_time
    bench.clock.advance(20.0)
    await bench.publish(A_GPU)
    assert bench.node.status.conditions[0].last_transition_time == since
    await bench.publisher.publish_failure(Readiness(False, "NVMLFailed", "gone"))
    assert bench.node.status.conditions[0].last_transition_time > since


async def test_trouble_leaves_gpus_and_their_time(bench: PublisherBench) -> None:
    """I14: a GPU without a reading does not vanish under a job, and takes no new one."""
    await bench.publish(A_GPU)
    measured_at = bench.node.status.observed_at
    bench.clock.advance(60.0)
    await bench.publisher.publish_failure(Readiness(False, "NVMLFailed", "driver is restarting"))
    status = bench.node.status
    assert status.observed_at == measured_at
    assert [(gpu.uuid, gpu.healthy) for gpu in status.gpus] == [("GPU-0", False)]
    assert status.gpus[0].health_message == "not readable: driver is restarting"
    assert status.gpus[0].processes == A_GPU.processes
    assert status.conditions[0].reason == "NVMLFailed"


async def test_a_restarted_agent_knows_the_gpus_of_the_one_before(bench: PublisherBench) -> None:
    """Their jobs run on, whether or not NVML answers the new agent."""
    await bench.publish(A_GPU)
    again = Publisher(
        bench.kube,
        "n0",
        interval_seconds=2.0,
        agent_version="1",
        clock=bench.clock.now,
        monotonic=bench.clock.monotonic,
    )
    await again.recall()
    assert again.last.gpus == (A_GPU,)
    await again.publish_failure(Readiness(False, "NVMLFailed", "no driver"))
    (gpu,) = bench.node.status.gpus
    assert (gpu.uuid, gpu.healthy) == (A_GPU.uuid, False)


async def test_there_may_have_been_no_agent_before(bench: PublisherBench) -> None:
    await bench.publisher.recall()
    assert bench.publisher.last.gpus == ()
    bench.kube.put(GPU_NODES, {"metadata": {"name": "n0"}, "spec": {}, "status": {"gpus": "?"}})
    await bench.publisher.recall()
    assert bench.publisher.last.gpus == ()


class _Running:
    """An agent at work, fast."""

    def __init__(self) -> None:
        self.bench = PublisherBench()
        self.nvml = FakeNvml(FakeGPU(compute={11: GIB}))
        self.agent = Agent(
            self.nvml, self.bench.publisher, lambda pid: "pod-a", interval_seconds=0.001
        )
        self.task = asyncio.create_task(self.agent.run())

    def reason(self) -> str:
        try:
            return self.bench.node.status.conditions[0].reason
        except KeyError:
            return ""

    async def reached(self, reason: str) -> None:
        await eventually(lambda: self.reason() == reason, what=reason)


@pytest.fixture
async def running() -> AsyncGenerator[_Running]:
    running = _Running()
    await running.reached("Measuring")
    yield running
    running.agent.stop()
    await asyncio.wait_for(running.task, 5)


async def test_it_measures_and_says_goodbye(running: _Running) -> None:
    assert running.bench.node.status.driver_version == "580.1"
    assert running.bench.node.status.gpus[0].processes[0].pod_uid == "pod-a"
    running.agent.stop()
    await asyncio.wait_for(running.task, 5)
    condition = running.bench.node.status.conditions[0]
    assert (condition.reason, condition.status) == ("AgentStopped", ConditionStatus.FALSE)


async def test_a_reading_is_of_the_moment_at_which_it_began(
    running: _Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I14: a driver may take its time."""
    bench, read = running.bench, NvmlSession.read

    def slow(session: NvmlSession) -> Reading:
        bench.clock.advance(50.0)
        return read(session)

    monkeypatch.setattr(NvmlSession, "read", slow)
    before = bench.clock.now()
    await eventually(lambda: bench.clock.now() > before)
    await eventually(lambda: (bench.node.status.observed_at or before) > before)
    observed_at = bench.node.status.observed_at
    assert observed_at is not None
    assert (bench.clock.now() - observed_at).total_seconds() >= 50.0


async def test_nvml_may_fail_and_come_back(running: _Running) -> None:
    running.nvml.broken = True
    await running.reached("NVMLFailed")
    assert "NVML error 1" in running.bench.node.status.conditions[0].message
    running.nvml.broken = False
    await running.reached("Measuring")
    assert running.nvml.inits >= 2, "set up anew"
    assert running.bench.node.status.gpus[0].healthy


async def test_the_api_server_may_be_away(running: _Running) -> None:
    running.bench.kube.fail("patch", "gpunodes", times=5)
    running.nvml.gpus[0].compute = {}
    await eventually(lambda: running.bench.node.status.gpus[0].processes == ())
