"""A job that is measured from outside only leaves a profile when it has succeeded."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, Reservation, ReservationSource
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_api.settings import Task, TunedSettings
from gpujob_operator.decide.measurement.profile import (
    new_entries,
    samples_for_profile,
    with_entries,
)
from gpujob_operator.decide.model.plan import SaveProfile
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from tests.harness.applied import applied
from tests.harness.builders import (
    CARD_BYTES,
    MODEL,
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_snapshot,
    make_template,
    measured,
    reserve,
    running,
    statuses,
    used,
)

AT = 70.0
HELD = reserve(2 * GIB, utilization_percent=30.0)
REPORTED = ProfileEntry(
    MODEL, "2.8", GIB, 20.0, samples=9, updated_at=T0, current=Timing(0.1, GIB),
    tuned=TunedSettings(fused_optimizer=True), alone_step_seconds=0.1,
)  # fmt: skip


def silent(name: str = "first", held: Reservation = HELD) -> GPUJob:
    known = replace(measured(GIB, utilization_percent=30.0), current=None, samples=40)
    return running(make_job(name, template=make_template()), held=held, measurement=known)


def seen(
    job: GPUJob, exit_code: int | None, *entries: ProfileEntry, memory_bytes: int = GIB
) -> Snapshot:
    profiles = (with_entries(job, None, entries),) if entries else ()
    return make_snapshot(
        job,
        pods=make_pods(job, exit_code=exit_code),
        gpu_nodes=[make_gpu_node("n0", make_gpu(), at=AT)],
        usage={(job.metadata.uid, 1): used(memory_bytes, 30.0, 40)},
        profiles=profiles,
    )


def saved(snapshot: Snapshot) -> GPUProfile | None:
    items = plan(snapshot, after(AT)).items
    return next((one.profile for one in items if isinstance(one, SaveProfile)), None)


def test_a_server_without_requests_leaves_a_profile_while_it_runs() -> None:
    """It never succeeds. Its next replica would need a whole GPU again."""
    job = silent("replica")
    serving = replace(job, spec=replace(job.spec, optimize=Optimize(task=Task.SERVING)))
    profile = saved(seen(serving, None))
    assert profile is not None
    [entry] = profile.status.entries
    assert entry.memory_bytes == GIB
    assert saved(seen(serving, None, entry)) is None, "it adds nothing to its own profile"
    assert saved(seen(job, None)) is None, "of other jobs, the peak may still be to come"


@pytest.mark.parametrize(("percent", "written"), [(25.0, None), (20.0, 30.0), (90.0, None)])
def test_a_busier_server_updates_its_profile(percent: float, written: float | None) -> None:
    """It is first measured without requests. Less load does not count before a day has passed."""
    job = silent("replica")
    serving = replace(job, spec=replace(job.spec, optimize=Optimize(task=Task.SERVING)))
    known = replace(REPORTED, utilization_percent=percent, current=None, tuned=None)
    known = replace(known, updated_at=after(AT), alone_step_seconds=None, torch_version="")
    profile = saved(seen(serving, None, known))
    found = profile.status.entries[0].utilization_percent if profile is not None else None
    assert found == written


@pytest.mark.parametrize(
    ("before", "now", "written"),
    [
        ((90.0, 4), (30.0, 150), 30.0),
        ((90.0, 149), (30.0, 149), None),
        ((90.0, 150), (30.0, 400), None),
        ((20.0, 150), (30.0, 4), 30.0),
        ((25.0, 4), (30.0, 150), None),
        ((93.0, 0), (14.0, 5), 14.0),
    ],
)
def test_a_run_that_was_observed_for_minutes_replaces_shorter_ones(
    before: tuple[float, int], now: tuple[float, int], written: float | None
) -> None:
    """Once: the busier one of two such runs counts for a day."""
    entry = replace(REPORTED, utilization_percent=before[0], samples=before[1])
    entry = replace(entry, updated_at=after(AT))
    found = new_entries(
        replace(
            running(silent(), held=HELD, measurement=measured(GIB)).status,
            measurement=replace(
                measured(GIB), utilization_percent=now[0], samples=now[1], torch_version="2.8"
            ),
        ),
        with_entries(silent(), None, (entry,)),
        after(AT),
    )
    assert (found[0].utilization_percent if found is not None else None) == written


@pytest.mark.parametrize(
    ("samples", "may_fall", "written"), [(3, False, None), (150, False, None), (150, True, 30.0)]
)
def test_only_readings_of_the_present_utilization_count(
    samples: int, may_fall: bool, written: float | None
) -> None:
    """Those of the start-up or of an earlier attempt showed another one."""
    job = silent("replica")
    serving = replace(job, spec=replace(job.spec, optimize=Optimize(task=Task.SERVING)))
    assert serving.status.measurement is not None
    known = replace(serving.status.measurement, samples=500)
    serving = replace(serving, status=replace(serving.status, measurement=known))
    entry = replace(REPORTED, utilization_percent=90.0, current=None, tuned=None)
    entry = replace(entry, updated_at=after(AT), alone_step_seconds=None, torch_version="")
    usage = {(job.metadata.uid, 1): used(GIB, 30.0, samples, may_fall=may_fall)}
    profile = saved(replace(seen(serving, None, entry), usage=usage))
    found = profile.status.entries[0].utilization_percent if profile is not None else None
    assert found == written


def test_readings_of_a_start_up_are_none_of_a_profile() -> None:
    assert samples_for_profile(used(GIB, 93.0, 8, is_of_start_up=True)) == 0
    assert samples_for_profile(used(GIB, 14.0, 5, may_fall=True)) == 5
    assert samples_for_profile(used(GIB, 14.0, 500)) == 149


def test_a_server_leaves_no_profile_before_it_has_enough_readings() -> None:
    job = silent("replica")
    serving = replace(job, spec=replace(job.spec, optimize=Optimize(task=Task.SERVING)))
    assert serving.status.measurement is not None
    early = replace(serving.status.measurement, samples=5)
    serving = replace(serving, status=replace(serving.status, measurement=early))
    snapshot = replace(seen(serving, None), usage={(job.metadata.uid, 1): used(GIB, 30.0, 5)})
    assert saved(snapshot) is None


def test_the_next_one_is_packed_by_what_the_first_one_took() -> None:
    first = seen(silent(), 0)
    after_it = applied(first, plan(first, after(AT)), after(AT))
    (profile,) = after_it.profiles
    (entry,) = profile.status.entries
    assert (entry.gpu_model, entry.memory_bytes, entry.utilization_percent) == (MODEL, GIB, 30.0)
    assert (entry.current, entry.tuned, entry.alone_step_seconds) == (None, None, None)

    snapshot = make_snapshot(
        make_job("second", template=make_template()),
        gpu_nodes=[make_gpu_node("n0", make_gpu(), at=AT)],
        profiles=after_it.profiles,
    )
    held = statuses(plan(snapshot, after(AT)).items)["second"].reservation
    assert held is not None
    assert held.source is ReservationSource.PROFILE
    assert GIB < held.memory_bytes < CARD_BYTES / 2


@pytest.mark.parametrize("exit_code", [None, 1])
def test_before_it_has_succeeded_its_peak_may_be_to_come(exit_code: int | None) -> None:
    assert saved(seen(silent(), exit_code)) is None


def test_too_few_readings_leave_no_profile() -> None:
    whole = reserve(CARD_BYTES, ReservationSource.WHOLE_GPU, 100.0)
    assert saved(seen(silent(held=whole), 0)) is None


def test_what_was_reported_before_stays_and_the_larger_peak_counts() -> None:
    profile = saved(seen(silent(), 0, REPORTED, memory_bytes=3 * GIB))
    assert profile is not None
    expected = replace(REPORTED, memory_bytes=3 * GIB, utilization_percent=30.0, samples=40)
    assert profile.status.entries == (replace(expected, updated_at=after(AT)),)


def test_reports_that_come_later_are_not_hidden() -> None:
    outside = replace(REPORTED, torch_version="", current=None, tuned=None, alone_step_seconds=None)
    reporting = running(silent(), held=HELD, measurement=measured(GIB))
    assert reporting.status.measurement is not None
    said = replace(reporting.status.measurement, torch_version="2.8")
    job = replace(reporting, status=replace(reporting.status, measurement=said))
    profile = saved(seen(job, None, outside))
    assert profile is not None
    assert [entry.torch_version for entry in profile.status.entries] == ["2.8", ""]
    assert profile.status.entries[0].current is not None


def test_one_entry_a_version_remains() -> None:
    """The API server refuses two entries of one model and version."""
    outside = replace(REPORTED, torch_version="", current=None, tuned=None, alone_step_seconds=None)
    untimed = replace(outside, torch_version="2.8")
    profile = saved(seen(silent(), 0, untimed, outside, memory_bytes=3 * GIB))
    assert profile is not None
    assert sorted(entry.torch_version for entry in profile.status.entries) == ["", "2.8"]
