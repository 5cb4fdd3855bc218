"""Pods of an earlier attempt that do not end are named, with what to do."""

from typing import Any

from gpujob_api.gpujob import JobPhase, StopReason
from gpujob_operator.decide.model.conditions import RUNNING, SCHEDULED, find
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu_node,
    make_job,
    make_pod,
    make_snapshot,
    running,
    statuses,
    with_status,
)
from tests.harness.world import World


def said(at: float, **pod: Any) -> str:
    job = with_status(make_job("job"), attempt=1)
    seen = make_snapshot(job, pods=[make_pod(job, node="n7", **pod)])
    found = find(statuses(plan(seen, after(at)).items)["job"], SCHEDULED)
    return f"{found.reason}: {found.message}" if found is not None else ""


def test_within_its_grace_it_is_waited_for() -> None:
    assert (
        said(0.0, deletion_at=after(30)) == "PreviousAttemptTerminating: waiting for job-1-0 to end"
    )


def test_past_its_grace_somebody_is_asked_to_look() -> None:
    assert said(60.0, deletion_at=after(30)) == (
        "PreviousAttemptTerminating: waiting for job-1-0 to end; job-1-0 on node n7 is past its "
        "grace: if that node is gone for good, kubectl delete pod job-1-0 -n team --force lets "
        "the job go on"
    )


def test_an_attempt_that_does_not_end_says_so_itself() -> None:
    """Its node may well answer: a volume that is not unmounted holds a pod as well."""
    stop = StopReason("Suspended", "spec.suspend is true", after(30))
    job = running(make_job("job", suspend=True), phase=JobPhase.STOPPING, stop=stop)
    world = World(job, pods=[make_pod(job, deletion_at=after(30))], gpu_nodes=[make_gpu_node("n0")])
    world.stubborn = {"job"}
    world.tick(40)
    assert "past its grace" not in said_of(world)
    assert plan(world.snapshot, world.now).next_seconds == 6
    world.tick(20)
    assert said_of(world).startswith(
        "Suspended: spec.suspend is true; job-1-0 on node n0 is past its grace: if that node is "
        "gone for good, kubectl delete pod job-1-0 -n team --force"
    )


def said_of(world: World) -> str:
    found = find(world.status("job"), RUNNING)
    return f"{found.reason}: {found.message}" if found is not None else ""
