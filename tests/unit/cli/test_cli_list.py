"""kubectl gpujob list and get: columns, widths, orders and formats."""

import json
from typing import Any

import pytest
import yaml

from kubectl_gpujob.errors import UserError
from tests.harness.cli_jobs import Clock, MemoryCluster, condition, job, run_command

RUNNING = job(
    name="train-x7k2p",
    created="2026-11-20T11:41:00Z",
    status={
        "phase": "Running",
        "attempt": 1,
        "placement": {
            "workers": [{"rank": 0, "node": "n1", "gpus": ["GPU-1a"]}],
            "gpuModel": "NVIDIA H100",
        },
        "measurement": {
            "memoryBytes": 1,
            "utilizationPercent": 5,
            "samples": 9,
            "step": 12_300,
            "stepsTotal": 100_000,
            "current": {"stepSeconds": 0.1, "peakMemoryBytes": 1},
        },
        "summary": {"cost": "$4.10", "speed": "100 ms/step", "memory": "5 GiB of 6 GiB"},
    },
)
WAITING = job(
    name="sweep-lr-03",
    created="2026-11-20T11:57:00Z",
    status={
        "conditions": [
            condition(
                "Scheduled",
                "False",
                "InsufficientCapacity",
                "needs 20 GiB; position 2 of the jobs waiting for GPUs",
            )
        ],
        "summary": {"reason": "InsufficientCapacity: needs 20 GiB"},
    },
)
FAILED = job(
    name="vit-base",
    created="2026-11-20T10:55:00Z",
    status={
        "phase": "Failed",
        "attempt": 3,
        "measurement": {"memoryBytes": 1, "utilizationPercent": 5, "samples": 9, "step": 410},
        "conditions": [condition("Failed", "True", "OutOfMemory", "no room")],
    },
)
HELD = [RUNNING, WAITING, FAILED]

GOLDEN = {
    80: """\
NAME          STATUS                    PROGRESS           ETA     COST    AGE
sweep-lr-03   InsufficientCapacity #2   -                  -       -       3m
train-x7k2p   Running                   12300/100000 12%   2h26m   $4.10   19m
vit-base      Failed:OutOfMemory        step 410           -       -       1h05m
""",
    100: """\
NAME          STATUS                    PROGRESS           ETA     GPU          COST    AGE
sweep-lr-03   InsufficientCapacity #2   -                  -       -            -       3m
train-x7k2p   Running                   12300/100000 12%   2h26m   n1 H100 x1   $4.10   19m
vit-base      Failed:OutOfMemory        step 410           -       -            -       1h05m
""",
}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_at_the_usual_widths(width: int) -> None:
    ran = run_command(MemoryCluster(HELD), "list", width=width, is_terminal=True)
    assert ran.stdout == GOLDEN[min(width, 100)]


def test_no_name_is_cut_on_a_narrow_terminal() -> None:
    ran = run_command(MemoryCluster(HELD), "list", width=30, is_terminal=True)
    assert ran.stdout.splitlines()[0].split() == ["NAME", "STATUS"]
    assert "train-x7k2p" in ran.stdout


def names(*arguments: str) -> list[str]:
    ran = run_command(MemoryCluster(HELD), "list", *arguments, "-o", "name")
    return [line.removeprefix("gpujob.gpujob.dev/") for line in ran.stdout.split()]


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--pending", ["sweep-lr-03"]),
        ("--running", ["train-x7k2p"]),
        ("--failed", ["vit-base"]),
    ],
)
def test_filters(flag: str, expected: list[str]) -> None:
    assert names(flag) == expected


def test_two_filters_exclude_each_other() -> None:
    assert run_command(MemoryCluster(), "list", "--pending", "--failed").exit_code == 2


@pytest.mark.parametrize(
    ("order", "first"),
    [("name", "sweep-lr-03"), ("age", "sweep-lr-03"), ("eta", "train-x7k2p"), ("status", "vit")],
)
def test_orders(order: str, first: str) -> None:
    assert names("--sort", order)[0].startswith(first)


def test_the_json_is_a_list_that_kubectl_reads() -> None:
    ran = run_command(MemoryCluster(HELD), "list", "-o", "json")
    found = json.loads(ran.stdout)
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    assert [item["metadata"]["name"] for item in found["items"]] == names()
    assert yaml.safe_load(run_command(MemoryCluster(HELD), "list", "-o", "yaml").stdout) == found


def test_csv_has_a_heading_and_every_column() -> None:
    lines = run_command(MemoryCluster(HELD), "list", "-A", "-o", "csv").stdout.splitlines()
    assert lines[0].startswith("namespace,name,status,progress,eta,gpu,cost,age,queue")
    assert len(lines) == 4


def test_a_selector_reaches_the_cluster() -> None:
    assert run_command(MemoryCluster(HELD), "list", "-l", "team=x").stdout == ""


def test_watching_shows_changes_alone() -> None:
    class EnoughError(Exception):
        pass

    class Counting(Clock):
        slept = 0

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.slept += 1
            if self.slept == 2:
                cluster.held = [FAILED]
            if self.slept == 4:
                raise EnoughError

    cluster = MemoryCluster([RUNNING])
    shown: list[str] = []
    with pytest.raises(EnoughError):
        run_watch(cluster, Counting(), shown)
    text = "".join(shown)
    assert (text.count("train-x7k2p"), text.count("vit-base")) == (1, 1)


def test_watched_json_is_a_list_a_line() -> None:
    class Twice(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if cluster.held == [FAILED]:
                raise UserError("enough")
            cluster.held = [FAILED]

    cluster = MemoryCluster([RUNNING])
    ran = run_command(cluster, "list", "-w", "-o", "json", clock=Twice(), is_terminal=True)
    items = [json.loads(line)["items"] for line in ran.stdout.splitlines()]
    assert [one["metadata"]["name"] for [one] in items] == ["train-x7k2p", "vit-base"]
    cluster.held = [RUNNING]
    ran = run_command(cluster, "list", "-w", "-o", "yaml", clock=Twice())
    assert len(list(yaml.safe_load_all(ran.stdout))) == 2


def run_watch(cluster: MemoryCluster, clock: Clock, shown: list[str]) -> None:
    import io

    from kubectl_gpujob.grammar import World, run
    from kubectl_gpujob.screen import Screen

    class Kept(io.StringIO):
        def write(self, text: str, /) -> int:
            shown.append(text)
            return len(text)

    world = World(Screen(Kept(), Kept()), lambda _: cluster, clock.now, clock.sleep)
    run(["list", "-w"], world)


def test_get_prints_the_object() -> None:
    ran = run_command(MemoryCluster(HELD), "get", "vit-base", "-o", "json")
    assert json.loads(ran.stdout)["metadata"]["name"] == "vit-base"
    assert yaml.safe_load(run_command(MemoryCluster(HELD), "get", "vit-base", "-o", "yaml").stdout)
    table = run_command(MemoryCluster(HELD), "get", "vit-base").stdout.splitlines()
    assert table[1].split()[:2] == ["vit-base", "Failed:OutOfMemory"]


def test_a_job_that_is_not_there() -> None:
    ran = run_command(MemoryCluster(), "get", "nix")
    assert (ran.exit_code, str(ran.exception)) == (
        1,
        "not found: gpujob nix in namespace vision",
    )


def test_a_job_that_is_being_deleted_says_so() -> None:
    from dataclasses import replace

    gone: Any = replace(RUNNING, metadata=replace(RUNNING.metadata, deletion_timestamp=Clock().at))
    assert "Terminating" in run_command(MemoryCluster([gone]), "list").stdout
