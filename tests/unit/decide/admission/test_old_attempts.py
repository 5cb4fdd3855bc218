"""Pods of an earlier attempt that do not end are named, with what to do."""

from typing import Any

from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.planner import plan
from tests.harness.builders import after, make_job, make_pod, make_snapshot, statuses, with_status


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
