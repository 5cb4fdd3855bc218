"""Builds the backend of a plan."""

from pathlib import Path

from torch import nn

from gpujob_api.serving import BackendName, Quantization
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.backends import aot_inductor, onnx_runtime
from gpujob_worker.serving.backends.answering import answering, device_of
from gpujob_worker.serving.backends.build_error import BuildError
from gpujob_worker.serving.backends.compiled import compiled
from gpujob_worker.serving.backends.quantized import quantized
from gpujob_worker.serving.backends.torch_backend import TorchBackend
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.signature import Signature
from gpujob_worker.serving.weights import Weights

_ONNX = (BackendName.ONNX_RUNTIME, BackendName.TENSOR_RT)
# The file that a backend leaves, from which it is loaded instead of built.
FILES = {
    BackendName.AOT_INDUCTOR: aot_inductor.FILE,
    BackendName.ONNX_RUNTIME: onnx_runtime.FILE,
    BackendName.TENSOR_RT: onnx_runtime.FILE,
}


def build(
    plan: Plan,
    model: nn.Module,
    signature: Signature,
    examples: Tensors,
    sizes: tuple[int, ...],
    folder: Path,
) -> Backend:
    """Returns the backend, ready for each of the sizes. Files go to `folder`.

    Raises `BuildError` if something is missing here, and whatever a compiler raises.
    """
    written = model
    if plan.quantization is not Quantization.OFF:
        model = quantized(model, plan.quantization)
    ready = answering(model, signature, plan.precision, examples)
    # The script still holds the model as written.
    weights = Weights(written, ready)
    precision = plan.precision
    if plan.backend is BackendName.EAGER:
        tf32 = precision is Precision.TF32
        device = device_of(model)
        name = plan.backend.value
        return TorchBackend(name, ready, signature, device, tf32=tf32, parking=weights)
    if plan.backend in (BackendName.COMPILE, BackendName.CUDA_GRAPH):
        return compiled(plan.backend, ready, signature, precision, examples, sizes, weights)
    if plan.backend is BackendName.AOT_INDUCTOR:
        return aot_inductor.build(ready, signature, precision, examples, sizes, folder, weights)
    if plan.backend in _ONNX:
        return onnx_runtime.build(
            plan.backend, ready, signature, precision, examples, sizes, folder, weights
        )
    raise BuildError(f"{plan.backend.value} is not built by the worker")


def load_file(
    plan: Plan, path: Path, signature: Signature, model: nn.Module, sizes: tuple[int, ...]
) -> Backend:
    """Returns the backend from the file that `build` left. Raises as `build` does."""
    device, precision, weights = device_of(model), plan.precision, Weights(model)
    if plan.backend is BackendName.AOT_INDUCTOR:
        return aot_inductor.load(path, signature, precision, device, sizes, weights)
    return onnx_runtime.load(plan.backend, path, signature, precision, device, sizes, weights)
