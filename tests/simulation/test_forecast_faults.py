"""The process that computes start ranges fails, hangs or answers anything: only ranges suffer."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner
from gpujob_operator.observe.cache import Kind
from tests.simulation import forecasts
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, make_faults
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

LONG_SECONDS = 700.0
FAILS_FROM_SECONDS = 150.0


def scenario() -> Scenario:
    """One GPU for two jobs, of which the second waits for the end of the first."""
    alone: dict[str, Any] = {"sharing": {"mode": "Exclusive"}}
    runs = Workload(steps=int(LONG_SECONDS / 2), step_seconds=2.0)
    return Scenario(
        (NodePlan("n0", 1),),
        (
            Submission("runs", 0.0, make_spec("runs", **alone), runs),
            Submission("waits", 5.0, make_spec("waits", **alone), Workload(steps=5)),
        ),
    )


def simulation_of(faults: Faults, plan: Any = None) -> Simulation:
    return Simulation(1, scenario=scenario(), faults=faults, incidents=[], operators=1, plan=plan)


def ranges_of_the_waiting(simulation: Simulation) -> list[tuple[float, bool]]:
    """When the second job's range came or went, filled while the simulation runs."""
    found: list[tuple[float, bool]] = []

    def note(revision: Revision) -> None:
        if revision.kind is Kind.JOB and revision.object["metadata"]["name"] == "waits":
            start = (revision.object.get("status") or {}).get("start") or {}
            shows = "earliest" in start
            if not found or found[-1][1] != shows:
                found.append((revision.at, shows))

    simulation.api.recorders.append(note)
    return found


@pytest.mark.parametrize("end", forecasts.ENDS)
def test_the_operator_goes_on_and_withdraws_the_range(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first calculation is good, and the second is not."""
    monkeypatch.setattr(forecasts, "ENDS", (end,))
    faults = Faults()
    simulation = simulation_of(faults)
    seen = ranges_of_the_waiting(simulation)

    def begin() -> None:
        faults.forecast_error = 1.0

    simulation.clock.after(FAILS_FROM_SECONDS, begin)
    result = simulation.run()
    assert not result.violations
    assert result.ends == {"team/runs": "Succeeded", "team/waits": "Succeeded"}
    assert result.attempts == {"team/runs": 1, "team/waits": 1}
    shown = [at for at, shows in seen if shows]
    gone = [at for at, shows in seen if not shows]
    assert 60.0 <= shown[0] < FAILS_FROM_SECONDS
    if end != "odd":
        # The calculation after the one that succeeded, and the time that it hangs.
        withdrawn = next(at for at in gone if at > shown[0])
        assert FAILS_FROM_SECONDS < withdrawn < FAILS_FROM_SECONDS + 400.0


def test_seeds_play_the_faults() -> None:
    played = [make_faults(seed).forecast_error for seed in range(64)]
    assert 10 < sum(error > 0 for error in played) < 50


def test_a_range_that_stays_on_a_placed_job_is_found() -> None:
    planner = Planner()

    def keeps_ranges(snapshot: Snapshot, now: datetime) -> Plan:
        plan = planner(snapshot, now)
        items = tuple(
            replace(item, status=replace(item.status, start=item.job.status.start))
            if isinstance(item, WriteStatus) and item.status.placement is not None
            else item
            for item in plan.items
        )
        return replace(plan, items=items)

    result = simulation_of(Faults(), keeps_ranges).run()
    assert "is placed and shows" in str(result.violations[0])
