"""The scale benchmark: what it fills, frees and offers is what it says."""

import json

import pytest

from bench import scale
from bench.scale_cycle import Cycles
from bench.scale_nouns import NOW
from gpujob_api.gpujob import JobPhase
from gpujob_operator.decide.model.plan import CreatePod, WriteStatus
from gpujob_operator.decide.planner import plan


def test_the_table_and_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    scale.main(["--nodes", "3", "--pending", "20"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = last["results"]
    assert (row["nodes"], row["gpus"], row["pending"]) == (3, 24, 20)
    assert row["placements"] > 10
    assert row["placement_milliseconds_mean"] > 0
    assert row["plan_yardstick_milliseconds_median"] > 0
    assert last["machine"]["cores"] >= 1


def test_filling_and_ending_keep_the_books() -> None:
    cluster = scale.Cluster.of(4)
    scale.offer(cluster, cluster.draw(200))
    assert cluster.held
    while cluster.held:
        cluster.end_one()
    assert cluster.arrays.idle.all()
    assert (cluster.arrays.memory_free == scale.GPU_MEMORY_BYTES).all()
    assert (cluster.arrays.cpu_milli_free == scale.NODE_CPU_MILLI).all()


def test_renewing_a_row_changes_nothing_on_it() -> None:
    cluster = scale.Cluster.of(2)
    scale.offer(cluster, cluster.draw(30))
    before = cluster.arrays.memory_free.tolist(), cluster.arrays.held_whole.tolist()
    cluster.renew(0)
    cluster.renew(1)
    assert (cluster.arrays.memory_free.tolist(), cluster.arrays.held_whole.tolist()) == before


def test_the_snapshot_is_the_same_cluster() -> None:
    cluster = scale.Cluster.of(2)
    scale.offer(cluster, cluster.draw(30))
    snapshot = scale.snapshot_of(cluster, cluster.draw(5))
    assert len(snapshot.jobs) == len(cluster.held) + 5
    assert len(snapshot.pods) == len(cluster.held)
    placements = [job.status.placement for job in snapshot.jobs if job.status.placement]
    gpus = [uuid for placed in placements for worker in placed.workers for uuid in worker.gpus]
    assert len(gpus) == sum(len(held.gpus) for held in cluster.held)
    assert plan(snapshot, NOW).items


def cycles_of(nodes: int) -> Cycles:
    """With 20 jobs that wait."""
    cluster = scale.Cluster.of(nodes)
    scale.offer(cluster, cluster.draw(30))
    snapshot = scale.snapshot_of(cluster, cluster.draw(20))
    return Cycles(snapshot, scale.running_pod, cluster.waiting_job, pending=20)


def test_cycles_carry_out_what_was_decided() -> None:
    cycles = cycles_of(2)
    for _ in range(8):
        cycles.step()
    assert cycles.step()[0].items == ()
    running = {j.metadata.uid for j in cycles.snapshot.jobs if j.status.phase is JobPhase.RUNNING}
    cycles.change(8)
    decided, _, processor_milliseconds = cycles.step()
    ended = {item.job.metadata.uid for item in decided.items if isinstance(item, WriteStatus)}
    assert len(ended & running) == 4
    assert processor_milliseconds > 0
    # Whoever waits gets the room in one of the next cycles.
    placed = 0
    for _ in range(3):
        placed += sum(isinstance(item, CreatePod) for item in cycles.step()[0].items)
    assert placed > 0


def test_as_many_jobs_arrive_as_have_started_and_all_nodes_are_read_in_turn() -> None:
    cycles = cycles_of(3)
    for _ in range(4):
        cycles.change(2)
        cycles.step()
    cycles.change(2)
    phases = [job.status.phase for job in cycles.snapshot.jobs]
    assert phases.count(JobPhase.PENDING) == 20
    assert cycles.arrived > 0
    read = {node.status.observed_at for node in cycles.snapshot.gpu_nodes}
    assert len(read) == 3
    cycles.wait(60.0, 2)
    oldest = min(node.status.observed_at or NOW for node in cycles.snapshot.gpu_nodes)
    assert (cycles.now - oldest).total_seconds() < 5
