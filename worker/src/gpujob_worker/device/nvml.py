"""Finds a GPU in NVML by the UUID that CUDA reports."""

import importlib
from typing import Any


def nvml_device(uuid: str) -> tuple[Any, Any]:
    """Returns NVML and its handle of the GPU. Raises NVML's errors, and `ImportError`
    without it.
    """
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return nvml, nvml.nvmlDeviceGetHandleByUUID(name)
