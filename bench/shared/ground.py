"""What must be there before jobs can share a GPU, each lack as one line with the next step."""

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujob_operator.agent.nvml import optional, text

CPU_CARDS = "CPU cards"
REHEARSE = "--device cpu rehearses on CPU cards"
# Of a rehearsal or small models, and of large ones: their checkpoints have 1.5 GB each.
CARD_DISK_BYTES_MIN, GPU_DISK_BYTES_MIN = 2 * 1024**3, 12 * 1024**3
# Before R510 the driver has no list of processes that the agent reads without a detour.
DRIVER_MIN = 510
# Less than this is what a driver keeps for itself, or a monitoring tool.
NOISE_BYTES = 512 * 1024**2
COMPUTE_MODES = {1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
PACKAGES = (
    "aiohttp", "cachetools", "cryptography", "kopf", "kubernetes", "numpy", "orjson",
    "prometheus_client", "psutil", "pynvml", "safetensors", "sortedcontainers", "torch", "xxhash",
    "yaml",
)  # fmt: skip


class GroundError(Exception):
    """Something is missing. The message is one line that says what, and what to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU that is shared, or the CPU card in its place."""

    name: str
    uuid: str
    memory_bytes: int
    driver: str

    @property
    def is_gpu(self) -> bool:
        return bool(self.uuid)


def cpu_card(memory_bytes: int) -> Device:
    """The card is made with the cluster, so it has no UUID yet."""
    return Device(CPU_CARDS, "", memory_bytes, "-")


def check_packages(names: Sequence[str] = PACKAGES) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise GroundError(
            f"missing Python packages: {', '.join(missing)}; install them, or bring them along "
            "(python -m bench.gpu_pack)"
        )


def check_disk(needed_bytes: int, free_bytes: Callable[[Path], int] | None = None) -> None:
    """The cluster's data, checkpoints and caches lie in the folder for temporary files."""
    folder = Path(tempfile.gettempdir())
    free = free_bytes(folder) if free_bytes is not None else shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise GroundError(
            f"{folder} has {_gib(free)} of free disk and {_gib(needed_bytes)} are needed: free "
            "some, or set TMPDIR to another folder"
        )


def find_gpu(nvml: Any, index: int = 0, torch_cuda: str | None = None) -> Device:
    """The GPU, if jobs can share it. `nvml` is pynvml; `torch_cuda` the CUDA version of torch.

    Raises `GroundError`.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise GroundError(
            f"NVML does not answer ({error}): load the NVIDIA driver, or {REHEARSE}"
        ) from None
    try:
        return _usable(nvml, index, torch_cuda)
    except nvml.NVMLError as error:
        raise GroundError(f"GPU {index} does not answer NVML ({error}): see nvidia-smi") from None
    finally:
        optional(nvml, nvml.nvmlShutdown)


def _usable(nvml: Any, index: int, torch_cuda: str | None) -> Device:
    driver = text(nvml.nvmlSystemGetDriverVersion())
    _check_driver(nvml, driver, torch_cuda)
    count = nvml.nvmlDeviceGetCount()
    if index >= count:
        raise GroundError(f"the driver shows {count} GPUs, so there is no GPU {index}; {REHEARSE}")
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    _check_modes(nvml, handle, index)
    _check_processes(nvml, handle, index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = text(nvml.nvmlDeviceGetName(handle))
    return Device(name, text(nvml.nvmlDeviceGetUUID(handle)), int(memory.total), driver)


def _check_driver(nvml: Any, driver: str, torch_cuda: str | None) -> None:
    major = int(re.match(r"\d*", driver).group() or 0)  # pyright: ignore[reportOptionalMemberAccess]
    if major < DRIVER_MIN:
        raise GroundError(f"driver {driver} is older than {DRIVER_MIN}: install a newer driver")
    supported = optional(nvml, lambda: nvml.nvmlSystemGetCudaDriverVersion())
    if torch_cuda is None or supported is None:
        return
    if int(torch_cuda.split(".")[0]) > supported // 1000:
        raise GroundError(
            f"driver {driver} runs CUDA {supported // 1000}.{supported % 1000 // 10}, and this "
            f"torch needs CUDA {torch_cuda}: install a newer driver, or a torch for that CUDA"
        )


def _check_modes(nvml: Any, handle: Any, index: int) -> None:
    mig = optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    if mig is not None and mig[0] == 1:
        raise GroundError(
            f"GPU {index} is in MIG mode, and only whole GPUs are shared: "
            f"nvidia-smi -i {index} -mig 0 turns it off"
        )
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle), 0)
    if mode in COMPUTE_MODES:
        raise GroundError(
            f"GPU {index} is in compute mode {COMPUTE_MODES[mode]}, so two jobs cannot use it: "
            f"nvidia-smi -i {index} -c DEFAULT changes that"
        )


def _check_processes(nvml: Any, handle: Any, index: int) -> None:
    found = optional(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
    if found:
        pids = ", ".join(str(process.pid) for process in found[:4])
        raise GroundError(
            f"another process uses GPU {index} (process {pids}): end it, or wait for its end"
        )
    version = getattr(nvml, "nvmlMemory_v2", None)
    memory = optional(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version))
    used = int(memory.used) if memory is not None else 0
    if used > NOISE_BYTES:
        raise GroundError(
            f"{_gib(used)} of GPU {index} are in use by a process that the driver does not show: "
            "find it on the host, or take another GPU"
        )


def torch_versions() -> tuple[str, str | None]:
    """The installed torch and the CUDA version that it was built for, without its import."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "not installed", None
    text = (Path(spec.origin).parent / "version.py").read_text()
    found = dict(re.findall(r"^(__version__|cuda)\b.*?['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return found.get("__version__", "unknown"), found.get("cuda")


def _gib(amount: int) -> str:
    return f"{amount / 1024**3:.1f} GiB"
