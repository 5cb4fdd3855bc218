"""The chart as it is shipped, installed on a cluster of real kubelets."""

import pytest

from tests.harness.release import INSTALL_SECONDS_MAX, SYSTEM, Release, gpus_ready
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_it_is_ready_soon(release: Release) -> None:
    assert release.install_seconds < INSTALL_SECONDS_MAX
    (operator,) = release.operators()
    assert operator["status"]["containerStatuses"][0]["ready"]
    wait_until(lambda: bool(release.leader()), 60, "a leader")
    assert gpus_ready(release.cluster)


def test_helm_test_passes(release: Release) -> None:
    said = release.cluster.command(
        "helm", "test", "gpujob", "--namespace", SYSTEM, "--timeout=100s"
    )
    assert "Succeeded" in said
