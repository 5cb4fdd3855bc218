"""A node that does not answer is said on its jobs, and moves nobody."""

from dataclasses import replace

from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from tests.harness.builders import after, make_job, make_node, make_pods, make_snapshot, running


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
