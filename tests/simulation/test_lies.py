"""What an agent or a worker says of 40 GiB where GPUs have 24, and what is left of it later."""

import pytest

from tests.simulation.agents import Lie
from tests.simulation.faults import Faults
from tests.simulation.lies import WorkerLie
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I11")

NODES = (NodePlan("n0", 1), NodePlan("n1", 1))


def test_a_worker_that_says_40_gib_ends_and_so_does_its_next_run() -> None:
    """I9: a report is believed up to a bound above the agent's reading."""
    workload = Workload(steps=40, lie=WorkerLie.BEYOND_MEMORY)
    jobs = [
        Submission(f"job{number}", 60.0 * number, make_spec("same"), workload)
        for number in range(3)
    ]
    result = Simulation(
        5, scenario=Scenario(NODES, tuple(jobs)), faults=Faults(), incidents=[], operators=1
    ).run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.ends.values()) == {"Succeeded"}


@pytest.mark.parametrize("lasting_seconds", [30.0, 100.0])
def test_an_agent_that_says_40_gib_keeps_no_job_out_afterwards(lasting_seconds: float) -> None:
    """I9, I11: jobs of the workload that ran there, and of others, end on the GPUs there are."""
    jobs = [
        Submission(f"job{number}", 50.0 * number, make_spec("same"), Workload(steps=60))
        for number in range(4)
    ]
    other = Submission("other", 20.0, make_spec("other"), Workload(steps=60))
    simulation = Simulation(
        5,
        scenario=Scenario(NODES, (*jobs, other)),
        faults=Faults(),
        incidents=[],
        operators=1,
    )

    def lie(said: Lie | None) -> None:
        simulation.cluster.machines["n0"].lie = said

    simulation.clock.after(10.0, lambda: lie(Lie.LARGE))
    simulation.clock.after(10.0 + lasting_seconds, lambda: lie(None))
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.ends.values()) == {"Succeeded"}


def test_an_agent_that_says_40_gib_of_a_silent_job_does_not_keep_it_out() -> None:
    """I11: a job without reports that is interrupted ends on the GPUs there are."""
    workload = Workload(steps=400, is_silent=True)
    job = Submission("job", 0.0, make_spec("silent"), workload)
    simulation = Simulation(
        5, scenario=Scenario(NODES[:1], (job,)), faults=Faults(), incidents=[], operators=1
    )
    machines = simulation.cluster.machines

    def interrupt() -> None:
        machines["n0"].lie = None
        pod = next(iter(simulation.recorder.pods_of_ours()))
        simulation.cluster.delete_pod(pod, "user")

    def lie() -> None:
        machines["n0"].lie = Lie.LARGE

    simulation.clock.after(10.0, lie)
    simulation.clock.after(300.0, interrupt)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.attempts == {"team/job": 2}
    assert set(result.ends.values()) == {"Succeeded"}
