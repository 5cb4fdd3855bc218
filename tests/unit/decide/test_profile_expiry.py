"""Profiles that nobody uses go, and a profile that is used is seldom written."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_operator.decide.measurement.profile import RENEWED_AFTER, new_entries, with_entries
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import DeleteProfile, Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.applied import applied
from tests.harness.builders import (
    T0,
    make_job,
    make_snapshot,
    measured,
    reserve,
    running,
    with_status,
)

DAYS = Configuration().profile_unused_days
OVER = T0 + timedelta(days=DAYS)
ENTRY = ProfileEntry("NVIDIA L4", "2.8", GIB, 20.0, samples=3, updated_at=T0)
JOB = make_job("train")


def profile(job: GPUJob = JOB, *entries: ProfileEntry, made: float = 0.0) -> GPUProfile:
    found = with_entries(job, None, entries)
    metadata = replace(found.metadata, uid="profile", creation_timestamp=T0 - timedelta(days=made))
    return replace(found, metadata=metadata)


def deleted(decided: Plan) -> list[Metadata]:
    return [one.profile.metadata for one in decided.items if isinstance(one, DeleteProfile)]


def seen(*jobs: GPUJob, of: GPUProfile, days: int = DAYS) -> Snapshot:
    configuration = Configuration(profile_unused_days=days)
    return make_snapshot(*jobs, profiles=(of,), configuration=configuration)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(profile(JOB, ENTRY, made=1000), id="since it was measured"),
        pytest.param(profile(), id="since it was made"),
    ],
)
def test_it_goes_so_many_days_after_it_was_last_measured(one: GPUProfile) -> None:
    snapshot = seen(of=one)
    assert deleted(plan(snapshot, OVER - timedelta(seconds=1))) == []
    assert deleted(plan(snapshot, OVER)) == [one.metadata]
    assert deleted(plan(seen(of=one, days=0), OVER)) == []


@pytest.mark.parametrize(
    ("phase", "stays"),
    [(JobPhase.PENDING, True), (JobPhase.SUCCEEDED, False), (JobPhase.FAILED, False)],
)
def test_a_job_that_may_still_use_it_keeps_it(phase: JobPhase, stays: bool) -> None:
    user = with_status(JOB, phase=phase, finished_at=T0)
    assert bool(deleted(plan(seen(user, of=profile()), OVER))) is not stays
    other = make_job("other")
    assert deleted(plan(seen(other, of=profile()), OVER))


def test_with_what_earlier_cycles_kept_every_plan_is_that_of_a_fresh_one() -> None:
    planner, unused = Planner(), seen(of=profile())
    used, gone = seen(JOB, of=profile()), make_snapshot()
    measured_again = seen(of=profile(JOB, replace(ENTRY, updated_at=OVER)))
    for hours, snapshot in enumerate((unused, used, unused, unused, measured_again, gone, unused)):
        now = OVER + timedelta(hours=hours)
        assert deleted(planner(snapshot, now)) == deleted(plan(snapshot, now))
    assert deleted(plan(unused, OVER))
    assert applied(unused, plan(unused, OVER), OVER).profiles == ()


def test_what_is_measured_again_and_again_is_written_once_a_day() -> None:
    """As often as its last measurement must be known for it not to expire."""
    job = running(JOB, held=reserve(2 * GIB), measurement=measured(GIB))
    known, writes = profile(), 0
    for minutes in range(0, 3 * 24 * 60, 10):
        now = T0 + timedelta(minutes=minutes)
        entries = new_entries(job.status, known, now)
        if entries is not None:
            known, writes = with_entries(job, known, entries), writes + 1
    assert writes == timedelta(days=3) / RENEWED_AFTER
