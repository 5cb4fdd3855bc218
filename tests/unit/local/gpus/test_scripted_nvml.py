"""Scripted cards say what the file says, faults included."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpujob_local.gpus import scripted_nvml

GIB = 1024**3
Script = Callable[..., None]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    path = tmp_path / "script.json"
    monkeypatch.setenv(scripted_nvml.SCRIPT_VARIABLE, str(path))

    def write(*cards: dict[str, Any], **top: Any) -> None:
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps({"cards": cards} | top))
        os.replace(temporary, path)

    return write


def card(uuid: str = "GPU-1", **fields: Any) -> dict[str, Any]:
    return {"uuid": uuid, "memoryTotalBytes": 80 * GIB} | fields


def memory(device: object) -> Any:
    return scripted_nvml.nvmlDeviceGetMemoryInfo(device, version=scripted_nvml.nvmlMemory_v2)


def test_values_arrive_and_change_with_the_file(script: Script) -> None:
    script(card(memoryUsedBytes=GIB, powerWatts=250.5, temperatureCelsius=60, model="H100"))
    scripted_nvml.nvmlInit()
    device = scripted_nvml.nvmlDeviceGetHandleByIndex(0)
    assert memory(device).used == GIB
    assert scripted_nvml.nvmlDeviceGetPowerUsage(device) == 250_500
    assert scripted_nvml.nvmlDeviceGetTemperature(device, 0) == 60
    assert scripted_nvml.nvmlDeviceGetName(device) == "H100"
    script(card(memoryUsedBytes=2 * GIB, processes=[{"pid": 7, "memoryBytes": GIB}]))
    assert memory(device).used == 2 * GIB
    [process] = scripted_nvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert (process.pid, process.usedGpuMemory) == (7, GIB)


def test_absurd_values_get_through(script: Script) -> None:
    script(card(memoryUsedBytes=90 * GIB, utilizationPercent=math.nan, powerWatts=math.nan))
    scripted_nvml.nvmlInit()
    device = scripted_nvml.nvmlDeviceGetHandleByIndex(0)
    assert memory(device).used > memory(device).total
    assert math.isnan(scripted_nvml.nvmlDeviceGetUtilizationRates(device).gpu)
    assert math.isnan(scripted_nvml.nvmlDeviceGetPowerUsage(device))


def test_a_gpu_that_leaves_the_file_is_lost(script: Script) -> None:
    script(card("GPU-1"), card("GPU-2"))
    scripted_nvml.nvmlInit()
    device = scripted_nvml.nvmlDeviceGetHandleByUUID("GPU-2")
    script(card("GPU-1"))
    with pytest.raises(scripted_nvml.NVMLError_GpuIsLost):
        memory(device)


def test_errors_of_one_function_all_functions_and_the_driver(script: Script) -> None:
    script(card("GPU-1", errors={"nvmlDeviceGetMemoryInfo": 999}), card("GPU-2", errors={"*": 15}))
    scripted_nvml.nvmlInit()
    first = scripted_nvml.nvmlDeviceGetHandleByUUID("GPU-1")
    second = scripted_nvml.nvmlDeviceGetHandleByUUID("GPU-2")
    with pytest.raises(scripted_nvml.NVMLError_Unknown):
        memory(first)
    assert scripted_nvml.nvmlDeviceGetUtilizationRates(first).gpu == 0
    with pytest.raises(scripted_nvml.NVMLError_GpuIsLost):
        scripted_nvml.nvmlDeviceGetUtilizationRates(second)
    script(error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(scripted_nvml.NVMLError_DriverNotLoaded):
        scripted_nvml.nvmlDeviceGetCount()


def test_every_critical_error_is_told_once(script: Script) -> None:
    script(card("GPU-xid", eccErrors=3))
    scripted_nvml.nvmlInit()
    device = scripted_nvml.nvmlDeviceGetHandleByIndex(0)
    assert scripted_nvml.nvmlDeviceGetTotalEccErrors(device, 1, 0) == 3
    events = scripted_nvml.nvmlEventSetCreate()
    scripted_nvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    script(card("GPU-xid", xids=[79, 48]))
    told = [scripted_nvml.nvmlEventSetWait_v2(events, 0).eventData for _ in range(2)]
    assert told == [79, 48]
    with pytest.raises(scripted_nvml.NVMLError_Timeout):
        scripted_nvml.nvmlEventSetWait_v2(events, 0)
