"""`pynvml`, limited to the GPUs of one process node: GPUJOB_NODE_GPUS has their UUIDs.

A machine may have more GPUs than the node. Indices count the node's GPUs only.
"""

import os
from typing import Any

import pynvml

GPUS_VARIABLE = "GPUJOB_NODE_GPUS"


def _uuids() -> list[str]:
    return [uuid for uuid in os.environ.get(GPUS_VARIABLE, "").split(",") if uuid]


def _count() -> int:
    return len(_uuids())


def _handle(index: int) -> Any:
    if not 0 <= index < _count():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return pynvml.nvmlDeviceGetHandleByUUID(_uuids()[index])


_OWN = {"nvmlDeviceGetCount": _count, "nvmlDeviceGetHandleByIndex": _handle}


def __getattr__(name: str) -> Any:
    return _OWN.get(name) or getattr(pynvml, name)
