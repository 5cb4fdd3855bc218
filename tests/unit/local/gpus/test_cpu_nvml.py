"""CPU cards report what real processes really use."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpujob_local.gpus import cpu_nvml
from gpujob_local.gpus.cpu_cards import read_cards, write_cards
from gpujob_operator.agent.cpu.cards import CpuCard
from gpujob_operator.agent.cpu.environment import EnvironmentDevices
from gpujob_operator.agent.cpu.processes import bound_processes

MIB = 1024**2
FIRST, SECOND = "CPU-test-0", "CPU-test-1"

ALLOCATE = """
import sys
block = bytearray(int(sys.argv[1]))
for offset in range(0, len(block), 4096):
    block[offset] = 1
print("ready", flush=True)
sys.stdin.read()
"""
BURN = """
print("ready", flush=True)
while True:
    pass
"""
FORK = """
import os, sys
block = bytearray(200 * 1024 * 1024)
for offset in range(0, len(block), 4096):
    block[offset] = 1
children = []
for _ in range(3):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    children.append(writer)
print("ready", flush=True)
sys.stdin.read()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[str, str]]:
    """Two open cards of 1 GiB with UUIDs that no other test run uses."""
    names = tuple(f"{name}-{os.getpid()}-{time.monotonic_ns()}" for name in (FIRST, SECOND))
    described = [CpuCard(name, 0, 1024 * MIB, 64 * MIB, "Test card") for name in names]
    write_cards(tmp_path / "cards.json", described)
    monkeypatch.setenv(cpu_nvml.CARDS_VARIABLE, str(tmp_path / "cards.json"))
    cpu_nvml.nvmlInit()
    yield names[0], names[1]
    cpu_nvml.nvmlShutdown()


@pytest.fixture
def start() -> Generator[Start]:
    """Starts scripts that are bound to cards; kills them afterwards."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str, uuids: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script, *arguments],
            env={"NVIDIA_VISIBLE_DEVICES": uuids},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], limit_seconds: float = 60) -> None:
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.02)


def code_of(raised: Any) -> int:
    return raised.value.value


def handle(uuid: str) -> object:
    return cpu_nvml.nvmlDeviceGetHandleByUUID(uuid)


def used_bytes(uuid: str) -> int:
    return cpu_nvml.nvmlDeviceGetMemoryInfo(handle(uuid), version=cpu_nvml.nvmlMemory_v2).used


def test_memory_of_a_real_process_appears_on_its_gpu_only(
    cards: tuple[str, str], start: Start
) -> None:
    process = start(ALLOCATE, cards[0], str(200 * MIB))
    until(lambda: used_bytes(cards[0]) > 200 * MIB)
    assert used_bytes(cards[0]) < 220 * MIB
    assert used_bytes(cards[1]) == 0
    [entry] = cpu_nvml.nvmlDeviceGetComputeRunningProcesses(handle(cards[0]))
    assert entry.pid == process.pid
    assert entry.usedGpuMemory == used_bytes(cards[0])


def test_memory_is_free_again_when_the_process_ends(cards: tuple[str, str], start: Start) -> None:
    process = start(ALLOCATE, cards[0], str(100 * MIB))
    until(lambda: used_bytes(cards[0]) > 100 * MIB)
    process.kill()
    process.wait()
    until(lambda: used_bytes(cards[0]) == 0)


def test_a_busy_process_shows_as_utilization(cards: tuple[str, str], start: Start) -> None:
    process = start(BURN, cards[1])
    until(lambda: cpu_nvml.nvmlDeviceGetUtilizationRates(handle(cards[1])).gpu > 5)
    assert cpu_nvml.nvmlDeviceGetUtilizationRates(handle(cards[0])).gpu == 0
    samples = cpu_nvml.nvmlDeviceGetProcessUtilization(handle(cards[1]), 0)
    assert [sample.pid for sample in samples] == [process.pid]
    assert samples[0].smUtil > 5
    with pytest.raises(pynvml.NVMLError):
        cpu_nvml.nvmlDeviceGetProcessUtilization(handle(cards[1]), samples[0].timeStamp + 10**12)


def test_an_idle_process_shows_as_none(cards: tuple[str, str], start: Start) -> None:
    start(ALLOCATE, cards[0], str(MIB))
    until(lambda: used_bytes(cards[0]) > 0)
    until(lambda: cpu_nvml.nvmlDeviceGetUtilizationRates(handle(cards[0])).gpu == 0)


def test_pages_shared_with_forked_children_count_once(cards: tuple[str, str], start: Start) -> None:
    start(FORK, cards[0])
    until(lambda: len(cpu_nvml.nvmlDeviceGetComputeRunningProcesses(handle(cards[0]))) == 4)
    until(lambda: used_bytes(cards[0]) > 200 * MIB)
    assert used_bytes(cards[0]) < 260 * MIB


def test_a_process_on_two_gpus_counts_half_on_each(cards: tuple[str, str], start: Start) -> None:
    start(ALLOCATE, ",".join(cards), str(200 * MIB))
    until(lambda: used_bytes(cards[0]) > 100 * MIB)
    assert abs(used_bytes(cards[0]) - used_bytes(cards[1])) < MIB
    assert used_bytes(cards[0]) < 120 * MIB


def test_a_gpu_cannot_hold_more_than_it_has(cards: tuple[str, str], start: Start) -> None:
    start(ALLOCATE, cards[0], str(1100 * MIB))
    until(lambda: used_bytes(cards[0]) == (1024 - 64) * MIB)
    info = cpu_nvml.nvmlDeviceGetMemoryInfo(handle(cards[0]), version=cpu_nvml.nvmlMemory_v2)
    assert info.free == 0
    assert info.total == info.used + info.reserved
    [entry] = cpu_nvml.nvmlDeviceGetComputeRunningProcesses(handle(cards[0]))
    assert entry.usedGpuMemory > 1100 * MIB


def test_memory_structures_differ_as_in_nvml(cards: tuple[str, str]) -> None:
    first = cpu_nvml.nvmlDeviceGetMemoryInfo(handle(cards[0]))
    second = cpu_nvml.nvmlDeviceGetMemoryInfo(handle(cards[0]), version=cpu_nvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (1024 * MIB, 960 * MIB, 64 * MIB)
    assert (second.total, second.free, second.used) == (1024 * MIB, 960 * MIB, 0)
    assert second.reserved == 64 * MIB
    assert not hasattr(first, "reserved")


def test_identity_and_what_a_gpu_cannot_tell(cards: tuple[str, str]) -> None:
    assert cpu_nvml.nvmlDeviceGetCount() == 2
    device = cpu_nvml.nvmlDeviceGetHandleByIndex(1)
    assert cpu_nvml.nvmlDeviceGetUUID(device) == cards[1]
    assert cpu_nvml.nvmlDeviceGetIndex(device) == 1
    assert cpu_nvml.nvmlDeviceGetName(device) == "Test card"
    assert cpu_nvml.nvmlSystemGetDriverVersion().startswith("cpu-cards")
    for ask in (
        lambda: cpu_nvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
        lambda: cpu_nvml.nvmlDeviceGetPowerUsage(device),
        lambda: cpu_nvml.nvmlDeviceGetTotalEnergyConsumption(device),
        lambda: cpu_nvml.nvmlDeviceGetMigMode(device),
    ):
        with pytest.raises(cpu_nvml.NVMLError_NotSupported):
            ask()


def test_wrong_handles_are_refused_as_by_nvml(cards: tuple[str, str]) -> None:
    assert cpu_nvml.NVMLError is pynvml.NVMLError
    with pytest.raises(cpu_nvml.NVMLError) as wrong_index:
        cpu_nvml.nvmlDeviceGetHandleByIndex(2)
    assert code_of(wrong_index) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    with pytest.raises(cpu_nvml.NVMLError) as wrong_uuid:
        handle("CPU-nobody")
    assert code_of(wrong_uuid) == pynvml.NVML_ERROR_NOT_FOUND
    with pytest.raises(AttributeError):
        _ = cpu_nvml.nvmlNoSuchThing


def test_nothing_works_before_init_or_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cpu_nvml.NVMLError) as uninitialized:
        cpu_nvml.nvmlDeviceGetCount()
    assert code_of(uninitialized) == pynvml.NVML_ERROR_UNINITIALIZED
    monkeypatch.delenv(cpu_nvml.CARDS_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="GPUJOB_CPU_CARDS"):
        cpu_nvml.nvmlInit()


def test_a_file_that_describes_no_gpus_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cards.json"
    path.write_text('[{"uuid": "CPU-1"}]')
    with pytest.raises(ValueError, match=r"cards\.json.*core"):
        read_cards(path)


def test_processes_that_see_all_gpus_or_none_are_not_bound(start: Start) -> None:
    start(ALLOCATE, "all", "1")
    start(ALLOCATE, "CPU-other", "1")
    assert bound_processes(["CPU-mine"], EnvironmentDevices()) == {}
