"""Expandable segments: asked for by a run whose memory is in pieces, and in force in the next."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.device.segments import (
    ENV_ALLOCATOR,
    Unused,
    expand_segments,
    segments_in_force,
    segments_refusal,
)
from tests.harness.imitated_gpu import GpuModel
from tests.harness.imitated_gpu.allocator import MIB, CachingAllocator
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]
OWN = "max_split_size_mb:128"


@pytest.mark.parametrize("name", [ENV_ALLOCATOR, "PYTORCH_ALLOC_CONF"])
def test_the_users_own_word_about_the_allocator_stays(name: str) -> None:
    environment = {name: OWN}
    assert segments_refusal(environment) == f"the user chose {name}={OWN}"
    expand_segments(environment)
    assert environment == {name: OWN}
    empty: dict[str, str] = {}
    assert segments_refusal(empty) is None
    expand_segments(empty)
    assert empty == {ENV_ALLOCATOR: "expandable_segments:True"}
    assert segments_in_force(empty)
    assert segments_refusal(empty) is None


def test_what_is_in_no_use_is_large_by_its_part_and_its_bytes() -> None:
    assert Unused(1000 * MIB, 700 * MIB).is_large
    assert not Unused(1000 * MIB, 850 * MIB).is_large
    assert not Unused(100 * MIB, 50 * MIB).is_large
    text = str(Unused(1000 * MIB, 700 * MIB))
    assert text == "30 % of the 1000 MiB that the allocator reserved was in no use"


def test_one_segment_that_grows_holds_what_many_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the imitated allocator: batches that grow leave a segment of each size before."""
    reserved: list[int] = []
    for value in ("", "expandable_segments:True"):
        monkeypatch.setenv(ENV_ALLOCATOR, value)
        allocator = CachingAllocator(1024 * MIB)
        for size in range(12, 60, 4):
            allocator.free(allocator.allocate(size * MIB))
        assert allocator.allocated_peak == 56 * MIB
        reserved.append(allocator.reserved_peak)
        small = [allocator.allocate(MIB // 2) for _ in range(9)]
        for block in small:
            allocator.free(block)
    assert reserved == [sum(range(12, 60, 4)) * MIB, 60 * MIB]


SCRIPT = """
import json, os, sys, torch; from torch import nn
torch.manual_seed(0); gpu = torch.device("cuda")
m = nn.Linear(64, 4).to(gpu); opt = torch.optim.SGD(m.parameters(), 0.01)
for i in range(75):
    rows = 48 * 1024 if "even" in sys.argv else (40 + i % 20 * 4) * 1024
    x = torch.randn(rows, 64, device=gpu)
    opt.zero_grad(); loss = m(x).square().mean(); loss.backward(); opt.step(); del x
print(json.dumps([torch.cuda.max_memory_reserved(), os.environ.get("PYTORCH_CUDA_ALLOC_CONF")]))
"""
OPTIONS = ("--explain", "--tuning-seconds", "1", "--no-optimizer", "--no-precision")


def ran(folder: Path, *words: str, tuned: Any = None, own: str = "") -> WorkerRun:
    folder.mkdir()
    path = folder / "train.py"
    path.write_text(SCRIPT)
    code, run = run_worker(
        folder,
        ["python", str(path), *words],
        settings={"compile": "Off", **({"tuned": tuned} if tuned is not None else {})},
        options=OPTIONS,
        environment={ENV_ALLOCATOR: own} if own else {},
        gpu=GpuModel(),
    )
    assert code == 0, run.errors
    return run


def test_a_run_in_pieces_begins_the_next_one_with_expandable_segments(tmp_path: Path) -> None:
    first = ran(tmp_path / "first")
    before, named = json.loads(first.output)
    assert named is None
    tuned = first.report["tuned"]
    assert tuned["expandableSegments"], first.errors
    assert "expandable segments from the next start on: " in first.errors
    second = ran(tmp_path / "second", tuned=tuned)
    after, named = json.loads(second.output)
    assert named == "expandable_segments:True"
    assert after < 0.5 * before
    assert second.report["tuned"]["expandableSegments"], second.errors


def test_a_run_that_is_not_in_pieces_leaves_the_allocator_alone(tmp_path: Path) -> None:
    even = ran(tmp_path / "even", "even")
    assert not even.report["tuned"].get("expandableSegments"), even.errors
    own = ran(tmp_path / "own", own=OWN)
    assert not own.report["tuned"].get("expandableSegments"), own.errors
    assert f"expandable segments skipped: the user chose {ENV_ALLOCATOR}={OWN}" in own.errors
    assert json.loads(own.output)[1] == OWN
