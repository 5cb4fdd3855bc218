"""What the agent reads of GPUs through pynvml's own ctypes calls, from a library with NVML's
symbols.

The driver behind the library is imitated; all that the agent runs of pynvml, of its own readings
and of the attribution of processes is what runs on a node.
"""

import pytest

from gpujob_api.quantities import GIB
from tests.harness.imitated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    ImitatedGPU,
    ImitatedProcess,
)
from tests.harness.imitated_nvml.agent_node import NVMLFailureError
from tests.integration.agent.conftest import Node

UID = "0f3ab2c4-1111-2222-3333-444455556666"
OTHER_UID = "99999999-aaaa-bbbb-cccc-dddddddddddd"


def _slice(uid: str) -> str:
    return uid.replace("-", "_")


def _cgroup(uid: str) -> str:
    return f"0::/kubepods/burstable/pod{uid}/4f5c\n"


def test_an_h100_at_work(node: Node) -> None:
    node.tree.put(11, _cgroup(UID))
    node.tree.put(12, _cgroup(OTHER_UID))
    gpu = node.gpu
    gpu.memory_used_bytes = 50 * GIB
    gpu.utilization_percent = 93
    gpu.power_milliwatts, gpu.energy_millijoules = 612_345, 9_876_543_210
    gpu.temperature_celsius = 61
    gpu.processes = [
        ImitatedProcess(11, 40 * GIB),
        ImitatedProcess(12, 9 * GIB, graphics=True),
        ImitatedProcess(99, GIB),
    ]
    gpu.samples = [(11, 1_000, 80), (11, 2_000, 90), (99, 2_000, 3)]
    reading = node.read()
    found = reading.gpus[0]
    assert (reading.driver_version, reading.unread) == ("580.82.07", [])
    assert (found.uuid, found.model) == ("GPU-0", "NVIDIA H100 80GB HBM3")
    assert found.memory_total_bytes == 80 * GIB
    assert (found.memory_used_bytes, found.memory_reserved_bytes) == (50 * GIB, GIB // 2)
    assert (found.utilization_percent, found.temperature_celsius) == (93.0, 61.0)
    assert (found.power_watts, found.energy_joules) == (612.345, 9_876_543.21)
    assert (found.healthy, found.health_message) == (True, "")
    assert [
        (one.pid, one.pod_uid, one.memory_bytes, one.utilization_percent) for one in found.processes
    ] == [
        (11, UID, 40 * GIB, 85.0),
        (12, OTHER_UID, 9 * GIB, 0.0),
        (99, None, GIB, 3.0),
    ]


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_slice(UID)}.slice/"
        "cri-containerd-4f5c.scope\n",
        f"0::/kubepods.slice/kubepods-pod{_slice(UID)}.slice/crio-4f5c.scope\n",
        f"0::/kubepods/burstable/pod{UID}/4f5c\n",
        f"12:memory:/kubepods/besteffort/pod{UID}/4f5c\n"
        f"4:devices:/kubepods/besteffort/pod{UID}/4f5c\n1:name=systemd:/system.slice/kubelet\n",
        "11:memory:/kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{_slice(UID)}.slice/crio-4f5c.scope\n0::/\n",
        f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{_slice(UID)}.slice"
        ":cri-containerd:4f5c\n",
    ],
    ids=[
        "v2, systemd, containerd",
        "v2, systemd, CRI-O",
        "v2, cgroupfs",
        "v1, cgroupfs",
        "v1, systemd, CRI-O",
        "v1, systemd, containerd without its driver",
    ],
)
def test_a_process_is_its_pods_by_its_cgroup(node: Node, cgroup: str) -> None:
    node.tree.put(11, cgroup)
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    assert node.read_gpu().processes[0].pod_uid == UID


def test_a_number_that_another_process_has_now_is_asked_about_again(node: Node) -> None:
    node.tree.put(11, _cgroup(UID))
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    assert node.read_gpu().processes[0].pod_uid == UID
    node.tree.put(11, _cgroup(OTHER_UID))
    assert node.read_gpu().processes[0].pod_uid == OTHER_UID
    node.tree.end(11)
    assert node.read_gpu().processes[0].pod_uid is None


def test_memory_that_the_driver_cannot_tell_of_a_process(node: Node) -> None:
    node.gpu.memory_used_bytes = 7 * GIB
    node.gpu.processes = [ImitatedProcess(11, 3 * GIB), ImitatedProcess(12, None)]
    assert [one.memory_bytes for one in node.read_gpu().processes] == [3 * GIB, 4 * GIB]


def test_utilization_of_a_process_is_that_since_the_last_reading(node: Node) -> None:
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    node.gpu.samples = [(11, 1_000, 100)]
    assert node.read_gpu().processes[0].utilization_percent == 100
    assert node.read_gpu().processes[0].utilization_percent == 0, "no sample since then"
    node.gpu.samples.append((11, 2_000, 30))
    assert node.read_gpu().processes[0].utilization_percent == 30


def test_a_sample_that_cannot_be_is_left_out(node: Node) -> None:
    """Drivers have been seen to tell of more than 100 % and of processes long gone."""
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    node.gpu.samples = [(11, 1_000, 40), (11, 2_000, 4_294_967_295)]
    assert node.read_gpu().processes[0].utilization_percent == 40


def test_a_figure_that_fails_once_is_not_known_rather_than_nothing(node: Node) -> None:
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    node.gpu.samples = [(11, 1_000, 40)]
    node.read()
    node.gpu.answers = {"nvmlDeviceGetProcessUtilization": UNKNOWN}
    assert node.read_gpu().processes[0].utilization_percent is None


@pytest.mark.parametrize(
    ("figure", "field", "expected"),
    [
        ("power_milliwatts", "power_watts", None),
        ("energy_millijoules", "energy_joules", None),
        ("temperature_celsius", "temperature_celsius", None),
        ("utilization_percent", "utilization_percent", 0.0),
        ("ecc_errors", "healthy", True),
        ("remapped_rows", "healthy", True),
        ("mig_mode", "healthy", True),
        ("numa_node", "link_group", 0),
    ],
)
def test_a_figure_that_a_model_does_not_have(
    node: Node, figure: str, field: str, expected: object
) -> None:
    setattr(node.gpu, figure, None)
    found = node.read_gpu()
    assert (found.healthy, getattr(found, field)) == (True, expected)


def test_more_processes_than_there_was_room_for(node: Node) -> None:
    """Between the two calls that pynvml makes for a list, processes started: it is asked again."""
    node.gpu.processes = [ImitatedProcess(11, GIB), ImitatedProcess(12, GIB)]
    node.driver.crowded = 2
    assert [one.pid for one in node.read_gpu().processes] == [11, 12]


@pytest.mark.promise("I14")
def test_a_list_that_cannot_be_had_is_no_empty_list(node: Node) -> None:
    """Else all that its jobs use would seem to be somebody else's."""
    node.gpu.memory_used_bytes = GIB
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    node.read()
    node.gpu.answers = {"nvmlDeviceGetComputeRunningProcesses_v3": UNKNOWN}
    found = node.read_gpu()
    assert not found.healthy
    assert found.health_message == "not readable: Unknown Error"


def test_a_driver_of_before_r510(old_node: Node) -> None:
    """Without the second version of the memory and the third of the processes."""
    old_node.tree.put(11, _cgroup(UID))
    old_node.driver.version = "470.256.02"
    old_node.gpu.memory_used_bytes = 3 * GIB
    old_node.gpu.processes = [ImitatedProcess(11, 2 * GIB)]
    found = old_node.read_gpu()
    assert found.memory_used_bytes == 3 * GIB + GIB // 2, "what the driver keeps counts as used"
    assert found.memory_reserved_bytes == 0
    assert [(one.pid, one.pod_uid, one.memory_bytes) for one in found.processes] == [
        (11, UID, 2 * GIB)
    ]


def test_gpus_that_are_close_together(node: Node) -> None:
    node.driver.gpus = [
        ImitatedGPU(f"GPU-{index}", nvlinks=(index ^ 1,), numa_node=index // 2)
        for index in range(4)
    ]
    assert [gpu.link_group for gpu in node.read().gpus.values()] == [0, 0, 2, 2]


def test_a_gpu_in_mig_mode_is_left_out_and_says_why(node: Node) -> None:
    """Its own UUID opens no device: programs see its instances."""
    node.driver.gpus.append(ImitatedGPU("GPU-1", mig_mode=(1, 1), mig_instances=2))
    reading = node.read()
    assert reading.gpus[0].healthy
    assert not reading.gpus[1].healthy
    assert reading.gpus[1].health_message == (
        "MIG mode is on, with 2 instances: only whole GPUs are used; "
        "nvidia-smi -i 1 -mig 0 turns it off"
    )
    node.driver.gpus[1].mig_mode, node.driver.gpus[1].mig_instances = (0, 0), 0
    assert node.read_gpu(1).healthy


def test_worn_memory(node: Node) -> None:
    node.driver.gpus += [
        ImitatedGPU("GPU-1", ecc_errors=2),
        ImitatedGPU("GPU-2", remapped_rows=(3, 1, 1, 0)),
        ImitatedGPU("GPU-3", remapped_rows=(3, 1, 0, 1)),
    ]
    messages = [gpu.health_message for gpu in node.read().gpus.values()]
    assert messages == [
        "",
        "2 uncorrectable memory errors since boot",
        "",
        "row remapping failed: the memory has no spare rows left",
    ]


def test_a_gpu_falls_off_the_bus_and_comes_back_after_a_reset(node: Node) -> None:
    """The others are read on, although NVML's wait for events fails for all of them."""
    node.driver.gpus.append(ImitatedGPU("GPU-1"))
    node.read()
    node.driver.gpus[1].xids = [79]
    node.driver.gpus[1].answers = {"*": GPU_IS_LOST}
    lost = node.read()
    assert (lost.gpus[0].healthy, lost.gpus[1].healthy) == (True, False)
    assert lost.gpus[1].health_message == "lost: GPU is lost"
    assert lost.gpus[1].uuid == "GPU-1"
    node.driver.gpus[1].answers = {}
    assert node.read_gpu(1).health_message.startswith("XID 79: the GPU has fallen off the bus")
    node.driver.gpus[1].xids, node.driver.gpus[1].energy_millijoules = [], 12
    assert node.read_gpu(1).healthy, "its counter of energy began anew"


def test_a_gpu_that_needs_a_reset_says_so(node: Node) -> None:
    node.read()
    node.gpu.answers = {"nvmlDeviceGetHandleByIndex_v2": RESET_REQUIRED}
    assert node.read_gpu().health_message == "needs a reset: GPU requires restart"


def test_a_gpu_that_may_not_be_opened(node: Node) -> None:
    """One that was never read has no UUID to be published under: the condition tells of it."""
    node.driver.gpus.append(ImitatedGPU("GPU-1", answers={"*": NO_PERMISSION}))
    reading = node.read()
    assert list(reading.gpus) == [0]
    assert reading.unread == ["GPU 1: Insufficient Permissions"]
    node.driver.gpus[1].answers = {}
    assert (list(node.read().gpus), node.read().unread) == ([0, 1], [])


def test_figures_that_are_for_administrators_only(node: Node) -> None:
    node.gpu.answers = {
        "nvmlDeviceGetProcessUtilization": NO_PERMISSION,
        "nvmlDeviceGetTotalEccErrors": NO_PERMISSION,
    }
    node.gpu.processes = [ImitatedProcess(11, GIB)]
    found = node.read_gpu()
    assert (found.healthy, found.processes[0].utilization_percent) == (True, None)


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, VERSION_MISMATCH, NO_PERMISSION])
def test_nvml_that_does_not_start_and_then_does(node: Node, code: int) -> None:
    node.driver.answers = {"nvmlInitWithFlags": code}
    with pytest.raises(NVMLFailureError) as failure:
        node.read()
    assert failure.value.code == code
    node.driver.answers = {}
    assert node.read_gpu().healthy


def test_a_driver_that_was_loaded_anew_is_read_in_a_new_session(node: Node) -> None:
    """NVML stays with the old one until it is shut down as often as it was set up."""
    node.read()
    node.driver.loaded += 1
    node.driver.version = "590.10"
    with pytest.raises(NVMLFailureError):
        node.read()
    assert node.read().driver_version == "590.10"


def test_a_driver_that_is_unloaded(node: Node) -> None:
    node.read()
    node.driver.unload()
    with pytest.raises(NVMLFailureError) as failure:
        node.reader.read_as_it_is()
    assert failure.value.code == DRIVER_NOT_LOADED
    assert node.read_gpu().healthy


def test_events_that_cannot_be_had_leave_the_figures(node: Node) -> None:
    node.gpu.answers = {"nvmlDeviceRegisterEvents": NOT_SUPPORTED}
    assert node.read_gpu().healthy
