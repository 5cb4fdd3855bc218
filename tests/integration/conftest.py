"""Commands that run the real kubectl."""

import os
from pathlib import Path

import pytest

from gpujob_local.control_plane.tools import find_tools


@pytest.fixture
def kubectl_in_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """kubectl is found by its name, and keeps its cache with the test."""
    folder = find_tools()["kubectl"].parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kubectl-cache"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
