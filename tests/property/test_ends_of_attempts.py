"""Whatever ends the workers of an attempt, and in whatever order the operator hears of it: a job
that was not done never Succeeded, and what was seen to be done is not done again.

What really happened is drawn first; the operator sees a part of the versions of each pod, and is
another process each time: only the status is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.report import WorkerPhase
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_report,
    make_snapshot,
    running,
    statuses,
)

pytestmark = pytest.mark.promise("I5")

STEPS = 1000
# Marks that a pod has before the worker in it is asked to end, by whom.
MARKS: dict[str, tuple[dict[str, Any], ...]] = {
    "itself": (),
    "kubelet": ({"reason": "Evicted"},),
    "shutdown": ({"reason": "Terminated"},),
    "deadline": ({"reason": "DeadlineExceeded"},),
    "person": ({"deletion_at": after(60)},),
    "scheduler": ({"disruption": "PreemptionByScheduler"}, {"deletion_at": after(60)}),
    "eviction": ({"disruption": "EvictionByEvictionAPI"}, {"deletion_at": after(60)}),
    "taint": ({"disruption": "DeletionByTaintManager", "deletion_at": after(60)},),
}


@dataclass(frozen=True)
class Life:
    """What really happened to one worker that ended with 0, and what its pod showed of it."""

    ended_by: str
    step: int
    versions: tuple[PodView | None, ...]

    @property
    def is_done(self) -> bool:
        return self.ended_by == "itself" or self.step >= STEPS


@st.composite
def lives(draw: st.DrawFn, job: GPUJob, rank: int) -> Life:
    # Every other one by itself, so that whole gangs do.
    by = "itself" if draw(st.booleans()) else draw(st.sampled_from(sorted(MARKS)))
    step = draw(st.sampled_from([0, 40, STEPS]))
    view = make_pod(job, rank)
    versions: list[PodView | None] = [view]
    for marks in MARKS[by]:
        view = replace(view, **marks)
        versions.append(view)
    view = replace(
        view,
        exit_code=0,
        phase=draw(st.sampled_from([PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.RUNNING])),
        termination=draw(st.sampled_from([None, _words(step, by), _silent_of_steps(step, by)])),
        # Of clocks that are wrong.
        finished_at=after(draw(st.sampled_from([-7200.0, 5.0, 7200.0]))),
    )
    versions.append(view)
    # What happens to the pod later says nothing of the worker.
    later = draw(st.sampled_from([{}, {"deletion_at": after(90)}, {"reason": "Evicted"}]))
    versions += [replace(view, **later)] if later else []
    versions += [None] if draw(st.booleans()) else []
    return Life(by, step, tuple(versions))


def _words(step: int, by: str) -> Any:
    hears = by != "itself" and step < STEPS
    phase = WorkerPhase.DRAINING if hears else WorkerPhase.FINISHED
    return make_report(step=step, steps_total=STEPS, phase=phase)


def _silent_of_steps(step: int, by: str) -> Any:
    """A script with a handler of its own, in a loop that nobody can count."""
    del by
    return make_report(step=step, phase=WorkerPhase.FINISHED)


@dataclass
class Operator:
    """Processes that know the status alone."""

    job: GPUJob
    seconds: float = 10.0

    def cycle(self, pods: list[PodView]) -> None:
        self.seconds += 1
        gpus = [
            make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}"), at=self.seconds)
            for n in range(self.job.spec.workers)
        ]
        nodes = tuple(make_node(node.metadata.name) for node in gpus)
        snapshot = make_snapshot(self.job, pods=tuple(pods), gpu_nodes=gpus, nodes=nodes)
        found = statuses(plan(snapshot, after(self.seconds)).items).get("job")
        if found is not None:
            self.job = replace(self.job, status=found)

    @property
    def is_over(self) -> bool:
        return self.job.finished or self.job.status.placement is None


def _orders(draw: st.DrawFn, lives: list[Life]) -> Iterator[tuple[int, ...]]:
    """Which version of each pod is seen in each cycle: some are never seen."""
    at = [0] * len(lives)
    yield tuple(at)
    while any(n < len(life.versions) - 1 for n, life in zip(at, lives, strict=True)):
        left = [n for n, life in enumerate(lives) if at[n] < len(life.versions) - 1]
        at[draw(st.sampled_from(left))] += 1
        if draw(st.sampled_from([True, True, False])):
            yield tuple(at)
    yield tuple(at)


@settings(max_examples=300)
@given(st.data())
def test_only_what_was_done_succeeds_and_what_was_seen_to_be_done_does(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 3))
    places = [(f"n{n}", (f"GPU-{n}",)) for n in range(workers)]
    stop = StopReason("Suspended", "spec.suspend is true", after(0) + timedelta(seconds=60))
    stopped = data.draw(st.booleans())
    more: dict[str, Any] = {"phase": JobPhase.STOPPING, "stop": stop} if stopped else {}
    job = running(make_job(workers=workers, hang_seconds=86_400), *places, **more)
    found = [data.draw(lives(job, rank)) for rank in range(workers)]
    operator = Operator(job)
    seen: set[int] = set()

    @st.composite
    def orders(draw: st.DrawFn) -> list[tuple[int, ...]]:
        return list(_orders(draw, found))

    for at in data.draw(orders()):
        views = [life.versions[n] for life, n in zip(found, at, strict=True)]
        pods = [view for view in views if view is not None]
        if operator.is_over:
            break
        stops = operator.job.status.stop is not None
        seen |= {pod.rank for pod in pods if _shows_its_end(found[pod.rank], pod, stops=stops)}
        operator.cycle(pods)
    succeeded = operator.job.status.phase is JobPhase.SUCCEEDED
    if succeeded:
        assert all(life.is_done for life in found), [life.ended_by for life in found]
    if seen == set(range(workers)):
        assert succeeded, operator.job.status


def _shows_its_end(life: Life, pod: PodView, *, stops: bool) -> bool:
    """Whether the worker was done, and nothing speaks against it in this version. `stops`: the
    attempt is being stopped, of which it may have heard, or a kubelet that shuts down ended it."""
    marked = pod.deletion_at is not None or pod.reason or pod.disruption
    finishes = pod.termination is not None and pod.phase is not PodPhase.FAILED
    marked = marked or (stops and not finishes)
    counted = pod.termination is not None and pod.termination.steps_total is not None
    proven = life.step >= STEPS and counted
    return pod.ended and life.is_done and (proven or not marked)
