"""Compilation, whole or block by block: one way is kept, what was compiled stays on disk."""

import functools
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings, Toggle, TunedSettings
from gpujob_worker.inject import compiling
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.compiling import (
    ENV_CACHE,
    CompiledBlocks,
    blocks_refusal,
    compile_refusal,
    graphs_refusal,
    keep_compiled_in,
)
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.compare import Speedup
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.compile_choice import BLOCKS, MANY_BLOCKS, WHOLE
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.trial import Trial
from gpujob_worker.tune.tuner import Tuner

Compile = Callable[..., Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.layer(x))


def model(blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Block() for _ in range(blocks))))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """torch.compile traces for real and runs what it traced; counts the graphs' nodes."""
    torch.compiler.reset()
    found: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        del inputs
        found.append(len(graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/usr/bin/{name}")  # pyright: ignore
    return found


def takes(monkeypatch: pytest.MonkeyPatch, **ratios: float) -> None:
    """How many times as fast the compiled `blocks`, and the `whole`, are found to be."""
    plain = Trial.speedup_of_compiled

    def speedup(
        self: Trial, item: str, present: RootPlan, plan: RootPlan, compiled: Callable[[], None]
    ) -> Speedup:
        plain(self, item, present, plan, compiled)
        ratio = ratios["blocks" if plan.compiled is None else "whole"]
        return Speedup(ratio, 0.98 * ratio, 1.02 * ratio, 5)

    monkeypatch.setattr(Trial, "speedup_of_compiled", speedup)


def tuned(module: nn.Module, *off: str, graphs: bool = False) -> tuple[Tuner, DecisionLog]:
    log = DecisionLog()
    settings = Settings(compile=Toggle.ON)
    tuner = Tuner(settings, Features.without(*off, cuda_graphs=graphs), log, 60.0)
    call = RecordedCall(CallInputs.of((torch.randn(6, 4),), {}))
    tuner.compile(Root(module, lambda _: None), call)
    return tuner, log


def gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    module(x).square().mean().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def test_the_whole_model_goes_first(graphs: list[int]) -> None:
    tuner, log = tuned(model())
    assert len(graphs) == 1
    assert tuner.tuned() == TunedSettings(compile=True)
    assert log.lines[0].startswith("compile applied: asked for, ")
    assert log.lines[1] == "CUDA graphs skipped: not asked for (--cuda-graphs)"


@pytest.mark.parametrize(("whole", "kept"), [(0.9, WHOLE), (None, BLOCKS)])
def test_many_blocks_that_are_slower_give_way_to_the_whole(
    whole: float | None, kept: str, graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for is compiled; in blocks that slow it down only if nothing else can be."""
    ratios = {"blocks": 0.73} if whole is None else {"blocks": 0.73, "whole": whole}
    takes(monkeypatch, **ratios)
    tuner, log = tuned(model(MANY_BLOCKS))
    lines = log.lines
    assert graphs
    assert any(line.startswith(f"{kept} applied: asked for") for line in lines), lines
    assert tuner.tuned() == TunedSettings(compile=True, regional_compile=kept == BLOCKS)


def test_many_blocks_go_first_and_share_a_graph(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, blocks=1.1)
    module = model(MANY_BLOCKS)
    tuner, log = tuned(module)
    assert len(graphs) == 1, "like blocks are compiled once"
    assert tuner.tuned() == TunedSettings(compile=True, regional_compile=True), log.lines
    assert log.lines[0].startswith("compile blocks applied: asked for, ")
    x = torch.randn(6, 4)
    plain = gradients(module, x)
    root = Root(module, lambda _: None)
    root.install()
    apply_settings(root, None, tuner.applied)
    assert all(map(torch.allclose, gradients(module, x), plain))
    assert not any("_compiled_call_impl" in vars(block) for block in module[1].modules())
    apply_settings(root, None, Applied())
    assert all(map(torch.equal, gradients(module, x), plain))


def test_blocks_are_compiled_where_the_whole_cannot_be(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = model()
    plain: Compile = torch.compile
    whole = module._call_impl

    def fails(call: Any, **options: Any) -> Any:
        if call == whole:
            raise RuntimeError("too clever a forward")
        return plain(call, **options)

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(RuntimeError):
        compiling.compile_module(module)

    def later(call: Any, **options: Any) -> Any:
        return (lambda *args: fails(call)) if call == whole else plain(call, **options)  # pyright: ignore

    monkeypatch.setattr(torch, "compile", later)
    tuner, log = tuned(module)
    assert "compile skipped: failed: RuntimeError: too clever a forward" in log.lines
    assert tuner.tuned().regional_compile
    _, log = tuned(module, "regional_compile")
    assert log.lines[-1] == "compile blocks skipped: switched off"


NO_COMPILER = "no C compiler (gcc, clang or CC) on PATH"


@pytest.mark.parametrize(
    ("programs", "variable", "refusal"),
    [
        ((), None, NO_COMPILER),
        (("g++", "clang++", "cc"), None, NO_COMPILER),
        (("gcc",), None, None),
        (("clang",), None, None),
        (("gcc-14",), "gcc-14", None),
        (("gcc",), "gcc-14", NO_COMPILER),
        (("gcc",), "", NO_COMPILER),
    ],
)
def test_on_a_gpu_triton_needs_a_c_compiler(
    programs: tuple[str, ...],
    variable: str | None,
    refusal: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for program in programs:
        (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", variable or "")
    if variable is None:
        monkeypatch.delenv("CC")
    monkeypatch.setattr(compiling, "_has_triton", lambda: True)
    assert compile_refusal(model(), torch.device("cuda", 0)) == refusal
    monkeypatch.setattr(compiling, "_has_triton", lambda: False)
    assert compile_refusal(model(), torch.device("cuda", 0)) == "triton is not installed"


def dropping() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.3), nn.Linear(32, 8))


@pytest.mark.parametrize(("factor", "kept"), [(1.0, True), (1.2, False)])
def test_a_model_that_drops_is_compared_with_the_same_draws(
    factor: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler draws other masks than eager code, unless it is asked not to."""
    asked: list[Any] = []
    ran: list[Any] = []

    def compiled(call: Any, *, dynamic: bool, options: Any = None) -> Any:
        assert not dynamic
        asked.append(options)

        def run(*args: Any) -> Any:
            ran.append(options)
            if options is None:
                torch.rand(7)  # so that all that follow are others
            return call(*args) * factor

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/usr/bin/{name}")  # pyright: ignore
    tuner, log = tuned(dropping())
    assert tuner.tuned().compile is kept, log.lines
    assert {"fallback_random": True} in asked
    assert (None in ran) is kept, "what is used draws as the compiler likes"
    if not kept:
        assert "numbers disagree: outputs differ by 20 %" in log.line("compile")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_torchs_own_compiler_agrees_where_a_model_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setenv(ENV_CACHE, str(tmp_path))
    tuner, log = tuned(dropping(), "regional_compile")
    assert tuner.tuned().compile, log.lines
    assert "cosine 1.00000" in log.line("compile")


def test_other_shapes_run_as_they_are(graphs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    takes(monkeypatch, blocks=1.1)
    module = model(MANY_BLOCKS)
    tuner, _ = tuned(module)
    root = Root(module, lambda _: None)
    root.install()
    apply_settings(root, None, tuner.applied)
    module(torch.randn(5, 4))
    assert len(graphs) == 1
    root.remove()


def test_blocks_that_are_taken_are_left_alone() -> None:
    module = model()
    assert blocks_refusal(module) is None
    with CompiledBlocks(module).in_force():
        assert blocks_refusal(module) == "the blocks are called in another way already"
    assert "no list of two or more" in (blocks_refusal(nn.Linear(2, 2)) or "")


def test_graphs_are_refused_where_they_are_not_safe(graphs: list[int]) -> None:
    gpu = torch.device("cuda")
    assert graphs_refusal(gpu, None, False) is None
    assert "split batch" in (graphs_refusal(gpu, 4, False) or "")
    assert "memory limit" in (graphs_refusal(gpu, None, True) or "")
    _, log = tuned(model(), graphs=True)
    assert log.lines[-1] == "CUDA graphs skipped: they exist on CUDA GPUs; this is cpu"


def test_outputs_of_graphs_are_copied() -> None:
    module, kept = model(), torch.zeros(6, 8, requires_grad=True)
    root = Root(module, lambda _: None)
    inputs = CallInputs.of((torch.randn(6, 4),), {})
    plan = replace(root.plan, compiled=lambda _: kept, compiled_signature=inputs.signature)  # pyright: ignore
    assert root.run(plan, inputs) is kept
    output = root.run(replace(plan, cuda_graphs=True), inputs)
    assert output.data_ptr() != kept.data_ptr()


def test_what_was_compiled_is_kept_beside_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CACHE, "")
    monkeypatch.delenv(ENV_CACHE)
    place = tmp_path / "checkpoints" / "compiled"
    assert keep_compiled_in(tmp_path / "checkpoints") == str(place)
    assert os.environ[ENV_CACHE] == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert keep_compiled_in(tmp_path / "other") is None
    del os.environ[ENV_CACHE]
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert keep_compiled_in(blocked) is None
    assert keep_compiled_in(None) is None
    assert ENV_CACHE not in os.environ


@pytest.mark.parametrize("name", ["my checkpoints", "it's", 'a"b', "a\\b", "a;b"])
def test_no_code_is_kept_in_a_path_that_the_cpp_compiler_takes_for_several(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every compilation would fail, and those of the script's own too."""
    monkeypatch.setenv(ENV_CACHE, "")
    monkeypatch.delenv(ENV_CACHE)
    assert keep_compiled_in(tmp_path / name) is None
    assert ENV_CACHE not in os.environ
    assert not (tmp_path / name).exists()


def test_a_run_compiles_into_its_own_folder(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\n"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        "print(cache_dir())\n"
    )
    clean = {name: value for name, value in os.environ.items() if name != ENV_CACHE}
    done = subprocess.run(
        [sys.executable, "-m", "gpujob_worker", "--", "python", str(script)],
        env={**clean, "GPUJOB_CHECKPOINT_DIR": str(tmp_path / "kept")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == f"{tmp_path}/kept/compiled\n", done.stderr


@pytest.mark.parametrize("regional", [False, True])
def test_the_way_of_an_earlier_run_is_adopted(regional: bool, graphs: list[int]) -> None:
    module = model()
    known = TunedSettings(compile=True, regional_compile=regional)
    log = DecisionLog()
    tuner = Tuner(Settings(), Features(), log, 60.0)
    call = RecordedCall(CallInputs.of((torch.randn(6, 4),), {}))
    tuner.adopt(Root(module, lambda _: None), call, known)
    assert tuner.tuned() == known
    item = "compile blocks" if regional else "compile"
    assert log.lines == (f"{item} applied: from an earlier run",)
    assert graphs == [], "nothing is compiled before the first step"
