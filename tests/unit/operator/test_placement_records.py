"""What pods record of placements is what decisions see, until a status has it."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, WorkerPlacement
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed, with_status
from tests.harness.clocks import FakeClock
from tests.harness.manifests import Manifest, job_manifest, pod_manifest
from tests.harness.recorded_pods import (
    CONFIGURATION,
    PENDING,
    PLACED,
    cache_of_pending,
    recorded_pod,
    see,
)


@pytest.fixture
def dirty() -> Dirty:
    return Dirty()


@pytest.fixture
def cache(dirty: Dirty) -> Cache:
    return cache_of_pending(dirty)


def moved(pod: Manifest, **metadata: str) -> Manifest:
    """The pod in another namespace or by another name, without an owner."""
    kept = {name: value for name, value in pod["metadata"].items() if name != "ownerReferences"}
    return pod | {"metadata": kept | metadata}


def going(pod: Manifest) -> Manifest:
    """The pod as it is being deleted."""
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


def shown(cache: Cache, job: GPUJob = PENDING) -> GPUJob:
    found = cache.listers.job(job.metadata.uid)
    assert found is not None
    return found


def worker(cache: Cache, job: GPUJob = PENDING) -> WorkerPlacement:
    placement = shown(cache, job).status.placement
    assert placement is not None, "the job is placed"
    return placement.workers[0]


def snapshot(cache: Cache) -> Snapshot:
    return cache.snapshot((), CONFIGURATION)


def place(cache: Cache, job: GPUJob = PLACED) -> None:
    cache.placements.place(shown(cache, job), job.status)


# -- while this process leads


def test_a_job_counts_as_placed_before_its_pod_is_there(cache: Cache, dirty: Dirty) -> None:
    dirty.take()
    place(cache)
    assert shown(cache).status == PLACED.status
    assert (snapshot(cache).recorded, cache.placements.is_placed("uid-job")) == (("uid-job",), True)
    assert [job.status for job in snapshot(cache).jobs] == [PLACED.status]
    assert dirty.urgent.is_set()


def test_a_stored_status_of_a_lower_attempt_leaves_it_placed(cache: Cache) -> None:
    place(cache)
    see(cache, with_status(PENDING, observed_generation=1), 2)
    assert shown(cache).status == PLACED.status
    assert snapshot(cache).recorded == ("uid-job",)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_stored_status_of_the_attempt_or_a_later_one_is_all_that_counts(
    cache: Cache, attempt: int
) -> None:
    place(cache)
    written = with_status(PLACED, phase=JobPhase.RUNNING, attempt=attempt)
    see(cache, written, 2)
    assert shown(cache).status == written.status
    assert (snapshot(cache).recorded, cache.placements.is_placed("uid-job")) == ((), False)
    see(cache, with_status(PENDING, attempt=1), 3)
    assert shown(cache).status.placement is None, "the record is forgotten for good"


def test_a_stored_status_that_is_finished_is_all_that_counts(cache: Cache) -> None:
    place(cache)
    failed = with_status(PENDING, phase=JobPhase.FAILED)
    see(cache, failed, 2)
    assert shown(cache).status == failed.status
    assert snapshot(cache).recorded == ()


def test_an_edit_comes_through_while_the_placement_is_recorded(cache: Cache) -> None:
    place(cache)
    see(cache, make_job(suspend=True, generation=2), 2)
    found = shown(cache)
    assert (found.spec.suspend, found.metadata.generation) == (True, 2)
    assert found.metadata.resource_version == "2", "a status can be written"
    assert found.status == PLACED.status
    cache.placements.withdraw("uid-job", in_doubt=False)
    assert (shown(cache).spec.suspend, shown(cache).status) == (True, PENDING.status)


def test_another_job_of_the_name_is_not_placed(cache: Cache) -> None:
    place(cache)
    see(cache, make_job(uid="uid-again"), 2)
    assert [(job.metadata.uid, job.status.placement) for job in snapshot(cache).jobs] == [
        ("uid-again", None)
    ]
    assert snapshot(cache).recorded == ()


# -- the pod's UID


@pytest.mark.parametrize("event_type", [None, "ADDED"])
def test_the_pods_uid_is_known_once_it_is_there(
    cache: Cache, dirty: Dirty, event_type: str | None
) -> None:
    """Whether its event comes before the answer to the request or after."""
    place(cache)
    assert worker(cache).pod_uid is None
    dirty.take()
    cache.apply(Kind.POD, event_type, recorded_pod())
    assert worker(cache).pod_uid == "uid-pod"
    assert worker(cache) == WorkerPlacement(0, "n7", ("GPU-7",), "uid-pod")
    assert dirty.urgent.is_set()
    cache.apply(Kind.POD, None if event_type else "ADDED", recorded_pod(version=2))
    assert worker(cache).pod_uid == "uid-pod"
    assert snapshot(cache).recorded == ("uid-job",)


def test_the_uid_stays_known_when_the_job_is_edited(cache: Cache) -> None:
    place(cache)
    cache.apply(Kind.POD, "ADDED", recorded_pod())
    see(cache, make_job(priority=7), 2)
    assert (shown(cache).spec.priority, worker(cache).pod_uid) == (7, "uid-pod")


def test_the_first_of_two_pods_is_the_worker(cache: Cache) -> None:
    place(cache)
    cache.apply(Kind.POD, "ADDED", recorded_pod(uid="uid-first"))
    cache.apply(Kind.POD, "ADDED", recorded_pod(uid="uid-second", version=2))
    assert worker(cache).pod_uid == "uid-first"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_manifest(PENDING, uid="uid-pod"), id="without a record"),
        pytest.param(recorded_pod(with_status(PLACED, attempt=2)), id="of another attempt"),
        pytest.param(recorded_pod(placed(make_job(uid="uid-old"))), id="of another job"),
        pytest.param(moved(recorded_pod(), namespace="attacker"), id="of another namespace"),
        pytest.param(moved(recorded_pod(), name="x-1-0"), id="of another name"),
    ],
)
def test_another_pod_is_not_taken_for_it(cache: Cache, pod: Manifest) -> None:
    place(cache)
    cache.apply(Kind.POD, "ADDED", pod)
    assert worker(cache).pod_uid is None


def test_the_pod_of_another_leader_is_where_it_says(cache: Cache) -> None:
    """Two led for a moment: this process was answered that the pod is there already, on another GPU
    than it had decided."""
    place(cache)
    theirs = placed(PENDING, ("n8", ("GPU-8",)))
    cache.apply(Kind.POD, "ADDED", recorded_pod(theirs))
    assert (worker(cache).node, worker(cache).gpus) == ("n8", ("GPU-8",))
    assert worker(cache).pod_uid == "uid-pod"
    assert snapshot(cache).recorded == ("uid-job",)


def test_a_pod_that_comes_while_this_process_leads_places_nothing(cache: Cache) -> None:
    """Another leader created it; this one has perhaps decided otherwise already."""
    cache.begin_to_lead(in_doubt=False)
    cache.apply(Kind.POD, "ADDED", recorded_pod())
    assert shown(cache).status == PENDING.status
    assert snapshot(cache).recorded == ()


# -- a placement that did not come about


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_placement_that_is_withdrawn_is_shown_no_longer(
    cache: Cache, dirty: Dirty, in_doubt: bool
) -> None:
    place(cache)
    dirty.take()
    cache.placements.withdraw("uid-job", in_doubt=in_doubt)
    assert shown(cache).status == PENDING.status
    found = snapshot(cache)
    assert (found.recorded, found.perhaps_placed) == ((), ("uid-job",) if in_doubt else ())
    assert not cache.placements.is_placed("uid-job")
    assert dirty.urgent.is_set()


def test_doubt_is_said_once_and_lasts(cache: Cache) -> None:
    for _ in range(2):
        place(cache)
        cache.placements.withdraw("uid-job", in_doubt=True)
    place(cache)
    cache.placements.withdraw("uid-job", in_doubt=False)
    assert snapshot(cache).perhaps_placed == ("uid-job",)


def test_what_is_not_recorded_any_more_is_withdrawn_without_a_trace(cache: Cache) -> None:
    """A status had the attempt before the answer to its request came."""
    place(cache)
    see(cache, PLACED, 2)
    cache.placements.withdraw("uid-job", in_doubt=False)
    assert shown(cache).status == PLACED.status


def test_a_job_that_is_deleted_is_forgotten(cache: Cache) -> None:
    place(cache)
    cache.placements.withdraw("uid-job", in_doubt=True)
    place(cache)
    found = snapshot(cache)
    assert (found.recorded, found.perhaps_placed) == (("uid-job",), ("uid-job",))
    cache.apply(Kind.JOB, "DELETED", job_manifest(PENDING, 2))
    found = snapshot(cache)
    assert (found.jobs, found.recorded, found.perhaps_placed) == ((), (), ())


def test_a_placement_that_only_its_pod_records_leaves_doubt_to_the_next_leader(
    cache: Cache,
) -> None:
    """Its pod may go before the next leader sees it."""
    assert not cache.placements.leaves_doubt
    place(cache)
    assert cache.placements.leaves_doubt
    (item,) = cache.placements.statuses()
    assert (item.job, item.status, item.pod) == (shown(cache), PLACED.status, None)
    see(cache, PLACED, 2)
    assert not cache.placements.leaves_doubt
    assert cache.placements.statuses() == ()


@pytest.mark.parametrize("job", [PLACED, with_status(PENDING, phase=JobPhase.FAILED)])
def test_doubt_about_a_job_is_left_until_it_has_an_attempt_or_its_end(
    cache: Cache, job: GPUJob
) -> None:
    cache.begin_to_lead(in_doubt=True)
    assert cache.placements.leaves_doubt
    assert cache.placements.statuses() == ()
    see(cache, job, 2)
    assert not cache.placements.leaves_doubt
    assert snapshot(cache).perhaps_placed == ()


def test_of_two_jobs_in_doubt_the_other_one_is_kept(cache: Cache) -> None:
    see(cache, make_job("other"), 2)
    cache.begin_to_lead(in_doubt=True)
    assert snapshot(cache).perhaps_placed == ("uid-job", "uid-other")
    cache.forget(Kind.JOB, "uid-job")
    assert snapshot(cache).perhaps_placed == ("uid-other",)


# -- a process that begins to lead


def test_a_pod_of_another_namespace_is_not_taken_over(cache: Cache) -> None:
    cache.apply(Kind.POD, "ADDED", moved(recorded_pod(), namespace="attacker"))
    cache.begin_to_lead(in_doubt=False)
    assert shown(cache).status == PENDING.status


@pytest.mark.parametrize("in_doubt", [True, False])
def test_pods_that_are_there_are_taken_over(cache: Cache, dirty: Dirty, in_doubt: bool) -> None:
    cache.apply(Kind.POD, "ADDED", recorded_pod())
    assert shown(cache).status == PENDING.status, "nobody relies on it before"
    dirty.take()
    cache.begin_to_lead(in_doubt=in_doubt)
    status = shown(cache).status
    assert (status.phase, status.attempt) == (JobPhase.STARTING, 1)
    assert worker(cache) == WorkerPlacement(0, "n7", ("GPU-7",), "uid-pod")
    found = snapshot(cache)
    assert (found.recorded, found.perhaps_placed) == (("uid-job",), ())
    assert dirty.urgent.is_set()


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_pod_that_was_asked_to_go_is_not_taken_over(cache: Cache, in_doubt: bool) -> None:
    """It may be one that came late. Its number is not given again."""
    cache.apply(Kind.POD, "ADDED", going(recorded_pod()))
    cache.begin_to_lead(in_doubt=in_doubt)
    assert shown(cache).status == PENDING.status
    found = snapshot(cache)
    assert (found.recorded, found.perhaps_placed) == ((), ("uid-job",))


def test_a_pod_of_an_attempt_that_a_status_has_records_nothing(cache: Cache) -> None:
    running = with_status(PLACED, phase=JobPhase.RUNNING)
    see(cache, running, 2)
    cache.apply(Kind.POD, "ADDED", recorded_pod())
    cache.begin_to_lead(in_doubt=True)
    assert shown(cache).status == running.status
    assert (snapshot(cache).recorded, snapshot(cache).perhaps_placed) == ((), ())


DOUBTFUL = {"pending": make_job("pending"), "suspended": make_job("suspended", suspend=True)}
NEVER_IN_DOUBT = {
    "gang": make_job("gang", workers=2),
    "placed": placed(make_job("placed")),
    "waiting": with_status(make_job("waiting"), attempt=3),
    "failed": with_status(make_job("failed"), phase=JobPhase.FAILED),
}


@pytest.mark.parametrize("in_doubt", [True, False])
@pytest.mark.parametrize("name", [*DOUBTFUL, *NEVER_IN_DOUBT])
def test_jobs_of_one_worker_without_an_attempt_are_in_doubt(
    dirty: Dirty, name: str, in_doubt: bool
) -> None:
    """Only where the last leader may still have a request under way."""
    cache = Cache(dirty, Metrics(), FakeClock().now)
    see(cache, {**DOUBTFUL, **NEVER_IN_DOUBT}[name], 1)
    cache.begin_to_lead(in_doubt=in_doubt)
    expected = (f"uid-{name}",) if in_doubt and name in DOUBTFUL else ()
    assert snapshot(cache).perhaps_placed == expected


def test_who_leads_again_has_no_doubts_of_before(cache: Cache) -> None:
    cache.begin_to_lead(in_doubt=True)
    cache.begin_to_lead(in_doubt=False)
    assert snapshot(cache).perhaps_placed == ()


@pytest.mark.parametrize("in_doubt", [True, False])
def test_what_this_process_recorded_when_it_led_before_is_dropped(
    cache: Cache, dirty: Dirty, in_doubt: bool
) -> None:
    place(cache)
    see(cache, make_job(priority=7), 2)
    dirty.take()
    cache.begin_to_lead(in_doubt=in_doubt)
    assert (shown(cache).spec.priority, shown(cache).status) == (7, PENDING.status)
    found = snapshot(cache)
    assert (found.recorded, found.perhaps_placed) == ((), ("uid-job",) if in_doubt else ())
    assert dirty.urgent.is_set()


def test_a_pod_that_was_created_before_is_taken_over_as_it_records(cache: Cache) -> None:
    """Not as this process placed it: another may have led between."""
    place(cache)
    elsewhere = placed(PENDING, ("n8", ("GPU-8",)))
    cache.apply(Kind.POD, "ADDED", recorded_pod(elsewhere))
    cache.begin_to_lead(in_doubt=False)
    assert worker(cache) == WorkerPlacement(0, "n8", ("GPU-8",), "uid-pod")
    cache.placements.withdraw("uid-job", in_doubt=False)
    assert shown(cache) == replace(PENDING, metadata=shown(cache).metadata)
