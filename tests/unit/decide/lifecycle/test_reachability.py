"""A node that does not answer is said on its jobs, and moves nobody."""

from dataclasses import replace

from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.measurement.progress import HANG_TIMES_WITHOUT_STEPS
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_snapshot,
    running,
)


def seen(silent: bool, job_before: Snapshot | None = None) -> Snapshot:
    job = running(make_job()) if job_before is None else job_before.jobs[0]
    node = make_node(ready=not silent, not_ready_since=after(0) if silent else None)
    return replace(make_snapshot(job, nodes=[node]), pods=make_pods(job))


def test_a_silent_node_is_said_with_the_numbers_and_nobody_is_moved() -> None:
    """I3, I4: it proves nothing, so no second attempt; but it is not kept quiet."""
    early = plan(seen(True), after(30))
    statuses = [item.status for item in early.items if isinstance(item, WriteStatus)]
    assert all(_reason(status) != "NodeUnreachable" for status in statuses)
    late = plan(seen(True), after(90))
    (write,) = [item for item in late.items if isinstance(item, WriteStatus)]
    running_condition = conditions.find(write.status, conditions.RUNNING)
    assert running_condition is not None
    assert running_condition.status is ConditionStatus.UNKNOWN
    assert "has not answered for 90 s" in running_condition.message
    assert write.status.phase is JobPhase.RUNNING
    assert not [item for item in late.items if isinstance(item, CreatePod | DeletePod)]


def test_a_node_that_is_back_is_said_too() -> None:
    late = plan(seen(True), after(90))
    (write,) = [item for item in late.items if isinstance(item, WriteStatus)]
    before = Snapshot(jobs=(replace(write.job, status=write.status),))
    again = plan(seen(False, before), after(100))
    (back,) = [item for item in again.items if isinstance(item, WriteStatus)]
    assert _reason(back.status) == "WorkersRunning"


def test_a_node_that_is_removed_is_not_said_to_be_back() -> None:
    """For as long as the pod collector takes its time, the job has no node."""
    late = plan(seen(True), after(90))
    (write,) = [item for item in late.items if isinstance(item, WriteStatus)]
    job = replace(write.job, status=write.status)
    without = replace(make_snapshot(job, nodes=[make_node("another")]), pods=make_pods(job))
    (gone,) = [item for item in plan(without, after(100)).items if isinstance(item, WriteStatus)]
    assert _reason(gone.status) == "NodeGone"
    before = Snapshot(jobs=(replace(gone.job, status=gone.status),))
    (back,) = [
        item
        for item in plan(seen(False, before), after(110)).items
        if isinstance(item, WriteStatus)
    ]
    assert _reason(back.status) == "WorkersRunning"


def _reason(status: GPUJobStatus) -> str:
    found = conditions.find(status, conditions.RUNNING)
    return found.reason if found is not None else ""


def hang_seconds() -> int:
    return make_job().spec.retry.hang_timeout_seconds


def test_a_job_on_a_silent_node_is_not_hung() -> None:
    """Its worker cannot report. Nothing is known of its progress."""
    silent = plan(seen(True), after(hang_seconds() + 100))
    (write,) = [item for item in silent.items if isinstance(item, WriteStatus)]
    assert (write.status.phase, _reason(write.status)) == (JobPhase.RUNNING, "NodeUnreachable")


def test_a_gang_that_waits_for_a_worker_on_a_silent_node_is_not_hung() -> None:
    gang = running(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-0",)))
    nodes = [make_node("n0"), make_node("n1", ready=False, not_ready_since=after(0))]
    agents = [make_gpu_node("n0"), make_gpu_node("n1")]
    snapshot = replace(make_snapshot(gang, nodes=nodes, gpu_nodes=agents), pods=make_pods(gang))
    found = plan(snapshot, after(hang_seconds() + 100))
    (write,) = [item for item in found.items if isinstance(item, WriteStatus)]
    assert write.status.phase is JobPhase.RUNNING


def test_a_node_that_is_back_has_the_whole_time_to_show_progress() -> None:
    back_at = hang_seconds() + 200
    silent = plan(seen(True), after(back_at - 100))
    (write,) = [item for item in silent.items if isinstance(item, WriteStatus)]
    before = Snapshot(jobs=(replace(write.job, status=write.status),))
    found = plan(seen(False, before), after(back_at))
    (back,) = [item for item in found.items if isinstance(item, WriteStatus)]
    assert back.status.phase is JobPhase.RUNNING
    later = Snapshot(jobs=(replace(back.job, status=back.status),))
    # No report of the attempt is known, and its GPU is idle.
    limit_seconds = HANG_TIMES_WITHOUT_STEPS * hang_seconds()
    for seconds, stops in ((limit_seconds - 10, False), (limit_seconds + 10, True)):
        at = back_at + seconds
        fresh = replace(seen(False, later), gpu_nodes=(make_gpu_node("n0", at=at),))
        assert _stopped(plan(fresh, after(at))) is stops


def _stopped(found: Plan) -> bool:
    statuses = [item.status for item in found.items if isinstance(item, WriteStatus)]
    return any(status.phase is JobPhase.STOPPING for status in statuses)
