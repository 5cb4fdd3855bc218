"""Plans are written in order, once, with preconditions, and never half believed."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.meta import Metadata
from gpujob_operator.act.crash import CRASH_EXIT_CODE, CrashAfterWrites
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import Forbidden, Throttled, Unavailable
from gpujob_operator.client.kube import EVENTS, JOBS, LEASES, PODS, PROFILES, QUEUES, SERVICES
from gpujob_operator.client.retry import ATTEMPTS_MAX
from gpujob_operator.decide.model.plan import (
    DeleteJob,
    DeletePod,
    DeleteProfile,
    EventNote,
    SaveProfile,
    WriteQueueStatus,
)
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import make_job, make_queue, placed
from tests.harness.executor_bench import ExecutorBench, at_version, create_item, status_item
from tests.harness.fake_kube import Call
from tests.harness.manifests import job_manifest, pod_manifest


@pytest.fixture
def bench() -> ExecutorBench:
    return ExecutorBench()


async def test_items_of_a_job_are_written_in_order(bench: ExecutorBench) -> None:
    job = bench.job()
    results = await bench.run(status_item(job, EventNote("Started", "now")), create_item(job))
    assert results == {WriteResult.DONE: 2}
    assert bench.verbs() == [("replace", "job"), ("create", "job-1-0")]
    assert bench.written == [("gpujobs", "job"), ("pods", "job-1-0")]
    assert bench.notes == ["job: Started"]
    assert bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Running"


async def test_a_conflict_drops_the_rest_of_that_job_only(bench: ExecutorBench) -> None:
    job, other = bench.job("job"), bench.job("other")
    bench.kube.put(JOBS, job_manifest(job))  # somebody edits it: a new resourceVersion
    results = await bench.run(
        status_item(job), create_item(job), status_item(other), create_item(other)
    )
    assert results == {WriteResult.CONFLICT: 1, WriteResult.DONE: 2}
    assert bench.kube.names(PODS) == ["other-1-0"]
    assert ("gpujobs", "job") in bench.written, "the cache got the state that was in the way"


async def test_a_job_that_is_gone_is_forgotten(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.remove(JOBS, "job", "team")
    assert await bench.run(status_item(job), create_item(job)) == {WriteResult.GONE: 1}
    assert bench.gone == ["uid-job"]
    assert bench.kube.names(PODS) == []


async def test_creating_the_same_pod_twice_is_success(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(create_item(job))
    assert await bench.run(create_item(job)) == {WriteResult.DONE: 1}
    assert bench.kube.names(PODS) == ["job-1-0"]


async def test_a_gang_gets_its_service_once_and_before_its_first_pod(bench: ExecutorBench) -> None:
    gang = placed(make_job("gang", workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    await bench.run(create_item(gang, 0), create_item(gang, 1))
    service = ("create", "gpujob-uid-gang")
    assert bench.verbs() == [service, ("create", "gang-1-0"), ("create", "gang-1-1")]
    bench.kube.remove(PODS, "gang-1-0", "team")
    assert await bench.run(create_item(gang, 0)) == {WriteResult.DONE: 1}
    assert bench.kube.names(SERVICES) == ["gpujob-uid-gang"]


async def test_a_lost_answer_to_create_is_success(bench: ExecutorBench) -> None:
    """The write happened, the answer did not come: the retry finds our own pod (I3)."""
    job = bench.job()
    error = Unavailable(0, "ServerDisconnected", "")
    bench.kube.fail("create", "pods", error, after_effect=True)
    assert await bench.run(create_item(job)) == {WriteResult.DONE: 1}
    assert bench.kube.names(PODS) == ["job-1-0"]
    assert bench.written == [("pods", "job-1-0")]


@pytest.mark.promise("I3")
async def test_a_pod_that_itself_fills_the_quota_was_not_refused(bench: ExecutorBench) -> None:
    """I3: a quota is asked before the name. The repetition of a creation whose answer was lost is
    refused because of the very pod that it asks for.
    """
    job = bench.job()
    await bench.run(create_item(job))
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", "exceeded quota"))
    assert await bench.run(create_item(job)) == {WriteResult.DONE: 1}
    assert bench.written == [("pods", "job-1-0")] * 2
    told = bench.executor.assume(Snapshot(jobs=(job,)))
    assert told.refused_pods == ()


async def test_a_refusal_is_believed_once_no_pod_is_found(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", "exceeded quota"))
    assert await bench.run(create_item(job)) == {WriteResult.REFUSED: 1}
    assert [call.verb for call in bench.kube.calls] == ["create", "get"]


async def test_a_lost_answer_to_a_status_is_a_conflict_that_refreshes_the_cache(
    bench: ExecutorBench,
) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=1, after_effect=True)
    assert await bench.run(status_item(job), create_item(job)) == {WriteResult.CONFLICT: 1}
    assert bench.written == [("gpujobs", "job")]


async def test_an_older_state_than_was_known_says_that_data_was_restored(
    bench: ExecutorBench,
) -> None:
    """I9: a cache with newer states than the API server's would be refused again and again."""
    job = bench.job()
    known = int(job.metadata.resource_version)
    stored = bench.kube.put(JOBS, bench.kube.stored(JOBS, "job", "team"))
    for version, restores in ((known, 0), (int(stored["metadata"]["resourceVersion"]) + 5, 1)):
        bench.versions[job.metadata.uid] = version
        assert await bench.run(status_item(job)) == {WriteResult.CONFLICT: 1}
        assert bench.restores == restores


@pytest.mark.parametrize(
    "owner",
    [
        {"uid": "another"},
        {"controller": False},
        {"kind": "ReplicaSet"},
        {"apiVersion": "apps/v1"},
    ],
)
async def test_a_foreign_pod_of_the_name_is_a_failure(
    bench: ExecutorBench, owner: dict[str, Any]
) -> None:
    """Labels prove nothing: the controller owner does."""
    job = bench.job()
    foreign = pod_manifest(job)
    foreign["metadata"]["ownerReferences"][0] |= owner
    bench.kube.put(PODS, foreign)
    assert await bench.run(create_item(job)) == {WriteResult.CONFLICT: 1}
    assert bench.written == []


async def test_our_pod_that_is_being_deleted_is_no_success(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(create_item(job))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    await bench.run(DeletePod(pod, 30, "test"))
    assert await bench.run(create_item(job)) == {WriteResult.CONFLICT: 1}


async def test_delete_names_the_uid(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(create_item(job))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    assert await bench.run(DeletePod(pod, 12, "test")) == {WriteResult.DONE: 1}
    stored = bench.kube.stored(PODS, "job-1-0", "team")
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 12
    assert bench.written[-1] == ("pods", "job-1-0"), "its deletion time is in the next snapshot"


async def test_only_the_state_that_was_decided_on_is_deleted(bench: ExecutorBench) -> None:
    """I5: a worker that ended a moment ago has last words, which nobody has read yet."""
    job = bench.job()
    await bench.run(create_item(job))
    stored = bench.kube.stored(PODS, "job-1-0", "team")
    pod = pod_view(stored)
    bench.versions[pod.uid] = int(stored["metadata"]["resourceVersion"])
    bench.kube.put(PODS, {**stored, "status": {"phase": "Succeeded"}})
    assert await bench.run(DeletePod(pod, 30, "test")) == {WriteResult.CONFLICT: 1}
    assert "deletionTimestamp" not in bench.kube.stored(PODS, "job-1-0", "team")["metadata"]
    assert bench.written[-1] == ("pods", "job-1-0"), "the next cycle reads how it ended"
    now = bench.kube.stored(PODS, "job-1-0", "team")["metadata"]["resourceVersion"]
    bench.versions[pod.uid] = int(now)
    assert await bench.run(DeletePod(pod, 30, "test")) == {WriteResult.DONE: 1}


async def test_deleting_what_is_gone_or_replaced_is_success(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(create_item(job))
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    bench.kube.remove(PODS, "job-1-0", "team")
    assert await bench.run(DeletePod(pod, 30, "test")) == {WriteResult.DONE: 1}
    await bench.run(create_item(job))
    assert await bench.run(DeletePod(pod, 30, "test")) == {WriteResult.DONE: 1}
    assert bench.gone == [pod.uid, pod.uid]
    assert "deletionTimestamp" not in bench.kube.stored(PODS, "job-1-0", "team")["metadata"]


async def test_passing_trouble_is_retried_with_growing_pauses(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=ATTEMPTS_MAX - 1)
    assert await bench.run(status_item(job)) == {WriteResult.DONE: 1}
    assert bench.clock.slept == pytest.approx([0.1, 0.2, 0.4])


async def test_lasting_trouble_is_given_up_for_a_while(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=99)
    assert await bench.run(status_item(job), create_item(job)) == {WriteResult.FAILED: 1}
    assert bench.submit(status_item(job)).backing_off == 1
    assert len(bench.kube.writes()) == ATTEMPTS_MAX
    assert bench.kube.names(PODS) == []


async def test_the_servers_retry_after_is_kept_within_bounds(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", Throttled("slow down", 3.0))
    bench.kube.fail("replace", "gpujobs", Throttled("slow down", 3600.0))
    assert await bench.run(status_item(job)) == {WriteResult.DONE: 1}
    assert bench.clock.slept == pytest.approx([3.1, 10.2])


async def test_nothing_is_written_without_the_lease(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.leads = False
    assert await bench.run(status_item(job), create_item(job)) == {WriteResult.NOT_LEADER: 1}
    assert bench.kube.writes() == []


async def test_a_lease_lost_on_the_way_stops_the_rest(bench: ExecutorBench) -> None:
    job = bench.job()

    def lose(call: Call) -> None:
        bench.leads = call.verb != "replace"

    bench.kube.before = lose
    results = await bench.run(status_item(job), create_item(job))
    assert results == {WriteResult.DONE: 1, WriteResult.NOT_LEADER: 1}


async def test_a_lease_lost_during_a_retry_stops_it(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=99)

    def lose(call: Call) -> None:
        bench.leads = False

    bench.kube.before = lose
    assert await bench.run(status_item(job)) == {WriteResult.NOT_LEADER: 1}
    assert len(bench.kube.writes()) == 1


async def test_leadership_is_asked_for_before_each_request_of_a_write(
    bench: ExecutorBench,
) -> None:
    """I3: a profile is created and then filled; the second request is another leader's already."""

    def lose(call: Call) -> None:
        bench.leads = False

    bench.kube.before = lose
    profile = GPUProfile(Metadata("p", "team"), GPUProfileSpec("f", "image"))
    assert await bench.run(SaveProfile(profile)) == {WriteResult.NOT_LEADER: 1}
    assert [call.verb for call in bench.kube.writes()] == ["create"]


async def test_a_finished_job_is_deleted_as_it_was_decided(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.put(JOBS, job_manifest(job))  # somebody edits it, and may want to keep it
    assert await bench.run(DeleteJob(job)) == {WriteResult.CONFLICT: 1}
    assert bench.written == [("gpujobs", "job")], "the cache has the edit"
    edited = at_version(job, bench.kube.stored(JOBS, "job", "team")["metadata"]["resourceVersion"])
    assert await bench.run(DeleteJob(edited)) == {WriteResult.DONE: 1}
    assert bench.kube.names(JOBS) == []
    assert bench.gone == ["uid-job"]
    assert await bench.run(DeleteJob(edited)) == {WriteResult.GONE: 1}


async def test_an_unused_profile_is_deleted_as_it_was_decided(bench: ExecutorBench) -> None:
    """One that a job has been measured for meanwhile stays."""
    profile = GPUProfile(Metadata("p", "team", uid="uid-p"), GPUProfileSpec("f", "image"))
    metadata = {"name": "p", "namespace": "team", "uid": "uid-p"}
    stored = bench.kube.put(PROFILES, {"metadata": metadata})

    def seen(version: str) -> DeleteProfile:
        then = replace(profile.metadata, resource_version=version)
        return DeleteProfile(replace(profile, metadata=then))

    assert await bench.run(seen("0")) == {WriteResult.CONFLICT: 1}
    assert bench.written == [("gpuprofiles", "p")]
    current = stored["metadata"]["resourceVersion"]
    assert await bench.run(seen(current)) == {WriteResult.DONE: 1}
    assert (bench.kube.names(PROFILES), bench.gone) == ([], ["uid-p"])
    assert await bench.run(seen(current)) == {WriteResult.GONE: 1}


async def test_one_job_that_cannot_be_rendered_does_not_stop_the_others(
    bench: ExecutorBench,
) -> None:
    broken, other = make_job("broken"), bench.job("other")
    results = await bench.run(create_item(broken), create_item(other))
    assert results == {WriteResult.FAILED: 1, WriteResult.DONE: 1}


async def test_queuestatus_item(bench: ExecutorBench) -> None:
    queue = make_queue()
    manifest = {"metadata": {"name": "default", "uid": queue.metadata.uid}, "spec": {}}
    stored = bench.kube.put(QUEUES, manifest)
    current = at_version(queue, stored["metadata"]["resourceVersion"])
    status = GPUQueueStatus(pending_jobs=4)
    assert await bench.run(WriteQueueStatus(current, status)) == {WriteResult.DONE: 1}
    assert bench.kube.stored(QUEUES, "default")["status"]["pendingJobs"] == 4


async def test_writes_are_counted_by_kind_and_result(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(create_item(job))
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
