"""Settings that were found before are continued with, as far as the spec still allows them."""

from collections.abc import Iterable

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_api.optimize import BatchSize, Optimize, PerStep
from gpujob_api.quantities import GIB
from gpujob_api.settings import OptimizeMode, Precision, Task, Toggle, TunedSettings
from gpujob_operator.decide.lifecycle.settings import settings_for
from gpujob_operator.decide.measurement.profile import with_entries
from gpujob_operator.decide.model.plan import SaveProfile
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    MODEL,
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_snapshot,
    measured,
    reserve,
    running,
)

BFLOAT16 = TunedSettings(precision=Precision.BFLOAT16)
SPLIT = TunedSettings(batch_per_step=8)
FORBIDDEN = [
    (BFLOAT16, Optimize(precision=Precision.FLOAT32)),
    (BFLOAT16, Optimize(precision=Precision.TF32)),
    (BFLOAT16, Optimize(mode=OptimizeMode.OFF)),
    (BFLOAT16, Optimize(mode=OptimizeMode.RECOMMEND)),
    (SPLIT, Optimize(batch_size=BatchSize(per_step=PerStep(4)))),
    (TunedSettings(activation_checkpointing=True), Optimize(activation_checkpointing=Toggle.OFF)),
    (TunedSettings(compile=True), Optimize(compile=Toggle.OFF)),
    (TunedSettings(regional_compile=True), Optimize(compile=Toggle.OFF)),
    (TunedSettings(compile_beside=True), Optimize(compile=Toggle.OFF)),
    (TunedSettings(cuda_graphs=True), Optimize(compile=Toggle.OFF)),
    (TunedSettings(data_loader_workers=4), Optimize(data_loading=Toggle.OFF)),
]
ALLOWED = [
    *((tuned, Optimize()) for tuned, _ in FORBIDDEN),
    (BFLOAT16, Optimize(precision=Precision.BFLOAT16)),
    # The worker could not take what was asked for, and says why: it need not try again.
    (TunedSettings(fused_optimizer=True), Optimize(precision=Precision.BFLOAT16)),
    (TunedSettings(), Optimize(compile=Toggle.ON)),
    (SPLIT, Optimize(batch_size=BatchSize(per_step=PerStep(8)))),
    (TunedSettings(), Optimize(mode=OptimizeMode.RECOMMEND)),
]


@pytest.mark.parametrize("task", Task)
def test_the_worker_gets_the_stated_task(task: Task) -> None:
    job = running(make_job("job", optimize=Optimize(task=task)), held=reserve(2 * GIB))
    assert settings_for(job, None).task is task


def job_with(tuned: TunedSettings | None, optimize: Optimize) -> GPUJob:
    return running(
        make_job("job", optimize=optimize),
        held=reserve(2 * GIB),
        measurement=measured(GIB),
        tuned=tuned,
    )


def profile(job: GPUJob, tuned: TunedSettings) -> GPUProfile:
    entry = ProfileEntry(MODEL, "2.8", GIB, 20.0, samples=9, updated_at=T0, tuned=tuned)
    return with_entries(job, None, (entry,))


def saved(job: GPUJob) -> Iterable[ProfileEntry]:
    snapshot = make_snapshot(
        job, pods=make_pods(job), gpu_nodes=[make_gpu_node("n0", make_gpu(), at=70.0)]
    )
    found = (one for one in plan(snapshot, after(70.0)).items if isinstance(one, SaveProfile))
    return [entry for one in found for entry in one.profile.status.entries]


@pytest.mark.parametrize(("tuned", "optimize"), FORBIDDEN)
def test_what_an_edited_spec_forbids_is_not_continued_with(
    tuned: TunedSettings, optimize: Optimize
) -> None:
    known, unknown = job_with(tuned, optimize), job_with(None, optimize)
    assert settings_for(known, None).tuned is None
    assert settings_for(unknown, profile(unknown, tuned)).tuned is None
    # Nor does the attempt that still runs with it say what the edited spec takes.
    assert saved(known) == []
    assert saved(unknown) != []


@pytest.mark.parametrize(("tuned", "optimize"), ALLOWED)
def test_what_the_spec_allows_is_continued_with(tuned: TunedSettings, optimize: Optimize) -> None:
    known = job_with(tuned, optimize)
    assert settings_for(known, None).tuned == tuned
    assert [entry.tuned for entry in saved(known)] == [tuned]
