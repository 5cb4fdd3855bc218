"""Each backend answers bit for bit alike before and after it was parked, and holds nothing
meanwhile.
"""

import functools
import gc
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from gpujob_api.serving import BackendName, Quantization
from gpujob_api.settings import Precision
from gpujob_worker.serving.backends import onnx_runtime
from gpujob_worker.serving.backends.build import build, load_file
from gpujob_worker.serving.backends.together import FromFile, Rebuilt, Together
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.plan import Plan
from tests.worker.serving.parked import answers_alike, parking_of
from tests.worker.serving.test_backends import CPU, SIZES, stand_in, two


def test_the_model_as_written() -> None:
    model, inputs, shape = two()
    answers_alike(EagerBackend(model, shape), model, inputs, SIZES)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(BackendName.EAGER, Precision.BFLOAT16),
        Plan(BackendName.EAGER, Precision.FLOAT32, Quantization.INT8),
    ],
    ids=str,
)
def test_a_copy_parks_with_the_model_that_it_was_made_of(plan: Plan, tmp_path: Path) -> None:
    model, inputs, shape = two()
    answers_alike(build(plan, model, shape, inputs, SIZES, tmp_path), model, inputs, SIZES)


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
def test_a_compiled_model_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: Precision
) -> None:
    compiler = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=compiler))
    model, inputs, shape = two()
    backend = build(Plan(BackendName.COMPILE, precision), model, shape, inputs, SIZES, tmp_path)
    compiled = compiler.frame_count
    assert compiled > 0
    answers_alike(backend, model, inputs, SIZES)
    assert compiler.frame_count == compiled


def test_a_session_is_closed_and_opened_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, [CPU], [CPU])
    model, inputs, shape = two()
    plan = Plan(BackendName.ONNX_RUNTIME)
    built = build(plan, model, shape, inputs, SIZES, tmp_path)
    path = tmp_path / onnx_runtime.FILE
    for backend in (built, load_file(plan, path, shape, model, SIZES)):
        answers_alike(backend, model, inputs, SIZES)
    path.unlink()
    assert parking_of(built).host_bytes is None, "it could not be opened again"


class Session:
    """An object that a weak reference can refer to."""


def test_nothing_refers_to_what_came_from_a_file_while_it_is_parked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    found = FromFile(path, Session)
    before = weakref.ref(found.loaded)
    found.park()
    gc.collect()
    assert before() is None
    found.wake()
    assert isinstance(found.loaded, Session)


@dataclass
class Part:
    """Writes down what it does, and fails if it is asked to."""

    name: str
    done: list[str]
    fails: set[str] = field(default_factory=set[str])
    host_bytes: int | None = 3

    def _do(self, what: str) -> None:
        if what in self.fails:
            raise torch.OutOfMemoryError(f"{what} {self.name}")
        self.done.append(f"{what} {self.name}")

    def park(self) -> None:
        self._do("park")

    def wake(self) -> None:
        self._do("wake")


def test_parts_park_in_their_order_and_wake_in_the_opposite_one() -> None:
    done: list[str] = []
    parts = Together(Part("a", done), Part("b", done))
    assert parts.host_bytes == 6
    parts.park()
    parts.wake()
    assert done == ["park a", "park b", "wake b", "wake a"]
    assert Together(Part("a", done), Part("b", done, host_bytes=None)).host_bytes is None
    rebuilt = Rebuilt(lambda: done.append("dropped"), lambda: done.append("made again"))
    assert Together(rebuilt).host_bytes == 0


def test_a_part_that_fails_leaves_all_parts_as_they_were() -> None:
    done: list[str] = []
    with pytest.raises(torch.OutOfMemoryError, match="park c"):
        Together(Part("a", done), Part("b", done), Part("c", done, {"park"})).park()
    assert done == ["park a", "park b", "wake b", "wake a"]
    done.clear()
    with pytest.raises(torch.OutOfMemoryError, match="wake a"):
        Together(Part("a", done, {"wake"}), Part("b", done), Part("c", done)).wake()
    assert done == ["wake c", "wake b", "park b", "park c"]
