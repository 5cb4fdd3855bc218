"""Batches of many sizes run in code that is compiled once, or as written."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings, Toggle, TunedSettings
from gpujob_worker.inject import compiling
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.shapes import CALLS_WATCHED, SeenShapes
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import GpuModel
from tests.harness.imitated_gpu.compiler import ImitatedCompiler
from tests.harness.worker_process import run_alone, run_worker

WORDS = 50


class Words(nn.Module):
    """Embeds words, and takes the mean of those that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(WORDS, 16), nn.Linear(16, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        there = (words > 0).unsqueeze(-1)
        mean = (self.embedding(words) * there).sum(1) / there.sum(1).clamp(min=1)
        return self.layer(torch.tanh(mean))


class ByLength(Words):
    """Chooses by the length, which torch's compiler cannot leave open."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return super().forward(words) * {n: 1 + n / 1000 for n in range(WORDS)}[words.shape[1]]


class Batch:
    """Makes batches of words on a device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __call__(self, length: int, rows: int = 8) -> torch.Tensor:
        return torch.randint(1, WORDS, (rows, length)).to(self._device)


@pytest.fixture
def batch(device: str) -> Batch:
    return Batch(device)


def called(root: Root, *batches: torch.Tensor) -> RecordedCall:
    for one in batches:
        root.shapes.saw(CallInputs.of((one,), {}))
    return RecordedCall(CallInputs.of((batches[-1],), {}))


@pytest.fixture
def graphs(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """torch.compile traces for real and runs what it traced, but not for the imitated GPU."""
    torch.compiler.reset()
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/usr/bin/{name}")  # pyright: ignore
    if device == "cuda":
        monkeypatch.setattr(compiling, "_has_triton", lambda: True)
        compiler = ImitatedCompiler()
        monkeypatch.setattr(torch, "compile", compiler)
        return compiler.made
    found: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(inputs)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    return found


def compiled(root: Root, call: RecordedCall) -> tuple[Tuner, str]:
    log = DecisionLog()
    tuner = Tuner(Settings(compile=Toggle.ON), Features(), log, 60.0)
    tuner.compile(root, call)
    root.install()
    apply_settings(root, None, tuner.applied)
    return tuner, log.line("compile")


def test_lengths_that_vary_are_compiled_once(graphs: list[Any], batch: Batch, device: str) -> None:
    torch.manual_seed(1)
    module, plain = Words().to(device), Words().to(device)
    plain.load_state_dict(module.state_dict())
    root = Root(module, lambda _: None)
    tuner, said = compiled(root, called(root, batch(7), batch(12), batch(9)))
    assert tuner.tuned() == TunedSettings(compile=True, dynamic_shapes=True), said
    assert ", for any size, outputs differ by 0 %" in said
    assert len(graphs) == 1
    for length in (5, 9, 12, 31, 2):
        words = batch(length)
        assert torch.allclose(module(words), plain(words))
    assert len(graphs) == 1, "one compilation for all lengths"
    compilations = tuner.applied.plan.compilations
    assert compilations is not None
    assert compilations.calls == 1
    module(batch(1))
    assert len(graphs) == 1, "torch makes other code for a length of 1: it runs as written"
    root.remove()


def test_a_smaller_last_batch_runs_as_written(graphs: list[Any], batch: Batch, device: str) -> None:
    module = Words().to(device)
    root = Root(module, lambda _: None)
    tuner, said = compiled(root, called(root, batch(9), batch(9), batch(9, rows=3), batch(9)))
    assert tuner.tuned() == TunedSettings(compile=True), said
    module(batch(9))
    module(batch(9, rows=3))
    assert len(graphs) == 1
    root.remove()


def test_numbers_of_rows_that_vary_are_compiled_once(
    graphs: list[Any], batch: Batch, device: str
) -> None:
    module = Words().to(device)
    root = Root(module, lambda _: None)
    tuner, said = compiled(root, called(root, *(batch(9, rows) for rows in (3, 4, 8, 6, 5))))
    assert tuner.tuned().dynamic_shapes, said
    for rows in range(2, 9):
        module(batch(9, rows))
    assert len(graphs) == 1
    root.remove()


def test_what_is_wrong_on_another_length_is_not_kept(
    graphs: list[Any], batch: Batch, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial is made on the largest batch, and on one as small as those seen."""
    del graphs

    def wrong(call: Any, *, dynamic: bool, options: Any = None) -> Any:
        del dynamic, options
        return lambda words: call(words) * (1.0 if words.shape[1] == 9 else 1.2)  # pyright: ignore

    monkeypatch.setattr(torch, "compile", wrong)
    root = Root(Words().to(device), lambda _: None)
    tuner, said = compiled(root, called(root, batch(7), batch(5), batch(9)))
    assert not tuner.tuned().compile
    assert "numbers disagree on a smaller batch: outputs differ by 20 %" in said
    root.remove()


def test_what_an_earlier_run_found_is_compiled_once_for_all(
    graphs: list[Any], batch: Batch, device: str
) -> None:
    module, log = Words().to(device), DecisionLog()
    root = Root(module, lambda _: None)
    known = TunedSettings(compile=True, dynamic_shapes=True)
    tuner = Tuner(Settings(), Features(), log, 60.0)
    tuner.adopt(root, called(root, batch(9)), known)
    assert tuner.tuned() == known
    root.install()
    apply_settings(root, None, tuner.applied)
    for length in (9, 4, 30):
        module(batch(length))
    assert len(graphs) == 1
    root.remove()


def test_shapes_are_looked_at_for_some_calls_only(batch: Batch, device: str) -> None:
    module = Words().to(device)
    root = Root(module, lambda _: None)
    root.asks, root.settled = False, True
    root.install()
    for index in range(CALLS_WATCHED + 20):
        module(batch(2 + index % 7))
    assert root.shapes.calls == CALLS_WATCHED
    assert root.shapes.vary(CallInputs.of((batch(3),), {}))
    root.remove()


def test_calls_of_another_kind_are_no_other_size(batch: Batch) -> None:
    shapes = SeenShapes()
    own = CallInputs.of((batch(9),), {})
    for other in ((batch(9).float(),), (batch(9), batch(4)), (batch(9)[0],)):
        shapes.saw(CallInputs.of(other, {}))
    shapes.saw(own)
    assert not shapes.vary(own)
    assert shapes.smaller(own) is None


SCRIPT = """
import functools, json, os, sys, torch; from torch import nn; from torch.nn import functional as F
kind, at = sys.argv[1:]
torch.manual_seed(0); os.environ["CXX"] = "sh"; GRAPHS = []
BY_LENGTH = {n: 1 + n / 1000 for n in range(99)}
def backend(graph, inputs): GRAPHS.append(1); return graph.forward
if at == "cpu": torch.compile = functools.partial(torch.compile, backend=backend)
else:
    from tests.harness.imitated_gpu.compiler import ImitatedCompiler
    torch.utils._triton.has_triton = lambda: True; os.environ["CC"] = "sh"
    torch.compile = ImitatedCompiler(by_value=kind == "by-length"); GRAPHS = torch.compile.made
class Words(nn.Module):
    def __init__(s): super().__init__(); s.e, s.l = nn.Embedding(50, 32), nn.Linear(32, 4)
    def forward(s, w):
        y = s.l(torch.tanh(s.e(w).mean(1)))
        return y * BY_LENGTH[w.shape[1]] if kind == "by-length" else y
m = Words().to(at); opt = torch.optim.SGD(m.parameters(), 0.1)
for i in range(40):
    w = torch.randint(1, 50, (16, 5 + i * 7 % 31)).to(at); y = w[:, 0] % 4
    opt.zero_grad(); loss = F.cross_entropy(m(w), y); loss.backward(); opt.step()
print(json.dumps([loss.item(), len(GRAPHS)]))
"""
ASKED = {"compile": "On", "precision": "float32"}
OPTIONS = ("--explain", "--tuning-seconds", "1", "--no-optimizer")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["any", "by-length"])
@pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])
def test_a_padded_script_is_compiled_once_or_the_code_is_taken_back(
    gpu: GpuModel | None, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = ["python", str(path), kind, "cpu" if gpu is None else "cuda"]
    code, run = run_worker(tmp_path / "run", command, settings=ASKED, options=OPTIONS, gpu=gpu)
    assert code == 0, run.errors
    loss, graphs = json.loads(run.output)
    _, alone = run_alone(tmp_path / "alone", [str(path), kind, "cpu"])
    assert loss == pytest.approx(json.loads(alone.output)[0], rel=1e-4), run.errors
    kept = kind == "any"
    assert run.report["tuned"].get("compile", False) is kept, run.errors
    assert run.report["tuned"].get("dynamicShapes", False) is kept, run.errors
    if kept:
        assert graphs <= 3, "one for trials, and one where a real step differs from a trial"
    else:
        assert graphs <= 8, "each of 31 lengths otherwise"
        assert "compile skipped: rolled back: 7 calls were compiled anew" in run.errors
