"""I5: a node that loses its label is still there. Its jobs go on and end as elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.meta import LABEL_MANAGED, TAINT_RECLAIM
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import NODES, Kube
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import NodeView, Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.watch.watches import NODES_WATCHED, Watch
from gpujob_operator.supervision import background
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import after, make_job, placed, running, statuses, with_status
from tests.harness.clocks import FakeClock
from tests.harness.http_api import HttpApi
from tests.harness.manifests import (
    Manifest,
    gpu_node_manifest,
    job_manifest,
    node_manifest,
    pod_manifest,
)
from tests.harness.waiting import eventually

pytestmark = pytest.mark.promise("I5")

JOB = running(make_job())
DONE = {"terminated": {"exitCode": 0}}


def unlabelled(
    name: str = "n0", version: int = 2, value: str | None = None, **fields: Any
) -> Manifest:
    manifest = node_manifest(name, version=version, **fields)
    labels = manifest["metadata"]["labels"]
    del labels[LABEL_MANAGED]
    manifest["metadata"]["labels"] = labels | ({LABEL_MANAGED: value} if value else {})
    return manifest


def cache_of(*nodes: Manifest, job: GPUJob = JOB, pod: Manifest | None = None) -> Cache:
    """As a new leader lists: nodes first, pods last."""
    cache = Cache(Dirty(), Metrics(), FakeClock().now)
    listed: dict[Kind, list[Manifest]] = {
        Kind.NODE: list(nodes),
        Kind.GPU_NODE: [gpu_node_manifest("n0")],
        Kind.JOB: [job_manifest(job)],
        Kind.POD: [pod or pod_manifest(job)],
    }
    for kind in Kind:
        cache.resync(kind, listed.get(kind, []), "1")
    return cache


def snapshot(cache: Cache) -> Snapshot:
    return cache.snapshot((), Configuration())


def nodes(cache: Cache) -> dict[str, NodeView]:
    return {node.name: node for node in snapshot(cache).nodes}


def by_event(value: str | None) -> Cache:
    cache = cache_of(node_manifest())
    cache.apply(Kind.NODE, "MODIFIED", unlabelled(value=value))
    return cache


def by_list(value: str | None) -> Cache:
    cache = cache_of(node_manifest())
    cache.resync(Kind.NODE, [unlabelled(value=value)], "2")
    return cache


def by_restart(value: str | None) -> Cache:
    return cache_of(unlabelled(value=value))


@pytest.mark.parametrize("value", [None, "false"])
@pytest.mark.parametrize("seen", [by_event, by_list, by_restart])
def test_a_job_that_ends_on_a_node_without_the_label_is_done(
    seen: Callable[[str | None], Cache], value: str | None
) -> None:
    """`kubectl label node n0 gpujob.dev/managed-` while it runs."""
    cache = seen(value)
    assert nodes(cache)["n0"].managed is False
    cache.apply(Kind.POD, "MODIFIED", pod_manifest(JOB, phase="Succeeded", state=DONE, version=9))
    status = statuses(plan(snapshot(cache), after(60)).items)["job"]
    assert (status.phase, status.attempt) == (JobPhase.SUCCEEDED, 1)


def test_a_job_starts_on_a_node_that_has_just_lost_its_label() -> None:
    cache = cache_of(unlabelled(), job=placed(make_job()), pod=pod_manifest(placed(make_job())))
    found = statuses(plan(snapshot(cache), after(60)).items)
    assert found["job"].phase is JobPhase.RUNNING
    assert found["job"].stop is None


def test_a_node_that_is_deleted_is_gone_with_and_without_the_label() -> None:
    for last in (node_manifest(version=3), unlabelled(version=3)):
        cache = by_event(None)
        cache.apply(Kind.NODE, "DELETED", last)
        assert nodes(cache) == {}
        assert not cache.has_node("n0")


def test_what_becomes_of_the_node_is_followed() -> None:
    cache = by_event(None)
    taint = {"key": TAINT_RECLAIM, "effect": "NoSchedule", "value": "1"}
    cache.apply(Kind.NODE, "MODIFIED", unlabelled(version=3, taints=[taint]))
    assert [one.key for one in nodes(cache)["n0"].taints] == [TAINT_RECLAIM]
    stop = statuses(plan(snapshot(cache), after(60)).items)["job"].stop
    assert isinstance(stop, StopReason)
    assert stop.reason == "NodeReclaimed"
    cache.apply(Kind.NODE, "MODIFIED", node_manifest(version=4))
    assert nodes(cache)["n0"].managed


def test_a_node_without_the_label_counts_for_as_long_as_attempts_are_on_it() -> None:
    cache = cache_of(unlabelled("n0"), unlabelled("n1"), node_manifest("n2"))
    assert nodes(cache).keys() == {"n0", "n2"}
    assert [cache.has_node(name) for name in ("n0", "n1", "n2")] == [True, False, True]
    ended = with_status(JOB, phase=JobPhase.SUCCEEDED)
    cache.apply(Kind.JOB, "MODIFIED", job_manifest(ended, version=5))
    assert nodes(cache).keys() == {"n2"}


def test_two_jobs_of_a_node_leave_it_one_after_the_other() -> None:
    cache = cache_of(unlabelled())
    other = running(make_job("other"))
    cache.apply(Kind.JOB, "ADDED", job_manifest(other, version=4))
    cache.apply(Kind.JOB, "DELETED", job_manifest(JOB, version=5))
    assert nodes(cache).keys() == {"n0"}
    waits = with_status(other, phase=JobPhase.PENDING, placement=None)
    cache.apply(Kind.JOB, "MODIFIED", job_manifest(waits, version=6))
    assert nodes(cache) == {}


def test_nothing_is_decided_anew_for_nodes_of_others() -> None:
    """Most nodes of a cluster may be some."""
    dirty = Dirty()
    cache = Cache(dirty, Metrics(), FakeClock().now)
    dirty.take()
    cache.apply(Kind.NODE, "ADDED", unlabelled("n1", version=1))
    cache.apply(Kind.NODE, "MODIFIED", unlabelled("n1", version=2, unschedulable=True))
    cache.apply(Kind.POD, "ADDED", pod_manifest(name="other", node="n1"))
    cache.apply(Kind.NODE, "DELETED", unlabelled("n1", version=3))
    assert dirty.take() == 0
    for version, manifest in enumerate((node_manifest("n1"), unlabelled("n1")), 4):
        manifest["metadata"] |= {"resourceVersion": str(version), "uid": "another"}
        cache.apply(Kind.NODE, "MODIFIED", manifest)
        assert dirty.take() == 1


def test_no_spot_node_was_reclaimed() -> None:
    labels = {"gpujob.dev/spot": "true"}
    cache = cache_of(node_manifest(labels=labels))
    cache.apply(Kind.NODE, "MODIFIED", unlabelled(labels=labels))
    cache.apply(Kind.NODE, "DELETED", unlabelled(version=3, labels=labels))
    assert [pool.interruptions for pool in cache.spot.pools()] == [0]


async def test_nodes_are_watched_whatever_their_labels(tmp_path: Path) -> None:
    """A watch that selects by label reports a node that loses the label as deleted, or not."""
    cache = cache_of()
    with HttpApi().running() as api:
        api.put(NODES, node_manifest())
        kube = Kube(await load_configuration(str(api.write_kubeconfig(tmp_path / "kubeconfig"))))
        watch = Watch(kube, cache, Metrics(), NODES_WATCHED)
        async with background(watch.run()):
            await eventually(lambda: api.watches(NODES) == 1)
            assert nodes(cache)["n0"].managed
            api.put(NODES, unlabelled())
            await eventually(lambda: not nodes(cache)["n0"].managed)
        await kube.close()
