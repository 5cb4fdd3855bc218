"""The API server goes away and comes back: the operator stays, and catches up by itself."""

from collections.abc import Generator
from pathlib import Path

import pytest

from gpujob_local.control_plane import ControlPlaneOptions
from tests.harness.cluster import running_control_plane
from tests.harness.operator_process import account_kubeconfig
from tests.harness.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def stage(tmp_path: Path) -> Generator[Stage]:
    """A stage whose API server may be stopped: nobody else's."""
    with running_control_plane(ControlPlaneOptions(node_grace_seconds=3600)) as plane:
        stage = Stage(plane, account_kubeconfig(plane, "operator", tmp_path), tmp_path)
        stage.set_up()
        try:
            yield stage
        finally:
            stage.end_processes()


def test_an_outage_is_outlived(stage: Stage) -> None:
    """I8: streams, Lease and kopf all recover without a restart of the process."""
    plane = stage.plane.control_plane
    operator = stage.operator()
    operator.wait_for("leadership changed", leads=True)
    stage.apply_job("before")
    stage.wait(lambda: stage.pod_names() == ["before-1-0"], "the pod exists")
    plane.stop_component("kube-apiserver")
    operator.wait_for("watch broken")
    operator.wait_for("leadership changed", leads=False)
    plane.start_component("kube-apiserver")
    plane.wait_until(plane.ready, "the API server again")
    stage.run_pod("before-1-0")
    stage.wait_phase("Running", "before")
    stage.end_pod("before-1-0")
    stage.wait_phase("Succeeded", "before")
    stage.apply_job("after")
    both = ["after-1-0", "before-1-0"]
    stage.wait(lambda: stage.pod_names() == both, "the new pod exists")
    assert operator.stop() == 0
