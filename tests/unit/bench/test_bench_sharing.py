import csv
import gzip
import json
from pathlib import Path

import pytest

from bench import sharing
from bench.muri.antman import AntMan
from bench.muri.ours import Setup, Sharing, use_of
from bench.muri.published import read_published
from bench.muri.shortest import Nodes, simulate_shortest
from bench.muri.tiresias import simulate_tiresias
from bench.muri.trace import TraceJob, outcome, read_trace, restart_seconds
from gpujob_operator.decide.model.configuration import OrderPolicy
from gpujob_operator.decide.queue.order import OrderRules

COLUMNS = (
    *("job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "duration"),
    *("interval", "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2"),
    "priority",
)


def job(index: int, gpus: int, submit: float, seconds: float, **more: object) -> TraceJob:
    """A job that takes `seconds` alone, in iterations of one second."""
    made = TraceJob(index, gpus, submit, seconds, 1.0, (0.0, 0.4, 0.0), 0.0, "made", 0)
    made.remaining_iterations = seconds
    for name, value in more.items():
        setattr(made, name, value)
    return made


def write_trace(path: Path, rows: list[dict[str, object]]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([row.get(column, 0) for column in COLUMNS] for row in rows)


def row(index: int, gpus: int, submit_ms: int, **more: object) -> dict[str, object]:
    return {
        "job_id": index,
        "num_gpu": gpus,
        "submit_time": submit_ms,
        "iterations": 1000,
        "model_name": "bert",
        "iteration_time": 200,
        "resource_time_0": 10,
        "resource_time_1": 60,
        "resource_time_2": 20,
        **more,
    }


def test_reads_milliseconds_and_sorts_by_submission(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.csv.gz", [row(0, 1, 5000), row(1, 8, 1000)])
    first, second = read_trace(tmp_path / "t.csv.gz")
    assert (first.index, first.submit_seconds, second.submit_seconds) == (1, 1.0, 5.0)
    assert first.iteration_seconds == pytest.approx(0.203)
    assert first.stage_seconds == (0.01, 0.06, 0.02)
    assert first.restart_seconds == 10


def test_a_gang_of_more_than_a_node_is_whole_nodes(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.csv.gz", [row(0, 12, 0)])
    with pytest.raises(ValueError, match="num_gpu of job 0: 12"):
        read_trace(tmp_path / "t.csv.gz")


def test_restart_times_by_model_and_size() -> None:
    assert restart_seconds("a2c", 2) == 39
    assert restart_seconds("a2c", 3) == restart_seconds("a2c", 4)
    assert restart_seconds("unheard of", 8) == 10


def test_first_fit_and_whole_nodes() -> None:
    nodes = Nodes()
    assert nodes.place(5)
    assert nodes.place(4)
    assert nodes.place(3)
    assert nodes.free[:2] == [0, 4]
    assert nodes.place(48)
    assert not nodes.place(8)
    assert nodes.place(4)


def test_shortest_first_by_hand() -> None:
    # 64 GPUs each: the one of 10 s preempts the one of 100 s, which pays 5 s for its restart.
    long = job(0, 64, 0, 100, restart_seconds=5.0)
    short = job(1, 64, 20, 10)
    simulate_shortest([long, short], by_gpu_time=False)
    assert short.end_seconds == 30
    # 20 - 5 s of work before; published rule: the last stretch to the end is not charged.
    assert long.end_seconds == 30 + 85


def test_shortest_gpu_time_weighs_gpus() -> None:
    wide, narrow = job(0, 64, 0, 10), job(1, 1, 0, 100)
    simulate_shortest([wide, narrow], by_gpu_time=True)
    assert (narrow.end_seconds, wide.end_seconds) == (100, 110)


def test_tiresias_sinks_a_job_that_has_had_much() -> None:
    # 64 GPUs sink after ceil(3250 / 64) = 51 s; the newcomer then runs first.
    old, new = job(0, 64, 0, 100), job(1, 64, 10, 20)
    simulate_tiresias([old, new])
    assert new.end_seconds == 51 + 20
    assert old.end_seconds == 120


def test_antman_lets_an_opportunistic_job_run_in_the_gaps() -> None:
    guaranteed = job(0, 64, 0, 100, stage_seconds=(0.5, 0.4, 0.1))
    filler = job(1, 64, 0, 100, priority=1, stage_seconds=(0.5, 0.4, 0.1))
    AntMan().simulate([guaranteed, filler])
    assert guaranteed.end_seconds == 100
    # Loading needs the 0.5 s in which the other computes and sends: one of its iterations.
    # Computing needs 0.4 of its 0.6 s: a second. Sending fits in the rest: 2 s an iteration.
    assert filler.end_seconds == 100 + 50


def test_antman_never_preempts() -> None:
    first, second = job(0, 64, 0, 100), job(1, 64, 10, 1)
    AntMan().simulate([first, second])
    assert second.end_seconds == 101


@pytest.mark.parametrize(
    "policy", [simulate_tiresias, AntMan().simulate, Sharing(Setup()).simulate]
)
def test_too_large_a_gang_is_refused(policy: object) -> None:
    with pytest.raises(ValueError, match="more GPUs than the cluster has"):
        policy([job(0, 128, 0, 1)])  # pyright: ignore[reportCallIssue]


def test_ours_shares_when_no_gpu_is_free() -> None:
    # 40 + 40 % of the GPU: 1.79 together, 0.895 each; then the longer one is alone.
    first, second = job(0, 64, 0, 89.5), job(1, 64, 0, 179)
    Sharing(Setup()).simulate([first, second])
    assert first.end_seconds == pytest.approx(100)
    assert second.end_seconds == pytest.approx(100 + 89.5)


def test_ours_takes_turns_when_the_limit_forbids_sharing() -> None:
    first, second = job(0, 64, 0, 89.5), job(1, 64, 0, 179)
    Sharing(Setup(max_slowdown_percent=10)).simulate([first, second])
    assert (first.end_seconds, second.end_seconds) == (89.5, pytest.approx(268.5))


def test_ours_slower_than_predicted_where_the_setup_says_so() -> None:
    jobs = [job(0, 64, 0, 89.5), job(1, 64, 0, 89.5)]
    Sharing(Setup(speed_factor=0.5)).simulate(jobs)
    assert outcome(jobs).average_jct_seconds == pytest.approx(200)


def test_ours_serves_an_overdue_job() -> None:
    rules = OrderRules(OrderPolicy.SHORTEST, waiting_seconds_max=50, stretch_max=0)
    long, shorts = job(0, 64, 0, 30), [job(n, 64, 10 * (n - 1), 20) for n in range(1, 9)]
    Sharing(Setup(tenants_max=1, rules=rules)).simulate([*shorts[:1], long, *shorts[1:]])
    starved, others = job(0, 64, 0, 30), [job(n, 64, 10 * (n - 1), 20) for n in range(1, 9)]
    simulate_shortest([*others[:1], starved, *others[1:]], by_gpu_time=True)
    assert starved.end_seconds == 190
    # Overdue 50 s after it came, at the arrival then.
    assert long.end_seconds == 80


def test_a_share_over_the_whole_is_taken_as_the_whole() -> None:
    use = use_of(job(0, 1, 0, 1, stage_seconds=(1.1, 0.7, 0.0)))
    assert use.utilization_percent == pytest.approx(70)
    assert use.other_percent["data loading"] == 100


def test_published_rows(tmp_path: Path) -> None:
    text = "figure,policy,metric_s,t\n1,antman,JCT,5\n1,antman,Makespan,7\n1,antman,99JCT,6.5\n"
    (tmp_path / "published_sim_results.csv").write_text(text + "1,SRTF,JCT,1\n")
    (found,) = read_published(tmp_path, "t")
    assert (found.policy, found.outcome.p99_jct_seconds) == ("AntMan", 6.5)
    assert read_published(tmp_path, "other") == []


def test_command_prints_a_table_and_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(index, 2 ** (index % 5), 1000 * index) for index in range(40)]
    write_trace(tmp_path / "made.csv.gz", rows)
    assert sharing.main(["--data", str(tmp_path), "--traces", "made"]) == 0
    printed = capsys.readouterr().out
    last = json.loads(printed.splitlines()[-1])
    assert {found["source"] for found in last["results"]} == {"reproduced", "ours"}
    assert last["targets"][0]["SRTF off by seconds"] is None
    assert sharing.main(["--data", str(tmp_path), "--traces", "made"]) == 0
    again = capsys.readouterr().out
    assert json.loads(again.splitlines()[-1])["results"] == last["results"]
