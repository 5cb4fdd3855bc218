"""Programs that take turns: real processes, a torch of a few lines in place of the real one."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.turns.conductor import (
    ENDED,
    OUT_OF_TIME,
    Conductor,
    Entry,
    pairs,
)
from bench.turns.participant import gpu_context_bytes
from tests.harness.fake_nvml import FakeGPU, FakeNvml
from tests.harness.repository import ROOT

TORCH = {
    "torch/__init__.py": """
        from types import SimpleNamespace
        from torch import optim
        cuda = SimpleNamespace(is_initialized=lambda: False, is_available=lambda: False)
        autograd = SimpleNamespace(grad=lambda: None)
    """,
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
        hooks = []
        register_optimizer_step_post_hook = hooks.append
    """,
}
GPU = """
    from types import SimpleNamespace
    from torch import optim
    waits = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_available=lambda: True,
        synchronize=lambda: waits.append(1),
        reset_peak_memory_stats=lambda: waits.clear(),
        max_memory_reserved=lambda: len(waits),
        memory_stats=lambda: {"num_ooms": 2},
    )
    autograd = SimpleNamespace(grad=lambda: None)
"""
SCRIPT = """
    import os, sys
    import torch
    from torch.optim.optimizer import hooks

    name, shared = sys.argv[1:3]
    try:
        for step in range(1, 10_001):
            with open(shared, "a") as file:
                file.write(name)
            print(f"step {step} loss {1 / step:.6f}", flush=True)
            hooks[0](None, (), {})
        print("all steps done")
    finally:
        print("left", os.environ.get("BENCH_TURNS"))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    for name, text in {**TORCH, "train.py": SCRIPT}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "train.py"


def entry(script: Path, name: str, **keywords: object) -> Entry:
    command = [sys.executable, str(script), name, str(script.parent / "shared")]
    return Entry(name, command, {}, **{"free_steps": 3, **keywords})  # type: ignore[arg-type]


def edited(script: Path, old: str, new: str) -> Path:
    assert old in script.read_text()
    path = script.with_name("edited.py")
    path.write_text(script.read_text().replace(old, new))
    return path


def test_one_runs_at_a_time_and_as_many_steps_as_its_turn_has(script: Path) -> None:
    with Conductor(block_steps=4) as conductor:
        conductor.start([entry(script, "a"), entry(script, "b")])
        for _ in range(3):
            conductor.round()
        a, b = conductor.programs["a"], conductor.programs["b"]
        assert [block.round for block in a.blocks] == [1, 2, 3]
        assert len(pairs(a, b)) == 3
        assert all(block.seconds > 0 and block.peak_bytes > 2**20 for block in a.blocks)
        conductor.end()
        # A step belongs to the block that the hook after the step before it started.
        assert a.output.count("step ") == 3 + 3 * 4
        assert a.failure == ENDED
    order = (script.parent / "shared").read_text()
    assert sorted(order) == ["a"] * 15 + ["b"] * 15
    runs = [len(run) for run in order.replace("ab", "a b").replace("ba", "b a").split()]
    assert all(run in (3, 4, 8) for run in runs), order


def test_a_script_leaves_as_by_sys_exit_and_knows_of_nothing(script: Path) -> None:
    with Conductor(block_steps=2) as conductor:
        conductor.start([entry(script, "a")])
        conductor.round()
        conductor.end()
        program = conductor.programs["a"]
        assert program.output.endswith("left None\n")
        assert "all steps done" not in program.output
        assert program.errors == ""


def test_a_program_that_fails_says_why_and_the_others_go_on(script: Path) -> None:
    broken = edited(
        script, "hooks[0]", "if step == 5: raise ValueError('of its own')\n        hooks[0]"
    )
    with Conductor(block_steps=2) as conductor:
        conductor.start([entry(script, "a"), entry(broken, "b")])
        for _ in range(3):
            conductor.round()
        assert conductor.programs["b"].failure == "exit code 1: ValueError: of its own"
        assert len(conductor.programs["a"].blocks) == 3
        assert conductor.running() == [conductor.programs["a"]]


def test_a_program_that_says_nothing_is_given_up(script: Path) -> None:
    silent = edited(script, "hooks[0](None, (), {})", "pass\n        import time; time.sleep(60)")
    with Conductor(block_steps=2, ready_seconds=1.0) as conductor:
        conductor.start([entry(silent, "a")])
        assert conductor.programs["a"].failure == "nothing was heard for 1 s"


def test_what_there_is_no_time_for_is_not_run(script: Path) -> None:
    with Conductor(block_steps=2) as conductor:
        conductor.start([entry(script, "a"), entry(script, "b")], lambda one: one.name == "a")
        conductor.round()
        assert conductor.programs["b"].failure == OUT_OF_TIME
        assert conductor.programs["b"].output == ""
        assert len(conductor.programs["a"].blocks) == 1


def test_a_second_heat_is_paired_with_its_own_rounds(script: Path) -> None:
    with Conductor(block_steps=2) as conductor:
        conductor.start([entry(script, "a"), entry(script, "b")])
        conductor.round()
        conductor.end_all_but("a")
        conductor.start([entry(script, "c")])
        conductor.round()
        conductor.round()
        a, b, c = (conductor.programs[name] for name in "abc")
        assert [block.round for block, _ in pairs(a, b)] == [1]
        assert [block.round for block, _ in pairs(a, c)] == [2, 3]
        assert b.failure == ENDED


def test_allocations_beyond_the_fence_fail(script: Path) -> None:
    greedy = edited(script, "hooks[0]", "kept = bytearray(step * 2**24)\n        hooks[0]")
    with Conductor(block_steps=2) as conductor:
        limit = 128 * 2**20
        conductor.start([entry(greedy, "a", fence_bytes=limit), entry(greedy, "b")])
        for _ in range(5):
            conductor.round()
        assert conductor.programs["a"].failure == "exit code 1: MemoryError"
        assert conductor.programs["b"].failure is None
        assert conductor.programs["b"].blocks[-1].peak_bytes > limit


def test_on_a_gpu_blocks_wait_for_it_and_its_allocator_is_asked(script: Path) -> None:
    (script.parent / "torch" / "__init__.py").write_text(textwrap.dedent(GPU))
    with Conductor(block_steps=2) as conductor:
        # The GPU's memory is not the host's: no fence is put around the latter.
        conductor.start([entry(script, "a", fence_bytes=1)])
        for _ in range(3):
            conductor.round()
        program = conductor.programs["a"]
        assert program.ready["out_of_memory"] == 2
        assert [block.peak_bytes for block in program.blocks] == [1, 2, 3]


def test_torch_has_what_is_asked_of_it_on_a_gpu() -> None:
    for line in GPU.splitlines():
        name = line.strip().partition("=lambda")[0]
        if "=lambda" in line and "autograd" not in line:
            assert hasattr(torch.cuda, name)


def test_probes_are_counted(script: Path) -> None:
    probing = edited(script, "hooks[0]", "torch.autograd.grad()\n        hooks[0]")
    with Conductor(block_steps=2) as conductor:
        conductor.start([entry(probing, "a"), entry(script, "b")])
        assert conductor.programs["a"].ready["probes"] == 3
        assert conductor.programs["b"].ready["probes"] == 0


def test_no_stopped_program_outlives_a_conductor_that_is_killed(script: Path) -> None:
    code = f"""
        import os, signal
        from bench.turns.conductor import Conductor, Entry
        conductor = Conductor(block_steps=2)
        command = {entry(script, "a").command!r}
        conductor.start([Entry("a", command, {{}}, free_steps=3)])
        print(conductor.programs["a"].process_id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(script.parent)},
    )
    child = int(found.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and _state(child) != "Z":
        assert time.monotonic() < deadline, "the stopped program is still there"


def _state(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "Z"


def test_a_gpus_peak_has_what_the_gpu_counts_beside_torchs_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGPU(uuid="GPU-7", compute={os.getpid(): 900, 1: 50})

    class Cuda:
        def current_device(self) -> int:
            return 0

        def get_device_properties(self, device: int) -> Any:
            return SimpleNamespace(uuid=f"GPU-{7 + device}")

        def memory_reserved(self) -> int:
            return 600

    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpu))  # pyright: ignore[reportArgumentType]
    assert gpu_context_bytes(cuda) == 300
    gpu.uuid = "GPU-8"
    assert gpu_context_bytes(cuda) == 0, "no such GPU"
