"""Advice for users if NVML does not work, by NVML's error."""

from collections.abc import Mapping

from gpujob_operator.agent.nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    VERSION_MISMATCH,
    code_of,
)

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


def with_advice(error: Exception) -> str:
    """Returns the error in NVML's words, followed by advice if there is any."""
    advice = _ADVICE.get(code_of(error))
    return f"NVML: {error}: {advice}" if advice else f"NVML: {error}"


def needs_new_container(error: Exception) -> bool:
    """Returns True if no retry helps, because this container's library does not fit the driver."""
    return code_of(error) == VERSION_MISMATCH
