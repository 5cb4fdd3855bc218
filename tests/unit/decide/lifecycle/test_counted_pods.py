"""A job's own ended pods do not keep it from starting where a ResourceQuota counts them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.lifecycle.pod_cleanup import ATTEMPTS_KEPT
from gpujob_operator.decide.model.plan import DeletePod, Plan
from gpujob_operator.decide.model.snapshot import PodView, RefusedTemplate, Snapshot
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_snapshot,
    with_status,
)
from tests.harness.world import World

WORDS = (
    'pods "job-3-0" is forbidden: exceeded quota: q, requested: count/pods=1, '
    "used: count/pods=2, limited: count/pods=2"
)
PAUSE = timedelta(seconds=10)


def waiting(attempt: int = 2) -> GPUJob:
    return with_status(make_job("job", workers=2), phase=JobPhase.PENDING, attempt=attempt)


def ended(job: GPUJob, attempt: int) -> list[PodView]:
    return [make_pod(job, rank, attempt=attempt, exit_code=1, node="n0") for rank in (0, 1)]


def deleted(job: GPUJob, pods: Sequence[PodView], words: str = WORDS) -> list[tuple[int, int]]:
    """The attempts and ranks of the pods that are deleted while the template is refused."""
    refused = RefusedTemplate(job.metadata.uid, words, after(600))
    found = plan(make_snapshot(job, pods=pods, refused_templates=(refused,)), after(500)).items
    return sorted(
        (item.pod.attempt, item.pod.rank) for item in found if isinstance(item, DeletePod)
    )


def test_a_waiting_job_gives_up_its_logs_for_its_next_pods() -> None:
    assert deleted(waiting(), ended(waiting(), 1)) == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    "words",
    [
        "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        "exceeded quota: q, requested: requests.cpu=4, used: requests.cpu=8, limited: cpu=8",
        "spec.volumes[1].name: Duplicate value",
    ],
)
def test_ended_pods_stay_where_they_are_not_what_is_too_much(words: str) -> None:
    """A quota of `pods` counts only those that have not ended."""
    assert deleted(waiting(), ended(waiting(), 1), words) == []


def test_only_a_job_that_waits_for_its_pods_gives_up_its_logs() -> None:
    job = waiting()
    suspended = replace(job, spec=replace(job.spec, suspend=True))
    failed = replace(job, status=changed(job.status, phase=JobPhase.FAILED, finished_at=T0))
    leaves = replace(job, metadata=replace(job.metadata, deletion_timestamp=T0))
    for one in (suspended, failed, leaves):
        assert deleted(one, ended(one, 1)) == [], one.status.phase


def test_each_pod_is_deleted_once_and_none_of_an_attempt_that_no_status_has() -> None:
    job = waiting(attempt=ATTEMPTS_KEPT + 1)
    pods = [pod for attempt in (1, ATTEMPTS_KEPT, 9) for pod in ended(job, attempt)]
    leaving = replace(pods[2], deletion_at=T0)
    assert deleted(job, [*pods[:2], leaving, *pods[3:]]) == [(1, 0), (1, 1), (ATTEMPTS_KEPT, 1)]


def test_pods_stay_until_their_outcome_is_written() -> None:
    job = waiting()
    refused = RefusedTemplate(job.metadata.uid, WORDS, after(600))
    seen = make_snapshot(job, pods=ended(job, 1), refused_templates=(refused,))
    seen = replace(seen, writing=(job.metadata.uid,))
    assert not any(isinstance(item, DeletePod) for item in plan(seen, after(500)).items)


class QuotaOfTwo(World):
    """The API server refuses pods beyond two, ended ones included. A trial tells so at once."""

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        uids = {job.metadata.uid for job in snapshot.jobs if job.status.placement is None}
        full = len(snapshot.pods) >= 2
        refused = [RefusedTemplate(uid, WORDS, now + PAUSE) for uid in sorted(uids) if full]
        return super().decide(replace(snapshot, refused_templates=tuple(refused)), now)


def test_a_gang_that_failed_starts_again_within_a_quota_of_its_size() -> None:
    gpus = [make_gpu(f"GPU-{n}") for n in range(2)]
    world = QuotaOfTwo(make_job("job", workers=2), gpu_nodes=[make_gpu_node("n0", *gpus)])
    world.tick()
    assert world.running() == {"job"}
    world.end("job", exit_code=1)
    for _ in range(4):
        world.tick(60)
    assert world.running() == {"job"}
    assert world.status("job").attempt == 2
