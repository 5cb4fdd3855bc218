"""The pod of a job of one worker is created in place of a status; the status where it cannot be."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpujob_operator.act.item_runner import LATE_SECONDS
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import ApiError, Forbidden, NotFound, Throttled, Unavailable
from gpujob_operator.client.kube import JOBS, PODS, Manifest
from gpujob_operator.client.retry import ATTEMPTS_MAX
from gpujob_operator.decide.model.plan import DeletePod, WriteStatus
from gpujob_operator.decide.model.snapshot import PerhapsCreated, Snapshot
from gpujob_operator.read.pods import pod_view
from tests.harness.builders import make_job, make_pod
from tests.harness.executor_bench import ExecutorBench, PlacingBench, placement
from tests.harness.fake_kube import Call
from tests.harness.manifests import job_manifest, pod_manifest

CREATE, READ = ("create", "pods"), ("get", "pods")
WRITE, REFRESH = ("replace", "gpujobs"), ("get", "gpujobs")
TRIAL = ("try", "pods"), ("get", "persistentvolumeclaims")


@pytest.fixture
def bench() -> PlacingBench:
    return PlacingBench()


def requests(bench: ExecutorBench) -> list[tuple[str, str]]:
    """All but the trial of the template."""
    made = [(call.verb, call.plural) for call in bench.kube.calls]
    return [one for one in made if one not in TRIAL]


def stored_attempt(bench: ExecutorBench) -> int:
    return bench.kube.stored(JOBS, "job", "team").get("status", {}).get("attempt", 0)


def perhaps_created(bench: ExecutorBench, item: WriteStatus) -> tuple[PerhapsCreated, ...]:
    """What the next snapshot tells, once the job is seen as placed."""
    job = replace(item.job, status=item.status)
    return bench.executor.assume(Snapshot(jobs=(job,))).perhaps_created


async def test_a_pod_that_is_created_is_all_that_is_written(bench: PlacingBench) -> None:
    item = placement(bench)
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert requests(bench) == [CREATE]
    pod = pod_view(bench.kube.stored(PODS, "job-1-0", "team"))
    assert item.pod is not None
    assert pod.record == item.pod.record is not None
    assert stored_attempt(bench) == 0
    assert bench.written == [("pods", "job-1-0")], "the cache has the pod at once"
    assert bench.notes == ["job: Placed"]
    assert (bench.records.uids, bench.records.perhaps_placed) == (("uid-job",), ())
    assert perhaps_created(bench, item) == (PerhapsCreated("uid-job", 1, (0,)),)


async def test_the_job_counts_as_placed_before_anything_else_is_decided(
    bench: PlacingBench,
) -> None:
    item = placement(bench)
    bench.submit(item)
    assert [job.status for job in bench.shown] == [item.status]
    assert requests(bench) == []
    assert perhaps_created(bench, item) == ()
    await bench.executor.drain(5)


async def test_what_comes_after_the_placement_is_written_after_it(bench: PlacingBench) -> None:
    item = placement(bench)
    stray = pod_view(bench.kube.put(PODS, pod_manifest(item.job, attempt=7)))
    delete = DeletePod(stray, 30, "late")
    assert await bench.run(item, delete) == {WriteResult.DONE: 2}
    assert requests(bench) == [CREATE, ("delete", "pods")]


def refusing(bench: ExecutorBench, error: ApiError, times: int = 1) -> None:
    bench.kube.fail("create", "pods", error, times=times)


@pytest.mark.parametrize(
    ("error", "times", "result", "asked"),
    [
        (Forbidden(403, "Forbidden", "exceeded quota"), 1, WriteResult.REFUSED, [READ]),
        (NotFound(404, "NotFound", "no such namespace"), 1, WriteResult.GONE, []),
        (Throttled("slow down", 1.0), ATTEMPTS_MAX, WriteResult.FAILED, []),
    ],
    ids=["quota", "namespace", "throttled"],
)
async def test_where_no_pod_can_be_created_the_status_is_written(
    bench: PlacingBench,
    error: ApiError,
    times: int,
    result: WriteResult,
    asked: list[tuple[str, str]],
) -> None:
    """From then on the attempt is like any other."""
    item = placement(bench)
    refusing(bench, error, times)
    assert await bench.run(item) == {result: 1, WriteResult.DONE: 1}
    assert requests(bench) == [*[CREATE] * times, *asked, WRITE]
    assert (stored_attempt(bench), bench.kube.names(PODS)) == (1, [])
    assert bench.written == [("gpujobs", "job")]
    assert bench.notes == ["job: Placed"], "once"
    assert bench.records.perhaps_placed == ()
    assert [job.status.attempt for job in bench.shown] == [1], "it stays placed all the time"
    assert perhaps_created(bench, item) == (), "the attempt is this process's own"


async def test_where_the_name_is_taken_the_status_is_written(bench: PlacingBench) -> None:
    item = placement(bench)
    other = pod_manifest(item.job)
    other["metadata"]["ownerReferences"] = []
    bench.kube.put(PODS, other)
    assert await bench.run(item) == {WriteResult.CONFLICT: 1, WriteResult.DONE: 1}
    assert requests(bench) == [CREATE, READ, WRITE]
    assert stored_attempt(bench) == 1
    assert bench.kube.stored(PODS, "job-1-0", "team")["metadata"]["ownerReferences"] == []


async def test_an_own_pod_of_a_lost_answer_is_no_reason_to_write(bench: PlacingBench) -> None:
    item = placement(bench)
    bench.kube.fail("create", "pods", after_effect=True)
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert requests(bench) == [CREATE, CREATE, READ]
    assert (stored_attempt(bench), bench.notes) == (0, ["job: Placed"])


async def test_without_an_answer_and_a_pod_the_status_is_written_after_a_while(
    bench: PlacingBench,
) -> None:
    """The request may still be under way: it must not arrive at once after it was given up."""
    item = placement(bench)
    refusing(bench, Unavailable(503, "ServiceUnavailable", "x"), ATTEMPTS_MAX)
    assert await bench.run(item) == {WriteResult.FAILED: 1, WriteResult.DONE: 1}
    assert requests(bench) == [*[CREATE] * ATTEMPTS_MAX, READ, READ, WRITE]
    assert bench.clock.slept[-1] == LATE_SECONDS
    assert stored_attempt(bench) == 1


async def test_without_an_answer_but_with_a_pod_no_status_is_written(bench: PlacingBench) -> None:
    item = placement(bench)
    bench.kube.fail("create", "pods", after_effect=True)
    bench.kube.fail("create", "pods", times=ATTEMPTS_MAX - 1)
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert requests(bench) == [*[CREATE] * ATTEMPTS_MAX, READ]
    assert (stored_attempt(bench), bench.notes) == (0, ["job: Placed"])
    assert bench.records.uids == ("uid-job",)


async def test_a_pod_that_arrives_while_it_is_waited_for_is_found(bench: PlacingBench) -> None:
    item = placement(bench)
    refusing(bench, Unavailable(0, "TimeoutError", ""), ATTEMPTS_MAX)
    reads = 0

    def arrive(call: Call) -> None:
        nonlocal reads
        reads += (call.verb, call.plural) == READ
        if reads == 2:
            bench.kube.before = lambda _: None
            bench.kube.put(PODS, pod_manifest(item.job))

    bench.kube.before = arrive
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert (stored_attempt(bench), reads) == (0, 2)


def edit(bench: ExecutorBench) -> None:
    """Somebody edits the job right before the next request."""

    def put(_: Call) -> None:
        bench.kube.before = lambda _: None
        bench.kube.put(JOBS, job_manifest(make_job(priority=7)))

    bench.kube.before = put


async def test_an_edit_is_no_conflict_for_a_pod(bench: PlacingBench) -> None:
    item = placement(bench)
    edit(bench)
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert requests(bench) == [CREATE]


async def test_without_a_pod_and_a_status_the_placement_is_withdrawn_in_doubt(
    bench: PlacingBench,
) -> None:
    """The pod's request may still arrive: the job does not get this number again."""
    item = placement(bench)
    refusing(bench, Unavailable(503, "ServiceUnavailable", "x"), ATTEMPTS_MAX)
    edit(bench)
    assert await bench.run(item) == {WriteResult.FAILED: 1, WriteResult.CONFLICT: 1}
    assert requests(bench)[-2:] == [WRITE, REFRESH]
    assert bench.is_withdrawn
    assert bench.records.perhaps_placed == ("uid-job",)
    assert (stored_attempt(bench), bench.notes) == (0, [])
    assert perhaps_created(bench, item) == (PerhapsCreated("uid-job", 1, (0,), by_another=True),), (
        "the attempt is not this process's own"
    )


async def test_a_refused_pod_leaves_no_doubt(bench: PlacingBench) -> None:
    item = placement(bench)
    refusing(bench, Forbidden(403, "Forbidden", "exceeded quota"))
    edit(bench)
    assert await bench.run(item) == {WriteResult.REFUSED: 1, WriteResult.CONFLICT: 1}
    assert bench.is_withdrawn
    assert bench.records.perhaps_placed == ()


async def test_a_refusal_after_a_request_without_an_answer_leaves_doubt(
    bench: PlacingBench,
) -> None:
    """The first request may still be under way when the second one is refused."""
    item = placement(bench)
    refusing(bench, Unavailable(503, "ServiceUnavailable", "x"))
    refusing(bench, Forbidden(403, "Forbidden", "exceeded quota"))
    edit(bench)
    assert await bench.run(item) == {WriteResult.REFUSED: 1, WriteResult.CONFLICT: 1}
    assert bench.records.perhaps_placed == ("uid-job",)


async def test_of_a_refused_template_nothing_is_written(bench: PlacingBench) -> None:
    item = placement(bench)
    bench.kube.fail("try", "pods", ApiError(422, "Invalid", "spec.volumes[1].name: Duplicate"))
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    assert (requests(bench), bench.notes) == ([], [])
    assert bench.is_withdrawn
    assert bench.records.perhaps_placed == ()
    assert perhaps_created(bench, item)[0].by_another


async def test_what_comes_after_a_placement_that_failed_is_not_written(
    bench: PlacingBench,
) -> None:
    item = placement(bench)
    bench.kube.fail("try", "pods", ApiError(422, "Invalid", "x"))
    await bench.run(item, DeletePod(make_pod(item.job), 30, "late"))
    assert requests(bench) == []


async def test_a_refusal_after_a_lost_answer_does_not_prove_that_there_is_no_pod(
    bench: PlacingBench,
) -> None:
    """The pod itself may have used up the quota."""
    item = placement(bench)
    bench.kube.fail("create", "pods", after_effect=True)

    def refuse_another(call: Call) -> None:
        if (call.verb, call.plural) == CREATE and bench.kube.names(PODS):
            refusing(bench, Forbidden(403, "Forbidden", "exceeded quota"))

    bench.kube.before = refuse_another
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert requests(bench) == [CREATE, CREATE, READ]
    assert (stored_attempt(bench), bench.kube.names(PODS)) == (0, ["job-1-0"])
    assert bench.records.uids == ("uid-job",)


async def test_a_refusal_after_a_lost_request_is_one(bench: PlacingBench) -> None:
    item = placement(bench)
    bench.kube.fail("create", "pods")
    refusing(bench, Forbidden(403, "Forbidden", "exceeded quota"))
    assert await bench.run(item) == {WriteResult.REFUSED: 1, WriteResult.DONE: 1}
    assert bench.kube.names(PODS) == []
    assert stored_attempt(bench) == 1


async def test_without_the_lead_nothing_is_written(bench: PlacingBench) -> None:
    """Whether an earlier request is under way is then for the next leader to ask."""
    item = placement(bench)
    bench.leads = False
    assert await bench.run(item) == {WriteResult.NOT_LEADER: 1}
    assert (requests(bench), bench.notes) == ([], [])
    assert bench.is_withdrawn


async def test_nothing_more_is_written_once_the_lead_is_lost(bench: PlacingBench) -> None:
    item = placement(bench)
    refusing(bench, Unavailable(503, "ServiceUnavailable", "x"), ATTEMPTS_MAX)

    def lose(call: Call) -> None:
        bench.leads = bench.leads and (call.verb, call.plural) != READ

    bench.kube.before = lose
    assert await bench.run(item) == {WriteResult.NOT_LEADER: 1}
    assert requests(bench) == [*[CREATE] * ATTEMPTS_MAX, READ]
    assert (stored_attempt(bench), bench.notes) == (0, [])
    assert bench.is_withdrawn
    assert bench.records.perhaps_placed == ("uid-job",)


async def test_no_status_is_written_of_what_another_lead_has_dropped(bench: PlacingBench) -> None:
    """The lead was lost and won again while the request had no answer: `begin` has listed all
    pods, and the job may have been decided anew."""
    item = placement(bench)
    refusing(bench, Forbidden(403, "Forbidden", "exceeded quota"))

    def lead_again(call: Call) -> None:
        if (call.verb, call.plural) == READ:
            bench.records.begin([item.job], [], {}, {}, in_doubt=False)

    bench.kube.before = lead_again
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    assert requests(bench) == [CREATE, READ]
    assert stored_attempt(bench) == 0
    assert bench.records.uids == ()


async def test_a_write_that_hangs_leaves_the_placement_recorded(bench: PlacingBench) -> None:
    """What was sent may still arrive, and this process decides nothing more."""
    item = placement(bench)

    async def hang(*_: Any, **__: Any) -> Manifest:
        await asyncio.Event().wait()
        raise AssertionError

    bench.kube.create = hang
    bench.submit(item)
    assert await bench.executor.drain(0.01) is False
    assert bench.records.uids == ("uid-job",)


async def test_a_pod_that_is_refused_again_and_again_is_tried_with_pauses(
    bench: PlacingBench,
) -> None:
    """As of any attempt whose status is written."""
    item = placement(bench)
    refusing(bench, Forbidden(403, "Forbidden", "exceeded quota"))
    await bench.run(item)
    assert item.pod is not None
    assert bench.submit(replace(item.pod, record=None)).backing_off == 1


async def test_without_records_the_status_is_written_first() -> None:
    bench = ExecutorBench()
    item = placement(bench)
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert requests(bench) == [WRITE]
    assert (stored_attempt(bench), bench.kube.names(PODS)) == (1, [])
    assert bench.notes == ["job: Placed"]
