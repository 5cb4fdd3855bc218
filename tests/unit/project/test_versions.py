"""Every program says its version."""

import subprocess
import sys
import tomllib

import pytest

from tests.harness.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("program", sorted(PROJECT["scripts"]))
def test_a_program_says_its_version(program: str) -> None:
    module, _, function = PROJECT["scripts"][program].partition(":")
    code = f"import sys; sys.argv[0] = {program!r}; from {module} import {function} as main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    name, version, *_ = done.stdout.split()
    assert (name, version) == (program, PROJECT["version"])
