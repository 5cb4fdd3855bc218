"""Refused templates under a leader whose wall clock is an hour off: they are tried again when that
is due, and nothing is decided again meanwhile."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from gpujob_operator.act.trials import Trials
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.observe.cache import Kind
from tests.simulation.faults import Faults
from tests.simulation.operator_shell import Parts
from tests.simulation.result import Result
from tests.simulation.scenes import OTHER, TEAM
from tests.simulation.simulation import CONFIGURATION, Simulation
from tests.simulation.troubles import Trouble, TroubleKind
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I4")

HOUR = 3600.0
REFUSED_SECONDS = 120.0
# Nobody waits longer than the pause that was under way, which is as long as all before it.
RETRY_SECONDS = REFUSED_SECONDS + CONFIGURATION.retry_backoff_seconds
# After 10, 20, 40 and 80 s.
TRIES = 5
# A cycle answers each change; a decision that is made again and again makes thousands.
CYCLES_MORE_MAX = 20
REFUSED = f"{OTHER}/refused"
WELL = f"{TEAM}/well"


def play(ahead_seconds: float, parts: Parts | None = None) -> tuple[Result, int]:
    """Two jobs, of which one namespace's pods are refused at first. Returns the number of dry runs
    for that namespace, too."""
    jobs = [
        Submission(name, 0.0, make_spec(name), Workload(steps=10), namespace=namespace)
        for namespace, name in ((OTHER, "refused"), (TEAM, "well"))
    ]
    trouble = Trouble(TroubleKind.WEBHOOK, OTHER, 0.0, REFUSED_SECONDS)
    simulation = Simulation(
        5,
        scenario=Scenario((NodePlan("n0", 2),), tuple(jobs), (trouble,)),
        faults=Faults(operator_clock_error_seconds=ahead_seconds),
        incidents=[],
        operators=1,
        parts=parts,
        end_seconds=1000.0,
    )
    result = simulation.run()
    (shell,) = simulation.shells
    # The other namespace's template is tried once.
    return result, shell.kube.requests["try", Kind.POD.value] - 1


@pytest.fixture(scope="module")
def on_time() -> Result:
    return play(0.0)[0]


def mistakes(result: Result, tries: int, on_time: Result) -> list[str]:
    found = [str(violation) for violation in result.violations]
    first_pod_at = result.stories[REFUSED].first_pod_at
    if first_pod_at is None or first_pod_at < REFUSED_SECONDS:
        found.append(f"the first pod came at {first_pod_at}")
    elif first_pod_at > REFUSED_SECONDS + RETRY_SECONDS:
        found.append(f"placed {first_pod_at - REFUSED_SECONDS:.0f} s after it was accepted")
    if tries != TRIES:
        found.append(f"{tries} dry runs")
    if result.cycles > on_time.cycles + CYCLES_MORE_MAX:
        found.append(f"{result.cycles} cycles, {on_time.cycles} with a clock that is right")
    return found


@pytest.mark.parametrize("ahead_seconds", [0.0, HOUR, -HOUR], ids=["right", "ahead", "behind"])
def test_a_job_is_placed_when_its_pods_are_taken_again(
    on_time: Result, ahead_seconds: float
) -> None:
    """I4, I9: whatever the wall clock of the leader says."""
    result, tries = play(ahead_seconds)
    assert not mistakes(result, tries, on_time)
    assert result.ends == {REFUSED: "Succeeded", WELL: "Succeeded"}
    assert result.attempts == on_time.attempts


def timed_by_the_wall(ahead_seconds: float) -> Parts:
    """An operator that tells the end of a verdict by its machine's clock."""

    class WallClockTrials(Trials):
        def __init__(self, configuration: Configuration, clock: Callable[[], datetime]) -> None:
            super().__init__(configuration, lambda: clock() + timedelta(seconds=ahead_seconds))

    return Parts(trials=WallClockTrials)


@pytest.mark.parametrize(
    ("ahead_seconds", "mistake"),
    [
        pytest.param(HOUR, "the first pod came at None", id="ahead"),
        pytest.param(-HOUR, "cycles", id="behind"),
    ],
)
def test_an_operator_that_ends_verdicts_by_its_wall_clock_is_caught(
    on_time: Result, ahead_seconds: float, mistake: str
) -> None:
    """Ahead, the job waits an hour; behind, it is decided again in every cycle."""
    result, tries = play(ahead_seconds, timed_by_the_wall(ahead_seconds))
    found = mistakes(result, tries, on_time)
    assert any(mistake in one for one in found), found
