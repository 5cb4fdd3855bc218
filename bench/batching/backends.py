"""Real backends: one model executed by torch as written, and by ONNX Runtime."""

import time
from importlib import import_module
from typing import Any

import torch
from torch import nn

from gpujob_worker.serving.backend import Backend, Parking, Tensors

WIDTH, LAYERS = 1024, 6
# On a GPU: the encoder of BERT-base, whose batches of one take as long as those of some.
TOKENS, POSITIONS, HEADS, ENCODER_WIDTH, ENCODER_LAYERS = 30_522, 128, 12, 768, 12
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def model() -> nn.Sequential:
    """A stack of wide layers: reading the weights is the fixed part of a batch's time."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers).eval()


class Encoder(nn.Module):
    """A classifier of texts: BERT-base's layers, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, ENCODER_WIDTH)
        layer = nn.TransformerEncoderLayer(
            ENCODER_WIDTH, HEADS, 4 * ENCODER_WIDTH, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, ENCODER_LAYERS)
        self.head = nn.Linear(ENCODER_WIDTH, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)).mean(dim=1))


def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder().to(torch.bfloat16).eval()


def samples_of(module: nn.Module, size: int) -> dict[str, torch.Tensor]:
    """Returns a batch of inputs."""
    if isinstance(module, Encoder):
        return {"x": torch.randint(TOKENS, (size, POSITIONS))}
    return {"x": torch.randn(size, WIDTH)}


class Eager:
    name = "Eager"
    sizes: tuple[int, ...] | None = None
    parking: Parking | None = None

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self._module = module.to(device)
        self._device = device

    def run(self, inputs: Tensors) -> Tensors:
        with torch.inference_mode():
            return {"y": self._module(inputs["x"].to(self._device)).cpu()}


class OnnxRuntime:
    """The same model, written as an ONNX graph by hand: torch's exporter needs more packages."""

    name = "OnnxRuntime"
    sizes: tuple[int, ...] | None = None
    parking: Parking | None = None

    def __init__(self, module: nn.Sequential, device: str = "cpu") -> None:
        """Raises `ImportError` without onnxruntime and onnx."""
        runtime: Any = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session: Any = runtime.InferenceSession(
            _graph(module), options, providers=[PROVIDERS[device]]
        )

    def run(self, inputs: Tensors) -> Tensors:
        (y,) = self._session.run(None, {"x": inputs["x"].numpy()})
        return {"y": torch.from_numpy(y)}


def _graph(module: nn.Sequential) -> bytes:
    onnx: Any = import_module("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes: list[Any] = []
    weights: list[Any] = []
    before = "x"
    for number, layer in enumerate(module):
        after = "y" if number == len(module) - 1 else f"h{number}"
        if isinstance(layer, nn.Linear):
            names = (f"w{number}", f"b{number}")
            for name, tensor in zip(names, (layer.weight, layer.bias), strict=True):
                weights.append(onnx.numpy_helper.from_array(tensor.detach().numpy(), name))
            nodes.append(helper.make_node("Gemm", [before, *names], [after], transB=1))
        else:
            nodes.append(helper.make_node("Relu", [before], [after]))
        before = after
    shape = ["n", WIDTH]
    graph = helper.make_graph(
        nodes,
        "stack",
        [helper.make_tensor_value_info("x", float32, shape)],
        [helper.make_tensor_value_info("y", float32, shape)],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


class Metered:
    """A backend whose seconds are added up: by the clock, and of its thread's processor."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name
        self.sizes = backend.sizes
        self.parking = backend.parking
        self.seconds = self.processor_seconds = 0.0
        self.batches = self.samples = 0

    def run(self, inputs: Tensors) -> Tensors:
        start, processor = time.monotonic(), time.thread_time()
        outputs = self._backend.run(inputs)
        self.seconds += time.monotonic() - start
        self.processor_seconds += time.thread_time() - processor
        self.batches += 1
        self.samples += len(inputs["x"])
        return outputs


class Free:
    """A device without cost: what remains is the batcher's own."""

    name = "Free"
    sizes: tuple[int, ...] | None = None
    parking: Parking | None = None

    def run(self, inputs: Tensors) -> Tensors:
        return {"y": inputs["x"]}
