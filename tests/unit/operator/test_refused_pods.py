"""Refused pods reach the next snapshot, with the API server's words, until they are there."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_operator.act.trials import REFUSALS_MAX, Refusals
from gpujob_operator.client.api_errors import ApiError, Forbidden, Refused, Throttled, Unavailable
from gpujob_operator.cycle import snapshot_from_json, snapshot_to_json
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import RefusedPod, Snapshot
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import after, make_job, placed, with_status
from tests.harness.executor_bench import ExecutorBench, create_item
from tests.harness.manifests import pod_manifest

QUOTA = Forbidden(403, "Forbidden", "exceeded quota: compute")


@pytest.fixture
def bench() -> ExecutorBench:
    return ExecutorBench()


def told(bench: ExecutorBench, *jobs: Any) -> list[tuple[int, str]]:
    refused = bench.executor.assume(Snapshot(jobs=jobs)).refused_pods
    return [(one.rank, one.message) for one in refused]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (QUOTA, "exceeded quota: compute"),
        (ApiError(422, "Invalid", "spec.volumes[1].name: Duplicate"), "Duplicate"),
        (Refused(500, "InternalError", "failed calling webhook x"), "failed calling webhook"),
    ],
)
async def test_a_refusal_is_told_until_the_pod_is_there(
    bench: ExecutorBench, error: ApiError, words: str
) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", error)
    await bench.run(create_item(job))
    ((rank, message),) = told(bench, job)
    assert rank == 0
    assert words in message
    bench.clock.advance(100)
    await bench.run(create_item(job))
    assert told(bench, job) == []


async def test_a_full_quota_is_told_with_what_jobs_have_of_it(bench: ExecutorBench) -> None:
    words = "exceeded quota: small, requested: pods=1, used: pods=10, limited: pods=10"
    bench.requests_of_jobs = [PodRequests()] * 3
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", words))
    job = bench.job()
    await bench.run(create_item(job))
    ((_, message),) = told(bench, job)
    assert message.endswith("; ResourceQuota small: pods 10 of 10 used (3 by pods of GPUJobs)")


@pytest.mark.parametrize("error", [Throttled("later", 1.0), Unavailable(503, "x", "y")])
async def test_what_is_no_answer_is_no_refusal(bench: ExecutorBench, error: ApiError) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", error, times=4)
    await bench.run(create_item(job))
    assert told(bench, job) == []


async def test_a_template_that_no_pod_can_be_made_of_is_told(bench: ExecutorBench) -> None:
    job = bench.job()
    template = {"spec": {**job.spec.template["spec"], "affinity": "x"}}
    odd = replace(job, spec=replace(job.spec, template=template))
    await bench.run(create_item(odd))
    ((_, message),) = told(bench, job)
    assert message.startswith("no pod can be made of spec.template: ")


async def test_a_refusal_of_an_attempt_that_is_over_is_forgotten(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", QUOTA)
    await bench.run(create_item(job))
    assert told(bench, with_status(job, attempt=2)) == []
    assert told(bench, job) == []


def test_refusals_are_bounded() -> None:
    refusals, job = Refusals(), placed(make_job())
    for rank in range(REFUSALS_MAX + 1):
        refusals.refused(create_item(job, rank), "x" * 5000)
    found = refusals.tell(Snapshot(jobs=(job,))).refused_pods
    assert (len(found), found[0].rank, len(found[0].message)) == (REFUSALS_MAX, 1, 512)


def test_a_dumped_cycle_keeps_them() -> None:
    snapshot = Snapshot(refused_pods=(RefusedPod("uid", 1, 0, "exceeded quota"),))
    assert snapshot_from_json(snapshot_to_json(snapshot)) == snapshot


# -- what a pod says of its start


def started(sandbox: str | None, worker: dict[str, Any], *init: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:03Z"}
    ]
    if sandbox is not None:
        conditions.append({"type": "PodReadyToStartContainers", "status": sandbox})
    return {
        "phase": "Pending",
        "conditions": conditions,
        "containerStatuses": [{"name": "worker", "state": worker}],
        "initContainerStatuses": [{"name": f"i{n}", "state": one} for n, one in enumerate(init)],
    }


CREATING = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:09Z"}}
DONE = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:07Z"}}
FAILING = {"waiting": {"reason": "ImagePullBackOff"}}
CRASHING = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize("node", [None, "", "n0", 7])
def test_whether_kube_scheduler_preempts_others_for_a_pod(node: Any) -> None:
    view = pod_view({**pod_manifest(make_job()), "status": {"nominatedNodeName": node}})
    assert view.preempts is (node == "n0")


@pytest.mark.parametrize(
    ("status", "ready", "pulls"),
    [
        (started("True", CREATING), True, True),
        (started("False", CREATING), False, False),
        (started(None, CREATING), True, False),
        (started("True", INITIALIZING, INITIALIZING), True, True),
        (started("True", INITIALIZING, RUNNING), True, False),
        (started("True", INITIALIZING, DONE), True, True),
        (started("True", INITIALIZING, CREATING), True, True),
        (started("True", INITIALIZING, CRASHING), True, False),
        (started("True", FAILING), True, False),
        (started("True", RUNNING), True, False),
    ],
)
def test_what_a_pod_waits_for(status: dict[str, Any], ready: bool, pulls: bool) -> None:
    view = pod_view({**pod_manifest(make_job()), "status": status})
    assert (view.sandbox_ready, view.pulls_images) == (ready, pulls)
    assert view.scheduled_since == after(3)


def test_when_a_pod_last_got_on() -> None:
    last = [
        pod_view({**pod_manifest(make_job()), "status": started("True", *states)}).last_change_at
        for states in ((CREATING,), (INITIALIZING, DONE), (RUNNING, DONE))
    ]
    assert last == [None, after(7), after(9)]
