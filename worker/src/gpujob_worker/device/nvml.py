"""One GPU as NVML knows it, found by the UUID that CUDA gives."""

import importlib
from typing import Any


def nvml_device(uuid: str) -> tuple[Any, Any]:
    """NVML and its handle of the GPU. Raises whatever NVML raises, and `ImportError` without it."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return nvml, nvml.nvmlDeviceGetHandleByUUID(name)
