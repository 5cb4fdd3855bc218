"""One control plane for the operator's tests: they own all nodes and jobs in it."""

from collections.abc import Generator
from pathlib import Path

import pytest

from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from tests.harness.cluster import RunningControlPlane, running_control_plane
from tests.harness.operator_process import account_kubeconfig
from tests.harness.stage import Stage


@pytest.fixture(scope="session")
def operator_plane() -> Generator[RunningControlPlane]:
    # Nobody plays the kubelet of these nodes: they must not be taken for lost.
    options = ControlPlaneOptions(node_grace_seconds=3600)
    with running_control_plane(options) as running:
        yield running


@pytest.fixture
def stage(operator_plane: RunningControlPlane, tmp_path: Path) -> Generator[Stage]:
    """A node with one GPU, a namespace for jobs, and the operator's kubeconfig."""
    kubeconfig = account_kubeconfig(operator_plane, "operator", tmp_path)
    stage = Stage(operator_plane, kubeconfig, tmp_path)
    stage.set_up()
    yield stage
    stage.tear_down()
