"""A template is tried by a dry run before GPUs are reserved: once for each template (I4, I10)."""

import asyncio
import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Checkpoint, GPUJob
from gpujob_operator.act.item_runner import NO_DRY_RUN
from gpujob_operator.act.trials import (
    CLAIM_SECONDS_MAX,
    JOBS_MAX,
    UNANSWERED_SECONDS,
    VERDICTS_MAX,
    Answer,
    Trials,
    key_of,
)
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Throttled,
    Unavailable,
)
from gpujob_operator.client.kube import CLAIMS, JOBS
from gpujob_operator.cycle import snapshot_from_json, snapshot_to_json
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import TryTemplate, WriteStatus
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import RefusedTemplate, Snapshot
from tests.harness.builders import after, make_job, make_template, placed
from tests.harness.clocks import FakeClock
from tests.harness.executor_bench import ExecutorBench, at_version, create_item
from tests.harness.manifests import job_manifest

INVALID = ApiError(422, "Invalid", "spec.volumes[1].name: Duplicate value")


@pytest.fixture
def bench() -> ExecutorBench:
    return ExecutorBench()


def placement(bench: ExecutorBench, name: str = "job", **template: Any) -> WriteStatus:
    """The status that places a job which the API server has."""
    job = make_job(name, template=make_template(**template))
    stored = bench.kube.put(JOBS, job_manifest(job))
    job = at_version(job, stored["metadata"]["resourceVersion"])
    return WriteStatus(job, placed(job).status)


def told(bench: ExecutorBench, *items: WriteStatus) -> list[tuple[str, str]]:
    snapshot = bench.executor.assume(Snapshot(jobs=tuple(item.job for item in items)))
    return [(one.job_uid, one.message) for one in snapshot.refused_templates]


def tries(bench: ExecutorBench) -> int:
    return [verb for verb, _ in bench.verbs()].count("try")


async def test_jobs_of_one_template_are_tried_once(bench: ExecutorBench) -> None:
    items = [placement(bench, f"job-{n}") for n in range(20)]
    assert await bench.run(*items) == {WriteResult.DONE: 20}
    assert tries(bench) == 1
    assert told(bench, *items) == []
    other = placement(bench, "other", nodeSelector={"zone": "a"})
    await bench.run(other, placement(bench, "again"))
    assert tries(bench) == 2


async def test_a_refused_template_reserves_nothing_and_is_told(bench: ExecutorBench) -> None:
    item = placement(bench)
    bench.kube.fail("try", "pods", INVALID)
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    assert [verb for verb, _ in bench.verbs()] == ["try"]
    assert told(bench, item) == [(item.job.metadata.uid, INVALID.message)]
    assert bench.settled == 1, "the job is decided again at once"
    # Others of the template are refused without another request, and told as well.
    other = placement(bench, "other")
    assert await bench.run(other) == {WriteResult.REFUSED: 1}
    assert tries(bench) == 1
    assert len(told(bench, item, other)) == 2


async def test_a_refused_template_is_tried_again_after_pauses_that_double(
    bench: ExecutorBench,
) -> None:
    item = placement(bench)
    bench.kube.fail("try", "pods", INVALID, times=2)
    for seconds in (10.0, 20.0):
        await bench.run(item)
        snapshot = bench.executor.assume(Snapshot(jobs=(item.job,)))
        (refused,) = snapshot.refused_templates
        assert (refused.until - bench.clock.now()).total_seconds() == seconds
        bench.clock.advance(seconds)
    assert await bench.run(item) == {WriteResult.DONE: 1}
    assert told(bench, item) == []


async def test_a_job_that_is_created_again_is_tried_before_the_pause_of_the_template(
    bench: ExecutorBench,
) -> None:
    """The ServiceAccount that was missing is there, and the job was deleted and applied again."""
    first = placement(bench)
    bench.kube.fail("try", "pods", INVALID, times=3)
    for seconds in (10.0, 20.0, 0.0):
        await bench.run(first)
        bench.clock.advance(seconds)
    again = placement(bench, "again")
    assert await bench.run(again) == {WriteResult.REFUSED: 1}
    assert tries(bench) == 3, "the verdict is of now"
    bench.clock.advance(10.0)
    assert await bench.run(again) == {WriteResult.REFUSED: 1}
    assert await bench.run(placement(bench, "newer")) == {WriteResult.DONE: 1}
    assert tries(bench) == 4


async def test_a_refused_template_is_tried_without_a_placement(bench: ExecutorBench) -> None:
    """Its job waits for capacity, and would never learn that its pods are accepted by now."""
    item = placement(bench)
    bench.kube.fail("try", "pods", INVALID, times=2)
    await bench.run(item)
    assert await bench.run(TryTemplate(item.job)) == {}
    assert tries(bench) == 1, "the verdict holds"
    bench.clock.advance(10.0)
    await bench.run(TryTemplate(item.job))
    assert tries(bench) == 2
    assert told(bench, item) == [(item.job.metadata.uid, INVALID.message)]
    bench.clock.advance(20.0)
    settled = bench.settled
    await bench.run(TryTemplate(item.job))
    assert told(bench, item) == []
    assert bench.settled > settled, "the job is decided again at once"
    await bench.run(TryTemplate(item.job))
    assert tries(bench) == 3, "nothing is left to try"


@pytest.mark.parametrize("error", [Throttled("later", 1.0), Unavailable(503, "x", "y")])
async def test_a_trial_without_an_answer_stands_in_nobodys_way(
    bench: ExecutorBench, error: ApiError
) -> None:
    bench.kube.fail("try", "pods", error)
    items = [placement(bench, f"job-{n}") for n in range(5)]
    assert await bench.run(*items) == {WriteResult.DONE: 5}
    assert tries(bench) == 1
    bench.clock.advance(UNANSWERED_SECONDS)
    await bench.run(placement(bench, "later"))
    assert tries(bench) == 2


@pytest.mark.parametrize(
    "error",
    [
        ApiError(400, "BadRequest", f'admission webhook "x" {NO_DRY_RUN}'),
        AlreadyExists(409, "AlreadyExists", "x"),
    ],
)
async def test_what_says_nothing_of_the_template_refuses_nothing(
    bench: ExecutorBench, error: ApiError
) -> None:
    bench.kube.fail("try", "pods", error)
    assert await bench.run(placement(bench)) == {WriteResult.DONE: 1}


async def test_a_template_that_no_pod_can_be_made_of_is_refused(bench: ExecutorBench) -> None:
    item = placement(bench, affinity="x")
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    ((_, message),) = told(bench, item)
    assert message.startswith("no pod can be made of spec.template: ")


async def test_a_pod_that_is_refused_after_all_is_tried_before_the_next_attempt(
    bench: ExecutorBench,
) -> None:
    item = placement(bench)
    await bench.run(item)
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", "exceeded quota"))
    bench.kube.fail("try", "pods", Forbidden(403, "Forbidden", "exceeded quota"))
    await bench.run(create_item(replace(item.job, status=item.status)))
    other = placement(bench, "other")
    assert await bench.run(other) == {WriteResult.REFUSED: 1}
    assert told(bench, other) == [(other.job.metadata.uid, "exceeded quota")]


async def test_a_full_quota_is_told_with_what_jobs_have_of_it(bench: ExecutorBench) -> None:
    words = "exceeded quota: small, requested: pods=1, used: pods=10, limited: pods=10"
    bench.requests_of_jobs = [PodRequests()] * 3
    bench.kube.fail("try", "pods", Forbidden(403, "Forbidden", words))
    item = placement(bench)
    await bench.run(item)
    ((_, message),) = told(bench, item)
    assert message == f"{words}; ResourceQuota small: pods 10 of 10 used (3 by pods of GPUJobs)"


async def test_only_one_request_for_a_template_is_under_way() -> None:
    trials = Trials(Configuration(), FakeClock().now)
    asked: list[GPUJob] = []
    answer = asyncio.Event()

    async def attempt(job: GPUJob) -> Answer:
        asked.append(job)
        await answer.wait()
        return Answer("no")

    waiting = [
        asyncio.ensure_future(
            trials.refusal(placed(make_job(f"j{n}", template=make_template())), attempt)
        )
        for n in range(9)
    ]
    await asyncio.sleep(0)
    answer.set()
    assert await asyncio.gather(*waiting) == ["no"] * 9
    assert len(asked) == 1


async def test_verdicts_and_jobs_are_bounded() -> None:
    trials = Trials(Configuration(), FakeClock().now)

    async def refuse(job: GPUJob) -> Answer:
        return Answer("x" * 5000)

    jobs: list[GPUJob] = []
    for number in range(JOBS_MAX + 1):
        job = make_job(f"j{number}", template=make_template(nodeSelector={"n": str(number)}))
        jobs.append(job)
        await trials.refusal(job, refuse)
    assert JOBS_MAX <= VERDICTS_MAX
    found = trials.tell(Snapshot(jobs=tuple(jobs))).refused_templates
    assert (len(found), len(found[0].message)) == (JOBS_MAX, 512)
    assert found[0].job_uid == jobs[1].metadata.uid
    # Of jobs that are gone or placed nothing is kept.
    assert trials.tell(Snapshot(jobs=(placed(jobs[5]),))).refused_templates == ()
    assert trials.tell(Snapshot(jobs=tuple(jobs))).refused_templates == ()


def test_templates_are_told_apart_by_namespace_and_by_what_the_operator_adds() -> None:
    template = make_template()
    job = make_job(template=template)
    elsewhere = replace(job, metadata=replace(job.metadata, namespace="other"))
    gang = make_job(workers=2, template=template)
    without, own = (
        replace(job, spec=replace(job.spec, checkpoint=Checkpoint(path=path)))
        for path in ("last.ckpt", "/data/last.ckpt")
    )
    assert len({key_of(one) for one in (job, elsewhere, gang, without, own)}) == 5
    assert key_of(job) == key_of(make_job("another", priority=9, template=template))


def test_a_sweep_is_one_template() -> None:
    """Commands, arguments and values of variables differ; their names are looked at."""

    def job_of(rate: str, name: str = "RATE") -> GPUJob:
        job = make_job(template=make_template())
        template = copy.deepcopy(dict(job.spec.template))
        (worker,) = template["spec"]["containers"]
        worker |= {"args": ["--rate", rate], "env": [{"name": name, "value": rate}]}
        return replace(job, spec=replace(job.spec, template=template))

    assert key_of(job_of("0.1")) == key_of(job_of("0.2"))
    assert key_of(job_of("0.1")) != key_of(job_of("0.1", "1 RATE"))


def test_a_dumped_cycle_keeps_them() -> None:
    snapshot = Snapshot(refused_templates=(RefusedTemplate("uid", "no", after(1)),))
    assert snapshot_from_json(snapshot_to_json(snapshot)) == snapshot


def claimed(bench: ExecutorBench, name: str, *claims: str, namespace: str = "team") -> WriteStatus:
    volumes = [
        {"name": f"v{n}", "persistentVolumeClaim": {"claimName": c}} for n, c in enumerate(claims)
    ]
    job = make_job(name, namespace=namespace, template=make_template(volumes=volumes))
    stored = bench.kube.put(JOBS, job_manifest(job))
    job = at_version(job, stored["metadata"]["resourceVersion"])
    return WriteStatus(job, placed(job).status)


async def test_a_claim_that_does_not_exist_takes_no_gpu(bench: ExecutorBench) -> None:
    item = claimed(bench, "job", "data")
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    assert not [call for call in bench.kube.writes() if call.verb != "try"]
    (refused,) = bench.executor.assume(Snapshot(jobs=(item.job,))).refused_templates
    assert refused.reason == "ClaimNotFound"
    assert refused.message == (
        'persistentvolumeclaim "data" does not exist in the namespace team: create it, or create'
        " the job again with another one"
    )
    bench.kube.put_claims("data")
    bench.clock.advance((refused.until - bench.clock.now()).total_seconds())
    assert await bench.run(item) == {WriteResult.DONE: 1}


async def test_a_claim_is_looked_for_within_half_a_minute(bench: ExecutorBench) -> None:
    item, pauses = claimed(bench, "job", "data"), list[float]()
    for _ in range(6):
        await bench.run(item)
        (refused,) = bench.executor.assume(Snapshot(jobs=(item.job,))).refused_templates
        pauses.append((refused.until - bench.clock.now()).total_seconds())
        bench.clock.advance(pauses[-1])
    assert pauses == [10, 20, 30, 30, 30, 30]


def with_workers(item: WriteStatus, workers: int) -> WriteStatus:
    return replace(item, job=replace(item.job, spec=replace(item.job.spec, workers=workers)))


@pytest.mark.parametrize(
    ("workers", "mode", "result"),
    [
        (2, "ReadWriteOncePod", WriteResult.REFUSED),
        (1, "ReadWriteOncePod", WriteResult.DONE),
        (2, "ReadWriteMany", WriteResult.DONE),
    ],
)
async def test_a_claim_for_one_pod_keeps_a_gang_waiting(
    bench: ExecutorBench, workers: int, mode: str, result: WriteResult
) -> None:
    """All workers but one would hold their GPUs and wait for it."""
    item = with_workers(claimed(bench, "job", "data"), workers)
    claim = {"metadata": {"name": "data", "namespace": "team"}, "spec": {"accessModes": [mode]}}
    bench.kube.put(CLAIMS, claim)
    assert await bench.run(item) == {result: 1}
    refusals = bench.executor.assume(Snapshot(jobs=(item.job,))).refused_templates
    assert [(one.reason, one.message) for one in refusals] == (
        [
            (
                "SpecRejected",
                'persistentvolumeclaim "data" has the access mode ReadWriteOncePod, and every'
                " worker of the job mounts it: create the job again with a claim of the access mode"
                " ReadWriteMany, or with spec.workers: 1",
            )
        ]
        if result is WriteResult.REFUSED
        else []
    )
    assert all((one.until - bench.clock.now()).total_seconds() <= 30 for one in refusals)


async def test_gangs_of_different_sizes_share_a_verdict_that_is_true_of_each(
    bench: ExecutorBench,
) -> None:
    spec = {"accessModes": ["ReadWriteOncePod"]}
    bench.kube.put(CLAIMS, {"metadata": {"name": "data", "namespace": "team"}, "spec": spec})
    gangs = [with_workers(claimed(bench, f"job-{size}", "data"), size) for size in (2, 3)]
    for gang in gangs:
        await bench.run(gang)
    (_, of_two), (_, of_three) = told(bench, *gangs)
    assert of_two == of_three
    assert re.findall(r"\b[23]\b", of_two) == []


async def test_a_claim_that_was_deleted_since_is_missed_by_the_next_attempt(
    bench: ExecutorBench,
) -> None:
    """Its pods would be refused on one node after the other."""
    bench.kube.put_claims("data")
    assert await bench.run(claimed(bench, "first", "data")) == {WriteResult.DONE: 1}
    bench.kube.remove(CLAIMS, "data", "team")
    bench.clock.advance(CLAIM_SECONDS_MAX)
    item = claimed(bench, "second", "data")
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    assert 'claim "data" does not exist' in told(bench, item)[0][1]


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "is being deleted"),
        ({"status": {"phase": "Lost"}}, "has lost its volume"),
    ],
)
async def test_a_claim_that_no_new_pod_can_mount_takes_no_gpu(
    bench: ExecutorBench, claim: dict[str, Any], words: str
) -> None:
    metadata = {"name": "data", "namespace": "team", **claim.get("metadata", {})}
    bench.kube.put(CLAIMS, {**claim, "metadata": metadata})
    item = claimed(bench, "job", "data")
    assert await bench.run(item) == {WriteResult.REFUSED: 1}
    (refused,) = bench.executor.assume(Snapshot(jobs=(item.job,))).refused_templates
    assert (refused.reason, words in refused.message) == ("ClaimNotFound", True)


async def test_the_claim_for_checkpoints_is_looked_for_too(bench: ExecutorBench) -> None:
    item = claimed(bench, "job", namespace="other")
    await bench.run(item)
    assert 'claim "checkpoints" does not exist in the namespace other' in told(bench, item)[0][1]


async def test_who_may_read_no_claims_places_as_before(bench: ExecutorBench) -> None:
    bench.kube.fail("get", CLAIMS.plural, Forbidden(403, "Forbidden", "no rights"), times=9)
    assert await bench.run(claimed(bench, "job", "data")) == {WriteResult.DONE: 1}


async def test_claims_without_an_answer_stand_in_nobodys_way(bench: ExecutorBench) -> None:
    bench.kube.fail("get", CLAIMS.plural, Unavailable(503, "Unavailable", "later"), times=9)
    assert await bench.run(claimed(bench, "job", "data")) == {WriteResult.DONE: 1}
