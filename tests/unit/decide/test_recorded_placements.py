"""The first placement of a job of one worker is recorded by its pod, and by a status soon after."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.lifecycle.recorded import RECORDED_SECONDS_MAX
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.placement_record import record_of
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import PodPhase, PodView, Snapshot
from gpujob_operator.decide.model.workers import with_pod_uids
from gpujob_operator.decide.planner import Planner, plan
from gpujob_operator.port.reports import is_given_up
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_snapshot,
    placed,
    running,
    with_status,
)

PENDING = make_job()
GPUS = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]


def written(found: Plan) -> WriteStatus:
    (item,) = [item for item in found.items if isinstance(item, WriteStatus)]
    return item


def placing(
    job: GPUJob, pods: Iterable[PodView] = (), perhaps: tuple[str, ...] = (), at: float = 1.0
) -> Plan:
    """The plan for this job where there is room for it."""
    return plan(make_snapshot(job, pods=pods, gpus=GPUS, perhaps_placed=perhaps), after(at))


def as_shown() -> tuple[GPUJob, PodView]:
    """The job and its pod as decisions see them after its placement at T0."""
    job = replace(PENDING, status=written(placing(PENDING, at=0)).status)
    pod = make_pod(job, phase=PodPhase.PENDING, record=record_of(job))
    return replace(job, status=with_pod_uids(job.status, [pod])), pod


RECORDED, POD = as_shown()


def recorded(*pods: PodView, job: GPUJob = RECORDED) -> Snapshot:
    """The job's placement is recorded by its pod, and no status has it."""
    return make_snapshot(job, pods=pods, recorded=("uid-job",))


# -- what is placed


def test_the_first_placement_of_one_worker_has_the_pod_that_records_it() -> None:
    found = placing(PENDING)
    item = written(found)
    assert item.pod is not None
    assert item.pod.job == replace(PENDING, status=item.status), "with its placement"
    assert item.pod.record == record_of(item.pod.job)
    assert (item.pod.rank, item.status.attempt, item.status.phase) == (0, 1, JobPhase.STARTING)
    assert [note.reason for note in item.events] == ["Placed"]
    assert found.items == (item,), "the pod is not created twice"


@pytest.mark.parametrize(
    ("job", "attempt"),
    [
        pytest.param(make_job(workers=2), 1, id="a gang"),
        pytest.param(with_status(PENDING, attempt=1), 2, id="a second attempt"),
        pytest.param(with_status(PENDING, attempt=7), 8, id="a later attempt"),
    ],
)
def test_any_other_placement_is_a_status_first(job: GPUJob, attempt: int) -> None:
    found = placing(job)
    item = written(found)
    assert (item.pod, item.status.attempt) == (None, attempt)
    assert item.status.placement is not None
    assert not any(isinstance(one, CreatePod) for one in found.items)


def test_the_first_number_is_passed_over_where_another_process_may_have_given_it() -> None:
    """I3: its pod may have come and gone unseen."""
    item = written(placing(PENDING, perhaps=("uid-job",)))
    assert (item.pod, item.status.attempt) == (None, 2)
    assert item.events[0].message.startswith("attempt 2 on n0")


def test_no_later_number_is_passed_over() -> None:
    item = written(placing(with_status(PENDING, attempt=1), perhaps=("uid-job",)))
    assert item.status.attempt == 2
    other = written(placing(PENDING, perhaps=("uid-other",)))
    assert (other.status.attempt, other.pod is not None) == (1, True)


def test_what_has_a_pod_already_is_not_recorded_by_another() -> None:
    left = make_pod(placed(PENDING), exit_code=1)
    item = written(placing(PENDING, pods=[left]))
    assert item.status.placement is not None
    assert item.pod is None


@pytest.mark.promise("I3")
@pytest.mark.parametrize("owner", ["uid-job", ""], ids=["with its owner", "without"])
def test_a_job_waits_for_the_pod_that_recorded_an_attempt_which_does_not_count(owner: str) -> None:
    """I3: the pod was being deleted as this process began to lead, and its worker may still run,
    whoever took its owner reference away."""
    going = replace(POD, job_uid=owner, phase=PodPhase.RUNNING, deletion_at=after(30))
    found = placing(PENDING, pods=[going], perhaps=("uid-job",))
    waits = written(found).status
    assert waits.placement is None
    scheduled = conditions.find(waits, conditions.SCHEDULED)
    assert scheduled is not None
    assert scheduled.message.endswith("waiting for job-1-0 to end")


# -- when the status is written


@pytest.mark.parametrize("seconds", [0.0, 0.5, RECORDED_SECONDS_MAX - 0.01])
def test_a_job_that_starts_is_not_written_before_its_time(seconds: float) -> None:
    found = plan(recorded(POD), after(seconds))
    assert found.items == ()
    assert found.next_seconds == pytest.approx(RECORDED_SECONDS_MAX - seconds)


@pytest.mark.parametrize("seconds", [RECORDED_SECONDS_MAX, 60.0])
def test_a_job_that_still_starts_then_is_written(seconds: float) -> None:
    found = plan(recorded(POD), after(seconds))
    item = written(found)
    assert found.items == (item,)
    assert (item.job, item.pod) == (RECORDED, None)
    assert (item.status.phase, item.status.attempt) == (JobPhase.STARTING, 1)
    assert item.status.placement == RECORDED.status.placement
    assert item.status.observed_at == after(seconds)


def test_a_job_whose_status_has_the_attempt_is_not_written_again() -> None:
    now = after(RECORDED_SECONDS_MAX)
    then = replace(RECORDED, status=written(plan(recorded(POD), now)).status)
    assert plan(make_snapshot(then, pods=[POD]), now).items == ()


def test_a_status_that_waits_to_be_sent_is_not_decided_again_and_again() -> None:
    now = after(RECORDED_SECONDS_MAX + 1)
    under_way = replace(RECORDED, status=written(plan(recorded(POD), now)).status)
    found = plan(recorded(POD, job=under_way), after(RECORDED_SECONDS_MAX + 2))
    assert found.items == ()
    assert found.next_seconds is None or found.next_seconds > 1


def test_it_is_written_in_time_although_nothing_changes() -> None:
    """The planner decides a job again only when something is due."""
    planner, snapshot = Planner(), recorded(POD)
    for seconds in (0.0, 0.1, 0.2, 1.9):
        assert planner(snapshot, after(seconds)).items == ()
    assert written(planner(snapshot, after(RECORDED_SECONDS_MAX))).status.attempt == 1


def test_nothing_is_decided_while_its_pod_is_being_created() -> None:
    """The answer changes the job. If there is none for long, the status is written in its place."""
    job = replace(PENDING, status=written(placing(PENDING, at=0)).status)
    planner, snapshot = Planner(), recorded(job=job)
    for seconds in (0.1, 1.9):
        assert planner(snapshot, after(seconds)).items == ()
    item = planner(snapshot, after(RECORDED_SECONDS_MAX)).items[0]
    assert isinstance(item, WriteStatus)
    assert (item.status.phase, item.status.attempt, item.pod) == (JobPhase.STARTING, 1, None)


def test_a_record_from_the_future_is_written_in_time() -> None:
    """The clock of another process was ahead."""
    job = with_status(RECORDED, attempt_started_at=after(3600))
    found = plan(recorded(POD, job=job), after(0))
    assert (found.items, found.next_seconds) == ((), RECORDED_SECONDS_MAX)


def test_a_pod_that_runs_is_written_at_once() -> None:
    item = written(plan(recorded(replace(POD, phase=PodPhase.RUNNING)), after(0.1)))
    assert (item.status.phase, item.status.attempt) == (JobPhase.RUNNING, 1)
    assert item.status.placement == RECORDED.status.placement, "with the pod's UID"


@pytest.mark.parametrize(("exit_code", "phase"), [(0, JobPhase.SUCCEEDED), (1, JobPhase.PENDING)])
def test_a_pod_that_ends_before_is_written_in_one_status(exit_code: int, phase: JobPhase) -> None:
    ended = make_pod(RECORDED, exit_code=exit_code, record=POD.record)
    item = written(plan(recorded(ended), after(0.1)))
    assert (item.status.phase, item.status.attempt) == (phase, 1)


def test_a_pod_that_is_gone_before_is_written_as_lost() -> None:
    """I3: it is not created again under its name."""
    item = written(plan(recorded(), after(0.1)))
    assert (item.status.phase, item.status.attempt) == (JobPhase.PENDING, 1)
    assert item.status.placement is None


# -- pods that came late


def deleted(*pods: PodView, job: GPUJob = PENDING) -> list[tuple[str, str]]:
    items = placing(job, pods).items
    return [(item.pod.uid, item.reason) for item in items if isinstance(item, DeletePod)]


@pytest.mark.parametrize("phase", PodPhase)
def test_a_late_pod_is_deleted_and_does_not_begin(phase: PodPhase) -> None:
    pod = replace(POD, phase=phase)
    assert deleted(pod) == [(pod.uid, "another process placed it and is not followed")]
    assert is_given_up(PENDING, pod)


def test_a_late_pod_of_an_attempt_that_was_passed_over_is_an_old_one() -> None:
    job = running(PENDING, ("n0", ("GPU-1",)), attempt=2)
    own = make_pod(job)
    assert deleted(POD, own, job=job) == [(POD.uid, "not part of the current attempt")]
    assert is_given_up(job, POD)
    assert not is_given_up(job, own)


def test_a_later_pod_without_a_record_is_left_alone() -> None:
    """The view of the job is older than that of the pod: its status was written first."""
    pod = replace(POD, record=None)
    assert deleted(pod) == []
    assert not is_given_up(PENDING, pod)


@pytest.mark.promise("I3")
@pytest.mark.parametrize(("age_seconds", "goes"), [(119.0, False), (120.0, True)])
def test_a_pod_of_an_attempt_that_no_status_will_know_goes(age_seconds: float, goes: bool) -> None:
    """The status was lost when data were restored: by then a view of the job would be new."""
    pod = replace(POD, record=None, created_at=after(0))
    items = plan(make_snapshot(PENDING, pods=[pod], gpus=GPUS), after(age_seconds)).items
    assert any(isinstance(item, DeletePod) for item in items) is goes


@pytest.mark.parametrize("phase", [PodPhase.RUNNING, PodPhase.SUCCEEDED])
def test_a_late_pod_that_goes_is_not_deleted_again(phase: PodPhase) -> None:
    pod = replace(POD, phase=phase, deletion_at=after(30))
    assert deleted(pod) == []
    assert is_given_up(PENDING, pod)


def test_the_pod_that_records_the_attempt_in_force_is_not_late() -> None:
    assert deleted(POD, job=RECORDED) == []
    assert not is_given_up(RECORDED, POD)


def test_nobody_is_placed_on_the_gpu_of_a_late_pod_until_it_is_gone() -> None:
    """I1: its worker may run for a moment."""
    waiting = make_job("waiting", created=1)
    one_gpu = [make_gpu_node("n0", make_gpu("GPU-0"))]
    snapshot = make_snapshot(PENDING, waiting, pods=[POD], gpu_nodes=one_gpu)
    items = plan(snapshot, after(1)).items
    assert [type(item) for item in items if not isinstance(item, WriteStatus)] == [DeletePod]
    assert not any(isinstance(item, WriteStatus) and item.status.placement for item in items)
    gone = replace(snapshot, pods=())
    assert any(
        isinstance(item, WriteStatus) and item.status.placement is not None
        for item in plan(gone, after(1)).items
    )
