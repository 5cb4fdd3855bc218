"""The programs of real kubelets are built before scenes begin, and only where they can run."""

import subprocess
from pathlib import Path

from gpujob_local.kubelets.requirements import Machine
from gpujob_local.kubelets.tools import main
from tests.harness.repository import ROOT


def test_where_no_kubelet_can_run_nothing_is_built_and_the_reason_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    assert main(Machine("linux", 1000, (), tmp_path, tmp_path), said.append) == 0
    assert len(said) == 1
    assert said[0].startswith("nothing is built for real kubelets: real kubelets need root")


def test_the_programs_are_there_before_the_first_scene() -> None:
    result = subprocess.run(
        ["make", "--dry-run", "e2e"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    built = result.stdout.index("-m gpujob_local.kubelets.tools")
    assert built < result.stdout.index("-m pytest")
