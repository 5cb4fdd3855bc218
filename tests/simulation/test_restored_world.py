"""What nodes, users and kubelets do once the API server's data were restored.

That the operator keeps its promises then is shown by `test_restored_data` and by the seeds.
"""

from typing import Any

import pytest

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer
from tests.simulation.clock import Clock
from tests.simulation.faults import Faults, Incident
from tests.simulation.hostile import FOREIGN_FINALIZER
from tests.simulation.rough import make_rough_incidents
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import ANY_END, NodePlan, Scenario, Submission, Workload, make_spec

NODES = (NodePlan("n0", 1), NodePlan("n1", 1))


def simulation_of(submissions: list[Submission], incidents: list[Incident]) -> Simulation:
    """Incidents are at their times, whatever else happens: no other fault."""
    return Simulation(
        5,
        scenario=Scenario(NODES, tuple(submissions)),
        faults=Faults(),
        incidents=incidents,
        operators=1,
        end_seconds=1500.0,
    )


def job(name: str, at: float, steps: int = 40, **later: Any) -> Submission:
    return Submission(name, at, make_spec(name), Workload(steps=steps), **later)


def restore(at: float, lost_seconds: float) -> Incident:
    return Incident(at, "restore", "", lost_seconds)


def test_users_do_again_what_was_lost() -> None:
    """A job that nobody else knows any more, and one that is no longer deleted, or suspended."""
    endless = Workload(steps=100_000, expected=ANY_END)
    kept = Submission("kept", 0.0, make_spec("kept"), endless, 40.0, finalizer=FOREIGN_FINALIZER)
    paused = job("paused", 1.0, steps=100, suspend_at=38.0, resume_at=200.0)
    simulation = simulation_of([kept, paused, job("lost", 42.0)], [restore(50.0, 20.0)])
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {
        "team/kept": "deleted",
        "team/paused": "Succeeded",
        "team/lost": "Succeeded",
    }
    ended_at = result.stories["team/paused"].ended_at
    assert ended_at is not None
    assert ended_at > 200.0


@pytest.mark.parametrize(
    ("destroyed_at", "restored_at", "lost_seconds"),
    [(30.0, 45.0, 20.0), (30.0, 100.0, 80.0), (30.0, 100.0, 68.0)],
    ids=["it is gone", "another one came", "its pods were not collected"],
)
def test_a_node_that_is_gone_comes_back_in_the_data_alone(
    destroyed_at: float, restored_at: float, lost_seconds: float
) -> None:
    incidents = [Incident(destroyed_at, "destroy", "n0", 5.0), restore(restored_at, lost_seconds)]
    simulation = simulation_of([job(f"job{n}", 1.0 * n) for n in range(4)], incidents)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.ends.values()) == {"Succeeded"}
    for node in simulation.api.list(Kind.GPU_NODE):
        machine = simulation.cluster.machines[node["metadata"]["name"]]
        assert {gpu["uuid"] for gpu in node["status"]["gpus"]} == machine.gpus.keys()


def test_a_worker_on_a_node_that_is_cut_off_runs_on_when_its_pod_is_forgotten() -> None:
    """Nobody can know of it: the next attempt begins beside it, and its checkpoints alone are
    kept (see the documents' promises)."""
    submission = job("job", 10.0, steps=150, suspend_at=11.0, resume_at=22.0)
    incidents = [Incident(35.0, "partition", "n0", 95.0), restore(80.0, 60.0)]
    simulation = simulation_of([submission], incidents)
    beside: set[tuple[int, ...]] = set()

    def look() -> bool:
        machines = simulation.cluster.machines.values()
        running = [one for machine in machines for one in machine.workers.values() if one.begun]
        beside.add(tuple(sorted(one.attempt for one in running)))
        return True

    simulation.clock.every(1.0, look)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}
    assert any(len(attempts) == 2 for attempts in beside), beside


def test_what_is_left_of_the_pods_records_places_jobs_still() -> None:
    """The pod is older than the backup; the status that says the same is not written yet."""
    incidents = [Incident(1.5, "pause", "n0", 18.5), restore(17.0, 6.0)]
    simulation = simulation_of([job("job", 0.9)], incidents)
    placed: list[bool] = []

    def look() -> None:
        uid = simulation.api.list(Kind.JOB)[0]["metadata"]["uid"]
        known = simulation.recorder.job_now(uid)
        placed.append(known is not None and known.status.placement is not None)

    for at in (16.9, 17.1):
        simulation.clock.after(at, look)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert placed == [True, True]
    assert result.attempts == {"team/job": 1}


def test_a_watch_from_before_a_restore_has_to_list_again() -> None:
    """A server that starts with restored data has no events of before."""
    clock = Clock(1)
    api = ApiServer(clock)
    for name in ("kept", "also-kept", "lost"):
        api.create(Kind.QUEUE, {"metadata": {"name": name}}, "admin")
        clock.run_until(clock.now + 10.0)
    api.restore(15.0)
    assert [one["metadata"]["name"] for one in api.list(Kind.QUEUE)] == ["kept", "also-kept"]
    assert api.oldest_version(Kind.QUEUE) == api.version == 2


def test_a_part_of_the_seeds_has_a_restore() -> None:
    found = [
        one
        for seed in range(200)
        for one in make_rough_incidents(seed, ["n0"])
        if one.what == "restore"
    ]
    assert 10 <= len(found) <= 30
    assert all(one.seconds < one.at for one in found), "nodes and queues are older"
