"""On what device a figure was taken, and whether it is there at all."""

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.speed.ways import Scale

PACKAGES = ("triton", "accelerate", "pytorch-lightning", "transformers")


def device_refusal(device: str) -> str | None:
    """Why nothing can be measured on `device`; None when it can."""
    if device == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        return (
            "no CUDA device is available here; nothing was measured (--device cpu runs on the CPU)"
        )
    return None


def compilable(scale: Scale) -> Scale:
    """The scale; where nothing can be compiled here, without compilation and with the reason."""
    if not scale.compile:
        return scale
    import torch

    from gpujob_worker.inject.compiling import compile_refusal

    refusal = compile_refusal(torch.nn.Identity(), torch.device(scale.device))
    if refusal is None:
        return scale
    print(f"nothing is compiled: {refusal}", file=sys.stderr)
    return replace(scale, compile=False, compile_refusal=refusal)


def describe_device(scale: Scale) -> dict[str, Any]:
    """Name, driver and versions, as they are published with every figure."""
    import torch

    found: dict[str, Any] = {
        "device": scale.device,
        "size": scale.size,
        "threads": scale.threads,
        "versions": {
            "torch": str(torch.__version__),
            **{name: _version(name) for name in PACKAGES},
        },
    }
    if scale.device == "cuda":
        found |= _gpu()
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _gpu() -> dict[str, Any]:
    import torch

    properties: Any = torch.cuda.get_device_properties(0)
    return {
        "device_name": torch.cuda.get_device_name(0),
        "device_memory_bytes": int(properties.total_memory),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _driver(),
    }


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:
        print(f"the driver's version cannot be read: {error}", file=sys.stderr)
        return "unknown"
