"""The model compiled ahead of time by AOTInductor: one shared library for all sizes, in a file.

The file is the artifact of a cache folder. It is loaded only after its hash was found unchanged,
and only if it contains code and no pickled values.
"""

import zipfile
from pathlib import Path
from typing import Any

import torch

from gpujob_api.serving import BackendName
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.backends.answering import Answering, device_of
from gpujob_worker.serving.backends.build_error import BuildError
from gpujob_worker.serving.backends.together import FromFile, Together
from gpujob_worker.serving.backends.torch_backend import TorchBackend
from gpujob_worker.serving.rows import first_rows
from gpujob_worker.serving.signature import Signature
from gpujob_worker.serving.weights import Weights

FILE = "model.pt2"
# Exported with as many samples as a layer has channels, a model was compiled for that number alone
# (torch 2.15), so the number is one that layers rarely have.
_SAMPLES_EXPORTED = (13, 11, 7, 5)
# Parts of a package that torch reads with pickle.
_PICKLED = ("/data/weights/", "/data/constants/", "/data/sample_inputs/")


def export(
    model: Answering, signature: Signature, examples: Tensors, sizes: tuple[int, ...]
) -> torch.export.ExportedProgram:
    """Returns the model as a graph for any number of samples up to the largest size."""
    few = first_rows(examples, samples_exported(sizes))
    device = device_of(model)
    inputs = tuple(few[spec.name].to(device) for spec in signature.inputs)
    return torch.export.export(model, inputs, dynamic_shapes=dynamic_shapes(signature, sizes))


def samples_exported(sizes: tuple[int, ...]) -> int:
    """Returns how many samples an exporter gets."""
    largest = max(sizes)
    return next((size for size in _SAMPLES_EXPORTED if size <= largest), largest)


def dynamic_shapes(signature: Signature, sizes: tuple[int, ...]) -> Any:
    """Returns torch.export's description of the inputs: the samples vary, nothing else does."""
    if max(sizes) == 1:
        return None
    samples = torch.export.Dim("samples", min=1, max=max(sizes))
    return (tuple({0: samples} for _ in signature.inputs),)


def build(
    model: Answering,
    signature: Signature,
    precision: Precision,
    examples: Tensors,
    sizes: tuple[int, ...],
    folder: Path,
    weights: Weights,
) -> TorchBackend:
    """Compiles the model into `folder`, and loads it. Needs a C++ compiler.

    `weights` are those of modules that stay in the process beside the package.
    """
    inductor: Any = torch._inductor  # pyright: ignore
    if not hasattr(inductor, "aoti_compile_and_package"):
        raise BuildError(f"torch {torch.__version__} has no AOTInductor packages")
    path = folder / FILE
    with torch.no_grad():
        program = export(model, signature, examples, sizes)
        inductor.aoti_compile_and_package(program, package_path=str(path))
    return load(path, signature, precision, device_of(model), sizes, weights)


def load(
    path: Path,
    signature: Signature,
    precision: Precision,
    device: torch.device,
    sizes: tuple[int, ...],
    weights: Weights,
) -> TorchBackend:
    """Loads a package. Raises `BuildError` if it contains anything but code."""
    with zipfile.ZipFile(path) as package:
        pickled = [name for name in package.namelist() if _is_pickled(name)]
    if pickled:
        raise BuildError(f"{path.name} contains {pickled[0]}, which is read with pickle")
    inductor: Any = torch._inductor  # pyright: ignore
    package = FromFile(path, lambda: inductor.aoti_load_package(str(path)))
    return TorchBackend(
        BackendName.AOT_INDUCTOR.value,
        lambda *inputs: package.loaded(*inputs),
        signature,
        device,
        sizes=sizes,
        tf32=precision is Precision.TF32,
        parking=Together(package, weights),
    )


def _is_pickled(name: str) -> bool:
    return name.endswith((".pt", ".pkl")) or any(part in name for part in _PICKLED)
