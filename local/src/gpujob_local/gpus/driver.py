"""The variables by which a process finds the NVIDIA driver, and the GPUs that CUDA shows it."""

import os

CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
# A local cluster's processes have a clean environment. Without these variables a driver outside the
# system's folders is not found.
_PASSED = (
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PIPE_DIRECTORY",
    "TRITON_PTXAS_PATH",
)


def driver_environment() -> dict[str, str]:
    """Returns this process's variables that the processes of a node with GPUs need."""
    return {name: os.environ[name] for name in _PASSED if os.environ.get(name)}
