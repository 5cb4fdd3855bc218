"""Patches, events and profiles: small, with preconditions, and true to what was decided."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import decode, encode
from gpujob_api.gpujob import GPUJobStatus, JobPhase
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.meta import Metadata
from gpujob_operator.decide.model.plan import (
    EventNote,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.snapshot import InvalidJob
from gpujob_operator.render.event import event
from gpujob_operator.render.patch import merge_patch
from gpujob_operator.render.profile import profile_manifest, profile_status_patch
from gpujob_operator.render.status import queue_patch, rejection_patch, status_patch
from tests.harness.builders import T0, make_job, make_queue, placed

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


def test_the_first_status_says_everything_defaults_included() -> None:
    job = make_job()
    body = status_patch(WriteStatus(job, replace(job.status, observed_at=T0)))
    assert body["status"]["phase"] == "Pending"
    assert decode(GPUJobStatus, body["status"]) == replace(job.status, observed_at=T0)


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
