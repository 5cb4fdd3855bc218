"""kubectl gpujob sweep: the points of a grid, and their table."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from kubectl_gpujob.errors import UsageError
from kubectl_gpujob.verbs.sweep import POINTS_MAX, points_of
from tests.harness.cli_jobs import MemoryCluster, job, run_command

COMMAND = ("--", "python", "train.py", "--lr", "{lr}", "--seed={seed}")
GRID = ("--grid", "lr=1e-4,3e-4", "--grid", "seed=1..3")


def test_each_point_is_a_job_of_one_workload() -> None:
    cluster = MemoryCluster()
    ran = run_command(cluster, "sweep", "rates", "--image", "i", *GRID, *COMMAND)
    assert ran.stdout == "6 jobs created; the table: kubectl gpujob sweep rates\n"
    assert [one["metadata"]["name"] for one in cluster.created] == [
        f"rates-{number}" for number in range(1, 7)
    ]
    last = cluster.created[-1]
    [container] = last["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py", "--lr", "3e-4", "--seed=3"]
    assert last["metadata"]["labels"] == {"gpujob.dev/sweep": "rates"}
    assert last["metadata"]["annotations"] == {"gpujob.dev/sweep-point": "lr=3e-4 seed=3"}
    assert {one["spec"]["workload"] for one in cluster.created} == {"rates"}
    from_manifest(GPUJob, last)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ([], "needs at least one"),
        (["lr"], "must be KEY=VALUES"),
        (["lr="], "must be KEY=VALUES"),
        (["lr=1", "lr=2"], "is given twice"),
        (["rate=1"], "rate is not in the command: write {rate}"),
        (["lr=5..1"], "must go up"),
        ([f"lr=0..{POINTS_MAX}"], "by at most"),
        (["lr=1..100", "seed=1..100"], "10000 points, more than 200"),
    ],
)
def test_a_wrong_grid_is_named(grid: list[str], words: str) -> None:
    with pytest.raises(UsageError, match="--grid") as raised:
        points_of(grid, COMMAND[1:])
    assert words in str(raised.value)


def test_a_sweep_needs_one_name() -> None:
    for words in ((), ("a", "b")):
        assert run_command(MemoryCluster(), "sweep", *words).exit_code == 2


def test_a_refusal_creates_nothing_and_a_failure_says_how_many() -> None:
    refusing = MemoryCluster(refuses="spec.queue: Invalid value")
    ran = run_command(refusing, "sweep", "rates", "--image", "i", *GRID, *COMMAND)
    assert (ran.exit_code, refusing.created) == (1, [])
    failing = MemoryCluster(fails_at="gpujobs")
    ran = run_command(failing, "sweep", "rates", "--image", "i", *GRID, *COMMAND)
    assert ran.exit_code == 1
    assert "0 of 6 jobs were created" in ran.stderr
    assert "cancel -l gpujob.dev/sweep=rates" in ran.stderr


def test_a_dry_run_prints_every_object() -> None:
    cluster = MemoryCluster()
    words = ("sweep", "rates", "--image", "i", "--dry-run", *GRID, *COMMAND)
    found = list(yaml.safe_load_all(run_command(cluster, *words).stdout))
    assert len([one for one in found if one]) == 6
    assert cluster.created == []


def of_sweep(name: str, loss: float | None) -> Any:
    measured = {"memoryBytes": 1, "utilizationPercent": 1, "samples": 1, "step": 5}
    status = {
        "phase": "Running",
        "measurement": measured | ({} if loss is None else {"loss": loss}),
    }
    made = job(name=name, status=status)
    labels, annotations = {"gpujob.dev/sweep": "rates"}, {"gpujob.dev/sweep-point": f"lr={name}"}
    return replace(made, metadata=replace(made.metadata, labels=labels, annotations=annotations))


def test_the_lowest_loss_comes_first_and_unknown_ones_last() -> None:
    cluster = MemoryCluster([of_sweep("a", 0.5), of_sweep("b", None), of_sweep("c", 0.25), job()])
    lines = [line.split() for line in run_command(cluster, "sweep", "rates").stdout.splitlines()]
    assert [line[0] for line in lines] == ["NAME", "c", "a", "b"]
    assert lines[1][-2:] == ["0.25", "lr=c"]
    found = json.loads(run_command(cluster, "sweep", "rates", "-o", "json").stdout)["items"]
    assert found[0] == {"name": "c", "status": "Running", "loss": 0.25, "point": {"lr": "c"}}
    names = run_command(cluster, "sweep", "rates", "-o", "name").stdout.split()
    assert names == [f"gpujob.gpujob.dev/{name}" for name in "cab"]
    missing = run_command(cluster, "sweep", "other")
    assert str(missing.exception) == "not found: no job of sweep other in namespace vision"
