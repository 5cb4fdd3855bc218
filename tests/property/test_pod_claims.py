"""Whatever pods say of themselves, `plan` raises nothing and no job of others fares differently."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.workers import with_pod_uids
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.snapshot import Objects, snapshot_of
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    running,
)
from tests.harness.manifests import job_manifest, node_manifest, pod_manifest
from tests.property.plan_snapshots import NOW, odd_snapshots

Manifest = dict[str, Any]
some = settings(max_examples=80)

UIDS = ("uid-job0", "uid-job1", "uid-unknown", "")
owners = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(["gpujob.dev/v1alpha1", "gpujob.dev/v1alpha1", "v1"]),
        "kind": st.sampled_from(["GPUJob", "GPUJob", "Pod"]),
        "name": st.sampled_from(["job0", "x"]),
        "uid": st.sampled_from(UIDS),
        "controller": st.sampled_from([True, True, False, None, "true"]),
    }
)
numbers = st.sampled_from(["0", "1", "2", "7", "1023", "99999", "-1", "x", "1" * 30])
labels = st.fixed_dictionaries(
    {},
    optional={
        "gpujob.dev/job": st.just("job0"),
        "gpujob.dev/job-uid": st.sampled_from(UIDS),
        "gpujob.dev/attempt": numbers,
        "gpujob.dev/rank": numbers,
    },
)
gpus = st.sampled_from(["GPU-0", "GPU-1", "GPU-0,GPU-1,GPU-2", ",,", "x" * 80])
states = st.sampled_from(
    [{"running": {}}, {"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}, {}]
)


@st.composite
def claims(draw: st.DrawFn, number: int) -> Manifest:
    """A pod of anybody that claims something."""
    base = draw(st.sampled_from(["job0", "job0", "job1", "x"]))
    attempt, rank = draw(st.sampled_from([0, 1, 2, 99_999])), draw(st.sampled_from([0, 1, 1023]))
    name = f"{base}-{attempt}-{rank}"
    metadata: Manifest = {
        "namespace": draw(st.sampled_from(["team", "attacker"])),
        "labels": draw(labels),
        "annotations": {"gpujob.dev/gpus": draw(gpus)},
        "ownerReferences": draw(st.lists(owners, max_size=2)),
    }
    if draw(st.booleans()):
        metadata["deletionTimestamp"] = "2026-01-01T00:10:00Z"
    return pod_manifest(
        name=name,
        uid=f"claim-{number}",
        node=draw(st.sampled_from([None, "n0", "n1"])),
        phase=draw(st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed"])),
        state=draw(states),
        **metadata,
    )


many = st.integers(0, 4).flatmap(lambda count: st.tuples(*(claims(n) for n in range(count))))


def picture(jobs: tuple[GPUJob, ...], pods: tuple[Manifest, ...]) -> Snapshot:
    found = snapshot_of(
        Objects(
            jobs=[job_manifest(job) for job in jobs],
            pods=pods,
            nodes=[node_manifest("n0"), node_manifest("n1")],
        ),
        Snapshot().configuration,
    )
    at = [make_gpu(f"GPU-{n}", index=n) for n in range(2)]
    nodes = make_gpu_node("n0", *at, at=5), make_gpu_node("n1", make_gpu("GPU-2"), at=5)
    return replace(found, gpu_nodes=nodes)


def victims(*, known: bool) -> tuple[tuple[GPUJob, ...], tuple[Manifest, ...]]:
    """A job that runs and one that waits, with the pods that are theirs."""
    job = running(make_job("job0"))
    if known:
        job = replace(job, status=with_pod_uids(job.status, [make_pod(job)]))
    pod = pod_manifest(job, uid=make_pod(job).uid, state={"running": {}})
    if known:
        # What the status knows needs no reference.
        del pod["metadata"]["ownerReferences"]
    return (job, make_job("job1")), (pod,)


def is_ours(pod: Manifest) -> bool:
    """Whether a controller owner reference makes it a worker, or one of a job that is gone."""
    first = next((o for o in pod["metadata"]["ownerReferences"] if o["controller"] is True), {})
    return (
        (first.get("kind"), first.get("apiVersion")) == ("GPUJob", "gpujob.dev/v1alpha1")
        and bool(first.get("uid"))
        and (pod["metadata"]["namespace"] == "team" or first["uid"] == "uid-unknown")
    )


def bland(number: int, pod: Manifest) -> Manifest:
    """The same pod without anything that it said."""
    metadata = {"name": f"bland{number}", "namespace": "attacker", "uid": pod["metadata"]["uid"]}
    return {**pod, "metadata": metadata}


@some
@given(many, st.booleans())
def test_a_claim_changes_no_plan(pods: tuple[Manifest, ...], known: bool) -> None:
    """I15: such a pod takes the room of its node that it asks for, and nothing else."""
    jobs, own = victims(known=known)
    names = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in own}
    foreign = tuple(
        pod
        for pod in pods
        if not is_ours(pod) and (pod["metadata"]["namespace"], pod["metadata"]["name"]) not in names
    )
    silent = tuple(bland(number, pod) for number, pod in enumerate(foreign))
    claimed = plan(picture(jobs, (*own, *foreign)), after(6))
    assert claimed == plan(picture(jobs, (*own, *silent)), after(6))


@pytest.mark.promise("I10")
@some
@given(odd_snapshots(), st.lists(many, min_size=2, max_size=4))
def test_claims_that_come_go_and_change_raise_nothing(
    snapshot: Snapshot, turns: list[tuple[Manifest, ...]]
) -> None:
    memory = SchedulerCache.of(snapshot)
    for number, pods in enumerate(turns):
        views = picture((), pods).pods
        seen = replace(snapshot, pods=(*snapshot.pods, *views))
        now = NOW + timedelta(seconds=number)
        assert plan(seen, now, memory).items == plan(seen, now).items
