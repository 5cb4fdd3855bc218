"""From events to a snapshot: complete, incremental, in step with our own writes."""

import dataclasses
from datetime import timedelta

import pytest

from gpujob_api.gpujob import JobPhase
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodPhase, Snapshot
from gpujob_operator.observe.cache import PRUNE_SECONDS, Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.gone_pods import GONE_SECONDS, REMOVAL_AWAITED_SECONDS
from gpujob_operator.read.snapshot import Objects, snapshot_of
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import (
    make_gpu,
    make_job,
    make_queue,
    make_report,
    placed,
    received,
    with_status,
)
from tests.harness.clocks import FakeClock
from tests.harness.manifests import (
    Manifest,
    gpu_node_manifest,
    job_manifest,
    node_manifest,
    pod_manifest,
)

JOB = make_job()


@pytest.fixture
def dirty() -> Dirty:
    return Dirty()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cache(dirty: Dirty, clock: FakeClock) -> Cache:
    return Cache(dirty, Metrics(), clock.now)


def _snapshot(cache: Cache) -> Snapshot:
    return cache.snapshot((), Configuration())


def test_ready_only_when_every_kind_was_listed(cache: Cache) -> None:
    for kind in [one for one in Kind if one is not Kind.VOLUME]:
        assert not cache.ready
        cache.resync(kind, [], "1")
    assert cache.ready, "a volume that is not known costs a refusal and no wrong placement"


def test_a_list_that_shows_a_restore_is_told_of_once(dirty: Dirty, clock: FakeClock) -> None:
    """Also watches and the other kinds stand on what was lost then."""
    told: list[int] = []
    cache = Cache(dirty, Metrics(), clock.now, restored=lambda: told.append(1))
    cache.resync(Kind.POD, [], "90", cache.mark(Kind.POD))
    mark = cache.mark(Kind.POD)
    cache.resync(Kind.POD, [], "91", mark)
    assert not told
    mark = cache.mark(Kind.POD)
    cache.resync(Kind.POD, [], "60", mark)
    cache.resync(Kind.POD, [], "60", mark)
    assert told == [1]


@pytest.mark.parametrize("told_by_pods", [True, False])
def test_a_pod_that_a_restore_took_away_did_not_end(
    dirty: Dirty, clock: FakeClock, told_by_pods: bool
) -> None:
    """I3: the list lacks a worker that was done, and its attempt's number is given once more."""
    ended = {"terminated": {"exitCode": 0}}
    done = pod_manifest(placed(JOB), phase="Succeeded", state=ended, version=80)
    cache = Cache(dirty, Metrics(), clock.now, restored=lambda: cache.begin_another_history())
    cache.apply(Kind.JOB, "ADDED", job_manifest(placed(JOB)))
    cache.apply(Kind.POD, "ADDED", done)
    if not told_by_pods:
        cache.begin_another_history()
    cache.resync(Kind.POD, [], "60", cache.mark(Kind.POD))
    assert _snapshot(cache).pods == ()


def test_a_pod_that_ends_after_a_restore_has_ended(cache: Cache) -> None:
    """I5: it is in the restored data, and goes a while later."""
    done = pod_manifest(placed(JOB), state={"terminated": {"exitCode": 0}}, version=40)
    cache.apply(Kind.JOB, "ADDED", job_manifest(placed(JOB)))
    cache.apply(Kind.POD, "ADDED", done)
    cache.begin_another_history()
    cache.resync(Kind.POD, [done], "60", cache.mark(Kind.POD))
    cache.apply(
        Kind.POD, "DELETED", {**done, "metadata": {**done["metadata"], "resourceVersion": "61"}}
    )
    assert [pod.exit_code for pod in _snapshot(cache).pods] == [0]


def test_everything_is_in_the_snapshot(cache: Cache) -> None:
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB))
    cache.apply(Kind.POD, "ADDED", pod_manifest(JOB))
    cache.apply(Kind.NODE, "ADDED", node_manifest())
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node_manifest())
    queue = {"metadata": {"name": "default", "uid": "q", "resourceVersion": "1"}, "spec": {}}
    cache.apply(Kind.QUEUE, "ADDED", queue)
    snapshot = _snapshot(cache)
    assert [job.metadata.name for job in snapshot.jobs] == ["job"]
    assert [pod.name for pod in snapshot.pods] == ["job-1-0"]
    assert [node.name for node in snapshot.nodes] == ["n0"]
    assert [node.metadata.name for node in snapshot.gpu_nodes] == ["n0"]
    assert [one.spec for one in snapshot.queues] == [make_queue().spec]


@pytest.mark.parametrize(
    "impostor",
    [
        pytest.param(pod_manifest(name="job-1-0", uid="other", namespace="team"), id="no owner"),
        pytest.param(pod_manifest(JOB, uid="other", namespace="elsewhere"), id="another namespace"),
        pytest.param(pod_manifest(JOB, 7, uid="other"), id="a rank that the job has not"),
    ],
)
def test_a_pod_that_is_no_worker_uses_nothing_in_a_jobs_name(
    cache: Cache, impostor: Manifest
) -> None:
    cache.apply(Kind.JOB, "ADDED", job_manifest(placed(JOB)))
    cache.apply(Kind.POD, "ADDED", impostor)
    pod = cache.listers.pod("other")
    assert pod is not None
    assert cache.listers.job_of(pod) is None
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node_manifest("n0", make_gpu(ours=[("other", GIB)])))
    assert _snapshot(cache).usage == {}


def test_free_is_what_bound_live_pods_leave(cache: Cache) -> None:
    cache.apply(Kind.NODE, "ADDED", node_manifest(cpu="8"))
    cache.apply(Kind.POD, "ADDED", pod_manifest(JOB, cpu="1"))
    cache.apply(Kind.POD, "ADDED", pod_manifest(cpu="2", version=2))
    cache.apply(Kind.POD, "ADDED", pod_manifest(name="elsewhere", node="n9", cpu="4", version=3))
    cache.apply(Kind.POD, "ADDED", pod_manifest(name="unbound", node=None, cpu="4", version=4))
    assert _snapshot(cache).nodes[0].cpu_milli_free == 5000
    cache.apply(Kind.POD, "MODIFIED", pod_manifest(cpu="2", version=5, phase="Succeeded"))
    assert _snapshot(cache).nodes[0].cpu_milli_free == 7000
    cache.apply(Kind.POD, "DELETED", pod_manifest(JOB, version=6))
    assert _snapshot(cache).nodes[0].cpu_milli_free == 8000


def test_a_placeholder_takes_no_room(cache: Cache) -> None:
    """kube-scheduler evicts pods of negative priority for a worker. It evicts no worker."""
    cache.apply(Kind.NODE, "ADDED", node_manifest(cpu="8", pods="10"))
    before = _snapshot(cache).nodes[0]
    manifests = [
        pod_manifest(JOB, cpu="1"),
        pod_manifest(name="placeholder", cpu="6", version=2),
        pod_manifest(name="other", cpu="2", version=3),
    ]
    for manifest, priority in zip(manifests, (-1, -10, 0), strict=True):
        manifest["spec"]["priority"] = priority
        cache.apply(Kind.POD, "ADDED", manifest)
    after_all = _snapshot(cache).nodes[0]
    assert (after_all.cpu_milli_free, after_all.pods_free) == (5000, 8)
    objects = Objects(nodes=[node_manifest(cpu="8", pods="10")], pods=manifests)
    assert snapshot_of(objects, Configuration()).nodes == (after_all,)
    for number, manifest in enumerate(manifests):
        manifest["metadata"]["resourceVersion"] = str(10 + number)
        cache.apply(Kind.POD, "DELETED", manifest)
    assert _snapshot(cache).nodes[0] == before


def test_pods_seen_before_their_node_count(cache: Cache) -> None:
    cache.apply(Kind.POD, "ADDED", pod_manifest(cpu="2"))
    cache.apply(Kind.NODE, "ADDED", node_manifest(cpu="8"))
    assert _snapshot(cache).nodes[0].cpu_milli_free == 6000


def test_unmanaged_pods_are_no_worker_pods(cache: Cache) -> None:
    cache.apply(Kind.POD, "ADDED", pod_manifest())
    assert _snapshot(cache).pods == ()


def test_what_we_wrote_stays_until_something_newer_comes(cache: Cache) -> None:
    """The answer to our status write is in the next snapshot; the echo of the old is not."""
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB, 1))
    written = with_status(JOB, phase=JobPhase.STARTING, attempt=1)
    cache.apply(Kind.JOB, None, job_manifest(written, 5))
    cache.apply(Kind.JOB, "MODIFIED", job_manifest(JOB, 3))
    assert _snapshot(cache).jobs[0].status.phase is JobPhase.STARTING
    assert _snapshot(cache).jobs[0].metadata.resource_version == "5"


def test_a_created_pod_is_there_at_once(cache: Cache) -> None:
    cache.apply(Kind.POD, None, pod_manifest(JOB, node=None, phase="Pending", version=9))
    assert _snapshot(cache).pods[0].phase is PodPhase.PENDING
    cache.resync(Kind.POD, [], "8")
    assert len(_snapshot(cache).pods) == 1, "the list is older than the write"


def test_an_unreadable_job_is_said_and_harms_nobody(cache: Cache) -> None:
    bad = job_manifest(make_job("bad"), 2)
    bad["spec"]["gpusPerWorker"] = 99
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB, 1))
    cache.apply(Kind.JOB, "ADDED", bad)
    snapshot = _snapshot(cache)
    assert [job.metadata.name for job in snapshot.jobs] == ["job"]
    assert [job.field for job in snapshot.invalid_jobs] == ["spec.gpusPerWorker"]
    assert cache.listers.job("uid-bad") is None


def test_usage_follows_from_readings_and_ends_soon_after_the_attempt(
    cache: Cache, clock: FakeClock
) -> None:
    job = placed(JOB)
    cache.apply(Kind.JOB, "ADDED", job_manifest(job, 1))
    cache.apply(Kind.POD, "ADDED", pod_manifest(job, version=2))
    gpu = make_gpu(ours=[("pod-job-1-0", 3 * GIB)])
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node_manifest("n0", gpu, version=3))
    assert _snapshot(cache).usage["uid-job", 1].memory_peak_bytes == 3 * GIB
    cache.apply(Kind.POD, "DELETED", pod_manifest(job, version=4))
    cache.apply(Kind.JOB, "DELETED", job_manifest(job, 5))
    clock.advance(PRUNE_SECONDS)
    assert _snapshot(cache).usage == {}


@pytest.mark.parametrize(("rank", "samples"), [(0, 1), (1, 2)])
def test_readings_count_anew_once_rank_0_has_settled(cache: Cache, rank: int, samples: int) -> None:
    """Only its reports show what the job does. The reading after it may show the start-up."""
    job = placed(JOB)
    cache.apply(Kind.JOB, "ADDED", job_manifest(job, 1))
    cache.apply(Kind.POD, "ADDED", pod_manifest(job, version=2))
    gpu = make_gpu(ours=[("pod-job-1-0", GIB)])
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node_manifest("n0", gpu, version=3))
    reports = (received(job, make_report(rank=rank)),)
    assert cache.snapshot(reports, Configuration()).usage["uid-job", 1].samples == 1
    later = gpu_node_manifest("n0", gpu, version=4, observed_at="2026-01-01T12:00:02Z")
    cache.apply(Kind.GPU_NODE, "MODIFIED", later)
    assert cache.snapshot(reports, Configuration()).usage["uid-job", 1].samples == samples


def test_pods_that_went_are_told_until_the_gpus_were_read_again(
    cache: Cache, clock: FakeClock
) -> None:
    job = placed(JOB)
    cache.apply(Kind.POD, "ADDED", pod_manifest(job, version=2))
    assert _snapshot(cache).gone_pods == ()
    cache.apply(Kind.POD, "DELETED", pod_manifest(job, version=4))
    (gone,) = _snapshot(cache).gone_pods
    assert (gone.uid, gone.gpus, gone.gone_at) == ("pod-job-1-0", ("GPU-0",), clock.now())
    clock.advance(GONE_SECONDS + 1)
    assert _snapshot(cache).gone_pods == ()


DONE: Manifest = {"terminated": {"exitCode": 0, "reason": "Completed"}}
WORKER = placed(JOB)
UID = "pod-job-1-0"


def _done_pod(version: int) -> Manifest:
    return pod_manifest(WORKER, version=version, phase="Succeeded", state=DONE)


@pytest.fixture
def watched(cache: Cache) -> Cache:
    """A job's worker runs."""
    cache.apply(Kind.JOB, "ADDED", job_manifest(WORKER, 1))
    cache.apply(Kind.POD, "ADDED", pod_manifest(WORKER, version=2))
    return cache


@pytest.mark.parametrize("ends_by", ["event", "event of the removal", "list"])
def test_how_a_pod_ended_is_known_although_it_is_gone(watched: Cache, ends_by: str) -> None:
    """A kubelet writes the end and removes the pod before the next decision."""
    if ends_by != "event of the removal":
        watched.apply(Kind.POD, "MODIFIED", _done_pod(3))
    if ends_by == "list":
        watched.resync(Kind.POD, [], "4")
    else:
        watched.apply(Kind.POD, "DELETED", _done_pod(4))
    (pod,) = _snapshot(watched).pods
    assert (pod.uid, pod.exit_code, pod.finished) == (UID, 0, True)


def test_a_deletion_that_comes_too_late_takes_no_end_away(watched: Cache) -> None:
    """It was on its way when the worker ended."""
    watched.apply(Kind.POD, "DELETED", _done_pod(4))
    watched.forget(Kind.POD, UID)
    (pod,) = _snapshot(watched).pods
    assert pod.exit_code == 0


def test_how_a_pod_ended_is_awaited_where_a_write_found_it_gone(
    watched: Cache, clock: FakeClock
) -> None:
    watched.forget(Kind.POD, UID)
    clock.advance(REMOVAL_AWAITED_SECONDS / 2)
    watched.forget(Kind.POD, UID)
    (pod,) = _snapshot(watched).pods
    assert not pod.ended
    watched.apply(Kind.POD, "DELETED", _done_pod(4))
    (pod,) = _snapshot(watched).pods
    assert pod.exit_code == 0


def test_a_pod_whose_removal_no_event_tells_is_awaited_for_so_long(
    watched: Cache, clock: FakeClock
) -> None:
    watched.forget(Kind.POD, UID)
    clock.advance(REMOVAL_AWAITED_SECONDS)
    assert _snapshot(watched).pods
    watched.forget(Kind.POD, UID)
    assert _snapshot(watched).pods == ()


def test_a_pod_that_went_while_it_ran_has_no_end(watched: Cache) -> None:
    watched.apply(Kind.POD, "DELETED", pod_manifest(WORKER, version=3))
    assert _snapshot(watched).pods == ()


def test_a_reading_is_as_old_as_its_arrival(cache: Cache) -> None:
    first = gpu_node_manifest(observed_at="2030-01-01T00:00:00Z")
    first["metadata"]["managedFields"] = [
        {"manager": "agent", "subresource": "status", "time": "2026-01-01T11:59:58Z"}
    ]
    cache.apply(Kind.GPU_NODE, "ADDED", first)
    arrived = _snapshot(cache).gpu_nodes[0].status.observed_at
    assert arrived == FakeClock().now() - timedelta(seconds=2)


def test_news_marks_dirty_and_echoes_do_not(cache: Cache, dirty: Dirty) -> None:
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB, 1))
    assert dirty.take() == 1
    cache.apply(Kind.JOB, "MODIFIED", job_manifest(JOB, 2))
    assert dirty.take() == 0
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node_manifest())
    assert dirty.any.is_set()
    assert not dirty.urgent.is_set(), "a measurement can wait a little"


def test_pods_of_others_elsewhere_wake_nobody(cache: Cache, dirty: Dirty) -> None:
    cache.apply(Kind.NODE, "ADDED", node_manifest())
    dirty.take()
    cache.apply(Kind.POD, "ADDED", pod_manifest(name="far", node="n9"))
    assert dirty.take() == 0
    cache.apply(Kind.POD, "ADDED", pod_manifest(name="near"))
    assert dirty.take() == 1


def test_forget_is_for_good(cache: Cache) -> None:
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB, 1))
    cache.forget(Kind.JOB, JOB.metadata.uid)
    cache.apply(Kind.JOB, "MODIFIED", job_manifest(JOB, 2))
    assert _snapshot(cache).jobs == ()


def test_unchanged_parts_are_not_built_again(cache: Cache) -> None:
    for number in range(3):
        cache.apply(Kind.NODE, "ADDED", node_manifest(f"n{number}", version=number + 1))
    before = _snapshot(cache).nodes
    cache.apply(Kind.POD, "ADDED", pod_manifest(node="n1", version=9))
    after = _snapshot(cache).nodes
    same = [one is other for one, other in zip(before, after, strict=True)]
    assert same == [True, False, True]


def test_snapshot_is_immutable(cache: Cache) -> None:
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB, 1))
    snapshot = _snapshot(cache)
    cache.apply(Kind.JOB, "DELETED", job_manifest(JOB, 2))
    assert len(snapshot.jobs) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.jobs = ()  # type: ignore[misc]


def test_what_the_jobs_of_a_namespace_ask_for_leaves_other_pods_out(cache: Cache) -> None:
    """Neither pods of other owners, whatever their names, nor those that have ended."""
    cache.apply(Kind.JOB, "ADDED", job_manifest(JOB))
    for pod in (
        pod_manifest(JOB),
        pod_manifest(JOB, attempt=2, phase="Succeeded"),
        pod_manifest(name="web-1-0", namespace=JOB.metadata.namespace),
    ):
        cache.apply(Kind.POD, "ADDED", pod)
    assert list(cache.listers.requests_of_jobs(JOB.metadata.namespace)) == [(1000, GIB)]
    assert list(cache.listers.requests_of_jobs("other")) == []
