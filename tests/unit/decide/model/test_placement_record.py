"""What a pod records of its attempt is read back as it was decided, or not at all."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, Placement, ReservationSource, WorkerPlacement
from gpujob_api.meta import ANNOTATION_PLACEMENT
from gpujob_api.quantities import GIB
from gpujob_api.settings import Settings
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.placement_record import (
    PlacementRecord,
    came_late,
    is_recorded,
    placement_message,
    record_of,
    recorded_status,
    with_records,
)
from gpujob_operator.decide.model.plan import CreatePod, WriteStatus
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.pods import pod_view
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import (
    after,
    make_job,
    make_pod,
    make_snapshot,
    placed,
    reserve,
    with_status,
)

CONFIGURATION = Configuration(report_url="http://operator:8080/report")
PENDING = make_job()
PLACED = placed(PENDING, profile="of-the-workload")
POD = make_pod(PLACED, uid="uid-pod", record=record_of(PLACED))


def stored(create: CreatePod) -> dict[str, Any]:
    """The pod as the API server has it once it was created."""
    pod = worker_pod(create, CONFIGURATION)
    added = {"uid": "uid-pod", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:01Z"}
    return pod | {"metadata": pod["metadata"] | added}


def recording(job: GPUJob) -> CreatePod:
    return CreatePod(job, 0, Settings(), record=record_of(job))


def read_with(annotation: str) -> PodView:
    """The pod with this text for its record."""
    pod = stored(recording(PLACED))
    pod["metadata"]["annotations"][ANNOTATION_PLACEMENT] = annotation
    return pod_view(pod)


def rendered(record: PlacementRecord) -> str:
    pod = worker_pod(replace(recording(PLACED), record=record), CONFIGURATION)
    return pod["metadata"]["annotations"][ANNOTATION_PLACEMENT]


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("profile", [None, "of-the-workload"])
@pytest.mark.parametrize("at", [0.0, 1.234567])
def test_a_record_is_read_as_it_was_rendered(
    spot: bool, exclusive: bool, profile: str | None, at: float
) -> None:
    cap_bytes = None if exclusive else 3 * GIB
    held = reserve(3 * GIB, ReservationSource.HINT, 12.5, exclusive, cap_bytes)
    job = placed(PENDING, ("node.b", ("GPU-1", "GPU-2")), held=held, at=at, profile=profile)
    assert job.status.placement is not None
    placement = replace(job.status.placement, spot=spot)
    job = with_status(job, placement=placement)
    record = pod_view(stored(recording(job))).record
    assert record == record_of(job)
    assert record == PlacementRecord("uid-job", placement, held, profile or "", after(at))


def test_a_pod_without_a_record_is_read_as_one() -> None:
    pod = stored(CreatePod(PLACED, 0, Settings()))
    assert ANNOTATION_PLACEMENT not in pod["metadata"]["annotations"]
    assert pod_view(pod).record is None


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "{",
        "[]",
        "null",
        "1",
        "{}",
        '{"jobUid": "uid-job"}',
        rendered(record_of(PLACED)).replace("2026-01-01T00:00:00Z", "yesterday"),
        rendered(record_of(PLACED)).replace('"rank":0', '"rank":-1'),
        rendered(record_of(PLACED)).replace('"WholeGPU"', '"guessed"'),
        rendered(record_of(PLACED))[:-1],
        "{" * 5000,
        rendered(record_of(PLACED)) + " " * 9000,
    ],
)
def test_a_record_that_cannot_be_read_is_none(annotation: str) -> None:
    assert annotation != rendered(record_of(PLACED)), "the case breaks something"
    found = read_with(annotation)
    assert found.record is None
    assert (found.name, found.gpus) == ("job-1-0", ("GPU-0",)), "the rest is read"


@pytest.mark.parametrize("ranks", [(), (0, 1), (1,)], ids=["nobody", "two workers", "rank 1"])
def test_a_record_that_is_not_of_a_single_worker_is_none(ranks: tuple[int, ...]) -> None:
    workers = tuple(WorkerPlacement(rank, "n0", (f"GPU-{rank}",)) for rank in ranks)
    record = replace(record_of(PLACED), placement=Placement(workers))
    assert read_with(rendered(record)).record is None
    alone = replace(record, placement=Placement((WorkerPlacement(0, "n0", ("GPU-0",)),)))
    assert read_with(rendered(alone)).record == alone, "nothing else is wrong with it"


def test_the_next_attempt_of_a_waiting_job_is_recorded() -> None:
    assert is_recorded(PENDING, POD)
    later = replace(POD, name="job-2-0", attempt=2)
    assert is_recorded(with_status(PENDING, attempt=1), later)
    assert is_recorded(PENDING, replace(POD, job_uid="")), "its owner was taken away"
    assert is_recorded(PENDING, replace(POD, node=None)), "it is not bound yet"


@pytest.mark.parametrize(
    ("job", "pod"),
    [
        pytest.param(PENDING, replace(POD, record=None), id="no record"),
        pytest.param(make_job(uid="uid-other"), POD, id="of another job of the name"),
        pytest.param(PENDING, replace(POD, attempt=2), id="of a later attempt"),
        pytest.param(with_status(PENDING, attempt=1), POD, id="of an earlier attempt"),
        pytest.param(make_job(workers=2), POD, id="the job is a gang"),
        pytest.param(
            placed(PENDING, ("n1", ("GPU-1",)), attempt=0), POD, id="the job is placed already"
        ),
        pytest.param(with_status(PENDING, phase=JobPhase.FAILED), POD, id="the job is finished"),
        pytest.param(PENDING, replace(POD, namespace="attacker"), id="of another namespace"),
        pytest.param(PENDING, replace(POD, name="other-1-0"), id="of another name"),
        pytest.param(PENDING, replace(POD, job_uid="uid-other"), id="of another owner"),
        pytest.param(PENDING, replace(POD, node="n2"), id="bound to another node"),
    ],
)
def test_anything_else_is_not_recorded(job: GPUJob, pod: PodView) -> None:
    assert not is_recorded(job, pod)
    assert with_records([job], [pod]) == (job,)


def test_the_recorded_status_is_the_one_that_was_decided() -> None:
    (item,) = plan(make_snapshot(make_job(queue="default")), after(1.5)).items
    assert isinstance(item, WriteStatus)
    assert item.pod is not None
    pod = pod_view(stored(item.pod))
    assert is_recorded(item.job, pod)
    found, decided = recorded_status(item.job, pod), item.status
    assert found.placement is not None
    assert decided.placement is not None
    (worker,) = found.placement.workers
    assert worker.pod_uid == "uid-pod"
    assert decided.placement == replace(found.placement, workers=(replace(worker, pod_uid=None),))
    assert (found.phase, found.attempt) == (JobPhase.STARTING, 1)
    assert (found.reservation, found.profile) == (decided.reservation, decided.profile)
    assert found.attempt_started_at == decided.attempt_started_at == after(1.5)
    for name in (conditions.SCHEDULED, conditions.RUNNING):
        assert conditions.find(found, name) == conditions.find(decided, name) is not None


def test_what_waited_for_the_attempt_is_over_once_it_is_recorded() -> None:
    job = with_status(
        PENDING, next_attempt_at=after(9), progressed_at=after(0), interrupted_at_step=2
    )
    found = recorded_status(job, POD)
    assert (found.next_attempt_at, found.progressed_at) == (None, None)
    assert found.interrupted_at_step == 2, "the rest of the status stays"


def test_a_forged_record_does_not_hide_the_real_one() -> None:
    forged = replace(POD, namespace="attacker", name="x-1-0", uid="forged", job_uid="")
    expected = (replace(PENDING, status=recorded_status(PENDING, POD)),)
    assert with_records([PENDING], [POD, forged]) == expected
    assert with_records([PENDING], [forged, POD]) == expected


def test_jobs_whose_pods_record_an_attempt_are_placed_and_others_stay() -> None:
    other, gang = make_job("other"), make_job("gang", workers=2)
    unrecorded = make_pod(placed(other))
    found = with_records([other, PENDING, gang], [unrecorded, POD])
    assert found == (other, replace(PENDING, status=recorded_status(PENDING, POD)), gang)
    assert found[0] is other


@pytest.mark.parametrize("status_attempt", [0, 1, 2])
@pytest.mark.parametrize("records", [True, False])
def test_only_a_record_of_a_later_attempt_came_late(status_attempt: int, records: bool) -> None:
    job = with_status(PENDING, attempt=status_attempt)
    pod = POD if records else replace(POD, record=None)
    assert came_late(job, pod) is (records and status_attempt == 0)


@pytest.mark.parametrize(
    ("memory_gib", "source", "text"),
    [
        (900, ReservationSource.PROFILE, "GPUProfile of-the-workload to measure again"),
        (900, ReservationSource.MEASURED, "the job was measured to use less"),
        # It is what is reserved, or less than that.
        (900, ReservationSource.HINT, ""),
        (900, ReservationSource.WHOLE_GPU, ""),
        (1, ReservationSource.PROFILE, ""),
        (None, ReservationSource.PROFILE, ""),
    ],
)
def test_a_hint_that_does_not_count_is_named(
    memory_gib: int | None, source: ReservationSource, text: str
) -> None:
    job = make_job(memory_bytes=memory_gib * GIB if memory_gib is not None else None)
    record = record_of(placed(job, profile="of-the-workload"))
    record = replace(record, reservation=replace(record.reservation, source=source))
    message = placement_message(job, record, 1)
    assert ("gpu.memory (900 GiB) is a hint and does not count" in message) is bool(text)
    assert message.endswith(text)
