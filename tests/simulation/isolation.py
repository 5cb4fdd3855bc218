"""I15: the same seed with and without trouble in one namespace; the other must not notice."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.faults import FAULTS_END_SECONDS, Faults
from tests.simulation.findings import Story, Violation
from tests.simulation.hostile import ODD_MESSAGES, Disguise, Impostor
from tests.simulation.operator_shell import Parts
from tests.simulation.result import Result
from tests.simulation.simulation import PlanFunction, Simulation
from tests.simulation.troubles import Trouble, TroubleKind
from tests.simulation.workloads import (
    NAMESPACES,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_spec,
)

WELL, SICK = NAMESPACES
# How much later a job's first pod and its end may come for another namespace's trouble.
POD_SECONDS = 1.0
END_SECONDS = 20.0
SLOW_CREATE_SECONDS = 4.0
# Tries of one job whose objects are refused for five minutes: the pauses between them grow.
REFUSALS_MAX = 60
_ATTEMPT_AND_RANK = re.compile(r"-[0-9]+-[0-9]+$")
# A cycle costs the more the larger the cluster is. What one object's refusal costs is far too much
# still: the loop looks again every tenth of a second while a write backs off.
CYCLES_FACTOR_MAX = 3


def make_peaceful_scenario(seed: int) -> Scenario:
    """Room for every job at once: whoever waits does not wait for a GPU."""
    random = Random(seed * 32_452_843 + 5)
    shared: dict[str, Any] = {
        "gpu": {"memory": "2Gi"},
        "sharing": {"mode": "Shared", "maxSlowdownPercent": 100},
    }
    submissions: list[Submission] = []
    for number in range(16):
        namespace = NAMESPACES[number % 2]
        workload = Workload(
            memory_bytes=1 << 30, utilization_percent=5.0, steps=random.randint(10, 40)
        )
        # The sick namespace is there first, and busy when the others come.
        at = random.uniform(12, 60) if namespace == WELL else random.uniform(1, 30)
        fields = dict(shared)
        if namespace == SICK and number < 4:
            fields["workers"] = 6
        spec = make_spec(f"job{number}", **fields)
        submissions.append(Submission(f"job{number}", at, spec, workload, namespace=namespace))
    return Scenario(tuple(NodePlan(f"n{n}", 4, cpu=64) for n in range(4)), tuple(submissions))


def with_trouble(scenario: Scenario, kind: TroubleKind) -> Scenario:
    """In the sick namespace from the start; of one object where only that is too large."""
    job = next(one.name for one in scenario.submissions if one.namespace == SICK)
    alone = job if kind is TroubleKind.TOO_LARGE else ""
    trouble = Trouble(kind, SICK, 0.0, FAULTS_END_SECONDS, alone, SLOW_CREATE_SECONDS)
    return replace(scenario, troubles=(trouble,))


def with_impostors(scenario: Scenario, disguise: Disguise) -> Scenario:
    """One every few seconds, whichever way they end."""
    ends = (1.0, 1e6, 15.0)
    return replace(
        scenario,
        impostors=tuple(
            Impostor(
                6.0 * number + 2.0,
                disguise,
                number % 2 == 0,
                ends[number % 3],
                number % 2,
                ODD_MESSAGES[number % len(ODD_MESSAGES)],
            )
            for number in range(12)
        ),
    )


def run_peaceful(
    seed: int,
    scenario: Scenario,
    parts: Parts | None = None,
    plan: PlanFunction | None = None,
) -> Result:
    return Simulation(
        seed,
        scenario=scenario,
        faults=Faults(),
        incidents=[],
        operators=1,
        parts=parts,
        plan=plan,
        end_seconds=1500.0,
    ).run()


def judge_isolation(alone: Result, beside: Result) -> list[Violation]:
    """What the well namespace noticed of the trouble beside it, and what it cost the operator."""
    texts: list[str] = []
    if beside.lists > alone.lists:
        texts.append(f"{beside.lists} full lists, {alone.lists} without the trouble")
    if beside.cycles > CYCLES_FACTOR_MAX * alone.cycles:
        texts.append(f"{beside.cycles} cycles, {alone.cycles} without the trouble")
    for name, count in _by_job(beside.refused).items():
        if count > REFUSALS_MAX:
            texts.append(f"{name} was tried {count} times while it was refused")
    for key, calm in alone.stories.items():
        if key.startswith(f"{WELL}/"):
            texts += _differences(key, calm, beside.stories.get(key, Story(0.0)))
    return [Violation("I15", beside.seconds, text) for text in texts]


def _by_job(refused: Mapping[str, int]) -> Counter[str]:
    """Each attempt has pods of its own names: what counts is how often the job tried."""
    found: Counter[str] = Counter()
    for name, count in refused.items():
        found[_ATTEMPT_AND_RANK.sub("", name)] += count
    return found


def _differences(key: str, calm: Story, story: Story) -> list[str]:
    found: list[str] = []
    if story.end != calm.end:
        found.append(f"{key} ended as {story.end or 'nothing'}, without the trouble as {calm.end}")
    for what, at, before, limit in (
        ("first pod", story.first_pod_at, calm.first_pod_at, POD_SECONDS),
        ("end", story.ended_at, calm.ended_at, END_SECONDS),
    ):
        if before is not None and (at is None or at > before + limit):
            late = "never" if at is None else f"{at - before:.1f} s late"
            found.append(f"{key}: its {what} came {late}, at most {limit:.0f} s are allowed")
    return found
