"""What an operator can know of an attempt's end, and what nobody can."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.report import WorkerPhase
from gpujob_operator.decide.model.workers import with_pod_uids
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import make_job, make_pod, make_report, running
from tests.simulation.api_server import Revision
from tests.simulation.ends import Ends

ATTEMPT = "uid-job", 1
OWNERS = [{"uid": "uid-job"}]
JOB = running(make_job())


def pod_of(
    by: str, owners: Any = OWNERS, exit_code: int | None = 0, message: str = "", **facts: str
) -> Revision:
    ended = {"exitCode": exit_code, "message": message}
    state = {"running": {}} if exit_code is None else {"terminated": ended}
    pod = {
        "metadata": {"name": "job-1-0", "uid": "pod-1", "ownerReferences": owners, **facts},
        "spec": {"nodeName": "n0"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "worker", "state": state}]},
    }
    return Revision(1, 0.0, Kind.POD, "MODIFIED", pod, pod, by, 0.0)


def knows_after(
    *revisions: Revision, job: GPUJob = JOB, was_stopped: bool = False, sees_all: bool = False
) -> bool:
    ends = Ends({"operator"}, sees_all=sees_all)
    if was_stopped:
        ends.stopped(ATTEMPT)
    for one in revisions:
        ends.note(one, ATTEMPT, job)
    return ends.is_known(ATTEMPT)


def test_an_end_that_a_kubelet_said_is_known() -> None:
    assert knows_after(pod_of("kubelet"))
    at = "2026-01-01T00:00:00Z"
    assert knows_after(pod_of("kubelet"), pod_of("operator", deletionTimestamp=at))
    asked = pod_of("user", exit_code=None, deletionTimestamp=at)
    done = pod_of("kubelet", deletionTimestamp=at)
    assert not knows_after(asked, done)
    words = make_report(step=10, steps_total=10).to_text()
    proven = pod_of("kubelet", deletionTimestamp=at, message=words)
    assert not knows_after(asked, proven)
    assert knows_after(asked, proven, sees_all=True), "no event was lost"
    assert not knows_after(asked, done, sees_all=True), "it says nothing of its steps"


def test_a_pod_that_lost_its_owner_is_known_by_the_jobs_status_alone() -> None:
    known = with_pod_uids(JOB.status, [replace(make_pod(JOB), uid="pod-1")])
    assert knows_after(pod_of("user", owners=None), job=replace(JOB, status=known))
    assert not knows_after(pod_of("user", owners=None))


@pytest.mark.parametrize("was_stopped", [False, True])
@pytest.mark.parametrize("step", [7, 10])
def test_after_a_stop_a_worker_is_believed_that_it_left_early(
    step: int, *, was_stopped: bool
) -> None:
    words = make_report(step=step, steps_total=10).to_text()
    known = knows_after(pod_of("kubelet", message=words), was_stopped=was_stopped)
    assert known is not (was_stopped and step < 10)
    assert (
        knows_after(pod_of("kubelet", message="what"), was_stopped=was_stopped) is not was_stopped
    )


def test_a_worker_that_heard_a_signal_is_believed() -> None:
    words = make_report(step=7, steps_total=10, phase=WorkerPhase.DRAINING).to_text()
    assert not knows_after(pod_of("kubelet", message=words))


@pytest.mark.parametrize("step", [7, 10])
def test_a_worker_that_was_ended_from_outside_is_done_at_its_last_step_alone(step: int) -> None:
    words = make_report(step=step, steps_total=10, phase=WorkerPhase.FINISHED).to_text()
    told = pod_of("kubelet", message=words)
    told.object["status"]["reason"] = "Evicted"
    assert knows_after(told) is (step == 10)


def test_a_node_that_goes_ends_what_nobody_deletes() -> None:
    ends = Ends({"operator"}, sees_all=True)
    ends.leaves("n0")
    ends.note(pod_of("kubelet"), ATTEMPT, JOB)
    assert not ends.is_known(ATTEMPT)


@pytest.mark.parametrize("goes", [Ends.leaves, Ends.gone])
@pytest.mark.parametrize("is_decided", [False, True])
def test_a_node_may_go_before_an_operator_has_seen_the_end(
    goes: Callable[[Ends, str], None], *, is_decided: bool
) -> None:
    ends = Ends({"operator"}, sees_all=True)
    ends.note(pod_of("kubelet"), ATTEMPT, JOB)
    if is_decided:
        ends.decided(ATTEMPT)
    goes(ends, "n0")
    assert ends.is_known(ATTEMPT) is is_decided


def test_a_worker_that_is_done_stays_done_whatever_a_second_pod_of_it_does() -> None:
    """A request for the pod came late, when the first one was gone."""
    ends = Ends({"operator"}, sees_all=False)
    ends.note(pod_of("kubelet"), ATTEMPT, JOB)
    ends.note(pod_of("kubelet", exit_code=143, uid="pod-2"), ATTEMPT, JOB)
    assert ends.done(ATTEMPT) == {0}


def test_a_worker_of_which_no_pod_ended_well_is_not_done() -> None:
    """Nor is one whose end was lost with restored data, and that is found dead."""
    ends = Ends({"operator"}, sees_all=False)
    ends.note(pod_of("kubelet", exit_code=143, uid="pod-2"), ATTEMPT, JOB)
    assert ends.done(ATTEMPT) == set()
    ends.note(pod_of("kubelet"), ATTEMPT, JOB)
    ends.note(pod_of("kubelet", exit_code=137), ATTEMPT, JOB)
    assert ends.done(ATTEMPT) == set()
