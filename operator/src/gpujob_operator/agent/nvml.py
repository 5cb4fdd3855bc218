"""NVML as a module: pynvml, or another with the same functions, given by its dotted name.

Every optional reading is asked through `optional`: a GPU that does not support it is no error.
"""

import importlib
from collections.abc import Callable
from typing import Any

# The module has functions named as NVML names them; typing them all would repeat pynvml.
Nvml = Any


def load_nvml(name: str) -> Nvml:
    """Imports the module. Raises ModuleNotFoundError naming it."""
    return importlib.import_module(name)


def optional(nvml: Nvml, call: Callable[[], Any], default: Any = None) -> Any:
    """The call's result, or the default where the driver or the GPU cannot tell.

    A lost GPU (NVML_ERROR_GPU_IS_LOST) is not "cannot tell": that error goes through.
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
    """Older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
