"""The copy of the worker's packages that a pod of any image gets."""

import os
import subprocess
from pathlib import Path

import pytest

from gpujob_worker.launch.package import EXIT_USAGE, copy_packages, main
from tests.harness.pythons import python

# `train` has no package of its own on the path; the hook finds them beside itself.
SCRIPT = """
import sys
from gpujob_worker.launch.first_process import is_first_process
import gpujob_api.settings
print(sys.modules["gpujob_worker"].__file__, "gpujob_worker.activation" in sys.modules)
"""


def test_it_holds_the_sources_and_nothing_else(tmp_path: Path) -> None:
    copy_packages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gpujob_api", "gpujob_worker", "hook"}
    assert not list(tmp_path.rglob("__pycache__"))
    assert (tmp_path / "hook" / "sitecustomize.py").is_file()
    # As an init container that runs again.
    copy_packages(tmp_path)


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_every_python_runs_it(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    copy_packages(tmp_path)
    done = subprocess.run(
        [program, "-c", SCRIPT],
        env={"PYTHONPATH": str(tmp_path / "hook"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "gpujob_worker" / "__init__.py"), "True"]
    assert done.stderr == ""


def test_it_wants_one_folder(tmp_path: Path) -> None:
    assert main([]) == EXIT_USAGE
    assert main([str(tmp_path / "package")]) == 0
    assert (tmp_path / "package" / "hook").is_symlink()
