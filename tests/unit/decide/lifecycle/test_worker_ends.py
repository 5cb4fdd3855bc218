"""The end of the container `worker` is the end of a worker, whatever other containers do; and what
is said of a job at its end."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.meta import ConditionStatus
from gpujob_api.optimize import Optimize
from gpujob_api.report import FailureClass
from gpujob_api.settings import OptimizeMode
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_pods,
    make_report,
    make_snapshot,
    placed,
    running,
    statuses,
    with_status,
)
from tests.harness.world import World

TWO = (("n0", ("GPU-0",)), ("n0", ("GPU-1",)))
GPUS = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]


def beside(job: GPUJob, exit_code: int, rank: int = 0) -> PodView:
    """A pod whose worker has ended while another container goes on."""
    pod = make_pod(job, rank, exit_code=exit_code, finished_at=after(9))
    return replace(pod, phase=PodPhase.RUNNING)


def decided(*jobs: GPUJob, pods: tuple[PodView, ...] = (), at: float = 10.0) -> Plan:
    node = make_gpu_node("n0", *GPUS, at=at)
    return plan(make_snapshot(*jobs, pods=pods, gpu_nodes=[node]), after(at))


def said(job: GPUJob, found: Plan) -> GPUJob:
    return replace(job, status=statuses(found.items)[job.metadata.name])


def deletes(found: Plan) -> list[str]:
    return [item.pod.name for item in found.items if isinstance(item, DeletePod)]


def value(job: GPUJob, kind: str) -> ConditionStatus | None:
    found = conditions.find(job.status, kind)
    return found.status if found is not None else None


@pytest.mark.promise("I5")
def test_a_worker_that_is_done_is_done_and_its_pod_goes() -> None:
    """I5. First the end is durable, then the pod that tells of it is deleted."""
    job = running(make_job(hang_seconds=600))
    pods = (beside(job, 0),)
    first = decided(job, pods=pods)
    assert deletes(first) == []
    done = said(job, first)
    assert done.status.phase is JobPhase.SUCCEEDED
    then = decided(done, pods=pods, at=11)
    assert deletes(then) == ["job-1-0"]
    assert statuses(then.items) == {}
    gone = decided(done, at=700)
    assert (deletes(gone), statuses(gone.items)) == ([], {})


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.UNKNOWN])
def test_it_is_done_whatever_the_pod_says(phase: PodPhase) -> None:
    job = placed(make_job())
    pod = replace(beside(job, 0), phase=phase)
    assert said(job, decided(job, pods=(pod,))).status.phase is JobPhase.SUCCEEDED


@pytest.mark.promise("I1")
def test_its_gpus_are_held_until_the_pod_is_gone() -> None:
    """I1."""
    job = running(make_job(), ("n0", ("GPU-0",)))
    pods = (beside(job, 0),)
    done = said(job, decided(job, pods=pods))
    taken = make_job("wants-two", gpus_per_worker=2)
    waits = statuses(decided(done, taken, pods=pods, at=11).items)
    assert waits["wants-two"].phase is JobPhase.PENDING
    finished = (replace(pods[0], phase=PodPhase.SUCCEEDED),)
    for left in (finished, ()):
        starts = statuses(decided(done, taken, pods=left, at=12).items)
        assert starts["wants-two"].phase is JobPhase.STARTING


def test_a_worker_that_failed_beside_another_container_is_a_failure() -> None:
    """With its own words: what is deleted afterwards takes nothing of them away."""
    job = running(make_job())
    words = make_report(step=0, failure=FailureClass.USER_ERROR, message="NameError: x")
    pod = replace(beside(job, 1), termination=words)
    failed = said(job, decided(job, pods=(pod,)))
    assert failed.status.phase is JobPhase.FAILED
    assert deletes(decided(failed, pods=(pod,), at=11)) == ["job-1-0"]


def test_the_next_attempt_waits_until_the_last_ones_pod_is_gone() -> None:
    """I3."""
    job = running(make_job())
    pods = (beside(job, 143),)
    again = said(job, decided(job, pods=pods))
    assert again.status.phase is JobPhase.PENDING
    waits = decided(again, pods=pods, at=60)
    assert deletes(waits) == ["job-1-0"]
    assert not any(isinstance(item, CreatePod) for item in waits.items)
    assert said(again, waits).status.phase is JobPhase.PENDING


def test_a_gang_ends_with_the_last_of_its_workers() -> None:
    job = running(make_job(workers=2), *TWO)
    one = (beside(job, 0, 0), make_pod(job, 1))
    assert deletes(decided(job, pods=one)) == []
    assert said(job, decided(job, pods=one)).status.phase is JobPhase.RUNNING
    both = (beside(job, 0, 0), beside(job, 0, 1))
    assert said(job, decided(job, pods=both)).status.phase is JobPhase.SUCCEEDED


def test_who_stops_a_gang_leaves_the_words_of_who_fell() -> None:
    """The pod of the worker that failed stays until the attempt was judged."""
    job = running(make_job(workers=2), *TWO)
    pods = (beside(job, 1, 0), make_pod(job, 1))
    stopping = said(job, decided(job, pods=pods))
    assert stopping.status.stop is not None
    assert stopping.status.stop.reason == "WorkerEnded"
    assert deletes(decided(stopping, pods=pods, at=11)) == ["job-1-1"]
    ended = (pods[0], make_pod(job, 1, exit_code=143))
    assert said(stopping, decided(stopping, pods=ended, at=12)).status.counters.errors == 1


@pytest.mark.parametrize("code", [1, 2, 7, 134, 137, 143, 144])
def test_whatever_code_a_worker_falls_with_its_gang_is_stopped(code: int) -> None:
    job = running(make_job(workers=2), *TWO)
    stopping = said(job, decided(job, pods=(beside(job, code, 0), make_pod(job, 1))))
    assert stopping.status.stop is not None
    assert stopping.status.stop.reason == "WorkerEnded"


def test_a_gang_that_lost_a_worker_that_it_never_knew_is_stopped() -> None:
    """No UID of its pod is in the status, as where it went before that was written."""
    job = running(make_job(workers=2), *TWO)
    placement = job.status.placement
    assert placement is not None
    workers = tuple(replace(worker, pod_uid=None) for worker in placement.workers)
    job = with_status(job, placement=replace(placement, workers=workers))
    stopping = said(job, decided(job, pods=(make_pod(job, 0),)))
    assert stopping.status.stop is not None
    assert stopping.status.stop.reason == "WorkerLost"
    assert stopping.status.stop.message == "1 of 2 workers are left"


# -- conditions


def test_a_job_that_succeeded_is_finished() -> None:
    job = running(make_job())
    done = said(job, decided(job, pods=(make_pod(job, exit_code=0),)))
    assert value(done, "Finished") is ConditionStatus.TRUE
    assert value(done, "Succeeded") is ConditionStatus.TRUE
    assert value(done, "Failed") is None


def test_a_job_that_failed_is_finished_and_says_so() -> None:
    job = running(make_job(retries=0))
    failed = said(job, decided(job, pods=(make_pod(job, exit_code=1),)))
    assert value(failed, "Finished") is ConditionStatus.TRUE
    assert value(failed, "Succeeded") is ConditionStatus.FALSE
    assert value(failed, "Failed") is ConditionStatus.TRUE
    reasons = [conditions.find(failed.status, kind) for kind in ("Succeeded", "Failed")]
    assert len({(one.reason, one.message) for one in reasons if one is not None}) == 1


@pytest.mark.parametrize(
    ("exit_code", "saying"), [(0, ["Succeeded"]), (1, ["Failed", "Succeeded"])]
)
def test_how_a_job_ended_is_said_where_it_is_looked_for(exit_code: int, saying: list[str]) -> None:
    """And nowhere else: thousands of finished jobs are stored."""
    job = running(make_job(retries=0, optimize=Optimize(mode=OptimizeMode.OFF)))
    ended = said(job, decided(job, pods=(make_pod(job, exit_code=exit_code),)))
    telling = [one.type for one in ended.status.conditions if one.message]
    assert telling == ["Accepted", *saying]
    assert value(ended, "Running") is ConditionStatus.FALSE
    how = conditions.find(ended.status, "Succeeded")
    assert how is not None
    assert ended.status.summary.reason == f"{how.reason}: {how.message}"


def test_who_is_tried_again_has_neither_failed_nor_finished() -> None:
    job = running(make_job())
    again = said(job, decided(job, pods=(make_pod(job, exit_code=1),)))
    assert again.status.phase is JobPhase.PENDING
    assert (value(again, "Failed"), value(again, "Finished")) == (None, None)


def test_a_suspended_job_is_once_nothing_of_it_runs() -> None:
    world = World(make_job("a"))
    world.tick()

    def suspended() -> ConditionStatus | None:
        return value(world.job("a"), "Suspended")

    def suspend(*, now: bool) -> None:
        job = world.job("a")
        metadata = replace(job.metadata, generation=job.metadata.generation + 1)
        spec = replace(job.spec, suspend=now)
        world.snapshot = replace(world.snapshot, jobs=(replace(job, metadata=metadata, spec=spec),))

    assert suspended() is None
    world.stubborn.add("a")
    suspend(now=True)
    world.tick()
    assert (world.phase("a"), suspended()) == (JobPhase.STOPPING, None)
    world.stubborn.clear()
    world.tick()
    world.tick()
    assert (world.phase("a"), suspended()) == (JobPhase.PENDING, ConditionStatus.TRUE)
    suspend(now=False)
    world.tick(20)
    assert (world.phase("a"), suspended()) == (JobPhase.RUNNING, ConditionStatus.FALSE)


def test_all_pods_of_a_gang_are_needed_to_succeed() -> None:
    job = running(make_job(workers=2), *TWO)
    ended = make_pods(job, exit_code=0)
    assert said(job, decided(job, pods=ended)).status.phase is JobPhase.SUCCEEDED
    assert said(job, decided(job, pods=ended[:1])).status.phase is JobPhase.PENDING
