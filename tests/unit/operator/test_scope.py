"""An operator that was given namespaces manages the jobs there, and touches nothing of others."""

from typing import Any

import pytest

from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import DeletePod
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.scope import EVERYWHERE, Scope
from gpujob_operator.options import parse_arguments
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.clocks import START, FakeClock

OURS, THEIRS = "team-a", "team-b"


def job(namespace: str, version: int = 1) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker", "image": "i"}]}}
    metadata = {
        "name": "job",
        "namespace": namespace,
        "uid": f"job-{namespace}",
        "resourceVersion": str(version),
    }
    return {"kind": "GPUJob", "metadata": metadata, "spec": {"template": template}}


def worker(namespace: str) -> dict[str, Any]:
    """A worker's pod whose job is gone, for all that this operator knows."""
    owner = {"kind": "GPUJob", "name": "job", "uid": f"job-{namespace}", "controller": True}
    owner["apiVersion"] = "gpujob.dev/v1alpha1"
    requests = {"requests": {"cpu": "3", "memory": "1Gi"}}
    metadata = {"name": "job-1-0", "namespace": namespace, "uid": f"pod-{namespace}"}
    return {
        "metadata": {**metadata, "resourceVersion": "3", "ownerReferences": [owner]},
        "spec": {"nodeName": "n0", "containers": [{"name": "worker", "resources": requests}]},
        "status": {"phase": "Running"},
    }


def node() -> dict[str, Any]:
    labels = {"gpujob.dev/managed": "true"}
    return {
        "metadata": {"name": "n0", "uid": "n0", "resourceVersion": "1", "labels": labels},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}},
    }


@pytest.fixture
def cache() -> Cache:
    return made(Scope(frozenset({OURS})))


def made(scope: Scope) -> Cache:
    found = Cache(Dirty(), Metrics(), FakeClock().now, scope)
    for kind in Kind:
        found.resync(kind, [], "0")
    return found


def snapshot(cache: Cache) -> Snapshot:
    return cache.snapshot((), Configuration())


def test_jobs_of_other_namespaces_are_not_seen(cache: Cache) -> None:
    assert cache.apply(Kind.JOB, "ADDED", job(OURS))
    assert not cache.apply(Kind.JOB, "ADDED", job(THEIRS))
    assert [found.metadata.namespace for found in snapshot(cache).jobs] == [OURS]


def test_a_full_list_is_no_news_of_other_namespaces(cache: Cache) -> None:
    """Else every list would say that events were missed, and kopf would be started again."""
    listed = [job(OURS), job(THEIRS)]
    cache.resync(Kind.JOB, listed, "9")
    assert [found.metadata.namespace for found in snapshot(cache).jobs] == [OURS]
    assert not cache.lacks(Kind.JOB, listed, "9")
    assert cache.lacks(Kind.JOB, [job(OURS, 12), job(THEIRS)], "12")


def test_workers_of_other_namespaces_use_their_node_and_are_left_alone(cache: Cache) -> None:
    """Their jobs are not known here, which does not make them orphans."""
    cache.apply(Kind.NODE, "ADDED", node())
    for namespace in (OURS, THEIRS):
        cache.apply(Kind.POD, "ADDED", worker(namespace))
    seen = snapshot(cache)
    assert [pod.namespace for pod in seen.pods] == [OURS]
    (found,) = seen.nodes
    assert found.cpu_milli_free == 8000 - 2 * 3000
    deleted = [
        item.pod.namespace for item in plan(seen, START).items if isinstance(item, DeletePod)
    ]
    assert deleted == [OURS]


def test_without_namespaces_all_are_managed() -> None:
    cache = made(EVERYWHERE)
    for namespace in (OURS, THEIRS):
        assert cache.apply(Kind.JOB, "ADDED", job(namespace))
    assert len(snapshot(cache).jobs) == 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", frozenset[str]()),
        ("a", {"a"}),
        ("a, b-1,,a", {"a", "b-1"}),
    ],
)
def test_the_option_is_a_list(text: str, names: set[str]) -> None:
    assert parse_arguments(["run", "--watch-namespaces", text]).watch_namespaces == names


@pytest.mark.parametrize("text", ["Team", "a b", "-a", "a" * 64])
def test_a_name_that_no_namespace_has_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["run", f"--watch-namespaces={text}"])
    assert "is not a name of a namespace" in capsys.readouterr().err
