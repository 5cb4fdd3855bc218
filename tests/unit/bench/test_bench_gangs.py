import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from bench import gangs
from bench.pollux.application import Application, canonical, read_applications
from bench.pollux.cluster import (
    GangJob,
    average_jct_seconds,
    placement_of,
    read_workload,
    simulate,
)
from bench.pollux.interpolation import interpolate
from bench.pollux.ours import GangScheduler
from bench.pollux.tiresias import Tiresias


def write_traces(folder: Path) -> None:
    """ncf: two GPUs a node or one, 1 s a step however it is placed; gradients without noise."""
    folder.mkdir(parents=True)
    placements = ["placement,local_bsz,step_time,sync_time"]
    placements += [f"{digits},{size},1.0,0.25" for digits in (1, 2, 3, 4, 44) for size in (8, 64)]
    (folder / "placements.csv").write_text("\n".join(placements))
    scalability = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    corners = [(nodes, gpus, size) for nodes in (1, 16) for gpus in (1, 64) for size in (8, 64)]
    scalability += [f"{nodes},{gpus},{size},2.0,1.0" for nodes, gpus, size in corners]
    (folder / "scalability.csv").write_text("\n".join(scalability))
    for batch in (8, 4096):
        rows = [f"{60 * (epoch + 1)},{epoch},0,1,0" for epoch in range(10)]
        text = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])
        (folder / f"validation-{batch}.csv").write_text(text)


@pytest.fixture
def application(tmp_path: Path) -> Application:
    write_traces(tmp_path / "traces" / "ncf")
    return read_applications(tmp_path / "traces")["ncf"]


def gang(application: Application, name: str, submit: int, gpus: int, batch: int) -> GangJob:
    return GangJob(name, application, submit, gpus, batch)


def test_interpolates_between_scattered_points() -> None:
    points = np.array([[0, 0], [4, 0], [0, 4], [4, 4], [2, 1.0]])
    values = points @ np.array([[1.0], [10.0]]) + 3
    assert interpolate(points, values, np.array([3.0, 2.5]))[0] == pytest.approx(31)
    peak = np.array([[0.0], [0.0], [0.0], [0.0], [1.0]])
    assert interpolate(points, peak, np.array([2.0, 0.5]))[0] == pytest.approx(0.5)


def test_does_not_extrapolate() -> None:
    square = np.array([[0, 0], [1, 0], [0, 1], [1, 1.0]])
    with pytest.raises(ValueError, match="outside"):
        interpolate(square, square, np.array([2.0, 0.5]))


def test_a_ring_of_nodes_starts_where_it_reads_smallest() -> None:
    assert canonical((4, 1, 3)) == (1, 3, 4)
    assert placement_of((5, 5, 2, 2, 2)) == (2, 3)


def test_batches_are_spread_and_accumulated(application: Application) -> None:
    assert application.batch_plan(64, 4).gpu_batch == 16
    # One GPU with more than the smallest batch accumulates at least once.
    single = application.batch_plan(64, 1)
    assert (single.gpu_batch, single.accumulated) == (32, 1)
    assert application.iteration_seconds((1,), single) == 1.75


def test_a_recorded_placement_and_one_between(application: Application) -> None:
    assert application.step_seconds((4,), 20) == (1.0, 0.25)
    step, sync = application.step_seconds((4, 4, 4, 4, 4), 30)
    assert 1.0 < step < 2.0
    assert 0.25 < sync < 1.0
    with pytest.raises(ValueError, match="no step time for 65"):
        application.step_seconds((4,), 65)


def test_a_job_alone_by_hand(application: Application) -> None:
    # 600 units at 1 s: starts with the first interval at 60 s, restarts for 30 s.
    job = gang(application, "a", 10, 2, 16)
    simulate([job], Tiresias())
    assert job.end_seconds == 60 + 30 + 600
    assert average_jct_seconds([job]) == 680
    assert (job.restarts, job.held_seconds) == (1, 660)


def test_a_gang_waits_for_all_its_gpus(application: Application) -> None:
    first, second = gang(application, "a", 0, 64, 1024), gang(application, "b", 0, 64, 1024)
    simulate([first, second], Tiresias())
    # 2 s a step on 16 nodes: each needs all GPUs for 1,200 s, however they take turns.
    ends = [first.end_seconds or 0, second.end_seconds or 0]
    assert max(ends) >= 60 + 2 * 1200


def test_ours_lets_the_short_one_go_first(application: Application) -> None:
    # "a" starts, shows by its pace that it is long, makes room for "b-0", comes back, and makes
    # room for "b-1", which is known to be short from the first.
    short = gang(application, "b-0", 0, 2, 16)
    long = gang(application, "a", 0, 64, 1024)
    again = gang(application, "b-1", 1500, 2, 16)
    jobs = [short, long, again]
    simulate(jobs, GangScheduler())
    assert long.restarts == 3
    assert again.end_seconds is not None
    assert again.end_seconds < (long.end_seconds or 0)


@pytest.mark.parametrize("policy", [GangScheduler(), GangScheduler(estimates=False), Tiresias()])
def test_nothing_is_lost_under_load(application: Application, policy: Tiresias) -> None:
    jobs = [gang(application, f"j{n}", 7 * n, 1 + n % 4, 64) for n in range(60)]
    simulate(jobs, policy)
    assert all(job.end_seconds is not None for job in jobs)


def test_too_large_a_gang_never_ends(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.pollux.cluster._HOURS_MAX", 1)
    with pytest.raises(ValueError, match="not all jobs ended within 1 hours"):
        simulate([gang(application, "a", 0, 65, 1024)], Tiresias())


def test_command_prints_a_table_and_one_object(
    tmp_path: Path, application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "throughput_traces.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "traces", "traces")
    data = tmp_path / "data"
    (data / "workloads").mkdir(parents=True)
    (tmp_path / "throughput_traces.tar.gz").rename(data / "throughput_traces.tar.gz")
    lines = ["name,time,application,num_replicas,batch_size"]
    lines += [f"ncf-{n},{n * 100},ncf,{2 + 2 * (n % 2)},64" for n in range(20)]
    (data / "workloads" / "made.csv").write_text("\n".join(lines))
    assert len(read_workload(data / "workloads" / "made.csv", {"ncf": application})) == 20
    assert gangs.main(["--data", str(data), "--workloads", "made"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {(row["trace"], row["policy"], row["source"]) for row in last["results"]}
    assert ("mean", "gpujob", "ours") in rows
    assert ("made", "Tiresias+Tuned", "reproduced") in rows
    assert not any(source == "published" for _, _, source in rows)
