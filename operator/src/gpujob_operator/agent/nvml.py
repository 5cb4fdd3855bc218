"""NVML as a module: pynvml, or another module with the same functions, given by its dotted name.

Every optional value is read through `optional`, because a GPU that does not support it is no error.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

SUCCESS = 0
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
DEPRECATED = 26
UNKNOWN = 999

# The module's functions have NVML's names. Declaring types for all of them would repeat pynvml.
Nvml = Any
_ADVICE: Mapping[int, str] = {
    NO_PERMISSION: "the agent may not open the GPUs' devices: its container needs the NVIDIA "
    "runtime (chart value agent.runtimeClassName)",
    DRIVER_NOT_LOADED: "the node runs no NVIDIA driver: install or start the driver, or take the "
    "label gpujob.dev/managed off the node",
    LIBRARY_NOT_FOUND: "the agent's container has no libnvidia-ml.so.1: set the chart value "
    "agent.runtimeClassName to the NVIDIA runtime class, and install the NVIDIA driver and "
    "container toolkit on the node",
    FUNCTION_NOT_FOUND: "the node's NVIDIA driver is too old: R470 or newer is needed",
    VERSION_MISMATCH: "the NVML library in the agent's container does not fit the node's driver; "
    "the agent ends, so that its next container gets the node's library; if it ends again, the "
    "node still runs the driver of before an update: restart the node",
}


class DevicesRefused(Exception):  # noqa: N818 - an answer, not a fault
    """The node does not fit the devices that the agent is configured to show. The message has
    advice.
    """


def load_nvml(name: str) -> Nvml:
    """Imports the module. Raises ModuleNotFoundError with its name."""
    return importlib.import_module(name)


def optional(nvml: Nvml, call: Callable[[], Any], default: Any = None) -> Any:
    """Returns the call's result, or the default if the driver or the GPU does not support the call.

    A lost GPU (NVML_ERROR_GPU_IS_LOST) still raises.
    """
    try:
        return call()
    except AttributeError:
        return default
    except nvml.NVMLError as error:
        if is_lost(error):
            raise
        return default


def code_of(error: Exception) -> int:
    """Returns NVML's number of the error, which is part of its binary interface."""
    return int(getattr(error, "value", UNKNOWN))


def is_lost(error: Exception) -> bool:
    return code_of(error) == GPU_IS_LOST


def cannot_tell(error: Exception) -> bool:
    """Returns whether the driver, the GPU or this container's rights never give the answer.

    Any other error is a failure of this one call.
    """
    return code_of(error) in (NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, DEPRECATED)


def text(value: object) -> str:
    """Returns NVML text as `str`, because older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def with_advice(error: Exception) -> str:
    """Returns the error in NVML's words, followed by advice if there is any."""
    advice = _ADVICE.get(code_of(error))
    return f"NVML: {error}: {advice}" if advice else f"NVML: {error}"


def needs_new_container(error: Exception) -> bool:
    """Returns True if no retry helps, because this container's library does not fit the driver."""
    return code_of(error) == VERSION_MISMATCH
