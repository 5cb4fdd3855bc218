"""The scale benchmark: what it fills, frees and offers is what it says."""

import json

import pytest

from bench import scale
from gpujob_operator.decide.planner import plan


def test_the_table_and_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    scale.main(["--nodes", "3", "--pending", "20"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = last["results"]
    assert (row["nodes"], row["cards"], row["pending"]) == (3, 24, 20)
    assert row["placements"] > 10
    assert row["placement_milliseconds_mean"] > 0
    assert last["machine"]["cores"] >= 1


def test_filling_and_ending_keep_the_books() -> None:
    cluster = scale.Cluster.of(4)
    scale.offer(cluster, cluster.draw(200))
    assert cluster.held
    while cluster.held:
        cluster.end_one()
    assert cluster.fleet.idle.all()
    assert (cluster.fleet.memory_free == scale.CARD_MEMORY_BYTES).all()
    assert (cluster.fleet.cpu_milli_free == scale.NODE_CPU_MILLI).all()


def test_renewing_a_row_changes_nothing_on_it() -> None:
    cluster = scale.Cluster.of(2)
    scale.offer(cluster, cluster.draw(30))
    before = cluster.fleet.memory_free.tolist(), cluster.fleet.taken.tolist()
    cluster.renew(0)
    cluster.renew(1)
    assert (cluster.fleet.memory_free.tolist(), cluster.fleet.taken.tolist()) == before


def test_the_snapshot_is_the_same_cluster() -> None:
    cluster = scale.Cluster.of(2)
    scale.offer(cluster, cluster.draw(30))
    snapshot = scale.snapshot_of(cluster, cluster.draw(5))
    assert len(snapshot.jobs) == len(cluster.held) + 5
    assert len(snapshot.pods) == len(cluster.held)
    placements = [job.status.placement for job in snapshot.jobs if job.status.placement]
    cards = [uuid for placed in placements for worker in placed.workers for uuid in worker.gpus]
    assert len(cards) == sum(len(held.cards) for held in cluster.held)
    assert plan(snapshot, scale.NOW).items
