"""What NVML says, refuses to say and gets wrong becomes a reading that can be believed."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gpujob_api.gpunode import GPU
from gpujob_operator.agent.nvml import load_nvml
from gpujob_operator.agent.owners import (
    owner_by_cgroup,
    owner_by_environment,
    pod_uid_in_cgroup,
    remembered,
    start_ticks,
)
from gpujob_operator.agent.readings import GPUReader
from tests.harness.fake_nvml import (
    GIB,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    FakeGPU,
    FakeNvml,
    NVMLError,
    reader_of,
)

OWNERS = {11: "pod-a", 12: "pod-b"}


def _reader(*gpus: FakeGPU) -> tuple[GPUReader, FakeNvml]:
    nvml = FakeNvml(*gpus)
    return reader_of(nvml, OWNERS.get), nvml


def _read(device: FakeGPU) -> GPU:
    (gpu,) = _reader(device)[0].read()
    return gpu


def test_a_whole_reading() -> None:
    device = FakeGPU(
        compute={11: 3 * GIB, 99: GIB},
        graphics={12: GIB // 4},
        samples=[(11, 5, 60), (11, 6, 80), (99, 6, 10)],
        used=5 * GIB,
    )
    gpu = _read(device)
    assert (gpu.uuid, gpu.model, gpu.index) == ("GPU-0", "NVIDIA A10", 0)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (24 * GIB, 5 * GIB)
    assert gpu.memory_reserved_bytes == GIB // 2
    assert (gpu.power_watts, gpu.energy_joules, gpu.temperature_celsius) == (150.0, 5.0, 55.0)
    assert (gpu.utilization_percent, gpu.healthy) == (40.0, True)
    assert [(p.pid, p.pod_uid, p.memory_bytes, p.utilization_percent) for p in gpu.processes] == [
        (11, "pod-a", 3 * GIB, 70.0),
        (12, "pod-b", GIB // 4, 0.0),
        (99, None, GIB, 10.0),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetMemoryInfo_v2",
    ],
)
def test_every_optional_figure_may_be_missing(name: str) -> None:
    gpu = _read(FakeGPU(errors={name: NOT_SUPPORTED}, compute={11: GIB}))
    assert gpu.healthy
    assert gpu.memory_total_bytes == 24 * GIB


def test_a_module_without_the_newer_functions() -> None:
    reader, nvml = _reader(FakeGPU())
    plain = SimpleNamespace(
        **{
            name: getattr(nvml, name)
            for name in (
                "nvmlDeviceGetCount",
                "nvmlDeviceGetHandleByIndex",
                "nvmlDeviceGetUUID",
                "nvmlDeviceGetName",
                "nvmlDeviceGetMemoryInfo",
            )
        },
        NVMLError=NVMLError,
    )
    (gpu,) = reader_of(plain, OWNERS.get).read()
    assert (gpu.memory_reserved_bytes, gpu.power_watts, gpu.processes) == (0, None, ())
    assert reader.driver_version() == "580.1"


def test_utilization_of_processes_is_since_the_last_reading() -> None:
    device = FakeGPU(compute={11: GIB}, samples=[(11, 5, 100)])
    reader, _ = _reader(device)
    assert reader.read()[0].processes[0].utilization_percent == 100
    reader.published()
    assert reader.read()[0].processes[0].utilization_percent == 0, "nothing ran since then"
    reader.published()
    device.samples.append((11, 9, 30))
    assert reader.read()[0].processes[0].utilization_percent == 30


def test_where_processes_cannot_be_told_apart_utilization_is_unknown() -> None:
    device = FakeGPU(compute={11: GIB}, errors={"nvmlDeviceGetProcessUtilization": NOT_SUPPORTED})
    assert _read(device).processes[0].utilization_percent is None


def test_unknown_memory_of_processes_is_what_is_left() -> None:
    device = FakeGPU(used=7 * GIB, reserved=GIB, compute={11: 2 * GIB, 12: None, 99: None})
    assert [(one.memory_bytes, one.memory_estimated) for one in _read(device).processes] == [
        (2 * GIB, False),
        (5 * GIB // 2, True),
        (5 * GIB // 2, True),
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "hot"])
def test_nonsense_in_optional_figures_is_left_out(value: object) -> None:
    gpu = _read(FakeGPU(power=value, temperature=value, utilization=value))
    assert (gpu.power_watts, gpu.temperature_celsius, gpu.utilization_percent) == (None, None, 0.0)


def test_utilization_is_cut_to_percent() -> None:
    assert _read(FakeGPU(utilization=250)).utilization_percent == 100
    assert _read(FakeGPU(utilization=-3)).utilization_percent == 0


def test_a_lost_gpu_keeps_its_place_and_says_so() -> None:
    device, other = FakeGPU(), FakeGPU("GPU-1")
    reader, _ = _reader(device, other)
    reader.read()
    device.errors["*"] = GPU_IS_LOST
    lost, well = reader.read()
    assert (lost.uuid, lost.healthy, lost.memory_total_bytes) == ("GPU-0", False, 24 * GIB)
    assert lost.health_message.startswith("lost")
    assert (well.uuid, well.healthy) == ("GPU-1", True)


def test_a_gpu_that_was_lost_before_the_agent_restarted_keeps_its_place() -> None:
    device, other = FakeGPU(), FakeGPU("GPU-1")
    earlier = _reader(device, other)[0].read()
    device.errors["*"] = GPU_IS_LOST
    nvml = FakeNvml(device, other)
    reader = reader_of(nvml, OWNERS.get, earlier)
    lost, well = reader.read()
    assert (lost.uuid, lost.healthy, lost.memory_total_bytes) == ("GPU-0", False, 24 * GIB)
    assert well == earlier[1]
    device.errors.clear()
    assert reader.read() == earlier


def test_a_gpu_is_not_recalled_that_was_taken_out_or_has_another_place() -> None:
    earlier = _reader(FakeGPU(), FakeGPU("GPU-1"))[0].read()
    broken = FakeGPU("GPU-2", errors={"*": GPU_IS_LOST})
    for gpus in ((FakeGPU("GPU-1"),), (broken, FakeGPU())):
        nvml = FakeNvml(*gpus)
        found = reader_of(nvml, OWNERS.get, earlier).read()
        assert [gpu.uuid for gpu in found] == [gpus[-1].uuid]


def test_a_gpu_lost_amid_optional_readings_is_lost() -> None:
    device = FakeGPU()
    reader, _ = _reader(device)
    reader.read()
    device.errors["nvmlDeviceGetPowerUsage"] = GPU_IS_LOST
    assert not reader.read()[0].healthy


def test_a_gpu_that_fell_off_the_count_keeps_its_place() -> None:
    reader, nvml = _reader(FakeGPU(), FakeGPU("GPU-1"))
    reader.read()
    nvml.gpus.pop()
    assert [(gpu.uuid, gpu.healthy) for gpu in reader.read()] == [("GPU-0", True), ("GPU-1", False)]


def test_a_gpu_that_never_answered_is_not_there() -> None:
    reader, _ = _reader(FakeGPU(errors={"*": 999}), FakeGPU("GPU-1"))
    assert [gpu.uuid for gpu in reader.read()] == ["GPU-1"]


@pytest.mark.parametrize(
    "change",
    [{"used": 10**15}, {"total": 0}, {"used": -1}, {"used": float("nan")}, {"total": float("inf")}],
)
def test_an_absurd_reading_is_not_believed(change: dict[str, float]) -> None:
    device = FakeGPU()
    reader, _ = _reader(device)
    reader.read()
    for name, value in change.items():
        setattr(device, name, value)
    (gpu,) = reader.read()
    assert not gpu.healthy
    assert gpu.health_message.startswith("not readable: ")
    assert gpu.memory_total_bytes == 24 * GIB


def test_nvml_that_does_not_work_at_all() -> None:
    reader, nvml = _reader(FakeGPU())
    nvml.broken = True
    with pytest.raises(NVMLError):
        reader.read()


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (FakeGPU(ecc_errors=2), "2 uncorrectable"),
        (FakeGPU(remap_failed=True), "remapping failed"),
    ],
)
def test_worn_out_memory(device: FakeGPU, words: str) -> None:
    gpu = _read(device)
    assert not gpu.healthy
    assert words in gpu.health_message


@pytest.mark.parametrize(("xid", "healthy"), [(79, False), (48, False), (31, True), (43, True)])
def test_xids_of_the_gpu_and_of_programs(xid: int, healthy: bool) -> None:
    device, other = FakeGPU(), FakeGPU("GPU-1")
    reader, nvml = _reader(device, other)
    nvml.xids = [(device, xid)]
    first, second = reader.read()
    assert (first.healthy, second.healthy) == (healthy, True)
    assert reader.read()[0].healthy is healthy, "it stays so"


def test_the_module_is_found_by_name() -> None:
    assert load_nvml("pynvml").NVMLError is not None
    with pytest.raises(ModuleNotFoundError):
        load_nvml("no_such_module_at_all")


UID = "0f3ab2c4-1111-2222-3333-444455556666"
UNDERSCORES = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORES}.slice/"
         "cri-containerd-abc.scope\n", UID),
        (f"0::/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/crio-abc.scope", UID),
        (f"12:memory:/kubepods/besteffort/pod{UID}/abc\n1:name=systemd:/x\n", UID),
        (f"5:cpu:/kubepods/pod{UID}/abc", UID),
        (f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORES}"
         ".slice:cri-containerd:abc", UID),
        ("0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod"
         f"{UNDERSCORES}.slice/cri-containerd-abc.scope", UID),
        (f"0::/gpujob-node1/kubepods/pod{UID}/abc", UID),
        ("0::/kubepods/pod" + "a" * 32 + "/abc", "a" * 32),
        ("0::/user.slice/user-0.slice/session-1.scope", None),
        ("0::/kubepods/podcast/abc", None),
        ("0::/machine/podman-abc", None),
        ("0::/", None),
        ("", None),
    ],
)  # fmt: skip
def test_pod_of_a_cgroup(text: str, uid: str | None) -> None:
    assert pod_uid_in_cgroup(text) == uid


def _process(proc: Path, pid: int, **files: bytes) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_owner_by_cgroup(tmp_path: Path) -> None:
    _process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/c".encode())
    owner = owner_by_cgroup(tmp_path)
    assert owner(7) == UID
    assert owner(8) is None


@pytest.mark.parametrize(
    ("environment", "uid"),
    [
        (b"PATH=/bin\0GPUJOB_POD_UID=pod-1\0", "pod-1"),
        (b"XGPUJOB_POD_UID=pod-1\0", None),
        (b"GPUJOB_POD_UID=\0", None),
        (b"GPUJOB_POD_UID=" + b"x" * 100 + b"\0", None),
        (b"GPUJOB_POD_UID=\xff\xfe\0", None),
        (b"", None),
    ],
)
def test_owner_by_environment(tmp_path: Path, environment: bytes, uid: str | None) -> None:
    _process(tmp_path, 7, environ=environment)
    assert owner_by_environment(tmp_path)(7) == uid


def test_a_process_is_asked_about_once_unless_its_pid_is_used_again(tmp_path: Path) -> None:
    def stat(start: int) -> bytes:
        return f"7 (a name) with ) {' '.join(['0'] * 19)} {start} 0".encode()

    asked: list[int] = []

    def owner(pid: int) -> str | None:
        asked.append(pid)
        return f"pod-{len(asked)}"

    ask = remembered(owner, start_ticks(tmp_path))
    _process(tmp_path, 7, stat=stat(100))
    assert [ask(7), ask(7)] == ["pod-1", "pod-1"]
    _process(tmp_path, 7, stat=stat(200))
    assert ask(7) == "pod-2"
    assert ask(8) == "pod-3", "gone meanwhile: asked, not remembered"
    assert ask(8) == "pod-4"


def test_start_ticks_of_a_real_process() -> None:
    import os

    assert (start_ticks()(os.getpid()) or 0) > 0


def test_a_process_that_was_nobodys_while_it_started_is_asked_about_again(tmp_path: Path) -> None:
    """Between fork and exec it has neither environment nor cgroup of its pod."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (worker) S {' '.join(map(str, range(1, 60)))}")
    answers = iter((None, "pod-1", "never asked for"))
    ask = remembered(lambda pid: next(answers), start_ticks(tmp_path))
    assert [ask(7), ask(7), ask(7)] == [None, "pod-1", "pod-1"]
