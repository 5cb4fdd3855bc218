"""I15: nothing of one namespace, be it trouble or malice, is noticed by the jobs of another.

Each pair is one seed run twice, with and without the trouble; the scenes are small and calm.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation import scenes
from tests.simulation import shell_mutants as mutants
from tests.simulation.faults import Faults
from tests.simulation.findings import Violation
from tests.simulation.hostile import Disguise
from tests.simulation.isolation import (
    judge_isolation,
    make_peaceful_scenario,
    run_peaceful,
    with_impostors,
    with_trouble,
)
from tests.simulation.operator_shell import Parts
from tests.simulation.troubles import TroubleKind
from tests.simulation.workloads import Scenario, make_crowded_scenario

SCENES = (scenes.sidecars, scenes.finalizers, scenes.graces, scenes.odd_words)
Event = TroubleKind | Disguise


def events() -> list[Event]:
    return [*TroubleKind, *Disguise]


def disturbed(seed: int, event: Event) -> Scenario:
    scenario = make_peaceful_scenario(seed)
    if isinstance(event, TroubleKind):
        return with_trouble(scenario, event)
    return with_impostors(scenario, event)


def noticed(seed: int, event: Event, parts: Parts | None = None) -> list[Violation]:
    alone = run_peaceful(seed, make_peaceful_scenario(seed))
    assert not alone.violations, alone.violations[:3]
    beside = run_peaceful(seed, disturbed(seed, event), parts)
    return [*beside.violations, *judge_isolation(alone, beside)]


def said(violations: list[Violation]) -> str:
    return "\n".join(map(str, violations[:5]))


@pytest.mark.promise("I15")
@pytest.mark.parametrize("event", events(), ids=lambda event: event.value)
def test_another_namespace_notices_nothing(event: Event) -> None:
    """Its jobs get their pods and ends as without the trouble, and no list more is made."""
    for seed in range(2):
        found = noticed(seed, event)
        assert not found, f"seed {seed}: {said(found)}"


@pytest.mark.promise("I15")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_odd_jobs_end_as_they_should_and_stop_nobody(scene: Callable[[], Scenario]) -> None:
    """I5, I7, I13, I15: sidecars that stay, kept objects, graces of their own, odd last words."""
    result = scenes.run_calm_scene(scene())
    assert not result.violations, said(result.violations)


def paired(event: Event, seed: int = 0) -> Callable[[Parts], list[Violation]]:
    return lambda parts: noticed(seed, event, parts)


def played(scene: Callable[[], Scenario]) -> Callable[[Parts], list[Violation]]:
    return lambda parts: scenes.run_calm_scene(scene(), parts=parts).violations


# Of the crowded seeds one in 4 to one in 40 shows what a broken shell does.
SEEDS_TRIED = 24


def crowded(first: int, faults: Faults) -> Callable[[Parts], list[Violation]]:
    """Many jobs for two GPUs, under the weather: the first of some seeds that breaks a promise."""

    def play(parts: Parts) -> list[Violation]:
        found: list[Violation] = []
        for seed in range(first, first + SEEDS_TRIED):
            scenario, weather = make_crowded_scenario(seed), replace(faults)
            found = scenes.run_calm_scene(scenario, seed, parts, faults=weather).violations
            if found:
                break
        return found

    return play


LATE_EVENTS = Faults(watch_delay_max=15.0)
LOST_ANSWERS = Faults(lost_answer=0.4, write_error=0.4, watch_delay_max=15.0)

CAUGHT = (
    ("I15", mutants.BELIEVES_LABELS, paired(Disguise.LABELS)),
    ("I15", mutants.BELIEVES_LABELS, paired(Disguise.NAME_ELSEWHERE, seed=1)),
    ("I15", mutants.BREAKS_ON_MOVED_LABELS, paired(Disguise.MOVING_LABEL)),
    ("I15", mutants.BELIEVES_LABELS, paired(Disguise.OWNER)),
    ("I15", mutants.BLOCKS_ANNOTATED_GPUS, paired(Disguise.HELD)),
    ("I15", mutants.BLOCKS_ANNOTATED_GPUS, paired(Disguise.OWNER_HELD)),
    ("I15", mutants.DELETES_WHAT_CARRIES_LABELS, paired(Disguise.LABELS)),
    ("I15", mutants.LISTS_ALL_WHEN_REFUSED, paired(TroubleKind.WEBHOOK)),
    ("I15", mutants.LISTS_ALL_WHEN_REFUSED, paired(TroubleKind.TOO_LARGE)),
    ("I15", mutants.LISTS_ALL_WHEN_REFUSED, paired(TroubleKind.DOUBTFUL)),
    ("I15", mutants.LISTS_ALL_WHEN_REFUSED, paired(TroubleKind.DOUBTFUL_WRITTEN)),
    ("I15", mutants.REPEATS_WHAT_IS_REFUSED, paired(TroubleKind.WEBHOOK)),
    ("I15", mutants.ONE_WRITE_AT_A_TIME, paired(TroubleKind.SLOW)),
    ("I1", mutants.TAKES_DOUBT_FOR_NO, crowded(38, LOST_ANSWERS)),
    ("I15", mutants.BREAKS_ON_ODD_WORDS, played(scenes.odd_words)),
    ("I5", mutants.WAITS_FOR_EVERY_CONTAINER, played(scenes.sidecars)),
    ("I5", mutants.DELETES_WHAT_IT_HAS_NOT_SEEN, crowded(0, LATE_EVENTS)),
    ("I7", mutants.IGNORES_DELETION, played(scenes.finalizers)),
    ("I13", mutants.GIVES_LITTLE_GRACE, played(scenes.graces)),
    ("I13", mutants.GIVES_MUCH_GRACE, played(scenes.graces)),
)


@pytest.mark.promise("I15")
@pytest.mark.parametrize(
    ("invariant", "parts", "ground"),
    [pytest.param(*one, id=f"{number}-{one[0]}") for number, one in enumerate(CAUGHT)],
)
def test_a_shell_that_breaks_a_promise_is_caught(
    invariant: str, parts: Parts, ground: Callable[[Parts], list[Violation]]
) -> None:
    caught = {violation.invariant for violation in ground(parts)}
    assert invariant in caught, f"caught {sorted(caught)} instead of {invariant}"
