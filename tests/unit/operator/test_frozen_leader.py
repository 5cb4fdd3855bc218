"""A leader that is frozen between its question whether it leads and the request: what the request
does when it arrives after another leader has gone on."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.kube import JOBS, PODS
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, WriteStatus
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.planner import plan
from gpujob_operator.port.reports import is_given_up
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import after, make_job, make_snapshot, placed, with_status
from tests.harness.executor_bench import ExecutorBench, create_item, status_item
from tests.harness.fake_kube import Call
from tests.harness.manifests import job_manifest

pytestmark = pytest.mark.promise("I3")

GIVEN_UP = {"phase": JobPhase.PENDING, "placement": None, "reservation": None}
RETRIED = {"attempt": 2}


def go_on_without(bench: ExecutorBench, job: GPUJob) -> None:
    """Right before the next request another leader takes over and writes this job."""

    def freeze(call: Call) -> None:
        bench.kube.before = lambda _: None
        bench.leads = False
        bench.kube.put(JOBS, job_manifest(job))

    bench.kube.before = freeze


async def late_pod(bench: ExecutorBench, job: GPUJob, now: GPUJob) -> PodView:
    go_on_without(bench, now)
    assert await bench.run(create_item(job)) == {WriteResult.DONE: 1}
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    assert pod is not None
    return replace(pod, node="n0")


@pytest.mark.parametrize("status", [GIVEN_UP, RETRIED], ids=["given up", "retried"])
async def test_a_pod_that_comes_late_neither_begins_nor_stays(status: dict[str, object]) -> None:
    """I1, I3: its worker is told that the attempt is over, it is deleted, and until it is gone
    nothing is placed on its GPU."""
    bench = ExecutorBench()
    job = bench.job()
    now = with_status(job, **status)
    pod = await late_pod(bench, job, now)
    assert is_given_up(now, pod)
    waiting = make_job("waiting", created=1)
    decided = plan(make_snapshot(now, waiting, pods=[pod]), after(1)).items
    assert [item.pod.uid for item in decided if isinstance(item, DeletePod)] == [pod.uid]
    assert not any(isinstance(item, CreatePod) and item.job.status.attempt == 1 for item in decided)
    placed_now = [
        item.job.metadata.name
        for item in decided
        if isinstance(item, WriteStatus) and item.status.phase is JobPhase.STARTING
    ]
    assert "waiting" not in placed_now


async def test_a_status_that_comes_late_is_refused() -> None:
    bench = ExecutorBench()
    job = bench.job()
    go_on_without(bench, with_status(job, **RETRIED))
    assert await bench.run(status_item(job)) == {WriteResult.CONFLICT: 1}
    stored = bench.kube.stored(JOBS, "job", "team")
    assert stored["status"]["attempt"] == 2


async def test_a_pod_of_the_current_attempt_may_begin() -> None:
    job = placed(make_job())
    bench = ExecutorBench()
    stored = bench.job()
    await bench.run(create_item(stored))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    assert pod is not None
    assert not is_given_up(job, pod)
