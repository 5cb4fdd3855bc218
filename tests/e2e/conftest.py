"""One cluster of real kubelets for all scenes, with the chart on it; skipped where none can be."""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from gpujob_local.cluster.state import StateError, cluster_directory, state_root
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.kubelets.cluster import KubeletCluster
from gpujob_local.kubelets.commands import end
from gpujob_local.kubelets.options import KubeletOptions
from gpujob_local.kubelets.requirements import Machine, refusal
from tests.harness.audit import AuditTrail
from tests.harness.ground import Team
from tests.harness.live_attempts import LiveAttempts
from tests.harness.release import Release
from tests.harness.repository import ROOT

# Several checkouts may play at a time: each session has a cluster of its own.
PREFIX = "e2e"
NAME = f"{PREFIX}-{os.getpid()}"
LOGS = ROOT / "build" / "e2e-logs"
_numbers = itertools.count(1)
_began = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--begin-within",
        type=float,
        metavar="SECONDS",
        help="scenes that would begin later than so many seconds after the session are not played",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What was begun is ended: every scene has a limit of its own."""
    seconds = item.config.getoption("--begin-within", default=None)
    if seconds is not None and time.monotonic() - _began > seconds:
        pytest.skip(f"NOT PLAYED: {seconds:.0f} s were over before it began")


@pytest.fixture(scope="session")
def kubelets(request: pytest.FixtureRequest) -> Generator[KubeletCluster]:
    """Two nodes. The logs of all parts are kept in build/e2e-logs when a scene fails."""
    if words := refusal(Machine.look()):
        pytest.skip(words)
    _remove_crashed()
    options = KubeletOptions(control_plane=ControlPlaneOptions(audit=True))
    with KubeletCluster.start(options, cluster_directory(NAME), _say) as cluster:
        yield cluster
        if request.session.testsfailed:
            _say(f"logs are in {cluster.copy_logs(LOGS)}")


def _remove_crashed() -> None:
    """Clusters of sessions that are gone: their names end with the process that they belong to."""
    for path in state_root().glob(f"{PREFIX}-*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            with contextlib.suppress(StateError):
                end(path)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """A session that is interrupted ends its workers before their clusters are removed."""
    if os.getuid() == 0:
        _remove_crashed()


def _say(text: str) -> None:
    sys.__stderr__.write(f"e2e: {text}\n") if sys.__stderr__ else None


@pytest.fixture(scope="session")
def release(kubelets: KubeletCluster) -> Release:
    return Release.install(kubelets)


@pytest.fixture(scope="session")
def audit(kubelets: KubeletCluster) -> AuditTrail:
    return AuditTrail(kubelets.control_plane.audit_log)


@pytest.fixture
def team(release: Release, audit: AuditTrail) -> Generator[Team]:
    """A namespace of its own, removed afterwards with everything in it.

    Nothing that the operator or an agent asked for meanwhile may have been denied to it.
    """
    made = Team(release.cluster, f"team-{next(_numbers)}")
    made.create()
    yield made
    made.remove()
    assert audit.denied() == []


@pytest.fixture(scope="session")
def live(kubelets: KubeletCluster) -> Generator[LiveAttempts]:
    """Looks at the nodes' processes all the time."""
    with LiveAttempts(node.plan.cgroup for node in kubelets.nodes.values()) as watching:
        yield watching
