"""Jobs come, end and are deleted for an hour: how much more the operator holds at the end.

    python -m tests.simulation.what_jobs_leave [--remember]

A process of its own, as an operator is: what earlier tests left in its caches would be counted. The
last line is JSON, the growth by type. With `--remember` each job's UID is kept, as a leak would.
"""

import argparse
import gc
import json
from collections import Counter
from datetime import datetime

from gpujob_operator.decide.cache import release_arrays
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner
from gpujob_operator.observe import freshness, node_readings
from tests.harness.held_objects import held_objects
from tests.simulation.faults import Faults
from tests.simulation.simulation import PlanFunction, Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

JOBS, WAVES, WAVE_SECONDS = 12, 9, 400.0
# What is remembered for five minutes is full before this one.
FIRST = 3
# Of the product's objects: where a count of what a process holds begins.
PARTS = ("gpujob_operator.act", "gpujob_operator.loop", "gpujob_operator.handlers")


def _scenario() -> Scenario:
    """Waves of jobs, and one that runs all the time: nothing is settled before it ends."""
    spec = make_spec("same", ttlSecondsAfterFinished=20)
    long = Workload(steps=int(WAVES * WAVE_SECONDS))
    return Scenario(
        (NodePlan("n0", 4), NodePlan("n1", 4)),
        (
            Submission("long", 0.0, make_spec("long"), long),
            *(
                Submission(f"job{wave:02}{job:02}", wave * WAVE_SECONDS, spec, Workload(steps=15))
                for wave in range(WAVES)
                for job in range(JOBS)
            ),
        ),
    )


def _held_by(simulation: Simulation) -> Counter[str]:
    gc.collect()
    parts = [one for one in gc.get_objects() if str(type(one).__module__).startswith(PARTS)]
    return held_objects([*vars(simulation.shells[0]).values(), *parts])


def growth(plan: PlanFunction) -> dict[str, int]:
    """From before one wave to before another, six waves later, by type; no job of a wave is there
    at either time."""
    simulation = Simulation(
        1,
        scenario=_scenario(),
        faults=Faults(),
        incidents=[],
        operators=1,
        plan=plan,
        end_seconds=(WAVES + 1) * WAVE_SECONDS,
    )
    counts: list[Counter[str]] = []
    for wave in (FIRST, WAVES):
        at = wave * WAVE_SECONDS - 5
        simulation.clock.after(at, lambda: counts.append(_held_by(simulation)))
    result = simulation.run()
    # The simulation takes a job that is deleted for its age for one that was lost.
    gone = {one.message for one in result.violations}
    assert gone == {f"{one.key} is gone" for one in _scenario().submissions[1:]}
    first, last = counts
    return {kind: last[kind] - first[kind] for kind in first | last}


def _remembering() -> PlanFunction:
    seen: set[str] = set()
    planner = Planner()

    def remembers(snapshot: Snapshot, now: datetime) -> Plan:
        seen.update(job.metadata.uid for job in snapshot.jobs)
        return planner(snapshot, now)

    return remembers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.what_jobs_leave")
    parser.add_argument("--remember", action="store_true")
    options = parser.parse_args()
    # What is remembered by number and not by time is full before the first count.
    node_readings.PODS_REMEMBERED_MAX = JOBS
    freshness.DELAYS_MAX = 4
    release_arrays.NUMBERS_SPARE = 0
    print(json.dumps(growth(_remembering() if options.remember else Planner())))


if __name__ == "__main__":
    main()
