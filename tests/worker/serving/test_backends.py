"""Each backend answers as the model as written does, at its sizes only, or is refused in words."""

import importlib.util
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.serving import BackendName, Quantization
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.backends import onnx_runtime, quantized
from gpujob_worker.serving.backends.answering import answering
from gpujob_worker.serving.backends.aot_inductor import samples_exported
from gpujob_worker.serving.backends.build import build, load_file
from gpujob_worker.serving.backends.build_error import BuildError
from gpujob_worker.serving.backends.torch_backend import SizeError
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.rows import first_rows, padded, rows_of
from gpujob_worker.serving.signature import Signature, signature
from tests.worker.serving.parked import answers_alike

SIZES = (1, 2, 4)
TENSOR_RT = Plan(BackendName.TENSOR_RT, Precision.FLOAT16)


class Two(nn.Module):
    """Two inputs by name, two outputs, one of them whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, values: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(values) * scale
        return {"scores": scores, "label": scores.argmax(dim=-1)}


class Hard(nn.Module):
    """Creates a float32 tensor itself, so its weights cannot be lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + torch.ones(6))


def all_found(_: str) -> object:
    return object()


def nothing_found(_: str) -> None:
    return None


def two() -> tuple[Two, Tensors, Signature]:
    torch.manual_seed(0)
    model = Two().eval()
    inputs = {"values": torch.randn(8, 6), "scale": torch.rand(8, 1) + 1}
    return model, inputs, signature(model, inputs)


def written(model: nn.Module, inputs: Tensors, shape: Signature) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return shape.call(model, inputs)


def test_lower_weights_answer_in_the_types_of_the_model_as_written(tmp_path: Path) -> None:
    model, inputs, shape = two()
    plan = Plan(BackendName.EAGER, Precision.BFLOAT16)
    outputs = build(plan, model, shape, inputs, SIZES, tmp_path).run(inputs)
    expected = written(model, inputs, shape)
    assert outputs["scores"].dtype == torch.float32
    assert outputs["label"].dtype == torch.int64
    error = (outputs["scores"] - expected["scores"]).norm() / expected["scores"].norm()
    assert 1e-4 < float(error) < 0.02
    assert model.layer.weight.dtype == torch.float32


def test_a_model_with_tensors_of_its_own_gets_autocast() -> None:
    torch.manual_seed(0)
    model = Hard().eval()
    inputs = {"input": torch.randn(4, 6)}
    shape = signature(model, inputs)
    found = answering(model, shape, Precision.BFLOAT16, inputs)
    assert found.autocast
    with torch.inference_mode():
        (out,) = found(inputs["input"])
    assert out.dtype == torch.float32
    assert not torch.equal(out, model(inputs["input"]))
    assert torch.allclose(out, model(inputs["input"]), rtol=0.05, atol=0.05)


def test_int8_needs_linear_layers(tmp_path: Path) -> None:
    model, inputs, shape = two()
    plan = Plan(BackendName.EAGER, Precision.FLOAT32, Quantization.INT8)
    outputs = build(plan, model, shape, inputs, SIZES, tmp_path).run(inputs)
    expected = written(model, inputs, shape)["scores"]
    assert not torch.equal(outputs["scores"], expected)
    assert torch.allclose(outputs["scores"], expected, atol=0.1)
    with pytest.raises(BuildError, match="no linear layer to quantize"):
        quantized.quantized(nn.Conv2d(1, 1, 1), Quantization.INT8)


def test_float8_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setattr(importlib.util, "find_spec", nothing_found)
    with pytest.raises(BuildError, match="float8 here needs torchao, which is not installed"):
        quantized.quantized(nn.Linear(2, 2), Quantization.FLOAT8)


def test_an_engine_of_the_users_own_is_not_built(tmp_path: Path) -> None:
    model, inputs, shape = two()
    with pytest.raises(BuildError, match="External is not built by the worker"):
        build(Plan(BackendName.EXTERNAL), model, shape, inputs, SIZES, tmp_path)


def test_a_missing_runtime_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find(name: str) -> object | None:
        return None if name == "onnxruntime" else object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    model, inputs, shape = two()
    with pytest.raises(BuildError, match=r"^onnxruntime is not installed$"):
        build(Plan(BackendName.ONNX_RUNTIME), model, shape, inputs, SIZES, tmp_path)


class StandIn:
    """onnxruntime in place of the real one: a session that runs the model itself."""

    def __init__(self, model: nn.Module, available: list[str], used: list[str]) -> None:
        self.model = model
        self.available = available
        self.used = used
        self.providers: list[Any] = []
        self.entries: dict[str, str] = {}
        self.SessionOptions = lambda: SimpleNamespace(
            intra_op_num_threads=0, add_session_config_entry=self.entries.__setitem__
        )

    def get_available_providers(self) -> list[str]:
        return self.available

    def InferenceSession(self, path: str, options: Any, providers: list[Any]) -> Any:  # noqa: N802
        assert Path(path).is_file()
        assert options.intra_op_num_threads > 0
        self.providers = providers
        return SimpleNamespace(get_providers=lambda: self.used, run=self._run)

    def _run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        inputs = {name: torch.from_numpy(array) for name, array in feeds.items()}
        with torch.inference_mode():
            outputs = self.model(**inputs)
        return [outputs[name].numpy() for name in names]


TRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"


def stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, available: list[str], used: list[str]
) -> tuple[StandIn, Path]:
    runtime = StandIn(two()[0], available, used)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    monkeypatch.setattr(importlib.util, "find_spec", all_found)

    def export(model: nn.Module, inputs: Any, path: str, **options: Any) -> None:
        assert options["input_names"] == ["values", "scale"]
        assert options["output_names"] == ["scores", "label"]
        Path(path).write_text("graph")

    monkeypatch.setattr(torch.onnx, "export", export)
    return runtime, tmp_path


def test_tensor_rt_is_asked_for_half_precision_and_answers_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime, folder = stand_in(monkeypatch, tmp_path, [TRT, CUDA, CPU], [TRT, CUDA, CPU])
    model, inputs, shape = two()
    backend = build(TENSOR_RT, model, shape, inputs, SIZES, folder)
    name, options = runtime.providers[0]
    assert name == TRT
    assert options["trt_fp16_enable"] is True
    assert options["trt_engine_cache_enable"] is False
    assert runtime.providers[1] == CUDA
    batch = first_rows(inputs, 4)
    outputs = backend.run(batch)
    assert backend.name == "TensorRT"
    assert torch.equal(outputs["scores"], written(model, batch, shape)["scores"])
    again = load_file(TENSOR_RT, folder / onnx_runtime.FILE, shape, model, SIZES)
    assert torch.equal(again.run(batch)["label"], outputs["label"])
    with pytest.raises(SizeError, match="TensorRT was built for 1, 2, 4 samples; got 3"):
        backend.run(first_rows(inputs, 3))


def test_a_provider_that_is_missing_or_does_not_start_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, inputs, shape = two()
    stand_in(monkeypatch, tmp_path, [CPU], [CPU])
    with pytest.raises(BuildError, match=f"has no {TRT}, only {CPU}"):
        build(TENSOR_RT, model, shape, inputs, SIZES, tmp_path)
    stand_in(monkeypatch, tmp_path, [TRT, CPU], [CPU])
    with pytest.raises(BuildError, match=f"executes with {CPU} instead of {TRT}"):
        build(TENSOR_RT, model, shape, inputs, SIZES, tmp_path)


def test_threads_of_the_runtime_do_not_spin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime, _ = stand_in(monkeypatch, tmp_path, [CPU], [CPU])
    model, inputs, shape = two()
    build(Plan(BackendName.ONNX_RUNTIME), model, shape, inputs, SIZES, tmp_path)
    assert runtime.entries == {"session.intra_op.allow_spinning": "0"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [BackendName.COMPILE, BackendName.AOT_INDUCTOR])
def test_compiled_models_answer_alike_at_every_size(tmp_path: Path, name: BackendName) -> None:
    model, inputs, shape = two()
    with warnings.catch_warnings():
        # Compilers announce changes of their own.
        warnings.simplefilter("ignore")
        backend = build(Plan(name), model, shape, inputs, SIZES, tmp_path)
    for size in SIZES:
        batch = first_rows(inputs, size)
        outputs, expected = backend.run(batch), written(model, batch, shape)
        assert torch.allclose(outputs["scores"], expected["scores"], atol=1e-5)
        assert torch.equal(outputs["label"], expected["label"])
    with pytest.raises(SizeError, match="got 3: pad the batch"):
        backend.run(first_rows(inputs, 3))
    if name is BackendName.AOT_INDUCTOR:
        (file,) = tmp_path.glob("*.pt2")
        again = load_file(Plan(name), file, shape, model, SIZES)
        assert torch.equal(again.run(inputs_of(4))["label"], backend.run(inputs_of(4))["label"])
        answers_alike(again, model, inputs, SIZES)
    answers_alike(backend, model, inputs, SIZES)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_runtime_answers_alike_if_it_is_installed(tmp_path: Path) -> None:
    for package in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(package)
    model, inputs, shape = two()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = build(Plan(BackendName.ONNX_RUNTIME), model, shape, inputs, SIZES, tmp_path)
    for size in SIZES:
        batch = first_rows(inputs, size)
        outputs, expected = backend.run(batch), written(model, batch, shape)
        assert torch.allclose(outputs["scores"], expected["scores"], atol=1e-5)
        assert torch.equal(outputs["label"], expected["label"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_layer_with_as_many_channels_as_samples_is_compiled_for_all_sizes(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten()).eval()
    inputs = {"input": torch.randn(16, 3, 4, 4)}
    shape = signature(model, inputs)
    plan = Plan(BackendName.AOT_INDUCTOR)
    backend = build(plan, model, shape, inputs, (1, 4, 16), tmp_path)
    for size in (1, 4, 16):
        batch = first_rows(inputs, size)
        expected = written(model, batch, shape)["output"]
        assert torch.allclose(backend.run(batch)["output"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "samples"), [((1,), 1), ((1, 2, 4), 4), ((1, 8), 7), ((1, 64), 13)]
)
def test_an_exporter_gets_a_number_of_samples_that_layers_rarely_have(
    sizes: tuple[int, ...], samples: int
) -> None:
    assert samples_exported(sizes) == samples


def inputs_of(size: int) -> Tensors:
    return first_rows(two()[1], size)


def test_padding_repeats_the_last_row() -> None:
    batch = {"x": torch.arange(6).reshape(3, 2)}
    assert padded(batch, 5)["x"].tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]
    assert padded(batch, 3) is batch
    assert rows_of(batch, [2, 3, 0])["x"].tolist() == [[4, 5], [0, 1], [0, 1]]
