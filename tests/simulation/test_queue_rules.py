"""I11, I15: what GPUQueues promise of quotas and access, and that each of these checks can fail."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.gpuqueue import GPUQueueSpec, Quota
from gpujob_operator.cycle import PlanFunction
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from tests.simulation.queue_worlds import CHILDREN, PARENT
from tests.simulation.result import Result
from tests.simulation.rough import make_rough_scenario
from tests.simulation.scenes import EXCLUSIVE, run_calm_scene
from tests.simulation.workloads import (
    NAMESPACES,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_queue,
    make_spec,
)

pytestmark = pytest.mark.promise("I11", "I15")

TEAM, OTHER = NAMESPACES
Change = Callable[[GPUQueueSpec], GPUQueueSpec]


def job(name: str, queue: str, at: float, namespace: str = TEAM, steps: int = 40) -> Submission:
    spec = make_spec(name, queue=queue, **EXCLUSIVE)
    return Submission(name, at, spec, Workload(steps=steps), namespace=namespace)


def cohort() -> Scenario:
    """A parent of two GPUs with two children of one GPU each, on three GPUs, in which one borrows;
    and a queue of one namespace, which another asks in vain."""
    one: dict[str, Any] = {"nominal": {"gpus": 1}, "parent": "lab"}
    queues = (
        make_queue("default"),
        make_queue("lab", nominal={"gpus": 2}),
        make_queue("north", **one),
        make_queue("south", **one),
        make_queue("closed", namespaces=[TEAM]),
    )
    jobs = (
        job("first", "north", 0.0, steps=200),
        job("lent", "north", 3.0, steps=200),
        job("owner", "south", 60.0, OTHER),
        job("parents", "lab", 70.0),
    )
    refused = job("stranger", "closed", 5.0, OTHER)
    refused = replace(refused, workload=Workload(expected="Pending"))
    return Scenario((NodePlan("n0", 3),), (*jobs, refused), queues=queues)


def careless(change: Change) -> PlanFunction:
    """A planner that reads queues otherwise than they are."""

    def decide(snapshot: Snapshot, now: datetime) -> Plan:
        read = tuple(replace(queue, spec=change(queue.spec)) for queue in snapshot.queues)
        return plan(replace(snapshot, queues=read), now)

    return decide


def without_quota(spec: GPUQueueSpec) -> GPUQueueSpec:
    return replace(spec, nominal=Quota())


def open_to_all(spec: GPUQueueSpec) -> GPUQueueSpec:
    return replace(spec, namespaces=None)


def found(result: Result) -> set[str]:
    return {violation.invariant for violation in result.violations}


def test_quotas_are_kept_and_what_was_lent_is_given_back() -> None:
    result = run_calm_scene(cohort())
    assert not result.violations, result.violations[:3]
    ended_at = {key: story.ended_at for key, story in result.stories.items()}
    owner, lent = ended_at["other/owner"], ended_at["team/lent"]
    assert owner is not None
    assert lent is not None
    assert owner < lent, "it was lent, and given back"


@pytest.mark.parametrize(
    ("promise", "words", "change"),
    [
        ("I11", "queue lab has 3 of 2 GPUs", without_quota),
        ("I15", "queue closed does not admit", open_to_all),
    ],
)
def test_a_planner_that_forgets_a_rule_of_queues_is_caught(
    promise: str, words: str, change: Change
) -> None:
    result = run_calm_scene(cohort(), plan=careless(change))
    assert found(result) == {promise}
    assert any(words in one.message for one in result.violations), result.violations[:3]


def test_a_part_of_the_seeds_has_several_queues() -> None:
    """With quotas, borrowers, closed doors and sharing groups, for jobs of two namespaces."""
    worlds = [one for seed in range(60) if len((one := make_rough_scenario(seed)).queues) > 1]
    assert 15 <= len(worlds) <= 25
    specs = [queue["spec"] for world in worlds for queue in world.queues]
    for field in ("parent", "nominal", "borrowingLimit", "namespaces", "priority", "sharingGroup"):
        assert sum(field in spec for spec in specs) >= 5, field
    used = {one.spec["queue"] for world in worlds for one in world.submissions}
    assert used == {"default", PARENT, *CHILDREN}
