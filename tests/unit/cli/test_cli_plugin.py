"""The plugin as one file: it needs nothing but Python."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.repository import ROOT

BYTES_MAX = 2 * 1024**2


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("plugin") / "kubectl-gpujob"
    subprocess.run([sys.executable, ROOT / "scripts" / "plugin.py", target], check=True, timeout=60)
    return target


def run(plugin: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Without the packages of this machine, and without kubectl."""
    command = [sys.executable, "-I", "-S", str(plugin), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"PATH": "/nowhere"}, check=False
    )


def test_it_is_small_and_names_its_version(plugin: Path) -> None:
    assert plugin.stat().st_size < BYTES_MAX
    assert run(plugin, "--version").stdout.startswith("kubectl-gpujob 0.1.0 (")
    assert "submit" in run(plugin).stdout


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("why", "x"), ("gpus",), ("doctor",), ("submit", "--image", "i", "--", "true")],
    ids=" ".join,
)
def test_a_missing_kubectl_is_one_line(plugin: Path, arguments: tuple[str, ...]) -> None:
    ran = run(plugin, *arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: kubectl is not installed or not in PATH: https://")


def test_decisions_name_the_package_that_is_missing(plugin: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text("{}")
    ran = run(plugin, "why", "x", "--from", str(dump))
    assert ran.returncode == 1
    assert ran.stderr == "error: this command needs NumPy: python3 -m pip install numpy\n"
