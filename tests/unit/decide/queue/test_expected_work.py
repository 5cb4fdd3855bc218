"""SHORTEST through the whole plan: what a pending job is expected to take, and who goes first."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.configuration import Configuration, OrderPolicy
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_job,
    make_snapshot,
    make_template,
    statuses,
    with_status,
)

SHORTEST = Configuration(order_policy=OrderPolicy.SHORTEST, restart_seconds=30.0)
NOW = after(20)
HOUR = 3600.0


def workload(*command: str) -> dict[str, Any]:
    return make_template(command=command)


def finished(name: str, seconds: float, *command: str, **spec: Any) -> GPUJob:
    """A run that succeeded, of the workload with this command."""
    return with_status(
        make_job(name, template=workload(*command), **spec),
        phase=JobPhase.SUCCEEDED,
        attempt=1,
        started_at=after(-seconds),
        finished_at=after(0),
    )


def pending(name: str, created: float, *command: str, **spec: Any) -> GPUJob:
    return make_job(name, created=created, template=workload(*command), **spec)


def placed(decided: Plan) -> list[str]:
    found = statuses(decided.items)
    return [uid for uid, status in found.items() if status.placement]


def first_of(*jobs: GPUJob, configuration: Configuration = SHORTEST, gpus: int = 1) -> str:
    """The job that gets the GPUs of the only node; there is no room for two."""
    there = tuple(make_gpu(f"GPU-{number}") for number in range(gpus))
    (name,) = placed(plan(make_snapshot(*jobs, gpus=there, configuration=configuration), NOW))
    return name


def test_a_job_that_has_not_run_takes_as_long_as_runs_of_its_workload_did() -> None:
    history = (finished("past", 600.0, "train", "small"),)
    large, small = pending("large", 0, "train2"), pending("small", 10, "train", "small")
    assert first_of(large, small) == "large"
    assert first_of(*history, large, small) == "small"


def test_a_run_of_the_workload_with_more_epochs_takes_longer() -> None:
    history = (
        finished("past1", 600.0, "train", "--lr", "1", "--epochs", "1"),
        finished("past2", 90_000.0, "train", "--lr", "1", "--epochs", "150"),
    )
    large = pending("large", 0, "train", "--lr", "2", "--epochs", "150")
    small = pending("small", 10, "train", "--lr", "2", "--epochs", "1")
    assert first_of(*history, large, small) == "small"


def test_without_such_runs_it_takes_as_long_as_runs_of_its_family_did() -> None:
    """The same program, whatever its options."""
    history = (finished("past", 600.0, "python", "small.py", "--lr", "0.1"),)
    large = pending("large", 0, "python", "large.py", "--lr", "0.2")
    small = pending("small", 10, "python", "small.py", "--lr", "0.2")
    assert first_of(*history, large, small) == "small"


def test_its_own_workload_counts_before_its_family() -> None:
    history = (
        finished("past1", 600.0, "python", "train.py", "--size", "1"),
        finished("past2", 90_000.0, "python", "train.py", "--size", "9"),
    )
    large = pending("large", 0, "python", "train.py", "--size", "9")
    small = pending("small", 10, "python", "train.py", "--size", "1")
    assert first_of(*history, large, small) == "small"


def test_gpus_count_and_so_does_what_starting_costs() -> None:
    """2 x (400 + 30) s are more than 810 + 30 s, and 2 x 400 s are less than 810 s."""
    history = (
        finished("past1", 400.0, "wide", gpus_per_worker=2),
        finished("past2", 810.0, "narrow"),
    )
    jobs = (
        *history,
        pending("wide", 0, "wide", gpus_per_worker=2),
        pending("narrow", 10, "narrow"),
    )
    assert first_of(*jobs, gpus=2) == "narrow"
    free_of_cost = replace(SHORTEST, restart_seconds=0.0)
    assert first_of(*jobs, gpus=2, configuration=free_of_cost) == "wide"


@pytest.mark.parametrize(("held_hours", "first"), [(3.0, "old"), (9.0, "fresh")])
def test_a_job_of_unknown_length_needs_as_much_again_as_it_has_had(
    held_hours: float, first: str
) -> None:
    old = with_status(pending("old", 0, "old"), held_seconds=held_hours * HOUR, attempt=1)
    fresh = pending("fresh", 10, "fresh")
    assert first_of(old, fresh) == first


def test_a_run_that_ends_changes_the_order_of_those_that_wait() -> None:
    """Also for a planner that remembers the order of the cycle before."""
    planner = Planner()
    jobs = (pending("large", 0, "large"), pending("small", 10, "small"))
    no_gpus = make_snapshot(*jobs, configuration=SHORTEST, gpus=(make_gpu(healthy=False),))
    assert placed(planner(no_gpus, NOW)) == []
    later = make_snapshot(finished("past", 60.0, "small"), *jobs, configuration=SHORTEST)
    assert placed(planner(later, NOW)) == ["small"]
