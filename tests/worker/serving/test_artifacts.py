"""A compiled model from a cache folder is the one that was stored, for this model and this machine,
or it is built anew.
"""

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpujob_api.serving import (
    ENV_SERVING_CACHE,
    WITH_A_FILE,
    BackendName,
    Batching,
    ServingSettings,
)
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.backends import build as building
from gpujob_worker.serving.backends.aot_inductor import load as load_package
from gpujob_worker.serving.backends.build_error import BuildError
from gpujob_worker.serving.choosing import load as loading
from gpujob_worker.serving.choosing.artifacts import KEPT_MAX, Artifacts
from gpujob_worker.serving.choosing.identity import (
    artifact_key,
    model_hash,
    surroundings,
    tensors_hash,
)
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.signature import Signature, signature
from gpujob_worker.serving.weights import Weights

KEY = "0123456789abcdef"
FILE = "model.pt2"
AOT = ServingSettings(backend=BackendName.AOT_INDUCTOR, batching=Batching(max_size=4))


def stored(tmp_path: Path, content: bytes = b"code" * 1000) -> Artifacts:
    source = tmp_path / FILE
    source.write_bytes(content)
    artifacts = Artifacts(tmp_path / "cache")
    artifacts.put(KEY, source)
    return artifacts


def into(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir(exist_ok=True)
    return folder


def test_what_was_stored_comes_back_as_a_private_copy(tmp_path: Path) -> None:
    artifacts = stored(tmp_path)
    path, reason = artifacts.take(KEY, FILE, into(tmp_path))
    assert path is not None
    assert reason == ""
    assert path.read_bytes() == b"code" * 1000
    assert path.parent == into(tmp_path)


@given(place=st.integers(0, 3999), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(place: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        flip_and_take(Path(name), place, bit)


def flip_and_take(tmp_path: Path, place: int, bit: int) -> None:
    artifacts = stored(tmp_path)
    file = artifacts.folder / KEY / FILE
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(bytes(content))
    path, reason = artifacts.take(KEY, FILE, into(tmp_path))
    assert path is None
    assert "has the hash" in reason


@pytest.mark.parametrize("manifest", ["", "{", "[]", "7", '{"sha256": 3}', "\udcff"])
def test_a_damaged_manifest_costs_a_build(tmp_path: Path, manifest: str) -> None:
    artifacts = stored(tmp_path)
    text = manifest.encode(errors="surrogateescape")
    (artifacts.folder / KEY / "artifact.json").write_bytes(text)
    path, reason = artifacts.take(KEY, FILE, into(tmp_path))
    assert path is None
    assert reason


def test_a_file_cut_short_or_gone_costs_a_build(tmp_path: Path) -> None:
    artifacts = stored(tmp_path)
    file = artifacts.folder / KEY / FILE
    file.write_bytes(file.read_bytes()[:-1])
    assert artifacts.take(KEY, FILE, into(tmp_path))[0] is None
    file.unlink()
    assert artifacts.take(KEY, FILE, into(tmp_path))[0] is None
    assert artifacts.take("other", FILE, into(tmp_path)) == (
        None,
        "none is stored for this model, torch, device and sizes",
    )


def test_a_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    artifacts = stored(tmp_path)
    stored(tmp_path, b"newer")
    path, _ = artifacts.take(KEY, FILE, into(tmp_path))
    assert path is not None
    assert path.read_bytes() == b"newer"
    assert [one.name for one in artifacts.folder.iterdir()] == [KEY]


def test_the_number_of_kept_models_is_limited(tmp_path: Path) -> None:
    artifacts = stored(tmp_path)
    for number in range(KEPT_MAX + 3):
        artifacts.put(f"key-{number}", tmp_path / FILE)
        os.utime(artifacts.folder / f"key-{number}", (number, number))
    kept = {one.name for one in artifacts.folder.iterdir()}
    assert len(kept) == KEPT_MAX
    assert f"key-{KEPT_MAX + 2}" in kept


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.layer(x)


def made() -> Doubled:
    torch.manual_seed(0)
    return Doubled().eval()


def test_a_model_is_identified_by_weights_structure_and_source() -> None:
    assert model_hash(made()) == model_hash(made())
    other = made()
    with torch.no_grad():
        other.layer.weight[0, 0] += 1e-6
    assert model_hash(other) != model_hash(made())
    assert model_hash(made().bfloat16()) != model_hash(made())

    class Tripled(Doubled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * self.layer(x)

    torch.manual_seed(0)
    renamed = Tripled().eval()
    assert str(model_hash(renamed)) != model_hash(made())


def test_tensors_are_identified_by_name_type_shape_and_value() -> None:
    x = torch.arange(6.0)
    found = {
        tensors_hash({"x": x}),
        tensors_hash({"y": x}),
        tensors_hash({"x": x.reshape(2, 3)}),
        tensors_hash({"x": x.double()}),
        tensors_hash({"x": x + 1}),
        tensors_hash({"x": x[:0]}),
    }
    assert len(found) == 6


def test_the_key_depends_on_torch_the_device_and_the_sizes() -> None:
    plan = Plan(BackendName.AOT_INDUCTOR)
    around = surroundings(torch.device("cpu"))
    assert around["torch"] == torch.__version__
    keys = {
        artifact_key("m", plan, (1, 2), around),
        artifact_key("m", plan, (1, 2, 4), around),
        artifact_key("n", plan, (1, 2), around),
        artifact_key("m", Plan(BackendName.ONNX_RUNTIME), (1, 2), around),
        artifact_key("m", plan, (1, 2), around | {"torch": "2.8.0"}),
        artifact_key("m", plan, (1, 2), around | {"capability": "9.0"}),
        artifact_key("m", plan, (1, 2), around | {"driver": "13000"}),
    }
    assert len(keys) == 7


class Workshop:
    """Builds in place of a compiler: a file with a factor, which the backend applies."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.built = 0
        self.loaded = 0

    def build(
        self,
        plan: Plan,
        model: nn.Module,
        shape: Signature,
        examples: Tensors,
        sizes: tuple[int, ...],
        folder: Path,
    ) -> Backend:
        del plan, examples, sizes
        self.built += 1
        (folder / FILE).write_text(str(self.factor))
        return Scaled(model, shape, self.factor)

    def load_file(
        self, plan: Plan, path: Path, shape: Signature, model: nn.Module, sizes: tuple[int, ...]
    ) -> Backend:
        del plan, sizes
        self.loaded += 1
        return Scaled(model, shape, float(path.read_text()))


class Scaled(EagerBackend):
    def __init__(self, model: nn.Module, shape: Signature, factor: float) -> None:
        super().__init__(model, shape)
        self.name = "Scaled"
        self.factor = factor

    def run(self, inputs: Tensors) -> Tensors:
        return {name: self.factor * out for name, out in super().run(inputs).items()}


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    found = Workshop()
    monkeypatch.setattr(loading, "build", found.build)
    monkeypatch.setattr(loading, "load_file", found.load_file)
    return found


def load(
    tmp_path: Path,
    log: list[str] | None = None,
    settings: ServingSettings = AOT,
    *,
    keeps: bool = True,
) -> Backend:
    model = made()
    examples = {"x": torch.randn(64, 4, generator=torch.Generator().manual_seed(1))}
    shape = signature(model, examples)
    environment = {ENV_SERVING_CACHE: str(tmp_path / "cache")} if keeps else {}
    lines = [] if log is None else log
    return loading.load(model, shape, examples, settings, environment=environment, log=lines.append)


def test_a_second_start_loads_what_the_first_one_built(tmp_path: Path, workshop: Workshop) -> None:
    assert load(tmp_path).name == "Scaled"
    assert (workshop.built, workshop.loaded) == (1, 0)
    assert load(tmp_path).name == "Scaled"
    assert (workshop.built, workshop.loaded) == (1, 1)


def test_a_flipped_bit_costs_a_build_and_the_reason_is_logged(
    tmp_path: Path, workshop: Workshop
) -> None:
    load(tmp_path)
    (file,) = (tmp_path / "cache").glob(f"*/{FILE}")
    file.write_text("3.0")
    log: list[str] = []
    assert load(tmp_path, log).name == "Scaled"
    assert (workshop.built, workshop.loaded) == (2, 0)
    assert "AOTInductor float32 is built: the stored one has the hash" in log[0]


def test_a_build_without_a_cache_folder_is_announced_with_the_remedy(
    tmp_path: Path, workshop: Workshop
) -> None:
    log: list[str] = []
    for _ in range(2):
        assert load(tmp_path, log, keeps=False).name == "Scaled"
    assert (workshop.built, workshop.loaded) == (2, 0)
    assert set(log) == {
        "AOTInductor float32 is built, for minutes if large: artifactsClaimName would keep it"
    }


@pytest.mark.parametrize("changed", [{"torch": "2.8.0"}, {"capability": "9.0"}, {"driver": "1"}])
def test_another_torch_gpu_or_driver_costs_a_build(
    tmp_path: Path,
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
) -> None:
    load(tmp_path)

    def elsewhere(device: torch.device) -> dict[str, str]:
        return surroundings(device) | changed

    monkeypatch.setattr(loading, "surroundings", elsewhere)
    load(tmp_path)
    assert (workshop.built, workshop.loaded) == (2, 0)


def test_a_file_that_answers_wrongly_is_not_served(tmp_path: Path, workshop: Workshop) -> None:
    load(tmp_path)
    (folder,) = (tmp_path / "cache").iterdir()
    wrong = tmp_path / FILE
    wrong.write_text("1.5")
    Artifacts(tmp_path / "cache").put(folder.name, wrong)
    log: list[str] = []
    assert load(tmp_path, log).name == "Scaled"
    assert (workshop.built, workshop.loaded) == (2, 1)
    assert "is not used: relative error" in log[0]


def test_a_build_that_answers_wrongly_is_neither_served_nor_kept(
    tmp_path: Path, workshop: Workshop
) -> None:
    workshop.factor = 1.5
    assert load(tmp_path).name == "Eager"
    assert not (tmp_path / "cache").exists()


def test_a_build_that_fails_leaves_the_model_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Backend:
        raise BuildError("this torch has no compiler")

    monkeypatch.setattr(loading, "build", fail)
    log: list[str] = []
    assert load(tmp_path, log).name == "Eager"
    assert log == [
        "AOTInductor float32 is built: none is stored for this model, torch, device and sizes",
        "AOTInductor float32 is not used: BuildError: this torch has no compiler",
        "the model is served as written",
    ]


def test_a_cache_folder_that_cannot_be_written_is_only_logged(
    tmp_path: Path, workshop: Workshop
) -> None:
    (tmp_path / "cache").write_text("a file in place of the folder")
    log: list[str] = []
    assert load(tmp_path, log).name == "Scaled"
    assert workshop.built == 1
    assert any("is not kept in" in line for line in log)


def test_auto_serves_the_model_as_written(tmp_path: Path, workshop: Workshop) -> None:
    assert load(tmp_path, settings=ServingSettings()).name == "Eager"
    external = ServingSettings(backend=BackendName.EXTERNAL)
    assert load(tmp_path, settings=external).name == "Eager"
    assert workshop.built == 0


def test_a_package_with_pickled_parts_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("m/data/weights/weight_0", b"pickle")
    shape = Signature((), (), by_name=False)
    with pytest.raises(BuildError, match="read with pickle"):
        load_package(path, shape, Precision.FLOAT32, torch.device("cpu"), (1,), Weights())


def test_the_files_are_those_of_backends_that_leave_one() -> None:
    assert set(building.FILES) == {
        BackendName.AOT_INDUCTOR,
        BackendName.ONNX_RUNTIME,
        BackendName.TENSOR_RT,
    }


def test_the_operator_names_the_claim_for_all_backends_with_a_file() -> None:
    assert set(building.FILES) == WITH_A_FILE
