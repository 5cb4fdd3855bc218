"""Statuses, events and profiles: small, with preconditions, and true to what was decided."""

import json
from dataclasses import replace

import pytest

from gpujob_api.codec import decode, encode
from gpujob_api.gpujob import Counters, GPUJobStatus, JobPhase
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_api.summary import Summary
from gpujob_api.unknown_fields import unknown_fields
from gpujob_operator.decide.model.plan import (
    EventNote,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.snapshot import InvalidJob
from gpujob_operator.decide.planner import plan
from gpujob_operator.render.event import event
from gpujob_operator.render.profile import profile_manifest, profile_status
from gpujob_operator.render.status import job_status, queue_status, rejection
from tests.harness.builders import (
    T0,
    make_gpu,
    make_job,
    make_queue,
    make_snapshot,
    placed,
    reserve,
    running,
)

NEWER = {"forecast": {"seconds": 5}, "placement": {"rack": "r7"}}


def test_a_status_is_whole_and_names_its_preconditions() -> None:
    """I3: a write rests on the resourceVersion that the decision saw."""
    job = placed(make_job(), observed_at=T0)
    after = replace(job.status, phase=JobPhase.RUNNING)
    body = job_status(WriteStatus(job, after), {})
    assert body["metadata"] == {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "uid": job.metadata.uid,
        "resourceVersion": "1",
    }
    assert (body["apiVersion"], body["kind"]) == ("gpujob.dev/v1alpha1", "GPUJob")
    assert decode(GPUJobStatus, body["status"]) == after


def test_what_a_newer_version_wrote_stays() -> None:
    job = placed(make_job(), observed_at=T0)
    stored = encode(job.status)
    stored["forecast"] = NEWER["forecast"]
    stored["placement"]["rack"] = "r7"
    assert unknown_fields(GPUJobStatus, stored) == NEWER
    body = job_status(WriteStatus(job, job.status), NEWER)["status"]
    assert (body["forecast"], body["placement"]["rack"]) == ({"seconds": 5}, "r7")
    assert decode(GPUJobStatus, body) == job.status


def test_what_is_gone_takes_its_unknown_fields_along() -> None:
    job = placed(make_job(), observed_at=T0)
    after = replace(job.status, placement=None)
    body = job_status(WriteStatus(job, after), NEWER)["status"]
    assert "placement" not in body
    assert body["forecast"] == NEWER["forecast"]


def test_the_first_status_leaves_out_what_is_at_its_default() -> None:
    job = make_job()
    body = job_status(WriteStatus(job, replace(job.status, observed_at=T0)), {})
    assert body["status"].keys() == {"phase", "attempt", "observedAt"}
    assert body["status"]["phase"] == "Pending"
    assert decode(GPUJobStatus, body["status"]) == replace(job.status, observed_at=T0)


def statuses() -> list[GPUJobStatus]:
    """Of a job's life, with values that come and go."""
    runs = running(make_job(), observed_at=T0).status
    held = reserve(8 * GIB, utilization_percent=0.0)
    return [
        GPUJobStatus(),
        placed(make_job(), observed_at=T0).status,
        replace(runs, counters=Counters(errors=2), explain=("x",), summary=Summary(speed="2 /s")),
        replace(runs, reservation=replace(held, exclusive=True), utilization_floor_percent=5.0),
        replace(runs, reservation=held, counters=Counters(hung=1), phase=JobPhase.STOPPING),
        GPUJobStatus(observed_at=T0, attempt=0),
        replace(runs, phase=JobPhase.PENDING, placement=None, reservation=None, attempt=2),
    ]


@pytest.mark.parametrize("status", statuses())
def test_what_is_left_out_reads_as_it_was_decided(status: GPUJobStatus) -> None:
    found = job_status(WriteStatus(make_job(), status), {})["status"]
    assert decode(GPUJobStatus, found) == status
    assert (found["phase"], found["attempt"]) == (status.phase.value, status.attempt)


# Of a job of one worker without a checkpoint claim: it is decoded and encoded by the API server
# with every write, and watched by everybody.
SIMPLE_STATUS_BYTES_MAX = 1180


def test_a_simple_jobs_first_status_is_small() -> None:
    job = make_job()
    snapshot = make_snapshot(job, gpus=[make_gpu("GPU-0")])
    (item,) = plan(snapshot, T0).items
    assert isinstance(item, WriteStatus)
    body = job_status(item, {})["status"]
    assert not {"counters", "explain", "startRefusals", "measurement"} & body.keys()
    assert None not in body.values()
    assert len(json.dumps(body, separators=(",", ":"))) <= SIMPLE_STATUS_BYTES_MAX


def test_a_rejection_names_the_field() -> None:
    """I10."""
    job = InvalidJob(
        Metadata("bad", "ns", "uid", "7", 2), "spec.workers", "must be at least 1; got 0"
    )
    body = rejection(RejectJob(job), {"attempt": 3, "observedGeneration": 1}, T0)
    (condition,) = body["status"]["conditions"]
    assert condition["type"] == "Accepted"
    assert condition["status"] == "False"
    assert condition["message"] == "spec.workers: must be at least 1; got 0"
    assert body["status"]["observedGeneration"] == 2
    assert body["status"]["attempt"] == 3, "what cannot be read stays"
    assert "phase" not in body["status"]


def test_a_queues_status_is_whole() -> None:
    queue = make_queue("research")
    body = queue_status(WriteQueueStatus(queue, GPUQueueStatus(pending_jobs=3)), {"newer": 1})
    assert body["status"] == {**encode(GPUQueueStatus(pending_jobs=3)), "newer": 1}
    assert "namespace" not in body["metadata"]


def test_an_event_is_named_by_its_content() -> None:
    job = make_job("train")
    one = event(job.metadata, EventNote("Placed", "on n0"), T0)
    assert one == event(job.metadata, EventNote("Placed", "on n0"), T0)
    other = event(job.metadata, EventNote("Placed", "on n1"), T0)
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one["involvedObject"]["uid"] == "uid-train"
    assert len(event(job.metadata, EventNote("X", "y" * 5000), T0)["message"]) <= 1024


def test_profiles_are_created_whole_and_their_statuses_replaced_by_version() -> None:
    profile = GPUProfile(
        Metadata("workload-x", "ns", "uid", "5"), GPUProfileSpec("x", "image:1"), GPUProfileStatus()
    )
    manifest = profile_manifest(SaveProfile(profile))
    assert manifest["spec"] == encode(profile.spec)
    assert manifest["metadata"] == {"name": "workload-x", "namespace": "ns"}
    body = profile_status(SaveProfile(profile), "9", {})
    assert body["metadata"]["resourceVersion"] == "9"
    assert body["status"] == encode(profile.status) | {
        "summary": {"workload": "image:1", "step": "", "memory": ""}
    }
