"""The first step of every later attempt is the one that the end of the attempt before announced."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model import conditions
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Manifest, Revision
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults, Incident
from tests.simulation.machines import Machine
from tests.simulation.simulation import Simulation
from tests.simulation.worker import Worker
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

CLAIMS: Mapping[str, dict[str, Any]] = {"claim": {"volumeClaimName": "c"}, "no claim": {}}
# What ends an attempt with time to save, and at once.
CAUSES = (
    *("reclaim", "pod-deleted", "unhealthy", "suspended", "preempted"),
    *("destroy", "power", "pod-evicted"),
)
AT_SECONDS = 40.0
_SAVED = re.compile(r"checkpoint at step (\d+) saved")
_LOST = re.compile(r"starts from the beginning(?:; (\d+) steps? (?:is|are) lost)?")


class _Watched(Simulation):
    """Knows at which step each attempt of the job began and ended, and what its end announced."""

    def __init__(self, scenario: Scenario, incidents: list[Incident]) -> None:
        self.workers: dict[int, Worker] = {}
        self.first_steps: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.unprotected: set[bool] = set()
        super().__init__(
            7, scenario=scenario, faults=Faults(), incidents=incidents, operators=1, end_seconds=900
        )
        self.api.recorders.append(self._observe)

    def _start_worker(self, cluster: Cluster, machine: Machine, pod: Manifest) -> Worker:
        worker = super()._start_worker(cluster, machine, pod)
        if worker.name.startswith("job-"):
            self.workers[worker.attempt] = worker
            self.first_steps[worker.attempt] = int(worker._step)
        return worker

    def _observe(self, revision: Revision) -> None:
        if revision.kind is not Kind.JOB or revision.object["metadata"]["name"] != "job":
            return
        status = self.api.job(revision.object).status
        said = conditions.find(status, conditions.RUNNING)
        if status.placement is None and said is not None and said.message.startswith("attempt "):
            self.ends.setdefault(status.attempt, said.message)
        if status.attempt and not status.finished:
            self.unprotected.add(conditions.find(status, conditions.UNPROTECTED) is not None)


def _play(cause: str, checkpoint: dict[str, Any]) -> _Watched:
    job = Submission(
        "job",
        0.0,
        make_spec("job", checkpoint=checkpoint, sharing={"mode": "Exclusive"}),
        Workload(memory_bytes=4 * GIB, steps=90, checkpoint_steps=10),
        suspend_at=AT_SECONDS if cause == "suspended" else None,
        resume_at=AT_SECONDS + 30 if cause == "suspended" else None,
    )
    jobs, nodes = [job], [NodePlan("n0", 1)]
    if cause == "preempted":
        urgent = make_spec("urgent", priority=5, sharing={"mode": "Exclusive"})
        jobs.append(Submission("urgent", AT_SECONDS, urgent, Workload(steps=20)))
    elif cause != "suspended":
        nodes.append(NodePlan("n1", 1))
    is_incident = cause not in ("suspended", "preempted")
    simulation = _Watched(Scenario(tuple(nodes), tuple(jobs)), [])
    if is_incident:

        def happen() -> None:
            where = simulation.workers[1].machine.name
            simulation.happenings.happen(Incident(simulation.clock.now, cause, where, 60.0))

        simulation.clock.after(AT_SECONDS, happen)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends["team/job"] == "Succeeded"
    return simulation


@pytest.mark.parametrize("checkpoint", CLAIMS)
@pytest.mark.parametrize("cause", CAUSES)
def test_the_next_attempt_begins_where_the_end_of_the_last_one_said(
    cause: str, checkpoint: str
) -> None:
    played = _play(cause, CLAIMS[checkpoint])
    assert len(played.first_steps) > 1, f"{cause} stopped nothing: {played.ends}"
    for attempt, first_step in played.first_steps.items():
        if attempt == 1:
            continue
        words = played.ends[attempt - 1]
        saved, lost = _SAVED.search(words), _LOST.search(words)
        if checkpoint == "claim":
            assert saved is not None, words
            # A pod that is deleted may take its worker's last words with it: what was saved after
            # the last report is there all the same.
            assert first_step >= int(saved[1]) > 0
        else:
            assert lost is not None, words
            assert saved is None
            assert first_step == 0
            reached = int(played.workers[attempt - 1]._step)
            assert 0 < int(lost[1]) <= reached
    assert played.unprotected == {checkpoint == "no claim"}


def test_a_job_without_a_claim_is_not_lured_to_a_spot_node() -> None:
    where: dict[str, str] = {}
    for name, checkpoint in CLAIMS.items():
        nodes = (NodePlan("n0", 1), NodePlan("spot0", 1, spot=True))
        job = Submission("job", 0.0, make_spec("job", checkpoint=checkpoint), Workload(steps=20))
        played = _Watched(Scenario(nodes, (job,)), [])
        assert not played.run().violations
        where[name] = played.workers[1].machine.name
    assert where == {"claim": "spot0", "no claim": "n0"}


def test_the_world_can_show_the_defect() -> None:
    """Of what a pod without a claim saved nothing is left, whatever its worker reported."""
    played = _play("pod-deleted", {})
    assert played.workers[1]._disk.step > 0
    assert played.workers[2]._resumed == 0
    finished: GPUJob = next(job for job in played.jobs() if job.metadata.name == "job")
    assert finished.status.checkpoint is None
    assert finished.status.resumed_from_step == 0
