"""How much of a GPU an attempt holds, before and after it is measured."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, Reservation, ReservationSource, SharingMode
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus, ProfileEntry
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB, MIB
from gpujob_operator.decide.capacity.cluster import GPUCapacity, Tenant
from gpujob_operator.decide.measurement.reservation import (
    measured_reservation,
    profile_entry,
    reservable_bytes,
    wanted_reservation,
    with_margin,
)
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import GPUUsage
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    CARD_BYTES,
    MODEL,
    T0,
    capped,
    make_job,
    make_snapshot,
    measured,
    reserve,
    running,
    used,
    with_status,
)

CONFIGURATION = Configuration()
PICKED_BY_KUBELET = Configuration(device_access=DeviceAccess.DEVICE_PLUGIN)
CAPPED: dict[str, Any] = {"sharing": SharingMode.SHARED, "memory_bytes": 4 * GIB}
ENTRY = ProfileEntry(MODEL, "2.0", 8 * GIB, 35.0, 10, T0)


def wanted(job: GPUJob, entry: ProfileEntry | None = None) -> Reservation | None:
    return wanted_reservation(job, entry, CONFIGURATION)


def after_measuring(
    held: Reservation, usage: GPUUsage, *, most: int = CARD_BYTES, known: int = 0, **job: Any
) -> Reservation | None:
    attempt = running(make_job(**job), held=held, measurement=measured(known))
    return measured_reservation(attempt, usage, CONFIGURATION, lambda: most)


def test_margin_is_a_tenth_and_at_least_256_mebibytes() -> None:
    assert with_margin(100 * MIB, CONFIGURATION) == 356 * MIB
    assert with_margin(10 * GIB, CONFIGURATION) == 11 * GIB


def test_without_knowledge_the_whole_gpu() -> None:
    assert wanted(make_job()) is None
    assert wanted(make_job(memory_bytes=2 * GIB)) is None


@pytest.mark.promise("I2")
def test_exclusive_is_always_the_whole_gpu() -> None:
    """I2."""
    job = with_status(make_job(sharing=SharingMode.EXCLUSIVE), measurement=measured(GIB))
    assert wanted(job, ENTRY) is None


@pytest.mark.parametrize("mode", list(SharingMode))
def test_where_the_kubelet_picks_the_gpus_all_jobs_take_whole_ones(mode: SharingMode) -> None:
    """I1: on the GPU that it picks may be other jobs than on the one that was chosen."""
    job = with_status(make_job(sharing=mode, memory_bytes=2 * GIB), measurement=measured(GIB))
    assert wanted_reservation(job, ENTRY, PICKED_BY_KUBELET) is None
    held = reserve(24 * GIB, source=ReservationSource.WHOLE_GPU)
    after = running(make_job(sharing=mode), held=held)
    assert measured_reservation(after, used(GIB), PICKED_BY_KUBELET, lambda: CARD_BYTES) is None


def test_two_small_jobs_do_not_share_a_gpu_that_the_kubelet_picks() -> None:
    jobs = [with_status(make_job(name), measurement=measured(GIB)) for name in ("a", "b")]
    placed = {
        configuration.device_access: sum(
            isinstance(item, WriteStatus) and item.status.placement is not None
            for item in plan(make_snapshot(*jobs, configuration=configuration), T0).items
        )
        for configuration in (CONFIGURATION, PICKED_BY_KUBELET)
    }
    assert placed == {DeviceAccess.ENVIRONMENT: 2, DeviceAccess.DEVICE_PLUGIN: 1}


def test_profile_then_measurement() -> None:
    entry = wanted(make_job(), ENTRY)
    assert entry == Reservation(int(8.8 * GIB), 35.0, ReservationSource.PROFILE)
    own = wanted(with_status(make_job(), measurement=measured(10 * GIB)), ENTRY)
    assert own == Reservation(11 * GIB, 20.0, ReservationSource.MEASURED)


def test_an_attempt_that_ended_early_was_not_measured() -> None:
    """I9: what a job used while it was still loading is no limit for its next attempt."""
    early = replace(measured(GIB), samples=CONFIGURATION.measurement_samples_min - 1)
    silent = replace(measured(GIB), current=None)
    for measurement in (early, silent):
        assert wanted(with_status(make_job(), measurement=measurement)) is None
    longer = replace(silent, samples=CONFIGURATION.measurement_samples_without_reports_min)
    assert wanted(with_status(make_job(), measurement=longer)) is not None


def test_after_running_out_of_memory_the_profile_is_not_believed() -> None:
    """I9: the same command on other data needs more; it gets the whole GPU."""
    assert wanted(with_status(make_job(), counters=Counters(out_of_memory=1)), ENTRY) is None


def test_profile_is_of_one_gpu_model() -> None:
    profile = GPUProfile(
        Metadata("w"), GPUProfileSpec("f", "i"), GPUProfileStatus(entries=(ENTRY,))
    )
    assert profile_entry(profile, MODEL) == ENTRY
    assert profile_entry(profile, "another") is None
    assert profile_entry(None, MODEL) is None


def test_shared_hint_is_a_hard_cap_whatever_was_measured() -> None:
    """I1: nothing but a context comes on top of it."""
    job = make_job(sharing=SharingMode.SHARED, memory_bytes=4 * GIB)
    assert wanted(job) == capped(4 * GIB, utilization_percent=100.0)
    again = with_status(job, measurement=measured(6 * GIB), counters=Counters(out_of_memory=2))
    assert wanted(again) == capped(4 * GIB, 4 * GIB + CONTEXT_BYTES)
    less = with_status(job, measurement=measured(4 * GIB))
    assert wanted(less) == capped(4 * GIB)
    assert wanted(job, ENTRY) == capped(4 * GIB, utilization_percent=35.0)


def test_shared_hint_stays_while_running() -> None:
    held = capped(4 * GIB, utilization_percent=100.0)
    after = after_measuring(held, used(3 * GIB, 30.0), **CAPPED)
    assert after == capped(4 * GIB, utilization_percent=30.0)
    assert after is not None
    assert after_measuring(after, used(3 * GIB, 35.0), **CAPPED) is None


def test_under_a_cap_a_context_is_reserved_and_no_more() -> None:
    """I1, I8: as far as there is memory, and without a write for each byte."""
    held = capped(4 * GIB)
    margin_bytes = int(4.2 * GIB) // 10
    seen = after_measuring(held, used(int(4.2 * GIB)), **CAPPED)
    assert seen == replace(held, memory_bytes=int(4.2 * GIB) + margin_bytes)
    assert seen is not None
    assert after_measuring(seen, used(int(4.3 * GIB)), **CAPPED) is None
    most = after_measuring(seen, used(9 * GIB), **CAPPED)
    assert most == replace(held, memory_bytes=4 * GIB + CONTEXT_BYTES)
    assert most is not None
    assert after_measuring(most, used(9 * GIB), **CAPPED) is None
    bounded = after_measuring(held, used(9 * GIB), most=4 * GIB + 5, **CAPPED)
    assert bounded == replace(held, memory_bytes=4 * GIB + 5)
    assert after_measuring(held, used(9 * GIB), most=GIB, **CAPPED) is None
    assert after_measuring(most, used(GIB), **CAPPED) is None, "it does not shrink"
    known = after_measuring(held, used(GIB), known=9 * GIB, **CAPPED)
    assert known == most, "the peak of an earlier attempt is still to come"


def test_the_contexts_of_all_processes_are_reserved_as_they_are_measured() -> None:
    contexts_bytes = 3 * CONTEXT_BYTES
    held, most = capped(4 * GIB), capped(4 * GIB, 4 * GIB + contexts_bytes)
    several = used(9 * GIB, context_bytes=contexts_bytes)
    assert after_measuring(held, several, **CAPPED) == most
    known = replace(measured(9 * GIB), context_bytes=contexts_bytes)
    job = running(make_job(**CAPPED), held=held, measurement=known)
    assert measured_reservation(job, used(GIB), CONFIGURATION, lambda: CARD_BYTES) == most


@pytest.mark.parametrize("asked_gib", [None, 1, 20])
@pytest.mark.parametrize("mode", [SharingMode.SHARED, SharingMode.AUTO])
def test_an_edit_of_the_cap_counts_from_the_next_attempt_on(
    asked_gib: int | None, mode: SharingMode
) -> None:
    """I11: what runs was admitted with its cap, and its worker keeps to it."""
    memory_bytes = asked_gib * GIB if asked_gib is not None else None
    edited: dict[str, Any] = {"memory_bytes": memory_bytes, "sharing": mode}
    held = capped(4 * GIB)
    assert after_measuring(held, used(2 * GIB), **edited) is None
    grown = after_measuring(held, used(9 * GIB), **edited)
    assert grown == capped(4 * GIB, 4 * GIB + CONTEXT_BYTES)
    shared = make_job(memory_bytes=memory_bytes, sharing=SharingMode.SHARED)
    expected = capped(memory_bytes, utilization_percent=100.0) if memory_bytes else None
    assert wanted(shared) == expected


def test_a_reservation_without_a_cap_was_its_own_cap() -> None:
    """As an operator of before wrote it. It is bounded as well: the cap does not grow with it, and
    is not written for its own sake."""
    held = reserve(4 * GIB, ReservationSource.HINT)
    assert after_measuring(held, used(3 * GIB), **CAPPED) is None
    grown = after_measuring(held, used(9 * GIB), **CAPPED)
    assert grown == capped(4 * GIB, 4 * GIB + CONTEXT_BYTES)
    assert grown is not None
    assert after_measuring(grown, used(9 * GIB), **CAPPED) is None


def test_after_running_out_of_memory_the_own_measurement_is_not_believed_either() -> None:
    """I9: measured while it was loading, and everything after that was too little."""
    job = with_status(make_job(), measurement=measured(10 * GIB))
    assert wanted(job) == Reservation(11 * GIB, 20.0, ReservationSource.MEASURED)
    assert wanted(with_status(job, counters=Counters(out_of_memory=1))) is None


def test_whole_gpu_shrinks_to_what_was_measured() -> None:
    whole = reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0)
    assert after_measuring(whole, used(10 * GIB, 42.04)) == Reservation(
        11 * GIB, 42.0, ReservationSource.MEASURED
    )


def test_too_few_samples_change_nothing() -> None:
    """I14: one odd reading is not a measurement."""
    whole = reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0)
    few = used(10 * GIB, samples=CONFIGURATION.measurement_samples_min - 1)
    assert after_measuring(whole, few) is None


@pytest.mark.parametrize("source", [ReservationSource.WHOLE_GPU, ReservationSource.PROFILE])
def test_the_margin_never_takes_more_than_was_held(source: ReservationSource) -> None:
    """I1: the rest of the GPU may be somebody's already; use within the reservation is no leak."""
    shrunk = after_measuring(reserve(24 * GIB, source, 100.0), used(23 * GIB))
    assert shrunk is not None
    assert shrunk.memory_bytes == 24 * GIB


def test_growth_is_recorded_when_the_job_uses_more_than_it_holds() -> None:
    """I1: from then on nothing new is placed on what is not free."""
    held = reserve(10 * GIB)
    assert after_measuring(held, used(10 * GIB - 1)) is None
    grown = after_measuring(held, used(10 * GIB + 1))
    assert grown is not None
    assert grown.memory_bytes > 11 * GIB - 1


@pytest.mark.promise("I1")
def test_growth_ends_where_the_gpu_does() -> None:
    """I1: the margin takes nothing that is not free, and without free memory nothing changes."""
    held = reserve(10 * GIB)
    grown = after_measuring(held, used(11 * GIB), most=11 * GIB + 5)
    assert grown is not None
    assert grown.memory_bytes == 11 * GIB + 5
    assert after_measuring(held, used(11 * GIB), most=10 * GIB) is None


def test_the_peak_of_an_earlier_attempt_is_still_to_come() -> None:
    """I9: nothing is given back of what the job is known to need, whatever it uses now."""
    whole = reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0)
    shrunk = after_measuring(whole, used(5 * GIB), known=20 * GIB)
    assert shrunk is not None
    assert shrunk.memory_bytes == 22 * GIB
    grown = after_measuring(reserve(8 * GIB), used(5 * GIB), known=10 * GIB)
    assert grown is not None
    assert grown.memory_bytes == 11 * GIB


def test_a_job_can_reserve_what_it_has_and_what_is_free() -> None:
    own, other = (
        Tenant("uid-job", 8 * GIB, 20, False, 10, GIB),
        Tenant("x", 10 * GIB, 20, False, 10),
    )
    gpu = GPUCapacity("GPU-0", MODEL, CARD_BYTES, GIB, 0, (own, other))
    job = running(make_job(), held=reserve(8 * GIB))
    here, elsewhere = ("n0", "GPU-0"), ("n1", "GPU-0")
    assert reservable_bytes(job, {here: gpu}, {}) == 13 * GIB
    assert reservable_bytes(job, {here: gpu}, {here: 2 * GIB, elsewhere: GIB}) == 11 * GIB
    fuller = replace(gpu, external_bytes=GIB)
    assert reservable_bytes(job, {here: gpu, elsewhere: fuller}, {}) == 12 * GIB
    assert reservable_bytes(job, {here: gpu}, {here: 20 * GIB}) == 8 * GIB
    assert reservable_bytes(job, {}, {}) == 8 * GIB


def test_busier_changes_the_utilization_and_not_the_memory() -> None:
    held = reserve(10 * GIB, utilization_percent=20.0)
    assert after_measuring(held, used(5 * GIB, 29.0)) is None
    assert after_measuring(held, used(5 * GIB, 40.0)) == replace(held, utilization_percent=40.0)


def test_exclusive_and_unreserved_stay() -> None:
    """I2."""
    whole = reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0, exclusive=True)
    assert after_measuring(whole, used(GIB)) is None
    assert measured_reservation(make_job(), used(GIB), CONFIGURATION, lambda: CARD_BYTES) is None


@pytest.mark.promise("I8")
def test_a_measured_reservation_settles() -> None:
    """I8: the same measurement again changes nothing."""
    held = reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0)
    for peak in (10 * GIB, 23 * GIB, 25 * GIB):
        first = after_measuring(held, used(peak, 50.0))
        assert first is not None
        assert after_measuring(first, used(peak, 50.0)) is None


def next_percent(
    held_percent: float,
    percent: float,
    *,
    may_fall: bool = False,
    source: ReservationSource = ReservationSource.MEASURED,
    **job: Any,
) -> float | None:
    """Returns the utilization that a job of 2 GiB reserves next, or None for no change."""
    held = reserve(2 * GIB, source, held_percent)
    if job:
        held = capped(4 * GIB, utilization_percent=held_percent)
    found = after_measuring(held, used(GIB, percent, may_fall=may_fall), **job)
    return None if found is None else found.utilization_percent


@pytest.mark.parametrize("job", [{}, CAPPED])
@pytest.mark.parametrize(
    ("percent", "may_fall", "reserved_percent"),
    [
        (50.0, False, 50.0),  # it rises at once
        (49.0, False, None),  # too little to write
        (3.0, False, None),  # it may be a pause
        (3.0, True, 3.0),
        (31.0, True, None),
    ],
)
def test_the_reserved_utilization_is_that_of_the_last_minutes(
    percent: float, may_fall: bool, reserved_percent: float | None, job: dict[str, Any]
) -> None:
    assert next_percent(40.0, percent, may_fall=may_fall, **job) == reserved_percent


def test_a_job_that_was_never_measured_takes_the_first_measurement() -> None:
    whole = ReservationSource.WHOLE_GPU
    assert next_percent(100.0, 3.0, source=whole) == 3
    assert next_percent(100.0, 3.0, **CAPPED) == 3
    assert next_percent(100.0, 3.0) is None, "it was measured at 100 %"


def test_a_cap_that_was_measured_at_100_percent_is_not_unknown_after_a_restart() -> None:
    """The operator that starts anew has fewer readings than the measurement."""
    held = capped(4 * GIB, utilization_percent=100.0)
    known = replace(measured(GIB), utilization_percent=100.0, samples=200)
    job = running(make_job(**CAPPED), held=held, measurement=known)
    for samples, percent in ((3, None), (200, 5.0)):
        found = measured_reservation(
            job, used(GIB, 5.0, samples), CONFIGURATION, lambda: CARD_BYTES
        )
        assert (found.utilization_percent if found is not None else None) == percent


def test_the_figure_of_a_profile_counts_until_the_job_was_observed_for_minutes() -> None:
    profile = ReservationSource.PROFILE
    assert next_percent(60.0, 3.0, source=profile) == 60
    assert next_percent(60.0, 3.0, source=profile, may_fall=True) == 3
    assert next_percent(60.0, 65.0, source=profile) == 65
