"""Finds GPUs in NVML: by the UUID that CUDA reports, and those that a process may use."""

import importlib
from collections.abc import Mapping
from typing import Any

from gpujob_api.cpu_cards import VISIBLE_DEVICES

_UUID_STARTS = ("GPU-", "MIG-")


def nvml_device(uuid: str) -> tuple[Any, Any]:
    """Returns NVML and its handle of the GPU. Raises NVML's errors, and `ImportError`
    without it.
    """
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return nvml, nvml.nvmlDeviceGetHandleByUUID(name)


def visible_memory_bytes(environ: Mapping[str, str]) -> int:
    """Returns the memory of the GPU that a process may use: of several, the largest one's.

    GPUs are those whose UUIDs are in CUDA_VISIBLE_DEVICES, or in NVIDIA_VISIBLE_DEVICES. If other
    names are there, all GPUs that NVML lists count, because CUDA numbers them in another order.
    Raises NVML's errors, `ImportError` without it, and `LookupError` without a GPU.
    """
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        text = environ.get("CUDA_VISIBLE_DEVICES") or environ.get(VISIBLE_DEVICES, "")
        names = [name.strip() for name in text.split(",")]
        if all(name.startswith(_UUID_STARTS) for name in names):
            handles = [nvml.nvmlDeviceGetHandleByUUID(name) for name in names]
        else:
            count = nvml.nvmlDeviceGetCount()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        totals = [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    finally:
        nvml.nvmlShutdown()
    if not totals:
        raise LookupError("NVML lists no GPU")
    return max(totals)
