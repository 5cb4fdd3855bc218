"""Which figures of a workload's earlier runs a placement believes."""

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, Measurement
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus, ProfileEntry
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_snapshot,
    statuses,
)

pytestmark = pytest.mark.promise("I11")

JOB = make_job("job")


def profile(memory_bytes: int, model: str) -> GPUProfile:
    entry = ProfileEntry(model, "2.9", memory_bytes, 20.0, 10, T0)
    return GPUProfile(
        metadata=Metadata(name=profile_name(JOB), namespace=NAMESPACE, uid="uid-profile"),
        spec=GPUProfileSpec(fingerprint=profile_name(JOB), image="image:1"),
        status=GPUProfileStatus(entries=(entry,)),
    )


def test_more_than_a_gpu_of_the_model_has_is_not_believed() -> None:
    """I11: an agent said so of a GPU that it made larger than it is. The job starts on a whole GPU
    and is measured, as one of which nothing is known."""
    snapshot = make_snapshot(JOB, profiles=(profile(40 * GIB, MODEL),))
    placement = statuses(plan(snapshot, T0).items)["job"].placement
    assert placement is not None
    assert placement.workers[0].gpus == ("GPU-0",)


def measured_job(memory_bytes: int, device: str) -> GPUJob:
    known = Measurement(memory_bytes, 20.0, samples=100, device=device)
    return make_job("job", status=GPUJobStatus(attempt=1, measurement=known))


def test_more_than_a_gpu_of_the_model_has_is_not_believed_of_the_job_itself() -> None:
    """I11: what an agent said of an earlier attempt would keep the job from every GPU for ever."""
    snapshot = make_snapshot(measured_job(40 * GIB, MODEL), profiles=(profile(40 * GIB, MODEL),))
    placement = statuses(plan(snapshot, T0).items)["job"].placement
    assert placement is not None
    assert placement.workers[0].gpus == ("GPU-0",)


@pytest.mark.parametrize("device", ["larger", ""])
def test_what_the_job_needed_elsewhere_is_believed(device: str) -> None:
    """On a larger model, or nobody knows on which."""
    status = statuses(plan(make_snapshot(measured_job(40 * GIB, device)), T0).items)["job"]
    assert status.placement is None
    scheduled = find(status, SCHEDULED)
    assert scheduled is not None
    assert "44 GiB" in scheduled.message


@pytest.mark.parametrize("model", [MODEL, "larger"])
def test_a_job_that_needs_a_larger_model_waits_for_one(model: str) -> None:
    """What was measured where it fits is believed, also while no such GPU is there."""
    large = make_gpu_node("n0", make_gpu(model=model, total=80 * GIB, unmanaged=70 * GIB))
    snapshot = make_snapshot(JOB, profiles=(profile(40 * GIB, model),), gpu_nodes=(large,))
    status = statuses(plan(snapshot, T0).items)["job"]
    assert status.placement is None
    scheduled = find(status, SCHEDULED)
    assert scheduled is not None
    assert "44 GiB" in scheduled.message
