"""A training yields to a service on its GPU by steps, within a bound, and only while it helps."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.report import YIELD_PERCENT_MAX, WorkerPhase
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.model.snapshot import ReceivedReport, Yielding
from gpujob_operator.decide.model.yielding import (
    FRESH_SECONDS,
    STEP_SECONDS,
    Moment,
    next_yields,
)
from tests.harness.builders import after, make_job, make_report, received, running, with_status

SERVICE = running(make_job("digits-0"))
TRAINING = running(make_job("train"))
ELSEWHERE = running(make_job("apart"), ("n0", ("GPU-1",)))
JOBS = (SERVICE, TRAINING, ELSEWHERE)


def serving(
    needed_percent: float | None, at: float, job: GPUJob = SERVICE, *, ready: bool = True
) -> ReceivedReport:
    part = ServingReport(ready=ready, needed_percent=needed_percent)
    return received(job, make_report(phase=WorkerPhase.SERVING, serving=part), at)


def training(at: float, job: GPUJob = TRAINING, seconds: float | None = 0.0) -> ReceivedReport:
    return received(job, make_report(yielded_seconds=seconds), at)


class Played:
    """Rounds in virtual time."""

    def __init__(self, *jobs: GPUJob) -> None:
        self.jobs: Mapping[str, GPUJob] = {job.metadata.uid: job for job in jobs or JOBS}
        self.seconds = 0.0
        self.yields: tuple[Yielding, ...] = ()

    def round(self, *reports: ReceivedReport, seconds: float = 0.0) -> dict[str, int]:
        """Returns the percents by job after this time."""
        self.seconds += seconds
        moment = Moment(after(self.seconds), interval_seconds=2.0)
        self.yields = next_yields(self.yields, reports, self.jobs.get, moment)
        return {one.job_uid: one.percent for one in self.yields}

    def needs(self, percent: float | None, seconds: float = STEP_SECONDS) -> int:
        """Returns the share of `TRAINING`, when fresh reports come after this time."""
        at = self.seconds + seconds
        found = self.round(serving(percent, at), training(at), seconds=seconds)
        return found.get(TRAINING.metadata.uid, 0)


def test_the_share_rises_to_half_of_the_time_and_falls_to_nothing() -> None:
    played = Played()
    assert [played.needs(95) for _ in range(7)] == [10, 20, 30, 40, 50, 50, 50]
    assert [played.needs(80) for _ in range(3)] == [50, 50, 50], "neither too much nor too little"
    assert [played.needs(60) for _ in range(6)] == [40, 30, 20, 10, 0, 0]


def test_a_step_shows_its_effect_before_the_next_one() -> None:
    played = Played()
    assert [played.needs(95, 2) for _ in range(11)] == [10] * 5 + [20] * 5 + [30]


def test_a_clock_that_was_set_back_delays_no_step() -> None:
    played = Played()
    played.needs(95)
    assert played.needs(95, -3600) == 20


def test_without_requests_nothing_is_yielded() -> None:
    played = Played()
    played.needs(95)
    assert played.needs(None) == 0


@pytest.mark.parametrize("lost", ["stale", "not ready"])
def test_a_report_that_does_not_count_lets_the_share_fall(lost: str) -> None:
    played = Played()
    shares = [played.needs(95) for _ in range(2)]
    old = serving(95, played.seconds, ready=lost == "stale")
    for _ in range(4):
        late = played.seconds + FRESH_SECONDS + 1
        found = played.round(old, training(late), seconds=FRESH_SECONDS + 1)
        shares.append(found.get(TRAINING.metadata.uid, 0))
    assert shares == [10, 20, 10, 0, 0, 0]


def test_only_trainings_on_the_services_gpu_yield() -> None:
    other = running(make_job("other"))
    played = Played(*JOBS, other)
    found = played.round(serving(95, 0), training(0), training(0, ELSEWHERE), training(0, other))
    assert found == {"uid-train": 10, "uid-other": 10}


def test_replicas_do_not_yield_to_each_other() -> None:
    second = running(make_job("digits-1"))
    assert Played(SERVICE, second).round(serving(200, 0), serving(95, 0, second)) == {}


@pytest.mark.parametrize(
    "job",
    [
        with_status(SERVICE, phase=JobPhase.STOPPING),
        with_status(SERVICE, attempt=2),
        running(make_job("digits-0"), ("n0", ("GPU-7",))),
    ],
)
def test_nothing_is_yielded_to_a_replica_that_is_not_there(job: GPUJob) -> None:
    played = Played()
    assert played.needs(95) == 10
    played.jobs = {**played.jobs, job.metadata.uid: job}
    assert played.needs(95) == 0


@pytest.mark.parametrize(
    "report",
    [training(0, seconds=None), training(-60), replace(training(0), rank=1)],
    ids=["cannot yield", "silent", "another rank"],
)
def test_a_worker_that_cannot_yield_is_not_asked(report: ReceivedReport) -> None:
    assert Played().round(serving(95, 0), report) == {}


def test_a_gang_yields_as_a_whole() -> None:
    gang = running(make_job("gang", workers=2), ("n0", ("GPU-5",)), ("n0", ("GPU-0",)))
    assert Played(SERVICE, gang).round(serving(95, 0), training(0, gang)) == {"uid-gang": 10}


def test_the_replica_in_need_is_named_within_the_namespace_only() -> None:
    foreign = running(make_job("guest", namespace="rival"))
    calm = running(make_job("calm-0"))
    played = Played(SERVICE, TRAINING, foreign, calm)
    played.round(serving(20, 0, calm), serving(95, 0), training(0), training(0, foreign))
    names = {one.job_uid: one.replica for one in played.yields}
    assert names == {"uid-train": "team/digits-0", "uid-guest": "a job of another namespace"}


@given(
    rounds=st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(0, 1000)),
            st.floats(0, 60),
            st.booleans(),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_the_bound_holds_and_the_share_ends_whatever_is_reported(
    rounds: list[tuple[float | None, float, bool, bool]],
) -> None:
    played = Played()
    changed_at = -STEP_SECONDS
    before = 0
    for needed, seconds, is_ready, is_heard in rounds:
        at = played.seconds + seconds
        heard = (training(at),) if is_heard else ()
        found = played.round(
            serving(needed, at, ready=is_ready), training(at, ELSEWHERE), *heard, seconds=seconds
        )
        assert found.keys() <= {TRAINING.metadata.uid}
        percent = found.get(TRAINING.metadata.uid, 0)
        assert percent <= min(before + 10, YIELD_PERCENT_MAX)
        if percent > before:
            assert is_ready
            assert needed is not None
            assert needed > 90
            assert before == 0 or at - changed_at >= STEP_SECONDS
        changed_at = at if percent != before else changed_at
        before = percent
    for _ in range(YIELD_PERCENT_MAX // 10):
        before = played.needs(0)
    assert before == 0
