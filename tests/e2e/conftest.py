"""One cluster of real kubelets for all scenes, with the chart on it; skipped where none can be."""

import contextlib
import itertools
import os
import sys
from collections.abc import Generator

import pytest

from gpujob_local.cluster.state import StateError, cluster_directory, state_root
from gpujob_local.kubelets.cluster import KubeletCluster
from gpujob_local.kubelets.commands import clean_leftovers
from gpujob_local.kubelets.options import KubeletOptions
from gpujob_local.kubelets.requirements import Machine, refusal
from tests.harness.ground import Release, Team
from tests.harness.live_attempts import LiveAttempts
from tests.harness.repository import ROOT

# Several checkouts may play at a time: each session has a cluster of its own.
PREFIX = "e2e"
NAME = f"{PREFIX}-{os.getpid()}"
LOGS = ROOT / "build" / "e2e-logs"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kubelets(request: pytest.FixtureRequest) -> Generator[KubeletCluster]:
    """Two nodes. The logs of all parts are kept in build/e2e-logs when a scene fails."""
    if words := refusal(Machine.look()):
        pytest.skip(words)
    _remove_crashed()
    with KubeletCluster.start(KubeletOptions(), cluster_directory(NAME), _say) as cluster:
        yield cluster
        if request.session.testsfailed:
            _say(f"logs are in {cluster.copy_logs(LOGS)}")


def _remove_crashed() -> None:
    for path in state_root().glob(f"{PREFIX}-*"):
        with contextlib.suppress(StateError):
            clean_leftovers(path)


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
