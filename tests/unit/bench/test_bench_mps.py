"""MPS is measured if its daemon starts; otherwise the reason is told, and nothing is left."""

from pathlib import Path

import pytest

from bench.shared import pairs
from bench.shared.ground import cpu_card
from bench.shared.pairs import mps_daemon

CONTROL = "imitated-mps-control"


def control(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a control program on PATH that notes its arguments, its input and its pipe's folder."""
    path = folder / CONTROL
    log = folder / "asked"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$* $(test "$1" = -d || cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}\n'
        f"{script}\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_without_the_program_nothing_is_started() -> None:
    with mps_daemon("no-such-mps-control") as (variables, refusal):
        assert refusal == "MPS was not measured: no-such-mps-control is not on PATH"
        assert variables == {}


def test_a_daemon_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(tmp_path, monkeypatch, "echo 'Cannot find MPS control\n daemon' >&2; exit 1")
    with mps_daemon(CONTROL) as (_, refusal):
        assert refusal.endswith("ended with 1: Cannot find MPS control daemon")
    assert len((tmp_path / "asked").read_text().splitlines()) == 1, "nobody asked it to end"


def test_a_daemon_is_asked_to_end_and_its_folder_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(tmp_path, monkeypatch, "exit 0")
    with mps_daemon(CONTROL) as (variables, refusal):
        assert refusal == ""
        pipe = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipe.is_dir()
    assert not pipe.exists()
    started, ended = (tmp_path / "asked").read_text().splitlines()
    assert started.split() == ["-d", str(pipe)]
    assert ended.split() == ["quit", str(pipe)]


def test_a_daemon_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MPS_SECONDS", 0.2)
    control(tmp_path, monkeypatch, "exec sleep 30")
    with mps_daemon(CONTROL) as (_, refusal):
        assert "timed out" in refusal


def test_cpu_cards_have_no_mps() -> None:
    assert "CPU cards have none" in pairs.mps(cpu_card(1), quick=True)["note"]
