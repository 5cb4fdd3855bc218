"""NVML as a module: pynvml, or another module with the same functions, given by its dotted name.

Every optional value is read through `optional`: a GPU that does not support it is no error.
"""

import importlib
from collections.abc import Callable
from typing import Any

# The module's functions have NVML's names; declaring types for all of them would repeat pynvml.
Nvml = Any


class DevicesRefused(Exception):  # noqa: N818 - an answer, not a fault
    """The node is not one for the devices that the agent was told to show. Says what to do."""


def load_nvml(name: str) -> Nvml:
    """Imports the module. Raises ModuleNotFoundError naming it."""
    return importlib.import_module(name)


def optional(nvml: Nvml, call: Callable[[], Any], default: Any = None) -> Any:
    """The call's result, or the default if the driver or the GPU does not support the call.

    A lost GPU (NVML_ERROR_GPU_IS_LOST) still raises.
    """
    try:
        return call()
    except AttributeError:
        return default
    except nvml.NVMLError as error:
        if is_lost(nvml, error):
            raise
        return default


def is_lost(nvml: Nvml, error: Exception) -> bool:
    lost = getattr(nvml, "NVML_ERROR_GPU_IS_LOST", 15)
    return getattr(error, "value", None) == lost


def text(value: object) -> str:
    """NVML text as `str`: older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
