"""Which writes can wait where slots are short, and which statuses a newer one overtakes."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_api.settings import Settings
from gpujob_operator.act.targets import in_place_of, is_outdated_by, only_tells
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeletePod,
    EventNote,
    PlanItem,
    SaveProfile,
    WriteStatus,
)
from gpujob_operator.decide.model.workers import with_pod_uids
from tests.harness.builders import (
    after,
    make_job,
    make_pod,
    make_pods,
    placed,
    reserve,
    running,
    with_status,
)

STARTING = placed(make_job())


def to(job: GPUJob, *notes: EventNote, **status: Any) -> WriteStatus:
    return WriteStatus(job, with_status(job, **status).status, notes)


def begins_to_run() -> WriteStatus:
    """As it is written: with the UIDs of the pods."""
    known = with_pod_uids(STARTING.status, make_pods(STARTING))
    return WriteStatus(STARTING, replace(known, phase=JobPhase.RUNNING, started_at=after(5)))


RUNNING = running(make_job())
WAITING = make_job()
CAN_WAIT: dict[str, PlanItem] = {
    "it runs": begins_to_run(),
    "figures": to(RUNNING, observed_at=after(60)),
    "it still waits": to(WAITING, observed_at=after(60)),
    "a profile": SaveProfile(GPUProfile(Metadata("profile", "team"), GPUProfileSpec("f", "image"))),
}
CANNOT_WAIT: dict[str, PlanItem] = {
    "it is placed": WriteStatus(make_job(), STARTING.status),
    "it ended": to(RUNNING, phase=JobPhase.SUCCEEDED, finished_at=after(9)),
    "it is tried again": to(RUNNING, phase=JobPhase.PENDING, placement=None, reservation=None),
    "it grows": to(RUNNING, reservation=reserve(64 * GIB)),
    "it holds less": to(RUNNING, reservation=None),
    "it is another attempt": to(STARTING, attempt=STARTING.status.attempt + 1),
    "a pod is created": CreatePod(STARTING, 0, Settings()),
    "a pod is deleted": DeletePod(make_pod(RUNNING), 30, "stopped"),
}


@pytest.mark.parametrize("name", CAN_WAIT)
def test_what_only_tells(name: str) -> None:
    assert only_tells(CAN_WAIT[name])


@pytest.mark.parametrize("name", CANNOT_WAIT)
def test_what_something_waits_for(name: str) -> None:
    assert not only_tells(CANNOT_WAIT[name])


def overtaken(newer: PlanItem, older: WriteStatus | None = None) -> WriteStatus | None:
    waits = older or begins_to_run()
    return in_place_of(waits, waits.status, newer)


def decided_on(older: WriteStatus, *notes: EventNote, **status: Any) -> WriteStatus:
    """Decided while `older` was assumed."""
    return to(replace(older.job, status=older.status), *notes, **status)


def test_an_end_overtakes_the_start() -> None:
    """One write from the placed job to the finished one; what both say is an event."""
    began, ended = EventNote("Began", "it runs"), EventNote("Ended", "it ended")
    older = replace(begins_to_run(), events=(began,))
    newer = decided_on(older, ended, phase=JobPhase.SUCCEEDED, finished_at=after(9))
    written = overtaken(newer, older)
    assert written == WriteStatus(STARTING, newer.status, (began, ended))
    assert newer.status.started_at == after(5)


def test_a_stop_overtakes_figures() -> None:
    newer = decided_on(begins_to_run(), stop=StopReason("Suspended", "", after(40)))
    assert overtaken(newer) == WriteStatus(STARTING, newer.status)


def test_what_was_not_decided_on_the_assumed_status_waits() -> None:
    ended = {"phase": JobPhase.SUCCEEDED, "finished_at": after(9)}
    assert overtaken(to(STARTING, **ended)) is None
    newer = decided_on(begins_to_run(), **ended)
    edited = replace(newer.job, metadata=replace(newer.job.metadata, resource_version="77"))
    assert overtaken(replace(newer, job=edited)) is None
    assert overtaken(newer) is not None


def test_another_attempt_waits() -> None:
    """Its number fences off what the attempt before may have left."""
    assert overtaken(decided_on(begins_to_run(), attempt=STARTING.status.attempt + 1)) is None


@pytest.mark.parametrize("name", ["a pod is created", "a pod is deleted"])
def test_nothing_but_a_status_overtakes(name: str) -> None:
    assert overtaken(CANNOT_WAIT[name]) is None


@pytest.mark.parametrize("name", ["it is placed", "it ended", "it grows"])
def test_what_something_waits_for_is_not_overtaken(name: str) -> None:
    older = CANNOT_WAIT[name]
    assert isinstance(older, WriteStatus)
    assert overtaken(decided_on(older, observed_at=after(99)), older) is None


@pytest.mark.parametrize("name", ["it is placed", "a pod is created", "a pod is deleted"])
def test_why_a_job_waits_is_outdated_once_something_is_done(name: str) -> None:
    assert is_outdated_by(CAN_WAIT["it still waits"], [CANNOT_WAIT[name]])
    assert is_outdated_by(CAN_WAIT["it still waits"], [CAN_WAIT["a profile"], CANNOT_WAIT[name]])


def test_why_a_job_waits_is_not_outdated_by_what_only_tells() -> None:
    """Else a reason that changes all the time would never be read."""
    assert not is_outdated_by(CAN_WAIT["it still waits"], list(CAN_WAIT.values()))


@pytest.mark.parametrize("name", [*(CAN_WAIT.keys() - {"it still waits"}), *CANNOT_WAIT])
def test_nothing_but_why_a_job_waits_is_outdated(name: str) -> None:
    older = {**CAN_WAIT, **CANNOT_WAIT}[name]
    assert not is_outdated_by(older, [CANNOT_WAIT["it ended"]])
