"""A pod is a worker if it is ours, whatever it says of itself."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import PerhapsCreated, PodPhase, PodView
from gpujob_operator.decide.model.workers import is_worker_of, joined, with_pod_uids
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    NAMESPACE,
    after,
    make_gpu,
    make_job,
    make_pod,
    make_pods,
    make_snapshot,
    placed,
    running,
    statuses,
)

TWO = (("n0", ("GPU-0",)), ("n0", ("GPU-1",)))
GPUS = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]


def known(job: GPUJob, *pods: PodView) -> GPUJob:
    """The job once its status knows these pods."""
    return replace(job, status=with_pod_uids(job.status, pods))


def decided(*jobs: GPUJob, pods: tuple[PodView, ...] = (), at: float = 1.0) -> Plan:
    return plan(make_snapshot(*jobs, pods=pods, gpus=GPUS), after(at))


def deleted(found: Plan) -> list[str]:
    return [item.pod.uid for item in found.items if isinstance(item, DeletePod)]


def impostors(job: GPUJob) -> list[PodView]:
    """Of other namespaces, other names, and without the job for their controller owner."""
    real = make_pod(job, uid="impostor")
    return [
        replace(real, namespace="attacker"),
        replace(real, namespace="attacker", name="x-1-0"),
        replace(real, name="x-1-0"),
        replace(real, name="job-1-0", job_uid=""),
        replace(real, namespace="attacker", job_uid=""),
        # The job has one worker.
        replace(real, name="job-1-8", rank=8),
    ]


def test_a_pod_of_a_rank_that_the_job_never_had_keeps_no_attempt_waiting() -> None:
    """Somebody's finalizer may keep it for ever."""
    other = replace(impostors(running(make_job()))[-1], deletion_at=after(0))
    found = decided(make_job(), pods=(other,))
    assert statuses(found.items)["job"].placement is not None


def test_a_worker_has_owner_namespace_and_name() -> None:
    job = running(make_job())
    assert is_worker_of(make_pod(job), job)
    assert is_worker_of(make_pod(job, attempt=0), job)
    assert not any(is_worker_of(pod, job) for pod in impostors(job))


@pytest.mark.promise("I3")
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("exit_code", [0, 1])
def test_an_impostor_ends_no_attempt_and_is_not_deleted(number: int, exit_code: int) -> None:
    """I3, I5, I15."""
    job = running(make_job())
    pod = known(job, make_pod(job)), make_pod(job)
    phase = PodPhase.SUCCEEDED if exit_code == 0 else PodPhase.FAILED
    fake = replace(impostors(job)[number], phase=phase, exit_code=exit_code)
    assert decided(pod[0], pods=(pod[1], fake)) == decided(pod[0], pods=(pod[1],))
    live = impostors(job)[number]
    assert deleted(decided(pod[0], pods=(pod[1], live))) == []
    starting = placed(make_job())
    if fake.namespace != NAMESPACE or fake.name != "job-1-0":
        assert decided(starting, pods=(fake,)) == decided(starting)


def test_the_annotation_of_an_unmanaged_pod_closes_no_gpu() -> None:
    """I15."""
    job = make_job()
    fakes = tuple(
        replace(pod, uid=f"evil-{n}", gpus=("GPU-0", "GPU-1"), node=node)
        for n, pod in enumerate(impostors(running(job)))
        for node in ("n0", None)
    )
    assert statuses(decided(job, pods=fakes).items)["job"].phase is JobPhase.STARTING


def uids(status: GPUJobStatus) -> list[str | None]:
    assert status.placement is not None
    return [worker.pod_uid for worker in status.placement.workers]


def test_uids_are_written_once_the_pods_run() -> None:
    job = placed(make_job(workers=2), *TWO)
    # What every status has is written first.
    (status,) = statuses(decided(job).items).values()
    job = replace(job, status=status)
    waiting = make_pods(job, phase=PodPhase.PENDING)
    assert decided(job, pods=waiting[:1]).items == tuple(
        item for item in decided(job).items if isinstance(item, CreatePod) and item.rank == 1
    )
    assert decided(job, pods=waiting, at=300).items == ()
    both = make_pods(job)
    status = statuses(decided(job, pods=both).items)["job"]
    assert (status.phase, uids(status)) == (JobPhase.RUNNING, [pod.uid for pod in both])


def test_uids_are_written_with_what_keeps_a_pod_from_running() -> None:
    job = placed(make_job())
    pod = make_pod(job, phase=PodPhase.PENDING, reason="ImagePullBackOff")
    status = statuses(decided(job, pods=(pod,)).items)["job"]
    assert (status.phase, uids(status)) == (JobPhase.STARTING, [pod.uid])


def test_a_job_that_runs_already_learns_the_uids_of_its_pods() -> None:
    job = running(make_job())
    placement = statuses(decided(job, pods=make_pods(job)).items)["job"].placement
    assert placement is not None
    assert [worker.pod_uid for worker in placement.workers] == ["uid-job-1-0"]


@pytest.mark.promise("I3")
def test_a_stripped_owner_reference_changes_nothing() -> None:
    """I1, I3: the status knows the pod."""
    job = running(make_job())
    job = known(job, make_pod(job))
    stripped = make_pod(job, job_uid="")
    assert decided(job, pods=(stripped,)) == decided(job, pods=make_pods(job))
    (joint,) = joined([job], [stripped])
    assert joint.job_uid == job.metadata.uid
    ended = replace(stripped, phase=PodPhase.SUCCEEDED, exit_code=0)
    assert statuses(decided(job, pods=(ended,)).items)["job"].phase is JobPhase.SUCCEEDED


def test_who_comes_in_place_of_a_known_pod_is_no_worker() -> None:
    """I3: whoever owns it by name."""
    job = running(make_job())
    job = known(job, make_pod(job))
    other = make_pod(job, uid="another", phase=PodPhase.SUCCEEDED, exit_code=0)
    status = statuses(decided(job, pods=(other,)).items)["job"]
    assert (status.phase, status.counters.interruptions) == (JobPhase.PENDING, 1)
    live = make_pod(job, uid="another")
    assert deleted(decided(job, pods=(make_pod(job), live))) == ["another"]


@pytest.mark.promise("I3")
def test_a_known_pod_that_is_gone_is_not_created_again() -> None:
    """I3: what it ran may be there still; the next attempt is fenced off by its number."""
    job = placed(make_job(workers=2), *TWO)
    pods = make_pods(job, phase=PodPhase.PENDING)
    job = known(job, *pods)
    found = decided(job, pods=pods[:1])
    assert not any(isinstance(item, CreatePod) for item in found.items)
    stop = statuses(found.items)["job"].stop
    assert stop is not None
    assert stop.reason == "WorkerLost"
    assert statuses(decided(job).items)["job"].phase is JobPhase.PENDING


def perhaps(job: GPUJob, *ranks: int, by_another: bool = False) -> PerhapsCreated:
    return PerhapsCreated(job.metadata.uid, job.status.attempt, ranks, by_another)


def decided_with(created: PerhapsCreated, job: GPUJob, *pods: PodView) -> Plan:
    snapshot = make_snapshot(job, pods=pods, gpus=GPUS)
    return plan(replace(snapshot, perhaps_created=(created,)), after(1))


@pytest.mark.promise("I3")
def test_a_pod_that_was_created_and_is_gone_is_not_created_again() -> None:
    """I3: the status does not know it yet, but the process that created it does."""
    job = placed(make_job(workers=2), *TWO)
    pods = make_pods(job, phase=PodPhase.PENDING)
    found = decided_with(perhaps(job, 0, 1), job, *pods[1:])
    assert not any(isinstance(item, CreatePod) for item in found.items)
    stop = statuses(found.items)["job"].stop
    assert stop is not None
    assert stop.reason == "WorkerLost"
    status = statuses(decided_with(perhaps(job, 0, 1), job).items)["job"]
    assert (status.phase, status.counters.interruptions) == (JobPhase.PENDING, 1)
    others = decided_with(perhaps(job, 1), job, *pods[1:])
    assert [item.rank for item in others.items if isinstance(item, CreatePod)] == [0]


@pytest.mark.promise("I3")
def test_an_attempt_of_another_process_without_a_pod_gets_the_next_number() -> None:
    """I3: nobody knows which pods it had. It keeps its GPUs, and is no interruption."""
    job = placed(make_job(workers=2), *TWO)
    doubtful = perhaps(job, 0, 1, by_another=True)
    (item,) = decided_with(doubtful, job).items
    assert isinstance(item, WriteStatus)
    status = item.status
    assert (status.phase, status.attempt) == (JobPhase.STARTING, job.status.attempt + 1)
    assert status.placement == job.status.placement
    assert status.attempt_started_at == job.status.attempt_started_at
    assert status.counters == job.status.counters
    again = decided_with(doubtful, replace(job, status=status))
    assert {item.rank for item in again.items if isinstance(item, CreatePod)} == {0, 1}


def test_a_gang_of_another_process_that_lacks_a_pod_is_stopped() -> None:
    """I3: the missing pod may have been created, and the others of its attempt live."""
    job = placed(make_job(workers=2), *TWO)
    pods = make_pods(job, phase=PodPhase.PENDING)
    found = decided_with(perhaps(job, 0, 1, by_another=True), job, pods[0])
    assert not any(isinstance(item, CreatePod) for item in found.items)
    assert statuses(found.items)["job"].phase is JobPhase.STOPPING
    complete = decided_with(perhaps(job, 0, 1, by_another=True), job, *pods)
    assert all(status.phase is JobPhase.STARTING for status in statuses(complete.items).values())


@pytest.mark.parametrize("by_another", [False, True])
def test_a_stripped_pod_that_may_be_the_attempts_own_is_waited_for(*, by_another: bool) -> None:
    """I3: neither a second pod nor another attempt, while it may run."""
    job = placed(make_job())
    stripped = make_pod(job, job_uid="")
    found = decided_with(perhaps(job, 0, by_another=by_another), job, stripped)
    (item,) = found.items
    assert isinstance(item, WriteStatus)
    assert item.status.attempt == job.status.attempt
    assert running_reason(replace(job, status=item.status))[0] == "PodNameTaken"


def running_reason(job: GPUJob) -> tuple[str, str]:
    found = conditions.find(job.status, conditions.RUNNING)
    assert found is not None
    return found.reason, found.message


def test_a_pod_in_the_way_is_said_and_not_created_over() -> None:
    job = placed(make_job())
    taken = make_pod(job, job_uid="uid-of-another")
    found = decided(job, pods=(taken,))
    assert not any(isinstance(item, CreatePod) for item in found.items)
    said = replace(job, status=statuses(found.items)["job"])
    reason, message = running_reason(said)
    assert reason == "PodNameTaken"
    assert "team/job-1-0" in message
    assert "job" not in statuses(decided(said, pods=(taken,)).items)
    late = statuses(decided(said, pods=(taken,), at=700).items)["job"].stop
    assert late is not None
    assert "team/job-1-0" in late.message


def test_what_may_be_the_attempts_own_pod_keeps_its_gpus() -> None:
    """I1, I3: its owner reference was stripped before its UID was seen, and it may run."""
    job = placed(make_job())
    stripped = make_pod(job, job_uid="")
    found = decided(job, pods=(stripped,))
    assert not any(isinstance(item, CreatePod | DeletePod) for item in found.items)
    said = replace(job, status=statuses(found.items)["job"])
    assert running_reason(said)[0] == "PodNameTaken"
    assert decided(said, pods=(stripped,), at=700).items == ()
    suspended = replace(said, spec=replace(said.spec, suspend=True))
    stopping = replace(said, status=statuses(decided(suspended, pods=(stripped,)).items)["job"])
    stays = statuses(decided(stopping, pods=(stripped,), at=900).items)["job"]
    assert (stays.phase, stays.placement) == (JobPhase.STOPPING, job.status.placement)
    ended = replace(stripped, phase=PodPhase.SUCCEEDED, exit_code=0)
    assert statuses(decided(stopping, pods=(ended,)).items)["job"].phase is JobPhase.PENDING
    assert statuses(decided(said, pods=(ended,), at=700).items)["job"].stop is not None


@pytest.mark.parametrize("rank", [1, 7, 1023])
def test_a_rank_without_a_place_counts_for_nothing(rank: int) -> None:
    job = running(make_job())
    extra = replace(make_pod(job), name=f"job-1-{rank}", rank=rank, uid="extra", gpus=())
    done = replace(extra, phase=PodPhase.SUCCEEDED, exit_code=0)
    assert deleted(decided(job, pods=(make_pod(job), extra))) == []
    pods = (make_pod(job), done)
    assert statuses(decided(job, pods=pods).items)["job"].phase is JobPhase.RUNNING


def test_two_pods_of_one_rank_do_not_make_a_gang_complete() -> None:
    job = running(make_job(workers=2), *TWO)
    twice = tuple(make_pod(job, 0, uid=uid, exit_code=0) for uid in ("a", "b"))
    assert statuses(decided(job, pods=twice).items)["job"].phase is JobPhase.PENDING


# -- pods of ended attempts and of jobs that are gone


def blocked(*jobs: GPUJob, pods: tuple[PodView, ...]) -> bool:
    """Whether a job that asks for one whole GPU of n0 finds none."""
    waiting = make_job("waiting")
    snapshot = make_snapshot(*jobs, waiting, pods=pods, gpus=[make_gpu("GPU-0")])
    return statuses(plan(snapshot, after(1)).items)["waiting"].phase is JobPhase.PENDING


@pytest.mark.promise("I1")
def test_a_pod_of_an_ended_attempt_holds_its_gpu_until_it_is_gone() -> None:
    """I1."""
    ended = replace(running(make_job()), status=running(make_job()).status)
    ended = replace(ended, status=replace(ended.status, phase=JobPhase.SUCCEEDED))
    old = make_pod(ended)
    assert blocked(ended, pods=(old,))
    assert blocked(ended, pods=(replace(old, node=None),))
    assert blocked(ended, pods=(replace(old, deletion_at=after(20)),))
    assert not blocked(ended, pods=(replace(old, phase=PodPhase.SUCCEEDED),))
    assert not blocked(ended, pods=(replace(old, node=None, deletion_at=after(20)),))


def test_a_pod_of_an_attempt_to_come_holds_gpus_of_its_own_node_alone() -> None:
    """I15: anybody in the namespace may make one, and nobody deletes it."""
    job = replace(make_job(), spec=replace(make_job().spec, suspend=True))
    pod = make_pod(job, attempt=9, gpus=("GPU-0",))
    assert not blocked(job, pods=(pod,))
    assert not blocked(job, pods=(replace(pod, node="n1"),))
    assert blocked(job, pods=(replace(pod, node="n0"),))


@pytest.mark.promise("I7")
def test_an_orphan_that_still_names_its_owner_is_deleted_and_holds_its_gpu_till_then() -> None:
    """I7, I1."""
    gone = running(make_job("gone"))
    orphan = make_pod(gone)
    assert deleted(decided(pods=(orphan,), at=120)) == [orphan.uid]
    assert not deleted(decided(pods=(orphan,), at=119)), "its job may not have been seen yet"
    assert blocked(pods=(orphan,))
    assert not blocked(pods=(replace(orphan, node="n1"),))
    assert not blocked(pods=(replace(orphan, node=None, deletion_at=after(20)),))


def test_an_orphan_that_was_let_go_is_left_alone() -> None:
    """`kubectl delete --cascade=orphan` takes the reference away."""
    pod = make_pod(running(make_job("gone")), job_uid="")
    assert decided(pods=(pod,)).items == ()


def test_a_pod_that_is_moved_between_jobs_raises_nothing() -> None:
    one, other = running(make_job("a"), TWO[0]), running(make_job("b"), TWO[1])
    pods = make_pod(one), make_pod(other)
    planner = Planner()
    for turn, uid in enumerate(["uid-b", "uid-a", "", "uid-b", "uid-a", "gone"]):
        evil = replace(pods[0], uid="evil", name="x-1-0", namespace="attacker", job_uid=uid)
        snapshot = make_snapshot(one, other, pods=(*pods, evil), gpus=GPUS)
        without = make_snapshot(one, other, pods=pods, gpus=GPUS)
        found = planner(snapshot, after(turn))
        assert found == plan(snapshot, after(turn))
        if uid != "gone":
            assert found == plan(without, after(turn))
