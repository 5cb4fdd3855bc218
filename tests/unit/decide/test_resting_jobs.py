"""Jobs of which nothing can follow yet are not decided in each cycle."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.lifecycle import attempt
from gpujob_operator.decide.model.plan import CreatePod, PlanItem, WriteStatus
from gpujob_operator.decide.model.snapshot import (
    PerhapsCreated,
    PodPhase,
    PodView,
    RefusedPod,
    Snapshot,
)
from gpujob_operator.decide.planner import REST_MAX, WRITTEN_REST_MAX, Planner
from tests.harness.builders import after, make_gpu, make_job, make_pod, make_snapshot, placed

GPUS = [make_gpu("GPU-0")]
JOB = placed(make_job())
REST_SECONDS = WRITTEN_REST_MAX.total_seconds()


class Cycles:
    """A planner, and which jobs it decided anew in its last cycle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.planner, self.decided = Planner(), list[str]()
        advance = attempt.advance

        def noted(job: GPUJob, *arguments: object) -> object:
            self.decided.append(job.metadata.name)
            return advance(job, *arguments)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(attempt, "advance", noted)

    def run(self, snapshot: Snapshot, seconds: float) -> tuple[PlanItem, ...]:
        self.decided.clear()
        return self.planner(snapshot, after(seconds)).items


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> Cycles:
    return Cycles(monkeypatch)


def kinds(items: tuple[PlanItem, ...]) -> list[type]:
    return [type(item) for item in items]


def starting(*pods: PodView, writing: tuple[str, ...] = (), **known: object) -> Snapshot:
    snapshot = make_snapshot(JOB, pods=pods, gpus=GPUS)
    return replace(snapshot, writing=writing, **known)  # pyright: ignore[reportArgumentType]


def test_a_job_that_is_being_written_is_decided_once_until_the_write_ends(cycles: Cycles) -> None:
    first = kinds(cycles.run(starting(), 0))
    assert first == [WriteStatus, CreatePod]
    under_way = starting(writing=("uid-job",))
    # What follows from the state that is being written waits for its end.
    assert cycles.run(under_way, 0.1)
    for seconds in (0.2, 0.3, 2.0):
        assert (cycles.run(under_way, seconds), cycles.decided) == ((), [])
    # It ended without a trace: all of it is to be written again.
    assert kinds(cycles.run(starting(), 2.1)) == first


def test_what_changes_meanwhile_is_looked_at_at_once(cycles: Cycles) -> None:
    under_way = starting(writing=("uid-job",))
    assert cycles.run(under_way, 0.0)
    assert cycles.run(under_way, 0.1) == ()
    assert kinds(cycles.run(starting(make_pod(JOB), writing=("uid-job",)), 0.2)) == [WriteStatus]


def test_time_alone_is_looked_at_after_a_while(cycles: Cycles) -> None:
    under_way = starting(writing=("uid-job",))
    cycles.run(under_way, 0.0)
    cycles.run(under_way, REST_SECONDS - 0.1)
    assert cycles.decided == []
    assert cycles.run(under_way, REST_SECONDS)


def test_a_job_whose_pod_starts_rests(cycles: Cycles) -> None:
    pod = make_pod(JOB, phase=PodPhase.PENDING)
    (first,) = cycles.run(starting(pod), 0.0)
    assert isinstance(first, WriteStatus)
    shown = make_snapshot(replace(JOB, status=first.status), pods=[pod], gpus=GPUS)
    cycles.run(shown, 0.1)
    for seconds in (0.2, 0.3, 2.0):
        assert (cycles.run(shown, seconds), cycles.decided) == ((), [])
    cycles.run(shown, 0.1 + REST_MAX.total_seconds())
    assert cycles.decided == ["job"]
    running = replace(shown, pods=(replace(pod, phase=PodPhase.RUNNING),))
    assert kinds(cycles.run(running, 5.2)) == [WriteStatus]


@pytest.mark.parametrize(
    "known",
    [
        {"refused_pods": (RefusedPod("uid-job", 1, 0, "exceeded quota: pods"),)},
        {"perhaps_created": (PerhapsCreated("uid-job", 1, (0,)),)},
    ],
    ids=["refused", "perhaps created"],
)
def test_what_is_known_of_its_start_wakes_it(cycles: Cycles, known: dict[str, object]) -> None:
    cycles.run(starting(writing=("uid-job",)), 0.0)
    cycles.run(starting(writing=("uid-job",)), 0.1)
    assert cycles.decided == []
    cycles.run(starting(writing=("uid-job",), **known), 0.2)
    assert cycles.decided == ["job"]
