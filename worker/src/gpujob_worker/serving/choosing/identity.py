"""Hashes that identify a model, and a compiled model's surroundings."""

import hashlib
import inspect
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.plan import Plan

_OF_TORCH = "torch."


def model_hash(model: nn.Module) -> str:
    """Returns a hash of weights, buffers, structure and the source of the model's own classes."""
    found = hashlib.sha256(str(model).encode())
    for source in _sources(model):
        found.update(source.encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _add(found, name, tensor)
    return found.hexdigest()


def tensors_hash(tensors: Tensors) -> str:
    """Returns a hash of names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        _add(found, name, tensors[name])
    return found.hexdigest()


def surroundings(device: torch.device) -> dict[str, str]:
    """Returns what compiled code depends on: torch, the processor or GPU, and the driver."""
    found = {"torch": torch.__version__, "device": device.type, "machine": platform.machine()}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        found["capability"] = f"{major}.{minor}"
        found["name"] = torch.cuda.get_device_name(device)
        found["driver"] = str(_driver())
    else:
        # Compiled code uses every instruction of the processor that it was compiled on.
        found["capability"] = torch.backends.cpu.get_cpu_capability()
        found["instructions"] = hashlib.sha256(_processor_flags().encode()).hexdigest()[:16]
    return found


def artifact_key(model: str, plan: Plan, sizes: tuple[int, ...], around: dict[str, str]) -> str:
    """Returns the name of a compiled model in a cache folder. `model` is its hash."""
    parts = [model, str(plan), *map(str, sizes), *(f"{k}={v}" for k, v in sorted(around.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _processor_flags() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    lines = text.splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _driver() -> object:
    version = getattr(torch._C, "_cuda_getDriverVersion", None)  # pyright: ignore
    return version() if version is not None else "unknown"


def _sources(model: nn.Module) -> Iterator[str]:
    kinds = {type(layer) for layer in model.modules()}
    for kind in sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__)):
        yield f"{kind.__module__}.{kind.__qualname__}"
        if not kind.__module__.startswith(_OF_TORCH):
            try:
                yield inspect.getsource(kind)
            except (OSError, TypeError):
                continue  # made without a file: the weights and the check at the start remain


def _add(found: Any, name: str, tensor: torch.Tensor) -> None:
    found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    found.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")
