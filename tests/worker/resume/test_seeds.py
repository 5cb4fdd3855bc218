"""A script that seeds nothing draws the same in each attempt of its run; its own seeds count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_worker.launch.command import hooked
from gpujob_worker.resume.seeds import FILE, seed_of

DRAWS = """
import random
import numpy
import torch
SEEDS
print(random.random(), numpy.random.rand(), torch.rand(()).item())
"""


def draws(folder: Path, checkpoints: Path | None, seeds: str = "", **variables: str) -> str:
    script = folder / "train.py"
    script.write_text(DRAWS.replace("SEEDS", seeds))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GPUJOB")}
    environment = {**hooked(plain), **variables}
    if checkpoints is not None:
        environment["GPUJOB_CHECKPOINT_DIR"] = str(checkpoints)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_attempts_draw_alike_and_runs_do_not(tmp_path: Path) -> None:
    first = draws(tmp_path, tmp_path / "one")
    assert draws(tmp_path, tmp_path / "one") == first
    assert draws(tmp_path, tmp_path / "two") != first


def test_processes_of_a_group_draw_differently(tmp_path: Path) -> None:
    first = draws(tmp_path, tmp_path / "one", RANK="0")
    second = draws(tmp_path, tmp_path / "one", RANK="1")
    assert not set(first.split()) & set(second.split())
    assert draws(tmp_path, tmp_path / "one", RANK="1") == second


def test_seeds_of_the_script_count(tmp_path: Path) -> None:
    own = "random.seed(1); numpy.random.seed(2); torch.manual_seed(3)"
    assert draws(tmp_path, tmp_path / "one", own) == draws(tmp_path, None, own)


def test_without_a_checkpoint_directory_nothing_is_seeded(tmp_path: Path) -> None:
    assert draws(tmp_path, None) != draws(tmp_path, None)


def test_a_seed_is_kept(tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")
    seed = seed_of(directory)
    assert seed is not None
    assert seed_of(directory) == seed
    assert (tmp_path / "checkpoints" / FILE).read_text() == str(seed)


@pytest.mark.parametrize("content", ["", "none"])
def test_a_seed_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert seed_of(str(tmp_path)) is None


def test_a_directory_that_cannot_be_written_has_no_seed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert seed_of(str(tmp_path / "file")) is None


def test_a_job_that_asks_for_nothing_gets_no_seed(tmp_path: Path) -> None:
    off = '{"mode": "Off"}'
    first = draws(tmp_path, tmp_path / "one", GPUJOB_SETTINGS=off)
    assert draws(tmp_path, tmp_path / "one", GPUJOB_SETTINGS=off) != first
    assert not (tmp_path / "one" / FILE).exists()
