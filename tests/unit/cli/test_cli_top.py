"""kubectl gpujob top: the use of running jobs and of GPUs, by their readings."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpunode import GPU, GPUNode, GPUProcess
from gpujob_api.manifest import from_manifest
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.verbs.top import use_of
from tests.harness.builders import make_gpu
from tests.harness.cli_jobs import NOW, Clock, MemoryCluster, job, run_command
from tests.harness.manifests import gpu_node_manifest

GIB = 1024**3
H100 = "NVIDIA H100 80GB HBM3"
FRESH, OLD = "2026-11-20T11:59:57Z", "2026-11-20T11:40:00Z"


def running(name: str, *places: tuple[str, str], pod: str = "", **status: Any) -> Any:
    """A job on these (node, GPU), one worker each; its pods are `pod` and the rank."""
    workers = [
        {"rank": rank, "node": node, "gpus": [uuid], "podUid": f"{pod or name}-{rank}"}
        for rank, (node, uuid) in enumerate(places)
    ]
    held = {"memoryBytes": 20 * GIB, "utilizationPercent": 50, "source": "Measured"}
    measured = {
        "memoryBytes": 10 * GIB,
        "utilizationPercent": 40,
        "samples": 9,
        "current": {"stepSeconds": 0.25, "peakMemoryBytes": 1},
    }
    return job(
        name=name,
        spec={"workers": len(places)},
        status={
            "phase": "Running",
            "attempt": 1,
            "placement": {"workers": workers},
            "reservation": held,
            "measurement": measured,
            "observedAt": "2026-11-20T11:58:00Z",
            **status,
        },
    )


def gpu(uuid: str, index: int, utilization: float, *own: tuple[str, float | None]) -> GPU:
    """A GPU with a process of 12 GiB of each pod, and what it uses of the GPU."""
    made = make_gpu(
        uuid, index=index, model=H100, total=80 * GIB, ours=[(pod, 12 * GIB) for pod, _ in own]
    )
    processes = [
        replace(process, utilization_percent=share)
        for process, (_, share) in zip(made.processes, own, strict=True)
    ]
    return replace(
        made, utilization_percent=utilization, power_watts=512.4, processes=tuple(processes)
    )


def nodes(*given: tuple[str, str, list[GPU]]) -> Objects:
    made = [gpu_node_manifest(name, *gpus, observed_at=at) for name, at, gpus in given]
    return Objects(gpu_nodes=made)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(
        [
            running("vit-large", ("n2", "GPU-a")),
            running("resnet50", ("n2", "GPU-b"), ("n2", "GPU-c")),
            running("bert", ("n4", "GPU-d"), phase="Starting"),
            job(name="waits"),
            running("done", ("n2", "GPU-a"), phase="Succeeded"),
        ],
        objects_held=nodes(
            (
                "n2",
                FRESH,
                [
                    gpu("GPU-a", 0, 84, ("vit-large-0", 84)),
                    gpu("GPU-b", 1, 97, ("resnet50-0", 50), ("another", 40)),
                    gpu("GPU-c", 2, 90, ("resnet50-1", None), ("another", None)),
                ],
            ),
            ("n4", OLD, [gpu("GPU-d", 0, 12, ("bert-0", 12))]),
            ("n5", FRESH, [make_gpu("GPU-e", model=H100, total=80 * GIB)]),
        ),
    )


JOBS = """\
NAME        GPU-UTIL   MEMORY          POWER   STEP/S   READ
vit-large   84 %       12 GiB/20 GiB   512 W   4        3 s
resnet50    40 % x2    24 GiB/40 GiB   -       4        2m 00s
bert        12 %       12 GiB/20 GiB   512 W   -        stale 20m 00s
"""
CARDS = {
    80: """\
CARD   MEMORY                 UTIL   JOBS               NOTE
n2/1   24 GiB/20 GiB/80 GiB   97 %   vision/resnet50    -
n2/2   24 GiB/20 GiB/80 GiB   90 %   vision/resnet50    -
n2/0   12 GiB/20 GiB/80 GiB   84 %   vision/vit-large   -
n4/0   12 GiB/20 GiB/80 GiB   12 %   vision/bert        stale 20m 00s
n5/0   0 B/0 B/80 GiB         0 %    -                  free
""",
    100: """\
CARD   MODEL            MEMORY                 UTIL   POWER   JOBS               NOTE
n2/1   H100 80GB HBM3   24 GiB/20 GiB/80 GiB   97 %   512 W   vision/resnet50    -
n2/2   H100 80GB HBM3   24 GiB/20 GiB/80 GiB   90 %   512 W   vision/resnet50    -
n2/0   H100 80GB HBM3   12 GiB/20 GiB/80 GiB   84 %   512 W   vision/vit-large   -
n4/0   H100 80GB HBM3   12 GiB/20 GiB/80 GiB   12 %   512 W   vision/bert        stale 20m 00s
n5/0   H100 80GB HBM3   0 B/0 B/80 GiB         0 %    -       -                  free
""",
}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_jobs_at_the_usual_widths(cluster: MemoryCluster, width: int) -> None:
    ran = run_command(cluster, "top", width=width, is_terminal=True)
    assert (ran.exit_code, ran.stdout) == (0, JOBS)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_gpus_at_the_usual_widths(cluster: MemoryCluster, width: int) -> None:
    ran = run_command(cluster, "top", "--gpus", width=width, is_terminal=True)
    assert (ran.exit_code, ran.stdout) == (0, CARDS[min(width, 100)])


def test_no_name_is_cut_on_a_narrow_terminal(cluster: MemoryCluster) -> None:
    shown = run_command(cluster, "top", width=30, is_terminal=True).stdout.splitlines()
    assert shown[1].split() == ["vit-large", "84", "%"]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("--sort", "name"), "bert"),
        (("--sort", "memory"), "resnet50"),
        (("--sort", "utilization"), "vit-large"),
        (("--gpus", "--sort", "name"), "n2/0"),
        (("--gpus", "--sort", "memory"), "n2/1"),
    ],
)
def test_orders(cluster: MemoryCluster, arguments: tuple[str, ...], first: str) -> None:
    lines = run_command(cluster, "top", *arguments, "-o", "csv").stdout.splitlines()
    assert lines[1].startswith(first)


def test_json_has_a_version_and_plain_numbers(cluster: MemoryCluster) -> None:
    found = json.loads(run_command(cluster, "top", "-o", "json").stdout)
    assert (found["apiVersion"], found["kind"]) == ("cli.gpujob.dev/v1", "JobUseList")
    assert found["items"][0] == {
        "namespace": "vision",
        "name": "vit-large",
        "gpus": 1,
        "utilizationPercent": 84.0,
        "memoryUsedBytes": 12 * GIB,
        "memoryReservedBytes": 20 * GIB,
        "powerWatts": 512.4,
        "stepsPerSecond": 4.0,
        "readAt": FRESH,
        "stale": False,
    }
    cards = json.loads(run_command(cluster, "top", "--gpus", "-o", "json").stdout)
    assert cards["kind"] == "GPUUseList"
    stale = {one["uuid"]: one["stale"] for one in cards["items"]}
    assert [uuid for uuid, is_stale in stale.items() if is_stale] == ["GPU-d"]


def test_without_the_right_to_read_nodes_the_status_counts(cluster: MemoryCluster) -> None:
    class Refusing(MemoryCluster):
        def objects(self, what: str, path: str, **query: str) -> Any:
            raise UserError("you may not read gpunodes (403 Forbidden)")

    ran = run_command(Refusing(cluster.held), "top", "-o", "json")
    assert "note: only the figures of the jobs' status: you may not read gpunodes" in ran.stderr
    use = json.loads(ran.stdout)["items"][-1]
    assert (use["utilizationPercent"], use["memoryUsedBytes"]) == (40.0, 10 * GIB)
    assert (use["readAt"], use["powerWatts"]) == ("2026-11-20T11:58:00Z", None)
    refused = run_command(Refusing(cluster.held), "top", "--gpus")
    assert (refused.exit_code, str(refused.exception)[:11]) == (1, "you may not")


def test_a_reading_from_before_the_pods_is_not_the_jobs() -> None:
    """The GPU's memory and utilization then are another job's."""
    cluster = MemoryCluster(
        [running("new", ("n0", "GPU-a"), measurement=None)],
        objects_held=nodes(("n0", FRESH, [gpu("GPU-a", 0, 99, ("earlier-0", 99))])),
    )
    found = json.loads(run_command(cluster, "top", "-o", "json").stdout)["items"][0]
    figures = ("utilizationPercent", "memoryUsedBytes", "powerWatts", "stepsPerSecond", "readAt")
    assert [found[name] for name in figures] == [None] * 5
    assert found["stale"]
    line = run_command(cluster, "top").stdout.splitlines()[1]
    assert line.split() == ["new", "-", "-/20", "GiB", "-", "-", "never"]


def test_a_selector_chooses_jobs_and_the_gpus_that_they_hold(cluster: MemoryCluster) -> None:
    bert = cluster.held[2]
    mine = replace(bert, metadata=replace(bert.metadata, labels={"team": "a"}))
    cluster.held = [*cluster.held[:2], mine]
    found = run_command(cluster, "top", "-l", "team=a", "-o", "csv").stdout.splitlines()
    assert [line.split(",")[0] for line in found[1:]] == ["bert"]
    found = run_command(cluster, "top", "--gpus", "-l", "team=a", "-o", "csv").stdout.splitlines()
    assert [line.split(",")[0] for line in found[1:]] == ["n4/0"]
    none = run_command(cluster, "top", "--gpus", "-l", "team=b")
    assert none.stderr == "no job with team=b holds a GPU\n"


def test_notes_of_a_gpu(cluster: MemoryCluster) -> None:
    sick = make_gpu("GPU-s", healthy=False, unmanaged=GIB, model=H100)
    manifest = gpu_node_manifest("n9", sick, observed_at=FRESH)
    manifest["spec"] = {"unschedulable": True}
    never = gpu_node_manifest("n8", make_gpu("GPU-n", model=H100))
    never["status"].pop("observedAt", None)
    cluster.objects_held = Objects(gpu_nodes=[manifest, never])
    found = json.loads(run_command(cluster, "top", "--gpus", "-o", "json").stdout)["items"]
    notes = {one["node"]: one["notes"] for one in found}
    assert notes == {"n9": ["XID 79", "unschedulable", "unmanaged 1 GiB"], "n8": ["never read"]}


class Rounds(Clock):
    """Ends a command that has no end in its third round."""

    slept = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept += 1
        if self.slept == 3:
            raise UserError("enough")


@pytest.mark.parametrize("command", [("top",), ("top", "--gpus")])
def test_watching_repeats_every_2_seconds_and_clears_a_terminal(
    cluster: MemoryCluster, command: tuple[str, ...]
) -> None:
    clock = Rounds()
    ran = run_command(cluster, *command, "-w", clock=clock, is_terminal=True, width=120)
    assert clock.at == NOW + timedelta(seconds=6)
    assert ran.stdout.count("\x1b[H\x1b[2J") == 3
    assert "5 s" in ran.stdout or "free" in ran.stdout
    piped = run_command(cluster, *command, "-w", clock=Rounds())
    assert "\x1b" not in piped.stdout


@pytest.mark.parametrize("command", [("top",), ("top", "--gpus")])
def test_watched_json_is_a_list_a_line(cluster: MemoryCluster, command: tuple[str, ...]) -> None:
    ran = run_command(cluster, *command, "-w", "-o", "json", clock=Rounds(), is_terminal=True)
    kinds = {json.loads(line)["apiVersion"] for line in ran.stdout.splitlines()}
    assert (len(ran.stdout.splitlines()), kinds) == (3, {"cli.gpujob.dev/v1"})


def test_nothing_that_runs_is_a_remark() -> None:
    ran = run_command(MemoryCluster(), "top")
    assert (ran.stdout, ran.stderr) == ("", "no running gpujobs in namespace vision\n")
    assert "in any namespace" in run_command(MemoryCluster(), "top", "-A").stderr
    assert "no GPU is reported" in run_command(MemoryCluster(), "top", "--gpus").stderr


PROCESSES = st.lists(
    st.tuples(st.sampled_from(["job-0", "other", None]), st.none() | st.floats(0, 100)), max_size=4
)


@given(PROCESSES, st.floats(0, 100))
def test_figures_are_within_what_the_reading_has(
    processes: list[tuple[str | None, float | None]], utilization: float
) -> None:
    own = [(pod, share) for pod, share in processes if pod == "job-0"]
    made = replace(
        make_gpu("GPU-a", total=80 * GIB),
        memory_used_bytes=GIB * len(processes),
        utilization_percent=utilization,
        processes=tuple(
            GPUProcess(n + 1, GIB, pod, share) for n, (pod, share) in enumerate(processes)
        ),
    )
    node = from_manifest(GPUNode, gpu_node_manifest("n0", made, observed_at=FRESH))
    found = use_of(running("job", ("n0", "GPU-a")), {("n0", "GPU-a"): (node, made)})
    assert found.memory_bytes == (GIB * len(own) if own else 10 * GIB)
    assert found.utilization_percent is not None
    assert 0 <= found.utilization_percent <= 100
    if len(own) != len(processes):
        assert found.power_watts is None
