"""The claim of a job that names no place for checkpoints is there before its pods, and its own."""

import asyncio
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import Forbidden, Unavailable
from gpujob_operator.client.kube import CLAIMS, PODS, Manifest
from gpujob_operator.decide.model.checkpoint_claim import AccessMode, ClaimSize, ClaimTemplate
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.render.claim import default_claim
from tests.harness.builders import make_job, placed
from tests.harness.executor_bench import ExecutorBench, create_item

TEMPLATE = ClaimTemplate(ClaimSize(20 * 1024**3), "fast", (AccessMode.READ_WRITE_MANY,))
QUOTA = Forbidden(403, "Forbidden", 'persistentvolumeclaims "job-checkpoints" is forbidden: full')


@pytest.fixture
def bench() -> ExecutorBench:
    return ExecutorBench(claims=(), configuration=Configuration(checkpoint_claim_template=TEMPLATE))


def a_job(attempt: int = 1, *, claim: str | None = None, workers: int = 1) -> GPUJob:
    places = tuple((f"n{rank}", (f"GPU-{rank}",)) for rank in range(workers))
    return placed(make_job(claim=claim, workers=workers), *places, attempt=attempt)


def put_claim(bench: ExecutorBench, job: GPUJob, **metadata: Any) -> None:
    """A claim of the job's, with other metadata."""
    claim = default_claim(job, TEMPLATE)
    bench.kube.put(CLAIMS, claim | {"metadata": claim["metadata"] | metadata})


def owned_by(uid: str) -> list[Manifest]:
    return [{"kind": "GPUJob", "name": "job", "uid": uid, "controller": True}]


def told(bench: ExecutorBench, job: GPUJob) -> str:
    """What the next decision is told of the refused pods."""
    (refused,) = bench.executor.assume(Snapshot(jobs=(job,))).refused_pods
    return refused.message


async def test_the_claim_is_made_before_the_pod_and_belongs_to_the_job(
    bench: ExecutorBench,
) -> None:
    assert await bench.run(create_item(a_job())) == {WriteResult.DONE: 1}
    assert bench.verbs() == [("create", "job-checkpoints"), ("create", "job-1-0")]
    claim = bench.kube.stored(CLAIMS, "job-checkpoints", "team")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "fast",
    }
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("GPUJob", "uid-job", True)
    assert owner["blockOwnerDeletion"] is False
    pod = bench.kube.stored(PODS, "job-1-0", "team")
    mounted = {one["name"]: one for one in pod["spec"]["volumes"]}["gpujob-checkpoints"]
    assert mounted["persistentVolumeClaim"] == {"claimName": "job-checkpoints"}


async def test_a_later_attempt_mounts_the_same_claim(bench: ExecutorBench) -> None:
    await bench.run(create_item(a_job()))
    uid = bench.kube.stored(CLAIMS, "job-checkpoints", "team")["metadata"]["uid"]
    assert await bench.run(create_item(a_job(attempt=2))) == {WriteResult.DONE: 1}
    assert bench.kube.stored(CLAIMS, "job-checkpoints", "team")["metadata"]["uid"] == uid
    assert bench.verbs()[2:] == [("create", "job-2-0")], "no second claim was tried"


async def test_workers_that_start_together_share_one_claim(bench: ExecutorBench) -> None:
    gang = a_job(workers=3)
    entered: list[str] = []

    async def create_all() -> dict[WriteResult, int]:
        bench.kube.before = lambda call: entered.append(f"{call.verb} {call.name}")
        return await bench.run(*(create_item(gang, rank) for rank in range(3)))

    assert await asyncio.wait_for(create_all(), 5) == {WriteResult.DONE: 3}
    assert bench.kube.names(CLAIMS) == ["job-checkpoints"]
    first_pod = entered.index("create job-1-0")
    assert "create job-checkpoints" in entered[:first_pod]


@pytest.mark.parametrize("spec", [{"claim": "mine"}, {"workers": 2}], ids=str)
async def test_a_job_that_gets_none_costs_no_request(spec: dict[str, Any]) -> None:
    """A claim for one node would keep workers on two from starting."""
    template = ClaimTemplate(ClaimSize(1024**3))
    bench = ExecutorBench(
        claims=(), configuration=Configuration(checkpoint_claim_template=template)
    )
    job = a_job(**spec)
    await bench.run(*(create_item(job, rank) for rank in range(job.spec.workers)))
    assert not [call for call in bench.kube.calls if call.plural == CLAIMS.plural]
    assert len(bench.kube.names(PODS)) == job.spec.workers


async def test_without_a_template_no_claim_is_made() -> None:
    bench = ExecutorBench(claims=())
    await bench.run(create_item(a_job()))
    assert bench.kube.names(CLAIMS) == []
    volumes = bench.kube.stored(PODS, "job-1-0", "team")["spec"]["volumes"]
    assert {"name": "gpujob-checkpoints", "emptyDir": {}} in volumes


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"ownerReferences": []}, ("no controller owns it", "create the job again with spec.")),
        (
            {"ownerReferences": owned_by("uid-old")},
            ("GPUJob job (uid-old) owns it", "uid-job", "volumeClaimName"),
        ),
        ({"ownerReferences": [owned_by("uid-job")[0] | {"controller": False}]}, ("no controller",)),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, ("is being deleted", "a new one")),
    ],
    ids=["nobody's", "of an earlier job of the name", "a dependent only", "on its way out"],
)
async def test_a_claim_that_is_not_the_jobs_own_is_named_and_not_mounted(
    bench: ExecutorBench, metadata: Manifest, words: tuple[str, ...]
) -> None:
    job = a_job()
    put_claim(bench, job, **metadata)
    assert await bench.run(create_item(job)) == {WriteResult.REFUSED: 1}
    assert bench.kube.names(PODS) == []
    message = told(bench, job)
    for word in ('persistentvolumeclaim "job-checkpoints"', *words):
        assert word in message


async def test_the_job_starts_once_the_name_is_free(bench: ExecutorBench) -> None:
    job = a_job()
    put_claim(bench, job, ownerReferences=owned_by("uid-old"))
    await bench.run(create_item(job))
    bench.kube.remove(CLAIMS, "job-checkpoints", "team")
    bench.clock.advance(100)
    assert await bench.run(create_item(job)) == {WriteResult.DONE: 1}
    owner = bench.kube.stored(CLAIMS, "job-checkpoints", "team")["metadata"]["ownerReferences"][0]
    assert owner["uid"] == "uid-job"


async def test_a_claim_that_came_in_between_must_be_the_jobs_own(bench: ExecutorBench) -> None:
    """Somebody else's comes after it was looked for and before it is made."""
    job = a_job()

    def come(call: Any) -> None:
        if (call.verb, call.plural) == ("create", CLAIMS.plural):
            bench.kube.before = lambda call: None
            put_claim(bench, job, ownerReferences=[])

    bench.kube.before = come
    assert await bench.run(create_item(job)) == {WriteResult.REFUSED: 1}
    assert "no controller owns it" in told(bench, job)


async def test_a_lost_answer_is_no_second_claim(bench: ExecutorBench) -> None:
    bench.kube.fail("create", CLAIMS.plural, Unavailable(0, "Timeout", "lost"), after_effect=True)
    job = a_job()
    await bench.run(create_item(job))
    bench.clock.advance(100)
    await bench.run(create_item(job))
    assert bench.kube.names(CLAIMS) == ["job-checkpoints"]
    assert bench.kube.names(PODS) == ["job-1-0"]


async def test_a_claim_that_a_quota_refuses_is_told_in_its_words(bench: ExecutorBench) -> None:
    bench.kube.fail("create", CLAIMS.plural, QUOTA)
    job = a_job()
    assert await bench.run(create_item(job)) == {WriteResult.REFUSED: 1}
    assert QUOTA.message in told(bench, job)
    assert bench.kube.names(PODS) == []


async def test_a_full_quota_does_not_hide_the_jobs_own_claim(bench: ExecutorBench) -> None:
    """A quota is asked before the name: the claim itself may have filled it."""
    await bench.run(create_item(a_job()))
    bench.kube.fail("create", CLAIMS.plural, QUOTA)
    assert await bench.run(create_item(a_job(attempt=2))) == {WriteResult.DONE: 1}


async def test_who_leads_no_longer_makes_no_claim(bench: ExecutorBench) -> None:
    bench.leads = False
    assert await bench.run(create_item(a_job())) == {WriteResult.NOT_LEADER: 1}
    assert bench.kube.names(CLAIMS) == []
