"""Patches, events and profiles: small, with preconditions, and true to what was decided."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import decode, encode
from gpujob_api.gpujob import Counters, GPUJobStatus, JobPhase
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_api.summary import Summary
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
from gpujob_operator.render.patch import merge_patch
from gpujob_operator.render.profile import profile_manifest, profile_status_patch
from gpujob_operator.render.status import queue_patch, rejection_patch, status_patch
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

_LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_PLAIN = st.booleans() | st.integers() | st.text(max_size=3) | st.lists(_LEAF, max_size=2)
_OBJECTS = st.recursive(
    st.dictionaries(st.text(max_size=2), _PLAIN, max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=2), _PLAIN | inner, max_size=4),
    max_leaves=8,
)


def apply(before: Any, patch: Any) -> Any:
    """JSON merge patch as RFC 7386 defines it, written from its pseudo code's meaning."""
    if not isinstance(patch, dict):
        return patch
    result = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply(result.get(name), value)
    return result


@given(_OBJECTS, _OBJECTS)
def test_applying_a_merge_patch_gives_the_wanted_object(before: Any, after: Any) -> None:
    assert apply(before, merge_patch(before, after)) == after


@given(_OBJECTS)
def test_no_change_is_an_empty_patch(value: Any) -> None:
    assert merge_patch(value, value) == {}


def test_a_status_patch_names_its_precondition_and_only_what_changed() -> None:
    """I3: a write rests on the resourceVersion that the decision saw."""
    job = placed(make_job(), observed_at=T0)
    after = replace(job.status, phase=JobPhase.RUNNING, placement=None)
    body = status_patch(WriteStatus(job, after))
    assert body["metadata"] == {"resourceVersion": "1"}
    assert body["status"] == {"phase": "Running", "placement": None}


def test_the_first_status_leaves_out_what_is_at_its_default() -> None:
    job = make_job()
    body = status_patch(WriteStatus(job, replace(job.status, observed_at=T0)))
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


@pytest.mark.parametrize("before", statuses())
@pytest.mark.parametrize("after", statuses())
@pytest.mark.parametrize("in_full", [False, True])
def test_what_is_left_out_reads_as_it_was_decided(
    before: GPUJobStatus, after: GPUJobStatus, *, in_full: bool
) -> None:
    """Whether the status was written with its defaults, as earlier, or without."""
    job = replace(make_job(), status=before)
    first = status_patch(WriteStatus(make_job(), before))["status"]
    stored = encode(before) if in_full else apply({}, first)
    patch = status_patch(WriteStatus(job, after))["status"]
    found = apply(stored, patch)
    assert decode(GPUJobStatus, found) == after
    assert (found["phase"], found["attempt"]) == (after.phase.value, after.attempt)


# Of a job of one worker without a checkpoint claim: it is decoded and encoded by the API server
# with every write, and watched by everybody.
SIMPLE_STATUS_BYTES_MAX = 1160


def test_a_simple_jobs_first_status_is_small() -> None:
    job = make_job()
    snapshot = make_snapshot(job, gpus=[make_gpu("GPU-0")])
    (item,) = plan(snapshot, T0).items
    assert isinstance(item, WriteStatus)
    body = status_patch(item)["status"]
    assert not {"counters", "explain", "startRefusals", "measurement"} & body.keys()
    assert None not in body.values()
    assert len(json.dumps(body, separators=(",", ":"))) <= SIMPLE_STATUS_BYTES_MAX


def test_a_rejection_names_the_field() -> None:
    """I10."""
    job = InvalidJob(
        Metadata("bad", "ns", "uid", "7", 2), "spec.workers", "must be at least 1; got 0"
    )
    body = rejection_patch(RejectJob(job), T0)
    (condition,) = body["status"]["conditions"]
    assert condition["type"] == "Accepted"
    assert condition["status"] == "False"
    assert condition["message"] == "spec.workers: must be at least 1; got 0"
    assert body["status"]["observedGeneration"] == 2
    assert "phase" not in body["status"]


def test_queue_patches_carry_what_changed() -> None:
    queue = make_queue("research")
    body = queue_patch(WriteQueueStatus(queue, GPUQueueStatus(pending_jobs=3)))
    assert body["status"] == {"pendingJobs": 3}


def test_an_event_is_named_by_its_content() -> None:
    job = make_job("train")
    one = event(job.metadata, EventNote("Placed", "on n0"), T0)
    assert one == event(job.metadata, EventNote("Placed", "on n0"), T0)
    other = event(job.metadata, EventNote("Placed", "on n1"), T0)
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one["involvedObject"]["uid"] == "uid-train"
    assert len(event(job.metadata, EventNote("X", "y" * 5000), T0)["message"]) <= 1024


def test_profiles_are_created_whole_and_patched_by_version() -> None:
    profile = GPUProfile(
        Metadata("workload-x", "ns", "uid", "5"), GPUProfileSpec("x", "image:1"), GPUProfileStatus()
    )
    manifest = profile_manifest(SaveProfile(profile))
    assert manifest["spec"] == encode(profile.spec)
    assert manifest["metadata"] == {"name": "workload-x", "namespace": "ns"}
    assert profile_status_patch(SaveProfile(profile), "9")["metadata"]["resourceVersion"] == "9"
