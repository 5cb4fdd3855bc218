"""Plans are written in order, once, with preconditions, and never half believed."""

import asyncio
from typing import Any

import pytest

from gpujob_api.gpujob import JobPhase
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.settings import Settings
from gpujob_operator.act.crash import CRASH_EXIT_CODE, CrashAfterWrites
from gpujob_operator.act.executor import Executor, Feedback, WriteResult
from gpujob_operator.act.kube import (
    EVENTS,
    JOBS,
    LEASES,
    PODS,
    QUEUES,
    SERVICES,
    Manifest,
    ResourceType,
    Throttled,
    Unavailable,
)
from gpujob_operator.act.retry import ATTEMPTS_MAX, Retry
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.plan import (
    CreatePod,
    DeletePod,
    EventNote,
    Plan,
    PlanItem,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.metrics import Metrics
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import make_job, make_queue, placed, with_status
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import Call, FakeKube
from tests.harness.manifests import job_manifest, pod_manifest


class _Bench:
    """An executor with everything it tells and asks."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.leads = True
        self.written: list[tuple[str, str]] = []
        self.gone: list[str] = []
        self.notes: list[str] = []
        self.doubts = 0
        self.executor = Executor(
            self.kube,
            Feedback(self._wrote, lambda _, uid: self.gone.append(uid), self._noted, self._doubted),
            self.metrics,
            configuration=Configuration(report_url="http://operator/report"),
            clock=self.clock.now,
            monotonic=self.clock.monotonic,
            may_act=lambda: self.leads,
            retry=Retry(sleep=self.clock.sleep, uniform=lambda low, high: high),
        )

    def _doubted(self) -> None:
        self.doubts += 1

    def _wrote(self, kind: ResourceType, manifest: Manifest) -> None:
        self.written.append((kind.plural, manifest["metadata"]["name"]))

    def _noted(self, metadata: Any, note: EventNote) -> None:
        self.notes.append(f"{metadata.name}: {note.reason}")

    def job(self, name: str = "job") -> Any:
        """A placed job as the API server has it now."""
        job = placed(make_job(name))
        stored = self.kube.put(JOBS, job_manifest(job))
        version = stored["metadata"]["resourceVersion"]
        return _at_version(job, version)

    async def run(self, *items: PlanItem) -> dict[WriteResult, int]:
        return (await self.executor.execute(Plan(items))).results

    def verbs(self) -> list[tuple[str, str]]:
        return [(call.verb, call.name) for call in self.kube.writes()]


def _at_version(job: Any, version: str) -> Any:
    from dataclasses import replace

    return replace(job, metadata=replace(job.metadata, resource_version=version))


def _status(job: Any, *notes: EventNote) -> WriteStatus:
    return WriteStatus(job, with_status(job, phase=JobPhase.RUNNING).status, notes)


def _create(job: Any, rank: int = 0) -> CreatePod:
    return CreatePod(job, rank, Settings())


@pytest.fixture
def bench() -> _Bench:
    return _Bench()


async def test_items_of_a_job_are_written_in_order(bench: _Bench) -> None:
    job = bench.job()
    results = await bench.run(_status(job, EventNote("Started", "now")), _create(job))
    assert results == {WriteResult.DONE: 2}
    assert bench.verbs() == [("patch", "job"), ("create", "job-1-0")]
    assert bench.written == [("gpujobs", "job"), ("pods", "job-1-0")]
    assert bench.notes == ["job: Started"]
    assert bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Running"


async def test_a_conflict_drops_the_rest_of_that_job_only(bench: _Bench) -> None:
    job, other = bench.job("job"), bench.job("other")
    bench.kube.put(JOBS, job_manifest(job))  # somebody edits it: a new resourceVersion
    results = await bench.run(_status(job), _create(job), _status(other), _create(other))
    assert results == {WriteResult.CONFLICT: 1, WriteResult.DONE: 2}
    assert bench.kube.names(PODS) == ["other-1-0"]
    assert ("gpujobs", "job") in bench.written, "the cache got the state that was in the way"


async def test_a_job_that_is_gone_is_forgotten(bench: _Bench) -> None:
    job = bench.job()
    bench.kube.remove(JOBS, "job", "team")
    assert await bench.run(_status(job), _create(job)) == {WriteResult.GONE: 1}
    assert bench.gone == ["uid-job"]
    assert bench.kube.names(PODS) == []


async def test_creating_the_same_pod_twice_is_success(bench: _Bench) -> None:
    job = bench.job()
    await bench.run(_create(job))
    assert await bench.run(_create(job)) == {WriteResult.DONE: 1}
    assert bench.kube.names(PODS) == ["job-1-0"]


async def test_a_gang_gets_its_service_once_and_before_its_first_pod(bench: _Bench) -> None:
    gang = placed(make_job("gang", workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    await bench.run(_create(gang, 0), _create(gang, 1))
    service = ("create", "gpujob-uid-gang")
    assert bench.verbs() == [service, ("create", "gang-1-0"), ("create", "gang-1-1")]
    bench.kube.remove(PODS, "gang-1-0", "team")
    assert await bench.run(_create(gang, 0)) == {WriteResult.DONE: 1}
    assert bench.kube.names(SERVICES) == ["gpujob-uid-gang"]


async def test_a_lost_answer_to_create_is_success(bench: _Bench) -> None:
    """The write happened, the answer did not come: the retry finds our own pod (I3)."""
    job = bench.job()
    error = Unavailable(0, "ServerDisconnected", "")
    bench.kube.fail("create", "pods", error, after_effect=True)
    assert await bench.run(_create(job)) == {WriteResult.DONE: 1}
    assert bench.kube.names(PODS) == ["job-1-0"]
    assert bench.written == [("pods", "job-1-0")]


async def test_a_lost_answer_to_a_status_is_a_conflict_that_refreshes_the_cache(
    bench: _Bench,
) -> None:
    job = bench.job()
    bench.kube.fail("patch", "gpujobs", times=1, after_effect=True)
    assert await bench.run(_status(job), _create(job)) == {WriteResult.CONFLICT: 1}
    assert bench.written == [("gpujobs", "job")]


async def test_a_write_that_is_never_answered_makes_the_cache_doubtful(bench: _Bench) -> None:
    """I1: the cards may be taken already; nothing is placed before everything was listed anew."""
    job = bench.job()
    bench.kube.fail("patch", "gpujobs", times=1, after_effect=True)
    bench.kube.fail("get", "gpujobs", times=ATTEMPTS_MAX)
    assert await bench.run(_status(job)) == {WriteResult.FAILED: 1}
    assert bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Running"
    assert (bench.written, bench.doubts) == ([], 1)


@pytest.mark.parametrize(
    "owner",
    [
        {"uid": "another"},
        {"controller": False},
        {"kind": "ReplicaSet"},
        {"apiVersion": "apps/v1"},
    ],
)
async def test_a_foreign_pod_of_the_name_is_a_failure(bench: _Bench, owner: dict[str, Any]) -> None:
    """Labels prove nothing: the controller owner does."""
    job = bench.job()
    foreign = pod_manifest(job)
    foreign["metadata"]["ownerReferences"][0] |= owner
    bench.kube.put(PODS, foreign)
    assert await bench.run(_create(job)) == {WriteResult.CONFLICT: 1}
    assert bench.written == []


async def test_our_pod_that_is_being_deleted_is_no_success(bench: _Bench) -> None:
    job = bench.job()
    await bench.run(_create(job))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    await bench.run(DeletePod(pod, 30, "test"))
    assert await bench.run(_create(job)) == {WriteResult.CONFLICT: 1}


async def test_delete_names_the_uid(bench: _Bench) -> None:
    job = bench.job()
    await bench.run(_create(job))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    assert await bench.run(DeletePod(pod, 12, "test")) == {WriteResult.DONE: 1}
    stored = bench.kube.stored(PODS, "job-1-0", "team")
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 12
    assert bench.written[-1] == ("pods", "job-1-0"), "its deletion time is in the next snapshot"


async def test_deleting_what_is_gone_or_replaced_is_success(bench: _Bench) -> None:
    job = bench.job()
    await bench.run(_create(job))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    bench.kube.remove(PODS, "job-1-0", "team")
    assert await bench.run(DeletePod(pod, 30, "test")) == {WriteResult.DONE: 1}
    await bench.run(_create(job))
    assert await bench.run(DeletePod(pod, 30, "test")) == {WriteResult.DONE: 1}
    assert bench.gone == [pod.uid, pod.uid]
    assert "deletionTimestamp" not in bench.kube.stored(PODS, "job-1-0", "team")["metadata"]


async def test_passing_trouble_is_retried_with_growing_pauses(bench: _Bench) -> None:
    job = bench.job()
    bench.kube.fail("patch", "gpujobs", times=ATTEMPTS_MAX - 1)
    assert await bench.run(_status(job)) == {WriteResult.DONE: 1}
    assert bench.clock.slept == pytest.approx([0.1, 0.2, 0.4])


async def test_lasting_trouble_is_given_up_until_the_next_cycle(bench: _Bench) -> None:
    job = bench.job()
    bench.kube.fail("patch", "gpujobs", times=99)
    assert await bench.run(_status(job), _create(job)) == {WriteResult.FAILED: 1}
    assert len(bench.kube.writes()) == ATTEMPTS_MAX
    assert bench.kube.names(PODS) == []


async def test_the_servers_retry_after_is_kept_within_bounds(bench: _Bench) -> None:
    job = bench.job()
    bench.kube.fail("patch", "gpujobs", Throttled("slow down", 3.0))
    bench.kube.fail("patch", "gpujobs", Throttled("slow down", 3600.0))
    assert await bench.run(_status(job)) == {WriteResult.DONE: 1}
    assert bench.clock.slept == pytest.approx([3.1, 10.2])


async def test_nothing_is_written_without_the_lease(bench: _Bench) -> None:
    job = bench.job()
    bench.leads = False
    assert await bench.run(_status(job), _create(job)) == {WriteResult.NOT_LEADER: 1}
    assert bench.kube.writes() == []


async def test_a_lease_lost_on_the_way_stops_the_rest(bench: _Bench) -> None:
    job = bench.job()

    def lose(call: Call) -> None:
        bench.leads = call.verb != "patch"

    bench.kube.before = lose
    results = await bench.run(_status(job), _create(job))
    assert results == {WriteResult.DONE: 1, WriteResult.NOT_LEADER: 1}


async def test_a_lease_lost_during_a_retry_stops_it(bench: _Bench) -> None:
    job = bench.job()
    bench.kube.fail("patch", "gpujobs", times=99)

    def lose(call: Call) -> None:
        bench.leads = False

    bench.kube.before = lose
    assert await bench.run(_status(job)) == {WriteResult.NOT_LEADER: 1}
    assert len(bench.kube.writes()) == 1


async def test_one_job_that_cannot_be_rendered_does_not_stop_the_others(bench: _Bench) -> None:
    broken, other = make_job("broken"), bench.job("other")
    results = await bench.run(_create(broken), _create(other))
    assert results == {WriteResult.FAILED: 1, WriteResult.DONE: 1}


async def test_jobs_are_written_side_by_side_but_not_all_at_once(bench: _Bench) -> None:
    bench.executor._slots = asyncio.Semaphore(4)
    jobs = [bench.job(f"job-{number}") for number in range(12)]
    inside, most = 0, 0
    original = bench.kube.create

    async def slow_create(kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        inside -= 1
        return await original(kind, body, namespace)

    bench.kube.create = slow_create
    results = await bench.run(*(_create(job) for job in jobs))
    assert results == {WriteResult.DONE: 12}
    assert most == 4


async def test_a_huge_plan_is_continued_in_the_next_cycle(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujob_operator.act.executor.WRITES_PER_CYCLE_MAX", 3)
    jobs = [bench.job(f"job-{number}") for number in range(5)]
    outcome = await bench.executor.execute(Plan(tuple(_create(job) for job in jobs)))
    assert (outcome.postponed, outcome.complete) == (2, False)
    assert len(bench.kube.names(PODS)) == 3


async def test_queue_status(bench: _Bench) -> None:
    queue = make_queue()
    manifest = {"metadata": {"name": "default", "uid": queue.metadata.uid}, "spec": {}}
    stored = bench.kube.put(QUEUES, manifest)
    current = _at_version(queue, stored["metadata"]["resourceVersion"])
    status = GPUQueueStatus(pending_jobs=4)
    assert await bench.run(WriteQueueStatus(current, status)) == {WriteResult.DONE: 1}
    assert bench.kube.stored(QUEUES, "default")["status"]["pendingJobs"] == 4


async def test_writes_are_counted_by_kind_and_result(bench: _Bench) -> None:
    job = bench.job()
    await bench.run(_create(job))
    text = bench.metrics.text().decode()
    assert 'gpujob_writes_total{kind="CreatePod",result="done"} 1.0' in text


def test_the_crash_comes_right_after_the_nth_write_that_counts() -> None:
    ended: list[int] = []
    crash = CrashAfterWrites(2, ended.append)
    for kind in (LEASES, JOBS, EVENTS, LEASES):
        crash(kind)
    assert ended == []
    crash(PODS)
    assert ended == [CRASH_EXIT_CODE]
