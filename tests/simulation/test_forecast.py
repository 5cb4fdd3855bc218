"""A what-if run told ahead against what then happens to the same jobs in the simulated cluster.

There, workers start, report, checkpoint and end by themselves, and the operator only sees what the
API server and reports tell; the forecast has the picture of one moment.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.codec import decode
from gpujob_api.gpujob import GPUJob, GPUJobSpec
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner
from gpujob_operator.decide.simulation.edits import Edits, edited
from gpujob_operator.decide.simulation.run import Limits, simulate
from gpujob_operator.decide.simulation.timeline import JobTimeline, Timeline
from tests.harness.builders import NAMESPACE, T0
from tests.simulation.faults import Faults
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

ASKED_AT_SECONDS = 200.0
NODES = (NodePlan("node-0", 2),)
Picture = tuple[Snapshot, datetime]


def job(name: str, at: float, *, steps: int = 300, **spec: Any) -> Submission:
    """Alone on a GPU, a second a step; all jobs are of one workload."""
    fields = make_spec("same", sharing={"mode": "Exclusive"}, **spec)
    return Submission(name, at, fields, Workload(memory_bytes=4 * GIB, steps=steps))


def happened(*submissions: Submission) -> tuple[Picture, dict[str, GPUJob]]:
    """The last picture before a moment, as a user could have listed it, and the jobs in the end."""
    pictures: list[Picture] = []
    planner = Planner()

    def watched(snapshot: Snapshot, now: datetime) -> Plan:
        if (now - T0).total_seconds() < ASKED_AT_SECONDS:
            # Neither reports nor measurements that are not written yet are in any object.
            pictures[:] = [(replace(snapshot, reports=(), usage={}), now)]
        return planner(snapshot, now)

    scenario = Scenario(NODES, submissions)
    simulation = Simulation(
        7, scenario=scenario, faults=Faults(), incidents=[], operators=1, plan=watched
    )
    assert not simulation.run().violations
    return pictures[0], {one.metadata.name: one for one in simulation.jobs()}


def stories(story: Timeline) -> dict[str, JobTimeline]:
    return {one.job.metadata.name: one for one in story.jobs.values()}


def seconds_until_start(job: GPUJob, since: datetime | None) -> float:
    started = job.status.started_at
    assert started is not None
    assert since is not None
    return (started - since).total_seconds()


def test_starts_are_foretold_from_the_measured_pace_and_from_runs_of_the_same_workload() -> None:
    """`a` and `b` run; `c` and `d` follow them; `e` follows `c`, of which only is known how long
    `a` took."""
    (snapshot, now), ended = happened(
        job("a", 0), job("b", 90), job("c", 150), job("d", 155), job("e", 160)
    )
    found = stories(simulate(snapshot, now, Limits()))
    for name in ("c", "d", "e"):
        told = found[name].starts_seconds
        assert told == pytest.approx(seconds_until_start(ended[name], now), rel=0.05, abs=12), name
    starts = [found[name].starts_seconds or 0.0 for name in "cde"]
    assert starts == sorted(starts)
    assert starts[2] > 300


def test_who_makes_room_for_a_job_that_is_not_there_yet_is_foretold() -> None:
    """Asked with its manifest just before it is submitted."""
    high = job("high", ASKED_AT_SECONDS, priority=5)
    (snapshot, now), ended = happened(job("a", 0, steps=600), job("b", 60, steps=600), high)
    asked = GPUJob(Metadata("high", NAMESPACE), decode(GPUJobSpec, high.spec, "spec"))
    found = stories(simulate(edited(snapshot, Edits(jobs=(asked,)), now), now, Limits()))
    stopped = [name for name, one in found.items() if one.stopped]
    assert len(stopped) == 1
    assert found[stopped[0]].stopped[0].reason == "Preempted"
    assert ended[stopped[0]].status.counters.preemptions == 1
    assert sum(one.status.counters.preemptions for one in ended.values()) == 1
    told = found["high"].starts_seconds
    assert told is not None
    took = seconds_until_start(ended["high"], ended["high"].metadata.creation_timestamp)
    # The forecast lets the other one use its whole grace of 30 s.
    assert took - 5 <= told <= took + 35
