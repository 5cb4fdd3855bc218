"""The environment with the oldest torch: what it holds, and what is said where it cannot be had."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.harness.repository import ROOT

UNREACHABLE = """error: Request failed after 3 retries in 4.8s
  cause: error sending request for url
  cause: tcp connect error"""
FULL = "error: Failed to extract archive\n  cause: No space left on device (os error 28)"
MISMATCH = "error: Hash mismatch for torch==2.8.0"
ROOMY, NARROW = 20 * 1024**2, 5 * 1024**2

UV = """#!/usr/bin/env bash
echo "$*" >>calls
case "$*" in
  'cache dir') echo cache ;;
  venv*) mkdir -p .venv-oldest/bin ;;
  *' -e .') ;;
  *--offline*) exit "$OFFLINE" ;;
  *) echo "$ONLINE"; [[ -z $ONLINE ]] ;;
esac
"""
DF = '#!/usr/bin/env bash\necho head\necho "disk 1 1 $FREE_KIB 1% /"\n'


def setup(
    tree: Path, *, offline: int = 1, online: str = "", free_kib: int = ROOMY
) -> tuple[int, str]:
    """Runs the script in a tree with stand-ins for uv and df; its status and what it said."""
    for folder in ("scripts", "requirements", ".venv/bin", "bin"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for name in ("scripts/setup_oldest.sh", "requirements/oldest.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)
    for name, text in ((".venv/bin/uv", UV), ("bin/df", DF)):
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    stands = {"OFFLINE": str(offline), "ONLINE": online, "FREE_KIB": str(free_kib)}
    path = f"{tree / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = [str(tree / "scripts/setup_oldest.sh")]
    done = subprocess.run(
        command,
        env={**os.environ, **stands, "PATH": path},
        cwd=tree,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_it_is_the_oldest_that_is_promised() -> None:
    worker = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    (floor,) = (
        name.removeprefix("torch>=") for name in worker["worker"] if name.startswith("torch")
    )
    locked = (ROOT / "requirements/oldest.txt").read_text(encoding="utf-8")
    assert re.search(rf"^torch=={re.escape(floor)}\.\d+ ", locked, re.MULTILINE)


def test_what_was_downloaded_before_needs_neither_room_nor_network(tmp_path: Path) -> None:
    assert setup(tmp_path, offline=0, online=UNREACHABLE, free_kib=0)[0] == 0
    calls = (tmp_path / "calls").read_text(encoding="utf-8")
    assert setup(tmp_path, offline=0) == (0, "")
    assert (tmp_path / "calls").read_text(encoding="utf-8") == calls


def test_it_is_downloaded_where_there_is_room(tmp_path: Path) -> None:
    code, said = setup(tmp_path)
    assert code == 0
    assert "downloading" in said
    assert "--require-hashes" in (tmp_path / "calls").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("online", "free_kib", "expected", "reason"),
    [
        (UNREACHABLE, ROOMY, 75, "cannot be downloaded here"),
        (FULL, ROOMY, 75, "cannot be downloaded here"),
        ("", NARROW, 75, "no room: 5120 MiB free in cache, 7168 are needed"),
        (MISMATCH, ROOMY, 1, "cannot be installed"),
    ],
)
def test_missing_room_or_network_is_told_from_what_is_wrong(
    online: str, free_kib: int, expected: int, reason: str, tmp_path: Path
) -> None:
    code, said = setup(tmp_path, online=online, free_kib=free_kib)
    assert (code, reason in said) == (expected, True), said
    assert not (tmp_path / ".venv-oldest").exists()
    assert online in said
