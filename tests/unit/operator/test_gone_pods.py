"""How pods ended that are gone is kept until their attempt is over, and no longer."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.observe import gone_pods
from gpujob_operator.observe.gone_pods import GonePods
from tests.harness.builders import make_job, make_pod, placed, with_status
from tests.harness.clocks import FakeClock

pytestmark = pytest.mark.promise("I5")

JOB = placed(make_job())
DONE = replace(make_pod(JOB), phase=PodPhase.SUCCEEDED, exit_code=0)


def _told(job: GPUJob | None, pod: PodView = DONE) -> tuple[PodView, ...]:
    pods = GonePods(FakeClock().now)
    pods.remember(pod)
    return pods.undecided(lambda _: job)


def test_the_end_of_a_worker_of_the_attempt_is_told() -> None:
    assert _told(JOB) == (DONE,)


def test_containers_beside_the_worker_went_with_the_pod() -> None:
    """Nobody waits for the rest of a pod that is gone."""
    running = replace(make_pod(JOB), phase=PodPhase.RUNNING, exit_code=0)
    assert _told(JOB, running) == (DONE,)


@pytest.mark.parametrize("exit_code", [None, 7, 137])
def test_what_was_not_done_when_it_went_was_interrupted(exit_code: int | None) -> None:
    """It was being deleted: its code is that of a signal as often as not."""
    assert _told(JOB, make_pod(JOB, exit_code=exit_code)) == ()


@pytest.mark.parametrize(
    "job",
    [
        None,
        with_status(JOB, attempt=2),
        with_status(JOB, placement=None),
        with_status(JOB, phase=JobPhase.SUCCEEDED),
    ],
    ids=["job gone", "next attempt", "given up", "finished"],
)
def test_it_is_forgotten_when_its_attempt_is_over(job: GPUJob | None) -> None:
    pods = GonePods(FakeClock().now)
    pods.remember(DONE)
    assert pods.undecided(lambda _: job) == ()
    assert pods.undecided(lambda _: JOB) == ()


def test_what_ended_in_a_history_that_was_lost_may_never_have_been() -> None:
    """Restored data give the attempt's number to another pod: the job would end while that runs."""
    pods = GonePods(FakeClock().now)
    pods.remember(DONE)
    other = replace(DONE, uid="other")
    pods.begin_another_history({other.uid})
    pods.remember(other)
    assert pods.undecided(lambda _: JOB) == ()
    pods.listed()
    pods.remember(other)
    assert pods.undecided(lambda _: JOB) == (other,)


def test_it_waits_for_a_job_whose_placement_was_not_seen_yet() -> None:
    pods = GonePods(FakeClock().now)
    pods.remember(DONE)
    unplaced = with_status(JOB, attempt=0, placement=None)
    assert pods.undecided(lambda _: unplaced) == ()
    assert pods.undecided(lambda _: JOB) == (DONE,)


def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_pods, "PODS_REMEMBERED_MAX", 2)
    pods = GonePods(FakeClock().now)
    for uid in ("a", "b", "c"):
        pods.remember(replace(DONE, uid=uid))
    assert [pod.uid for pod in pods.undecided(lambda _: JOB)] == ["b", "c"]


def test_a_pod_of_a_lost_attempt_says_nothing_about_a_later_one_with_its_number() -> None:
    """The attempt was lost by a restore, its pod went, and the job got the number once more."""
    clock = FakeClock()
    pods = GonePods(clock.now)
    pods.remember(DONE)
    clock.advance(5)
    again = with_status(JOB, attempt_started_at=clock.now())
    assert pods.undecided(lambda _: again) == ()
    assert pods.undecided(lambda _: JOB) == ()
