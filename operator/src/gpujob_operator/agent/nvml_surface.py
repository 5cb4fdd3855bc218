"""The part of NVML's Python interface that an agent uses, over any source of readings.

An `NvmlSurface` replaces the module `pynvml`. It has the same function names, returns objects with
the same attributes, and raises the same exceptions (pynvml's own classes). Anything else raises
pynvml's "Not Supported", as a real driver does for a GPU without the feature.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import pynvml

NO_INSTANCE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ProcessReading:
    pid: int
    memory_bytes: int
    utilization_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class GPUReading:
    """The present figures of one GPU. None: the GPU does not report the value.

    `errors` maps a function's name, or '*' for all, to the NVML error code that it raises. `xids`
    are the critical errors so far, oldest first.
    """

    uuid: str
    model: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    memory_used_bytes: int
    utilization_percent: float
    processes: tuple[ProcessReading, ...] = ()
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    ecc_errors: int | None = None
    xids: tuple[int, ...] = ()
    errors: dict[str, int] = field(default_factory=dict)


class GPUSource(Protocol):
    """A source of readings. `time_microseconds` is the time of the newest reading."""

    def driver_version(self) -> str: ...
    def open(self) -> None: ...
    def read(self) -> list[GPUReading]: ...
    def time_microseconds(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Device:
    """The handle of a GPU."""

    index: int
    uuid: str


class NvmlSurface:
    """NVML's functions over a `GPUSource`. `lookup` finds them under pynvml's names."""

    # A source's utilization is that since the last reading, so an agent takes no samples of it.
    reads_means = True

    def __init__(self, source: GPUSource) -> None:
        self._source = source
        self._open = False
        self._xids_seen: dict[str, int] = {}
        self._functions: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._initialize,
            "nvmlShutdown": self._shutdown,
            "nvmlSystemGetDriverVersion": self._driver_version,
            "nvmlDeviceGetCount": lambda: len(self._gpus()),
            "nvmlDeviceGetHandleByIndex": self._by_index,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlEventSetCreate": SimpleNamespace,
            "nvmlEventSetFree": _nothing,
            "nvmlDeviceRegisterEvents": _nothing,
            "nvmlEventSetWait": self._wait_event,
            "nvmlEventSetWait_v2": self._wait_event,
        }
        per_gpu: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetIndex": self._index,
            "nvmlDeviceGetUUID": _field("uuid"),
            "nvmlDeviceGetName": _field("model"),
            "nvmlDeviceGetMemoryInfo": _memory,
            "nvmlDeviceGetUtilizationRates": _utilization,
            "nvmlDeviceGetComputeRunningProcesses": _running,
            "nvmlDeviceGetComputeRunningProcesses_v3": _running,
            "nvmlDeviceGetProcessUtilization": self._process_utilization,
            "nvmlDeviceGetPowerUsage": _thousandths("power_watts"),
            "nvmlDeviceGetTotalEnergyConsumption": _thousandths("energy_joules"),
            "nvmlDeviceGetTemperature": _field("temperature_celsius"),
            "nvmlDeviceGetTotalEccErrors": _field("ecc_errors"),
        }
        for name, function in per_gpu.items():
            self._functions[name] = self._on_gpu(name, function)

    def lookup(self, name: str) -> Any:
        """Returns a function by pynvml's name. Constants and exceptions are pynvml's own.

        Raises `AttributeError` for names that pynvml does not have either.
        """
        if name in self._functions:
            return self._functions[name]
        original = getattr(pynvml, name)
        if name.startswith("nvml") and callable(original):
            return _not_supported
        return original

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.lookup(name)

    def _initialize(self) -> None:
        self._source.open()
        self._open = True

    def _shutdown(self) -> None:
        self._gpus()
        self._open = False

    def _driver_version(self) -> str:
        self._gpus()
        return self._source.driver_version()

    def _gpus(self) -> list[GPUReading]:
        if not self._open:
            raise error(pynvml.NVML_ERROR_UNINITIALIZED)
        return self._source.read()

    def _by_index(self, index: int) -> Device:
        gpus = self._gpus()
        if not 0 <= index < len(gpus):
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        _raise_scripted(gpus[index], "nvmlDeviceGetHandleByIndex")
        return Device(index, gpus[index].uuid)

    def _by_uuid(self, uuid: str | bytes) -> Device:
        text = uuid.decode() if isinstance(uuid, bytes) else uuid
        for index, gpu in enumerate(self._gpus()):
            if gpu.uuid == text:
                return Device(index, text)
        raise error(pynvml.NVML_ERROR_NOT_FOUND)

    def _index(self, gpu: GPUReading) -> int:
        return self._by_uuid(gpu.uuid).index

    def _on_gpu(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(device: Device, *arguments: Any, **named: Any) -> Any:
            for gpu in self._gpus():
                if gpu.uuid == device.uuid:
                    _raise_scripted(gpu, name)
                    return function(gpu, *arguments, **named)
            raise error(pynvml.NVML_ERROR_GPU_IS_LOST)

        return call

    def _process_utilization(self, gpu: GPUReading, last_seen: int) -> list[SimpleNamespace]:
        time_microseconds = self._source.time_microseconds()
        if time_microseconds <= last_seen or not gpu.processes:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(
                pid=process.pid,
                timeStamp=time_microseconds,
                smUtil=_whole(process.utilization_percent),
                memUtil=0,
                encUtil=0,
                decUtil=0,
            )
            for process in gpu.processes
        ]

    def _wait_event(self, _events: object, _limit_milliseconds: int) -> SimpleNamespace:
        """Returns the next critical error not returned yet. Raises Timeout at once if there is
        none.
        """
        for index, gpu in enumerate(self._gpus()):
            seen = self._xids_seen.get(gpu.uuid, 0)
            if seen < len(gpu.xids):
                self._xids_seen[gpu.uuid] = seen + 1
                return SimpleNamespace(
                    device=Device(index, gpu.uuid),
                    eventType=pynvml.nvmlEventTypeXidCriticalError,
                    eventData=gpu.xids[seen],
                    gpuInstanceId=NO_INSTANCE,
                    computeInstanceId=NO_INSTANCE,
                )
        raise error(pynvml.NVML_ERROR_TIMEOUT)


def error(code: int) -> Exception:
    """Returns pynvml's exception of the class that belongs to an NVML error code."""
    return pynvml.NVMLError(code)


def _not_supported(*_arguments: Any, **_named: Any) -> Any:
    raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _raise_scripted(gpu: GPUReading, name: str) -> None:
    code = gpu.errors.get(name, gpu.errors.get("*"))
    if code is not None:
        raise error(code)


def _nothing(*_arguments: Any) -> None:
    return None


def _field(name: str) -> Callable[..., Any]:
    """Returns a function that reads one field. A field that is None raises "Not Supported"."""

    def get(gpu: GPUReading, *_arguments: Any) -> Any:
        value = getattr(gpu, name)
        return _not_supported() if value is None else value

    return get


def _thousandths(name: str) -> Callable[..., Any]:
    get = _field(name)
    return lambda gpu: _whole(get(gpu) * 1000)  # pyright: ignore[reportUnknownLambdaType]


def _whole(value: float) -> Any:
    # NVML counts in whole numbers. A scripted NaN must pass unchanged.
    return value if value != value else round(value)


def _memory(gpu: GPUReading, version: int | None = None) -> SimpleNamespace:
    total, reserved, used = (
        gpu.memory_total_bytes,
        gpu.memory_reserved_bytes,
        gpu.memory_used_bytes,
    )
    if version:
        free = total - reserved - used
        return SimpleNamespace(
            version=version, total=total, reserved=reserved, free=free, used=used
        )
    # The first version of the structure counts the driver's reserve as used.
    return SimpleNamespace(total=total, free=total - reserved - used, used=used + reserved)


def _utilization(gpu: GPUReading) -> SimpleNamespace:
    memory = 100 * gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else 0
    return SimpleNamespace(gpu=_whole(gpu.utilization_percent), memory=_whole(memory))


def _running(gpu: GPUReading) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            pid=process.pid,
            usedGpuMemory=process.memory_bytes,
            gpuInstanceId=NO_INSTANCE,
            computeInstanceId=NO_INSTANCE,
        )
        for process in gpu.processes
    ]
