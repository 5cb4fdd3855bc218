"""What jobs measured beside each other becomes the law of their GPU model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import (
    SLOWDOWN_PERCENT_MAX,
    GPUProfile,
    GPUProfileSpec,
    GPUProfileStatus,
    ProfileEntry,
    SharedPace,
)
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_api.settings import TunedSettings
from gpujob_operator.decide.capacity.calibration import (
    PRIOR_WORKLOADS,
    VOTE_PERCENT_MAX,
    band_percent,
    laws,
    with_pace,
)
from gpujob_operator.decide.capacity.slowdown_law import (
    BANDS_PERCENT,
    PUBLISHED_SLOWDOWNS,
    summed_utilization_limit_percent,
)
from gpujob_operator.decide.measurement.fingerprint import workload_of
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.model.plan import SaveProfile
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.applied import applied
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_snapshot,
    measured,
    reserve,
    running,
    statuses,
    with_status,
)

ALONE_SECONDS = 0.1


def told(
    *paces: tuple[int, float], name: str = "w", model: str = MODEL, namespace: str = NAMESPACE
) -> GPUProfile:
    entry = ProfileEntry(
        model, "", 4 * GIB, 20.0, 10, T0, shared=tuple(SharedPace(*pace) for pace in paces)
    )
    return GPUProfile(
        Metadata(name, namespace), GPUProfileSpec(name, "image:1"), GPUProfileStatus(0, (entry,))
    )


def told_by(
    namespaces: Sequence[str], *paces: tuple[int, float], workloads: int, model: str = MODEL
) -> list[GPUProfile]:
    """So many workloads of each namespace say the same."""
    return [
        told(*paces, name=f"w{n}", model=model, namespace=namespace)
        for namespace in namespaces
        for n in range(workloads)
    ]


def test_bands_are_those_of_the_published_law() -> None:
    assert [band_percent(summed) for summed in (0, 49.9, 50, 79.9, 80, 95, 300)] == [
        *(50, 50, 80, 80, 95),
        *(BANDS_PERCENT[-1], BANDS_PERCENT[-1]),
    ]
    assert pytest.approx((0.0, 3.63, 11.73, 26.58), abs=0.01) == PUBLISHED_SLOWDOWNS


def test_nothing_measured_is_no_law_of_its_own() -> None:
    assert laws([]) == {}
    assert laws([told()]) == {}


def test_a_namespaces_vote_is_the_median_of_its_workloads_and_of_the_published_law() -> None:
    both = ("nlp", "vision")
    few = told_by(both, (80, 23.63), workloads=PRIOR_WORKLOADS - 1)
    assert laws(few)[MODEL] == PUBLISHED_SLOWDOWNS, "two against three"
    law = laws(told_by(both, (80, 23.63), workloads=PRIOR_WORKLOADS))[MODEL]
    assert law[0] == 0
    assert law[1] == 13.5, "between 3.63 and 23.63, in halves"
    assert law[2] == 13.5, "a fuller GPU slows no less"
    assert law[3] == PUBLISHED_SLOWDOWNS[3]


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from(BANDS_PERCENT), st.floats(0, 10_000)), max_size=4),
)
def test_one_namespace_alone_moves_no_law(workloads: int, paces: list[tuple[int, float]]) -> None:
    found = laws(told_by(["evil"], *paces, workloads=workloads))
    assert found.get(MODEL, PUBLISHED_SLOWDOWNS) == PUBLISHED_SLOWDOWNS


@given(st.integers(1, 40), st.floats(0, 10_000))
def test_one_namespace_moves_the_law_no_further_than_an_honest_one(
    workloads: int, lie_percent: float
) -> None:
    honest = told_by(["nlp"], (80, 23.63), workloads=9)
    law = laws([*honest, *told_by(["evil"], (80, lie_percent), workloads=workloads)])[MODEL]
    assert PUBLISHED_SLOWDOWNS[1] <= law[1] <= 23.5


def test_a_vote_says_no_more_than_a_job_can_allow() -> None:
    law = laws(told_by(("evil", "worse"), (50, 4900.0), workloads=9))[MODEL]
    assert law == (VOTE_PERCENT_MAX,) * 4
    assert summed_utilization_limit_percent(VOTE_PERCENT_MAX, law) > 0


def test_models_have_laws_of_their_own() -> None:
    slow = told_by(("nlp", "vision"), (50, 10.0), workloads=4)
    found = laws([*slow, told((50, 0.0), name="v", model="NVIDIA L4")])
    assert found[MODEL][0] == 10
    assert found["NVIDIA L4"] == PUBLISHED_SLOWDOWNS


paces = st.tuples(st.sampled_from(BANDS_PERCENT), st.floats(0, 500))


@given(st.lists(paces, max_size=12), st.integers(0, 300), st.randoms(use_true_random=False))
def test_a_law_grows_with_the_gpu_and_limits_with_the_allowance(
    seen: list[tuple[int, float]], allowed: int, random: Any
) -> None:
    profiles = [told(pace, name=f"w{n}", namespace=f"n{n}") for n, pace in enumerate(seen)]
    found = laws(profiles)
    shuffled = random.sample(profiles, len(profiles))
    assert laws(shuffled) == found
    law = found.get(MODEL, PUBLISHED_SLOWDOWNS)
    assert list(law) == sorted(law)
    limit = summed_utilization_limit_percent(allowed, law)
    assert limit <= summed_utilization_limit_percent(allowed + 5, law)
    if 0 < limit < 100:
        assert law[BANDS_PERCENT.index(band_percent(limit))] <= allowed


def test_small_changes_are_not_worth_a_write() -> None:
    known = (SharedPace(80, 10.0),)
    assert with_pace(known, None) is known
    assert with_pace(known, SharedPace(80, 14.9)) is known
    assert with_pace(known, SharedPace(80, 15.0)) == (SharedPace(80, 15.0),)
    assert with_pace(known, SharedPace(80, 0.0)) is known, "the most counts"
    assert with_pace(known, SharedPace(50, 1.0)) == (SharedPace(50, 1.0), SharedPace(80, 10.0))


# -- from a running pair into the profile, and from there into decisions


def pair(step_seconds: float) -> Snapshot:
    """Two jobs of 20 % each on one GPU; of the first it is known how fast it is alone."""
    jobs: list[GPUJob] = []
    for name in ("a", "b"):
        known = replace(measured(4 * GIB, step=100), current=Timing(step_seconds, 4 * GIB))
        held = reserve(5 * GIB, utilization_percent=20.0)
        jobs.append(with_status(running(make_job(name), held=held), measurement=known))
    alone = Timing(ALONE_SECONDS, 4 * GIB)
    entry = ProfileEntry(
        *(MODEL, "", 4 * GIB, 20.0, 10, T0), current=alone, alone_step_seconds=ALONE_SECONDS
    )
    profile = GPUProfile(
        Metadata(profile_name(jobs[0]), NAMESPACE, uid="p"),
        GPUProfileSpec(workload_of(jobs[0].spec).fingerprint, "image:1"),
        GPUProfileStatus(0, (entry,)),
    )
    pods = [pod for job in jobs for pod in make_pods(job)]
    return make_snapshot(*jobs, pods=pods, profiles=(profile,))


def saved(snapshot: Snapshot) -> dict[str, ProfileEntry]:
    return {
        item.profile.metadata.name: item.profile.status.entries[0]
        for item in plan(snapshot, T0).items
        if isinstance(item, SaveProfile)
    }


def test_a_pair_tells_its_workloads_profile_how_much_it_is_slowed() -> None:
    seen = pair(0.12)
    first, second = (profile_name(job) for job in seen.jobs)
    told_first = saved(seen)
    assert told_first[first].shared == (SharedPace(50, 20.0),)
    assert told_first[second].shared == (), "nobody knows how fast it is alone"
    assert told_first[second].alone_step_seconds is None
    assert saved(applied(seen, plan(seen, T0), T0)) == {}, "said once"


def test_a_slowdown_beyond_what_the_schema_takes_is_written_as_the_most_that_it_takes() -> None:
    seen = pair(ALONE_SECONDS * 5_000)
    first, _ = (profile_name(job) for job in seen.jobs)
    assert saved(seen)[first].shared == (SharedPace(50, SLOWDOWN_PERCENT_MAX),)


def test_runs_of_one_workload_with_different_neighbours_come_to_rest() -> None:
    """Or else each would write its own figure again and again."""
    seen = pair(0.12)
    first, second = seen.jobs
    twin = replace(second, spec=replace(second.spec, template=first.spec.template))
    pace = replace(measured(4 * GIB, step=100), current=Timing(0.15, 4 * GIB))
    seen = replace(seen, jobs=(first, with_status(twin, measurement=pace)))
    for _ in range(3):
        decided = plan(seen, T0)
        assert sum(isinstance(item, SaveProfile) for item in decided.items) <= 1
        seen = applied(seen, decided, T0)
    assert plan(seen, T0).items == ()
    (profile,) = seen.profiles
    assert profile.status.entries[0].shared == (SharedPace(50, 50.0),)


def test_who_was_not_heard_is_heard_later_also_with_a_memory() -> None:
    seen = pair(0.12)
    first, second = seen.jobs
    twin = replace(second, spec=replace(second.spec, template=first.spec.template))
    pace = replace(measured(4 * GIB, step=100), current=Timing(0.15, 4 * GIB))
    seen = replace(seen, jobs=(first, with_status(twin, measurement=pace)))
    planner = Planner()
    for _ in range(4):
        decided = planner(seen, T0)
        assert decided.items == plan(seen, T0).items
        seen = applied(seen, decided, T0)
    assert seen.profiles[0].status.entries[0].shared == (SharedPace(50, 50.0),)


def test_settings_that_lost_do_not_say_how_fast_a_workload_is_alone() -> None:
    """One run is tuned, one is not yet: both are alone on a GPU, and neither writes for ever."""
    tuned = TunedSettings(fused_optimizer=True)
    jobs: list[GPUJob] = []
    for name, gpu, step, settings in (("a", "GPU-0", 0.1, tuned), ("b", "GPU-1", 0.2, None)):
        known = replace(measured(4 * GIB, step=100), current=Timing(step, 4 * GIB))
        job = running(make_job(name), ("n0", (gpu,)), held=reserve(5 * GIB))
        job = replace(job, spec=replace(job.spec, template=make_job("same").spec.template))
        jobs.append(with_status(job, measurement=known, tuned=settings))
    pods = [pod for job in jobs for pod in make_pods(job)]
    gpus = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]
    seen = make_snapshot(*jobs, pods=pods, gpus=gpus)
    for _ in range(4):
        seen = applied(seen, plan(seen, T0), T0)
    assert plan(seen, T0).items == ()
    (entry,) = seen.profiles[0].status.entries
    assert (entry.tuned, entry.alone_step_seconds) == (tuned, 0.1)


def test_alone_a_job_tells_how_fast_it_is_alone() -> None:
    seen = pair(0.09)
    lonely = replace(seen, jobs=seen.jobs[1:], pods=seen.pods[1:])
    (entry,) = saved(lonely).values()
    assert (entry.alone_step_seconds, entry.shared) == (0.09, ())
    assert saved(applied(lonely, plan(lonely, T0), T0)) == {}


def test_beside_an_unmanaged_process_nothing_is_learned() -> None:
    """What an unmanaged process does is in nobody's sum of utilizations."""
    seen = pair(0.12)
    busy = make_gpu_node("n0", make_gpu(unmanaged=GIB))
    beside = saved(replace(seen, gpu_nodes=(busy,)))
    assert all(entry.shared == () for entry in beside.values())
    lonely = replace(seen, jobs=seen.jobs[1:], pods=seen.pods[1:], gpu_nodes=(busy,))
    assert all(entry.alone_step_seconds is None for entry in saved(lonely).values())


def newcomer(*profiles: GPUProfile) -> Snapshot:
    """A job of 30 % that allows 10 %, and a GPU with one of 40 % on it."""
    held = reserve(5 * GIB, utilization_percent=40.0)
    there = running(make_job("there"), held=held)
    known = measured(4 * GIB, utilization_percent=30.0)
    new = with_status(make_job("new", created=1), measurement=known)
    return make_snapshot(
        there, new, pods=make_pods(there), gpus=[make_gpu()], profiles=tuple(profiles)
    )


def places(snapshot: Snapshot) -> bool:
    return statuses(plan(snapshot, T0).items)["new"].placement is not None


def test_where_pairs_are_slowed_more_than_published_fewer_share() -> None:
    """70 % together: 3.6 % by the published law; by what two namespaces measured, 13.5 %."""
    assert places(newcomer())
    slow = told_by(("nlp", "vision"), (80, 23.63), workloads=3)
    refused = newcomer(*slow)
    assert not places(refused)
    assert "would slow a job by more than 10 %" in plan_message(refused)


def plan_message(snapshot: Snapshot) -> str:
    conditions = statuses(plan(snapshot, T0).items)["new"].conditions
    return next(one.message for one in conditions if one.type == "Scheduled")


def test_where_pairs_are_slowed_less_more_share() -> None:
    """85 % together: 11.7 % by the published law is over the limit of 10 %."""
    held = reserve(5 * GIB, utilization_percent=55.0)
    seen = newcomer()
    there = with_status(seen.jobs[0], reservation=held)
    full = replace(seen, jobs=(there, seen.jobs[1]))
    assert not places(full)
    calm = tuple(told_by(("nlp", "vision"), (95, 2.0), workloads=3))
    assert places(replace(full, profiles=calm))


def test_a_planner_that_remembers_learns_the_law() -> None:
    planner, before = Planner(), newcomer()
    planner(before, T0)
    after = replace(before, profiles=tuple(told_by(("nlp", "vision"), (80, 23.63), workloads=3)))
    assert planner(after, T0).items == plan(after, T0).items
    assert planner(before, T0).items == plan(before, T0).items
