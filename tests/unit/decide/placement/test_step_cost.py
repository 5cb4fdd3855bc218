"""Between GPU models: what a step of the workload costs where it was measured."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, Placement, SpotPolicy, WorkerPlacement
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_api.quantities import GIB
from gpujob_api.report import Efficiency, Timing
from gpujob_api.settings import Precision, TunedSettings
from gpujob_operator.decide.explain.placement_explanation import explain_placement
from gpujob_operator.decide.explain.words import rows
from gpujob_operator.decide.measurement.profile import new_entries, with_entries
from gpujob_operator.decide.model.plan import SaveProfile
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.placement.requirements import requirements_of
from gpujob_operator.decide.placement.step_cost import StepCost, step_cost, step_of
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_report,
    make_snapshot,
    measured,
    received,
    reserve,
    running,
    statuses,
    used,
    with_status,
)
from tests.harness.capacity import build_capacity

OLD, NEW = "NVIDIA A10", "NVIDIA H100"
# Seconds of a step and joules.
Measured = tuple[float | None, float | None]


def entry(model: str, seconds: float | None, joules: float | None) -> ProfileEntry:
    current = None if seconds is None else Timing(seconds, 4 * GIB)
    return ProfileEntry(
        *(model, "", 4 * GIB, 20.0, 10, T0),
        current=current,
        alone_step_seconds=seconds,
        alone_joules_per_step=joules,
    )


def profile_of(job: GPUJob, known: Mapping[str, Measured]) -> GPUProfile:
    entries = tuple(entry(model, *figures) for model, figures in known.items())
    return with_entries(job, None, entries)


def picture(
    job: GPUJob, known: Mapping[str, Measured], old: float | None, new: float | None
) -> Snapshot:
    """An idle GPU of each model, of these prices per hour."""
    nodes = (
        make_gpu_node("old", make_gpu("GPU-0", model=OLD), price=old),
        make_gpu_node("new", make_gpu("GPU-1", model=NEW), price=new),
    )
    return make_snapshot(job, gpu_nodes=nodes, profiles=(profile_of(job, known),))


def model_of(
    known: Mapping[str, Measured], old: float | None = None, new: float | None = None
) -> str:
    job = make_job("job")
    placement = statuses(plan(picture(job, known, old, new), T0).items)["job"].placement
    assert placement is not None
    return placement.gpu_model


@pytest.mark.parametrize(
    ("old", "new", "chosen"),
    [
        # 4 times as fast for 3 times the price, and for 5 times.
        (1.0, 3.0, NEW),
        (1.0, 5.0, OLD),
        # Nobody set a price for both: the name decides.
        (1.0, None, OLD),
        (None, 1.0, OLD),
    ],
)
def test_the_model_on_which_a_step_costs_less(
    old: float | None, new: float | None, chosen: str
) -> None:
    assert model_of({OLD: (0.4, None), NEW: (0.1, None)}, old, new) == chosen


def test_of_models_that_cost_the_same_the_one_that_draws_less() -> None:
    known = {OLD: (0.4, 60.0), NEW: (0.1, 50.0)}
    assert model_of(known, 1.0, 4.0) == NEW
    assert model_of(known) == NEW, "also where no price is known"
    assert model_of({**known, NEW: (0.1, 70.0)}) == OLD
    assert model_of({**known, NEW: (0.1, None)}) == OLD, "not known of both: the name"
    assert model_of(known, 1.0, 4.4) == OLD, "money first"


def test_where_it_has_not_run_on_one_of_them_nothing_is_compared() -> None:
    known: dict[str, Measured] = {NEW: (0.1, 1.0)}
    assert model_of(known, 1.0, 100.0) == NEW, "measured there, it holds less than a whole GPU"


def test_spot_as_wished_comes_before_what_it_costs() -> None:
    job = make_job("job", spot=SpotPolicy.PREFER)
    seen = picture(job, {OLD: (0.4, None), NEW: (0.1, None)}, 1.0, 1.0)
    spot = replace(seen, nodes=(make_node("old", spot=True), make_node("new")))
    placement = statuses(plan(spot, T0).items)["job"].placement
    assert placement is not None
    assert placement.gpu_model == OLD


@pytest.mark.parametrize(
    ("prices", "figures", "cost"),
    [
        ((2.0, 2.0), (1.8, 100.0), StepCost(0.002, 200.0)),
        ((2.0, None), (1.8, 100.0), StepCost(None, 200.0)),
        ((1.0, 1.0), (None, 50.0), StepCost(None, 100.0)),
        ((1.0,), (3.6, None), StepCost(0.001, None)),
    ],
)
def test_the_figures_by_hand(
    prices: tuple[float | None, ...], figures: Measured, cost: StepCost
) -> None:
    nodes = [
        make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}", model=OLD), price=price)
        for n, price in enumerate(prices)
    ]
    capacity = build_capacity(make_snapshot(gpu_nodes=nodes), T0, {})
    workers = tuple(WorkerPlacement(n, f"n{n}", (f"GPU-{n}",)) for n in range(len(prices)))
    known = profile_of(make_job("job"), {OLD: figures})
    assert step_cost(known, Placement(workers, gpu_model=OLD), capacity.nodes) == cost
    assert step_cost(known, Placement(workers, gpu_model=NEW), capacity.nodes) == StepCost()
    assert step_cost(None, Placement(workers, gpu_model=OLD), capacity.nodes) == StepCost()


def test_seconds_beside_others_count_where_it_was_never_alone() -> None:
    beside = replace(entry(OLD, None, None), current=Timing(3.6, GIB))
    assert step_of(beside) == (3.6, None)
    assert step_of(replace(beside, alone_step_seconds=3.0)) == (3.0, None)


def test_noise_is_not_compared() -> None:
    """A tenth of a percent more for a step: they cost the same, and energy decides."""
    assert model_of({OLD: (0.4, 60.0), NEW: (0.1001, 50.0)}, 1.0, 4.0) == NEW


def test_kinds_of_jobs_are_told_apart_by_it() -> None:
    """Who is told together is refused and placed together."""
    job = make_job("job")
    alike = {
        requirements_of(job, profile_of(job, {OLD: figures})).scheduling_signature
        for figures in ((0.4, None), (0.5, None), (0.4, 7.0))
    }
    assert len(alike) == 3


def test_why_there_and_not_on_the_other_model() -> None:
    def told(known: Mapping[str, Measured], old: float | None, new: float | None) -> str:
        found = explain_placement(picture(make_job("job"), known, old, new), T0, "uid-job")
        return "\n".join(value for _, value in rows(found))

    known = {OLD: (0.4, 60.0), NEW: (0.1, 50.0)}
    assert f"on {OLD} a step costs $0.00011 instead of $8.3e-05" in told(known, 1.0, 3.0)
    assert f"on {OLD} a step takes 60 J instead of 50 J" in told(known, None, None)


def test_what_was_not_compared_is_no_reason() -> None:
    """It fits on a third model, of which nothing is known."""
    job = make_job("job")
    seen = picture(job, {OLD: (0.4, 60.0), NEW: (0.1, 50.0)}, 1.0, 3.0)
    third = make_gpu_node("third", make_gpu("GPU-2", model="NVIDIA L4"), price=1.0)
    more = make_snapshot(job, gpu_nodes=(*seen.gpu_nodes, third), profiles=seen.profiles)
    found = explain_placement(more, T0, "uid-job")
    assert found.chosen is not None
    assert found.chosen.placement.gpu_model == OLD, "less than a whole GPU, and the first name"
    assert not [value for _, value in rows(found) if "a step" in value]


# -- from a report into the profile


def training(joules: float | None) -> tuple[GPUJob, Snapshot]:
    """A job alone on its GPU that reports a step of 0.1 s."""
    known = replace(measured(4 * GIB, step=100), current=Timing(0.1, 4 * GIB))
    job = with_status(running(make_job("a"), held=reserve(5 * GIB)), measurement=known)
    report = make_report(step=101, efficiency=Efficiency(joules_per_step=joules))
    return job, make_snapshot(
        job,
        pods=make_pods(job),
        reports=(received(job, report),),
        usage={(job.metadata.uid, 1): used(4 * GIB)},
    )


def test_what_a_step_draws_is_kept_with_the_workload() -> None:
    _, seen = training(35.0)
    (item,) = (item for item in plan(seen, T0).items if isinstance(item, SaveProfile))
    (saved,) = item.profile.status.entries
    assert (saved.alone_step_seconds, saved.alone_joules_per_step) == (0.1, 35.0)


def test_a_report_that_knows_no_energy_forgets_none() -> None:
    job, seen = training(None)
    assert job.status.measurement is not None
    known = replace(job.status.measurement, joules_per_step=20.0)
    job = with_status(job, measurement=known)
    (item,) = (
        item for item in plan(replace(seen, jobs=(job,)), T0).items if isinstance(item, SaveProfile)
    )
    assert item.profile.status.entries[0].alone_joules_per_step == 20.0


def finished(seconds: float, joules: float | None, tuned: TunedSettings | None = None) -> GPUJob:
    known = replace(
        measured(4 * GIB, step=100), current=Timing(seconds, 4 * GIB), joules_per_step=joules
    )
    job = running(make_job("a"), held=reserve(5 * GIB))
    return with_status(job, measurement=known, tuned=tuned)


def learned(*jobs: GPUJob) -> list[Measured]:
    """What the profile says after each, all alone."""
    profile, found = None, list[Measured]()
    for job in jobs:
        entries = new_entries(job.status, profile, T0, alone=True)
        profile = profile if entries is None else with_entries(job, profile, entries)
        assert profile is not None
        last = profile.status.entries[0]
        found.append((last.alone_step_seconds, last.alone_joules_per_step))
    return found


def test_energy_belongs_to_the_step_that_was_the_fastest() -> None:
    assert learned(finished(0.1, 30.0), finished(0.1, 31.0)) == [(0.1, 30.0), (0.1, 30.0)]
    assert learned(finished(0.1, 30.0), finished(0.05, 20.0)) == [(0.1, 30.0), (0.05, 20.0)]
    assert learned(finished(0.1, None), finished(0.1, 31.0)) == [(0.1, None), (0.1, 31.0)]


def test_energy_of_other_settings_is_not_taken_over() -> None:
    tuned = TunedSettings(precision=Precision.BFLOAT16)
    assert learned(finished(0.1, 30.0), finished(0.05, None, tuned))[-1] == (0.05, None)
