"""I4, I9: a node gets other GPUs under the pods that run there: a loss of the device, seen at once,
and no failure of the jobs."""

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.scenes import EXCLUSIVE
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

CHANGED_AT = 40.0
# The last report counts for half a minute, and a worker that waits for its GPU for ever gets its
# grace.
STOPPED_SECONDS, RUNS_AGAIN_SECONDS = 40.0, 90.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_whose_gpus_are_gone_goes_on_with_others(workers: int) -> None:
    spec = make_spec("job", workers=workers, retry={"limit": 0}, **EXCLUSIVE)
    simulation = Simulation(
        2,
        scenario=Scenario(
            (NodePlan("n0", workers),), (Submission("job", 0.0, spec, Workload(steps=60)),)
        ),
        faults=Faults(),
        incidents=[Incident(CHANGED_AT, "gpus-changed", "n0", 0.0)],
        operators=1,
    )
    seen: list[tuple[float, GPUJob]] = []

    def note(revision: Revision) -> None:
        if revision.kind is Kind.JOB and revision.type != "DELETED":
            seen.append((revision.at, simulation.api.job(revision.object)))

    simulation.api.recorders.append(note)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends == {"team/job": "Succeeded"}
    counted = seen[-1][1].status.counters
    assert (counted.hung, counted.errors, counted.interruptions) == (0, 0, 1)
    stopped = [at for at, job in seen if (stop := job.status.stop) and stop.reason == "GPUGone"]
    assert stopped
    assert stopped[0] <= CHANGED_AT + STOPPED_SECONDS
    again = [at for at, job in seen if job.status.attempt == 2]
    assert again[0] <= CHANGED_AT + RUNS_AGAIN_SECONDS
