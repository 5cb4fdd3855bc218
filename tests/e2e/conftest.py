"""One cluster of real kubelets for all scenes, with the chart on it; skipped where none can be."""

import itertools
import sys
from collections.abc import Generator

import pytest

from gpujob_local.cluster.state import cluster_directory
from gpujob_local.kubelets.cluster import KubeletCluster
from gpujob_local.kubelets.commands import clean_leftovers
from gpujob_local.kubelets.options import KubeletOptions
from gpujob_local.kubelets.requirements import Machine, refusal
from tests.harness.ground import Release, Team
from tests.harness.live_attempts import LiveAttempts
from tests.harness.repository import ROOT

NAME = "e2e"
LOGS = ROOT / "build" / "e2e-logs"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kubelets(request: pytest.FixtureRequest) -> Generator[KubeletCluster]:
    """Two nodes. The logs of all parts are kept in build/e2e-logs when a scene fails."""
    if words := refusal(Machine.look()):
        pytest.skip(words)
    directory = cluster_directory(NAME)
    clean_leftovers(directory)
    with KubeletCluster.start(KubeletOptions(), directory, _say) as cluster:
        yield cluster
        if request.session.testsfailed:
            _say(f"logs are in {cluster.copy_logs(LOGS)}")


def _say(text: str) -> None:
    sys.__stderr__.write(f"e2e: {text}\n") if sys.__stderr__ else None


@pytest.fixture(scope="session")
def release(kubelets: KubeletCluster) -> Release:
    return Release.install(kubelets)


@pytest.fixture
def team(release: Release) -> Generator[Team]:
    """A namespace of its own, removed afterwards with everything in it."""
    made = Team(release.cluster, f"team-{next(_numbers)}")
    made.create()
    yield made
    made.remove()


@pytest.fixture(scope="session")
def live(kubelets: KubeletCluster) -> Generator[LiveAttempts]:
    """Looks at the nodes' processes all the time."""
    with LiveAttempts(node.plan.cgroup for node in kubelets.nodes.values()) as watching:
        yield watching
