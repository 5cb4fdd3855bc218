"""CPU cards on a kubelet: whose they are, what their processes use, where they are refused."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.codec import encode
from gpujob_api.cpu_cards import memory_of
from gpujob_api.gpunode import GPUNodeStatus
from gpujob_api.manifest import gpunode_from_manifest
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_operator.agent.agent import Agent
from gpujob_operator.agent.cpu.cards import make_cards
from gpujob_operator.agent.cpu.devices import check_node
from gpujob_operator.agent.cpu.environment import EnvironmentDevices
from gpujob_operator.agent.cpu.pods import PodDevices
from gpujob_operator.agent.cpu.processes import bound_processes
from gpujob_operator.agent.cpu.source import CpuCardSource, nvml_of_cpu_cards
from gpujob_operator.agent.nvml import DevicesRefused
from gpujob_operator.agent.owners import owner_by_cgroup
from gpujob_operator.agent.publish import Publisher
from gpujob_operator.client.api_errors import Forbidden
from gpujob_operator.client.kube import GPU_NODES, NODES, PODS
from gpujob_operator.read.nouns import read_gpus
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.fake_nvml import reader_of
from tests.harness.fake_proc import MIB, TICKS_PER_SECOND, FakeProc

NODE = "kind-worker"
UUIDS = tuple(card.uuid for card in make_cards(NODE, 2, 1024 * MIB, [0, 1]))
POD = "1a2b3c4d-0123-4567-89ab-00000000000a"
OTHER = "1a2b3c4d-0123-4567-89ab-00000000000b"


def in_pod(uid: str) -> str:
    slice_uid = uid.replace("-", "_")
    return f"0::/../../kubepods-besteffort-pod{slice_uid}.slice/cri-containerd-1.scope"


def pod(name: str, uid: str, *visible: str, node: str = NODE) -> dict[str, Any]:
    containers = [
        {"name": f"c{i}", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}
        for i, value in enumerate(visible)
    ]
    metadata = {"name": name, "namespace": "team", "uid": uid}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}}


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.fixture
def kube() -> FakeKube:
    kube = FakeKube()
    kube.put(NODES, {"metadata": {"name": NODE}})
    return kube


@pytest.fixture
def devices(fake: FakeProc, kube: FakeKube) -> PodDevices:
    return PodDevices(kube, NODE, owner_by_cgroup(fake.proc), fake.proc)


def lists(kube: FakeKube) -> int:
    return sum(call.verb == "list" for call in kube.calls)


async def test_a_process_has_the_cpu_cards_that_its_pod_names(
    fake: FakeProc, kube: FakeKube, devices: PodDevices
) -> None:
    kube.put(PODS, pod("job-1-0", POD, UUIDS[0]))
    fake.put(7, cgroup=in_pod(POD))
    fake.put(8)
    assert devices(7) == (), "nobody asked yet"
    await devices.learn()
    assert devices(7) == (UUIDS[0],)
    assert devices(8) == ()


async def test_pods_are_asked_for_once_each_and_of_this_node_only(
    fake: FakeProc, kube: FakeKube, devices: PodDevices
) -> None:
    kube.put(PODS, pod("job-1-0", POD, UUIDS[0]))
    kube.put(PODS, pod("elsewhere", OTHER, UUIDS[1], node="kind-worker2"))
    fake.put(7, cgroup=in_pod(POD))
    # Its cgroup is seen here although its node is another: two kubelets on one machine.
    fake.put(9, cgroup=in_pod(OTHER))
    for _ in range(3):
        await devices.learn()
    assert lists(kube) == 1
    assert (devices(7), devices(9)) == ((UUIDS[0],), ())
    fake.put(11, cgroup=in_pod(POD.replace("a", "c")))
    await devices.learn()
    assert lists(kube) == 2, "a pod that was not seen before"


async def test_a_pod_keeps_its_cpu_cards_while_its_processes_run(
    fake: FakeProc, kube: FakeKube, devices: PodDevices
) -> None:
    """Its object may be deleted by force long before they end."""
    kube.put(PODS, pod("job-1-0", POD, UUIDS[0]))
    fake.put(7, cgroup=in_pod(POD))
    await devices.learn()
    kube.remove(PODS, "job-1-0", "team")
    fake.put(8, cgroup=in_pod(OTHER))
    await devices.learn()
    assert devices(7) == (UUIDS[0],)


async def test_without_an_answer_nothing_is_taken_for_known(
    fake: FakeProc, kube: FakeKube, devices: PodDevices
) -> None:
    kube.put(PODS, pod("job-1-0", POD, UUIDS[0]))
    fake.put(7, cgroup=in_pod(POD))
    kube.fail("list", "pods", Forbidden(403, "Forbidden", "no"))
    with pytest.raises(Forbidden):
        await devices.learn()
    await devices.learn()
    assert devices(7) == (UUIDS[0],)


async def test_odd_pods_name_nothing(fake: FakeProc, kube: FakeKube, devices: PodDevices) -> None:
    odd: list[Any] = [None, "x", {"name": 1}, {"env": "x"}, {"env": [None, {"name": "A"}]}]
    odd += [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {}}]}]
    manifest = pod("odd", POD)
    kube.put(PODS, {**manifest, "spec": {"nodeName": NODE, "containers": odd}})
    fake.put(7, cgroup=in_pod(POD))
    await devices.learn()
    assert devices(7) == ()


async def test_several_containers_and_names_are_joined(
    fake: FakeProc, kube: FakeKube, devices: PodDevices
) -> None:
    kube.put(PODS, pod("two", POD, f"{UUIDS[0]}, {UUIDS[1]}", "void", UUIDS[0]))
    fake.put(7, cgroup=in_pod(POD))
    await devices.learn()
    assert devices(7) == (*UUIDS, "void")


def test_a_process_that_is_not_ours_has_no_environment_to_read(fake: FakeProc) -> None:
    fake.put(7)
    assert EnvironmentDevices(fake.proc)(7) == ()
    (fake.proc / "7" / "environ").write_bytes(b"A=b\0NVIDIA_VISIBLE_DEVICES=CPU-a,CPU-b\0")
    assert EnvironmentDevices(fake.proc)(7) == ("CPU-a", "CPU-b")


# What processes use


def given(*pids: int) -> Callable[[int], tuple[str, ...]]:
    return lambda pid: (UUIDS[0],) if pid in pids else ()


def test_forked_children_count_with_what_they_have_beyond_their_parent(fake: FakeProc) -> None:
    """A data loader's workers: the kernel counts the shared pages to each of them."""
    fake.put(7, memory_bytes=500 * MIB)
    fake.put(8, parent=7, memory_bytes=530 * MIB)
    fake.put(9, parent=7, memory_bytes=450 * MIB)
    found = bound_processes(UUIDS, given(7, 8, 9), fake.proc)
    assert {pid: p.memory_bytes // MIB for pid, p in found.items()} == {7: 500, 8: 30, 9: 0}


def test_a_child_that_runs_another_program_counts_in_full(fake: FakeProc) -> None:
    """torchrun and its ranks share nothing."""
    fake.put(7, memory_bytes=200 * MIB, command="python\0-m\0torch.distributed.run\0")
    fake.put(8, parent=7, memory_bytes=300 * MIB)
    found = bound_processes(UUIDS, given(7, 8), fake.proc)
    assert {pid: p.memory_bytes // MIB for pid, p in found.items()} == {7: 200, 8: 300}


def test_a_process_that_ends_while_it_is_looked_at_is_left_out(fake: FakeProc) -> None:
    fake.put(7)
    fake.put(8)
    (fake.proc / "8" / "stat").unlink()
    fake.put(9)
    (fake.proc / "9" / "status").write_text("RssAnon:\tmuch kB\n")
    assert list(bound_processes(UUIDS, given(7, 8, 9), fake.proc)) == [7]


def test_utilization_is_the_time_of_a_core_between_two_readings(fake: FakeProc) -> None:
    clock = FakeClock()
    cards = make_cards(NODE, 2, 1024 * MIB, [0, 1])
    fake.put(7, cpu_ticks=1000, memory_bytes=300 * MIB)
    source = CpuCardSource(cards, given(7), proc=fake.proc, monotonic=clock.monotonic)
    assert source.read()[0].utilization_percent == 0
    clock.advance(2.0)
    fake.put(7, cpu_ticks=1000 + TICKS_PER_SECOND, memory_bytes=300 * MIB)
    used, idle = source.read()
    assert (round(used.utilization_percent), idle.utilization_percent) == (50, 0)
    assert (used.memory_used_bytes, idle.memory_used_bytes) == (300 * MIB, 0)
    clock.advance(2.0)
    # The number was given to another process.
    fake.put(7, cpu_ticks=TICKS_PER_SECOND, started=900)
    assert round(source.read()[0].utilization_percent) == 50


def test_a_process_that_takes_more_than_a_gpu_has_is_read_as_all_of_it(fake: FakeProc) -> None:
    """The operator would leave out what no GPU can hold, and take the memory for an unmanaged
    process's."""
    (card,) = make_cards(NODE, 1, 1024 * MIB, (0,))
    usable_bytes = card.memory_bytes - card.reserved_bytes

    def devices_of(_: int) -> tuple[str, ...]:
        return (card.uuid,)

    fake.put(7, memory_bytes=3 * 1024 * MIB)
    fake.put(8, memory_bytes=100 * MIB)
    nvml = nvml_of_cpu_cards(lambda: CpuCardSource((card,), devices_of, proc=fake.proc))
    nvml.nvmlInit()
    (gpu,) = reader_of(nvml, owner=lambda _: POD).read()
    assert gpu.memory_used_bytes == usable_bytes
    assert {one.memory_bytes for one in gpu.processes} == {usable_bytes, 100 * MIB}
    assert read_gpus([encode(gpu)], pytest.fail) == {gpu.uuid: gpu}


def test_the_cards_of_a_node_are_the_same_after_a_restart() -> None:
    first, again = (make_cards(NODE, 2, 1024 * MIB, [0, 1]) for _ in range(2))
    assert first == again
    assert {card.core for card in first} == {0, 1}
    assert all(0 < card.reserved_bytes < card.memory_bytes / 10 for card in first)
    # In whole MiB.
    usable = {(card.memory_bytes - card.reserved_bytes) // MIB for card in first}
    assert {(memory_of(card.uuid) or 0) // MIB for card in first} == usable


# Where they are refused

VGA, THREE_D, SOUND, NIC = "0x030000", "0x030200", "0x040300", "0x020000"


def check(fake: FakeProc, count: int = 1, memory: int = 1024 * MIB, beside: bool = False) -> None:
    check_node(count, memory, beside_gpus=beside, proc=fake.proc, sysfs=fake.sysfs)


@pytest.mark.parametrize("kind", [VGA, THREE_D])
def test_a_node_with_a_gpu_refuses_and_says_what_to_do(fake: FakeProc, kind: str) -> None:
    fake.put_memory(8192 * MIB)
    fake.put_pci_device("0000:01:00.0", vendor="0x10de", kind=kind)
    with pytest.raises(DevicesRefused, match=r"1 NVIDIA GPU \(0000:01:00\.0\).*devices=nvml"):
        check(fake)
    check(fake, beside=True)


def test_a_driver_that_shows_gpus_is_enough(fake: FakeProc) -> None:
    """Where the buses are hidden from the container."""
    fake.put_memory(8192 * MIB)
    fake.put_driver(*(f"0000:0{i}:00.0" for i in range(8)))
    with pytest.raises(DevicesRefused, match=r"8 NVIDIA GPUs \(.*, \.\.\.\)"):
        check(fake)


@pytest.mark.parametrize(
    ("vendor", "kind"), [("0x8086", VGA), ("0x1002", THREE_D), ("0x10de", SOUND), ("0x15b3", NIC)]
)
def test_other_devices_are_none_of_its_business(fake: FakeProc, vendor: str, kind: str) -> None:
    fake.put_memory(8192 * MIB)
    fake.put_pci_device("0000:01:00.0", vendor=vendor, kind=kind)
    check(fake)


def test_cpu_cards_fit_into_the_nodes_memory(fake: FakeProc) -> None:
    fake.put_memory(4096 * MIB)
    check(fake, count=4)
    with pytest.raises(DevicesRefused, match=r"agent\.cpu\.memory lower"):
        check(fake, count=5)


def test_what_is_refused_comes_out_of_nvml_init(fake: FakeProc) -> None:
    fake.put_memory(1)

    def opener() -> CpuCardSource:
        check(fake)
        return CpuCardSource((), given())

    nvml = nvml_of_cpu_cards(opener)
    with pytest.raises(DevicesRefused):
        nvml.nvmlInit()
    fake.put_memory(8192 * MIB)
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 0
    assert nvml.nvmlSystemGetDriverVersion().startswith("cpu-cards-")


# The agent


@dataclass
class _Bench:
    kube: FakeKube
    agent: Agent
    clock: FakeClock

    def condition(self) -> Condition:
        (found,) = self.status().conditions
        return found

    def status(self) -> GPUNodeStatus:
        manifest = self.kube.stored(GPU_NODES, NODE)
        return gpunode_from_manifest({**manifest, "kind": "GPUNode"}).status


def bench(fake: FakeProc, kube: FakeKube) -> _Bench:
    clock = FakeClock()
    kube.put(NODES, {"metadata": {"name": NODE}})
    owner = owner_by_cgroup(fake.proc)
    pods = PodDevices(kube, NODE, owner, fake.proc)

    def opener() -> CpuCardSource:
        check(fake)
        cards = make_cards(NODE, 2, 1024 * MIB, [0, 1])
        return CpuCardSource(cards, pods, proc=fake.proc, monotonic=clock.monotonic)

    publisher = Publisher(
        kube,
        NODE,
        interval_seconds=2.0,
        agent_version="1",
        clock=clock.now,
        monotonic=clock.monotonic,
    )
    nvml = nvml_of_cpu_cards(opener)
    agent = Agent(nvml, publisher, owner, interval_seconds=2.0, prepare=pods.learn)
    return _Bench(kube, agent, clock)


async def test_an_agent_publishes_cpu_cards_with_the_pods_on_them(
    fake: FakeProc, kube: FakeKube
) -> None:
    """Already in its first reading: an empty GPU would be given away."""
    fake.put_memory(8192 * MIB)
    kube.put(PODS, pod("job-1-0", POD, UUIDS[1]))
    fake.put(7, cgroup=in_pod(POD), memory_bytes=300 * MIB)
    made = bench(fake, kube)
    await made.agent.step()
    first, second = made.status().gpus
    assert (first.uuid, second.uuid) == UUIDS
    assert first.processes == ()
    (process,) = second.processes
    assert (process.pod_uid, process.memory_bytes) == (POD, 300 * MIB)
    assert (second.memory_used_bytes, second.model) == (300 * MIB, "CPU card")
    assert made.condition().status is ConditionStatus.TRUE


async def test_pods_that_cannot_be_listed_leave_the_last_reading(
    fake: FakeProc, kube: FakeKube
) -> None:
    """A reading without them would say that their CPU cards are free."""
    fake.put_memory(8192 * MIB)
    made = bench(fake, kube)
    await made.agent.step()
    before = made.status()
    fake.put(7, cgroup=in_pod(POD))
    kube.fail("list", "pods", Forbidden(403, "Forbidden", "no"), times=100)
    made.clock.advance(60)
    await made.agent.step()
    assert made.status() == before


async def test_a_node_with_a_gpu_says_so_in_its_gpunode(fake: FakeProc, kube: FakeKube) -> None:
    fake.put_memory(8192 * MIB)
    fake.put_pci_device("0000:01:00.0", vendor="0x10de", kind=THREE_D)
    made = bench(fake, kube)
    await made.agent.step()
    assert made.status().gpus == ()
    condition = made.condition()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "DevicesRefused")
    assert "NVIDIA GPU (0000:01:00.0)" in condition.message
