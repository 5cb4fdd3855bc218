"""I4, I15: what some seeds have beside faults: nodes that kube-scheduler refuses for what the
operator does not count, and a job that breaks GPUs which somebody resets."""

import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults
from tests.simulation.pod_starts import (
    NEVER_SECONDS,
    SCHEDULER_REASONS,
    SCHEDULER_WORDS,
    NodeRefusal,
)
from tests.simulation.rough import make_rough_scenario
from tests.simulation.scenes import EXCLUSIVE, OTHER, TEAM
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I15")


def calm(nodes: list[NodePlan], submissions: list[Submission]) -> Simulation:
    scenario = Scenario(tuple(nodes), tuple(submissions))
    return Simulation(2, scenario=scenario, faults=Faults(), incidents=[], operators=1)


def said_of(simulation: Simulation) -> set[str]:
    """Every message of a condition of a job, from now on."""
    said: set[str] = set()

    def note(revision: Revision) -> None:
        if revision.kind is Kind.JOB:
            status = revision.object.get("status") or {}
            said.update(one["message"] for one in status.get("conditions") or ())

    simulation.api.recorders.append(note)
    return said


@pytest.mark.parametrize("words", SCHEDULER_WORDS)
def test_a_job_goes_where_its_pods_are_not_refused_and_says_why(words: str) -> None:
    """The node that refuses it is another job's at once."""
    picky = Workload(steps=20, refusal=NodeRefusal(("n0",), words))
    simulation = calm(
        [NodePlan("n0", 1), NodePlan("n1", 1)],
        [
            Submission("picky", 0.0, make_spec("picky", **EXCLUSIVE), picky),
            Submission("first", 2.0, make_spec("first", **EXCLUSIVE), Workload(steps=60)),
            Submission("next", 3.0, make_spec("next", **EXCLUSIVE), Workload(steps=20)),
        ],
    )
    said = said_of(simulation)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert set(result.ends.values()) == {"Succeeded"}
    assert any(words in message for message in said)


def test_a_refusal_that_ends_holds_nobody_up_for_ever() -> None:
    refusal = NodeRefusal(("n0",), SCHEDULER_WORDS[0], until=100.0)
    job = Submission("job", 0.0, make_spec("job"), Workload(steps=20, refusal=refusal))
    result = calm([NodePlan("n0", 1)], [job]).run()
    assert not result.violations, result.violations[:3]
    story = result.stories["team/job"]
    first_pod_at, ended_at = story.first_pod_at, story.ended_at
    assert first_pod_at is not None
    assert ended_at is not None
    assert first_pod_at < 10.0
    assert 100.0 < ended_at < 400.0


@pytest.mark.parametrize("reason", SCHEDULER_REASONS[1:3])
def test_a_kube_scheduler_that_fails_or_says_nothing_costs_the_job_no_retry(reason: str) -> None:
    """For longer than four attempts would last that each take the whole start timeout."""
    refusal = NodeRefusal(("n0",), SCHEDULER_WORDS[0], until=3000.0, reason=reason)
    job = Submission("job", 0.0, make_spec("job"), Workload(steps=20, refusal=refusal))
    simulation = calm([NodePlan("n0", 1)], [job])
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert set(result.ends.values()) == {"Succeeded"}
    (stored,) = simulation.api.list(Kind.JOB)
    assert (
        "errors" not in stored["status"].get("counters", {})
        or not (stored["status"]["counters"]["errors"])
    )


def test_a_job_that_breaks_gpus_fails_and_the_others_do_not() -> None:
    """It is alone on each of the GPUs that it breaks. Somebody resets them, and they are used."""
    breaking = Workload(
        steps=100_000, breaks_gpus=True, repaired_after_seconds=40.0, expected="Failed"
    )
    others = [
        Submission(
            f"job{n}", 5.0 * n, make_spec("job"), Workload(2 * GIB, steps=60), namespace=OTHER
        )
        for n in range(4)
    ]
    breaks = Submission("breaking", 1.0, make_spec("breaking", **EXCLUSIVE), breaking)
    simulation = calm([NodePlan("n0", 1), NodePlan("n1", 1)], [*others, breaks])
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends.pop(f"{TEAM}/breaking") == "Failed"
    assert set(result.ends.values()) == {"Succeeded"}
    gpus = [gpu for one in simulation.cluster.machines.values() for gpu in one.gpus.values()]
    assert all(gpu.healthy for gpu in gpus)


def test_a_part_of_the_seeds_has_them() -> None:
    truths = [one.workload for seed in range(120) for one in make_rough_scenario(seed).submissions]
    refusals = [truth.refusal for truth in truths if truth.refusal is not None]
    assert {one.words for one in refusals} == set(SCHEDULER_WORDS)
    forever = sum(one.until == NEVER_SECONDS for one in refusals)
    assert 5 < forever < len(refusals) - 5
    breaking = [truth for truth in truths if truth.breaks_gpus]
    assert 5 < len(breaking) < 30
    assert all(truth.repaired_after_seconds is not None for truth in breaking)
