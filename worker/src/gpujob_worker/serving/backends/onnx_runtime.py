"""The model exported to ONNX and executed by ONNX Runtime, on the CPU, on CUDA or by TensorRT.

The packages are optional. ONNX Runtime silently executes elsewhere if a provider does not start, so
the provider in use is compared with the wanted one.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

from gpujob_api.serving import BackendName
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.backends.answering import Answering, device_of
from gpujob_worker.serving.backends.aot_inductor import dynamic_shapes, samples_exported
from gpujob_worker.serving.backends.build_error import BuildError
from gpujob_worker.serving.backends.together import FromFile, Together
from gpujob_worker.serving.backends.torch_backend import check_size
from gpujob_worker.serving.rows import first_rows
from gpujob_worker.serving.signature import Signature
from gpujob_worker.serving.weights import Weights

FILE = "model.onnx"
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_TENSOR_RT = "TensorrtExecutionProvider"
_RUNTIME, _EXPORTERS = "onnxruntime", ("onnx", "onnxscript")


def missing_package(*, export: bool = True) -> str | None:
    """Returns why ONNX Runtime cannot be used, or None."""
    wanted = (_RUNTIME, *(_EXPORTERS if export else ()))
    missing = next((name for name in wanted if importlib.util.find_spec(name) is None), None)
    return None if missing is None else f"{missing} is not installed"


def build(
    name: BackendName,
    model: Answering,
    signature: Signature,
    precision: Precision,
    examples: Tensors,
    sizes: tuple[int, ...],
    folder: Path,
    weights: Weights,
) -> "OnnxBackend":
    """Exports the model into `folder`, and loads it. Raises `BuildError` with what is missing.

    `weights` are those of modules that stay in the process beside the session.
    """
    missing = missing_package()
    if missing is not None:
        raise BuildError(missing)
    device = device_of(model)
    provider_of(name, precision, device)  # a missing provider is found before the export
    few = first_rows(examples, samples_exported(sizes))
    path = folder / FILE
    with torch.no_grad():
        torch.onnx.export(
            model,
            tuple(few[spec.name].to(device) for spec in signature.inputs),
            str(path),
            dynamo=True,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
            dynamic_shapes=dynamic_shapes(signature, sizes),
            external_data=False,
            verbose=False,
        )
    return load(name, path, signature, precision, device, sizes, weights)


def load(
    name: BackendName,
    path: Path,
    signature: Signature,
    precision: Precision,
    device: torch.device,
    sizes: tuple[int, ...],
    weights: Weights,
) -> "OnnxBackend":
    """Loads an exported model. Raises `BuildError` with what is missing."""
    missing = missing_package(export=False)
    if missing is not None:
        raise BuildError(missing)
    provider, options = provider_of(name, precision, device)
    runtime: Any = importlib.import_module(_RUNTIME)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    # Its threads would spin after each batch, on the cores of whatever runs next.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = [(provider, options)]
    providers += [_CUDA] if provider == _TENSOR_RT else []

    def opened() -> Any:
        session = runtime.InferenceSession(str(path), settings, providers=providers)
        used = session.get_providers()
        if not used or used[0] != provider:
            raise BuildError(f"onnxruntime executes with {', '.join(used)} instead of {provider}")
        return session

    return OnnxBackend(name.value, FromFile(path, opened), weights, signature, sizes)


def provider_of(
    name: BackendName, precision: Precision, device: torch.device
) -> tuple[str, dict[str, Any]]:
    """Returns the execution provider and its options. Raises `BuildError` if it is missing."""
    runtime: Any = importlib.import_module(_RUNTIME)
    number = device.index or 0
    options: dict[str, Any] = {}
    if name is BackendName.TENSOR_RT:
        wanted = _TENSOR_RT
        options = {
            "device_id": number,
            "trt_fp16_enable": precision is Precision.FLOAT16,
            "trt_bf16_enable": precision is Precision.BFLOAT16,
            # An engine file would be another artifact, for one GPU and one version only.
            "trt_engine_cache_enable": False,
        }
    elif device.type == "cuda":
        wanted = _CUDA
        options = {"device_id": number, "use_tf32": int(precision is Precision.TF32)}
    else:
        wanted = _CPU
    available = runtime.get_available_providers()
    if wanted not in available:
        raise BuildError(f"this onnxruntime has no {wanted}, only {', '.join(available)}")
    return wanted, options


class OnnxBackend:
    """Takes and returns host memory. A session's `run` returns once the outputs are complete."""

    def __init__(
        self,
        name: str,
        session: FromFile,
        weights: Weights,
        signature: Signature,
        sizes: tuple[int, ...],
    ) -> None:
        self.name = name
        self.sizes: tuple[int, ...] | None = sizes
        self.parking = Together(session, weights)
        self._session = session
        self._signature = signature

    def run(self, inputs: Tensors) -> Tensors:
        check_size(self.name, self.sizes, inputs)
        feeds = {spec.name: inputs[spec.name].numpy() for spec in self._signature.inputs}
        names = [spec.name for spec in self._signature.outputs]
        outputs = self._session.loaded.run(names, feeds)
        return {name: torch.from_numpy(array) for name, array in zip(names, outputs, strict=True)}
