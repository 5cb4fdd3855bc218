"""Which GPUs are close together, as NVML tells it."""

from gpujob_operator.agent.readings import GPUReader
from tests.harness import fake_nvml
from tests.harness.fake_nvml import GPU_IS_LOST, FakeGPU, FakeNvml


def machine(count: int) -> FakeNvml:
    return FakeNvml(*(FakeGPU(uuid=f"GPU-{n}") for n in range(count)))


def reader_of(nvml: FakeNvml) -> GPUReader:
    return fake_nvml.reader_of(nvml, lambda pid: None)


def groups(nvml: FakeNvml) -> list[int]:
    return [gpu.link_group for gpu in reader_of(nvml).read()]


def test_bridged_pairs_are_groups() -> None:
    nvml = machine(4)
    nvml.nvlinks = {(0, 2), (1, 3)}
    assert groups(nvml) == [0, 1, 0, 1]


def test_gpus_that_reach_each_other_over_others_are_one_group() -> None:
    nvml = machine(4)
    nvml.nvlinks = {(0, 1), (1, 2), (2, 3)}
    assert groups(nvml) == [0, 0, 0, 0]


def test_without_links_gpus_of_one_numa_node_are_a_group() -> None:
    nvml = machine(4)
    nvml.numa = {0: 0, 1: 0, 2: 1, 3: 1}
    assert groups(nvml) == [0, 0, 2, 2]


def test_where_nobody_can_tell_no_gpu_is_closer_to_one_than_to_another() -> None:
    assert groups(machine(3)) == [0, 0, 0]
    assert groups(machine(1)) == [0]


def test_links_are_asked_for_once() -> None:
    nvml = machine(4)
    reader = reader_of(nvml)
    reader.read()
    asked = nvml.link_questions
    reader.read()
    assert nvml.link_questions == asked > 0


def test_a_lost_gpu_keeps_its_group_and_the_others_theirs() -> None:
    nvml = machine(4)
    nvml.nvlinks = {(0, 1), (2, 3)}
    reader = reader_of(nvml)
    reader.read()
    nvml.gpus[3].errors["*"] = GPU_IS_LOST
    lost = reader.read()
    assert [gpu.link_group for gpu in lost] == [0, 0, 2, 2]
    assert not lost[3].healthy


def test_links_that_cannot_be_read_are_no_groups() -> None:
    nvml = machine(2)
    nvml.nvlinks = {(0, 1)}
    nvml.gpus[0].errors["nvmlDeviceGetP2PStatus"] = GPU_IS_LOST
    assert groups(nvml) == [0, 0]
