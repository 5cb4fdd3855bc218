"""kubectl gpujob gpus, nodes, queue, timeline, checkpoints and version."""

import json
from typing import Any

import pytest

from gpujob_operator.read.snapshot import Objects
from tests.harness.builders import make_gpu
from tests.harness.cli_jobs import MemoryCluster, condition, job, run_command
from tests.harness.manifests import gpu_node_manifest

GIB = 1024**3


def node(name: str, *gpus: Any, **spec: Any) -> dict[str, Any]:
    manifest = gpu_node_manifest(name, *gpus, observed_at="2026-11-20T11:59:57Z")
    manifest["spec"] = {**manifest.get("spec", {}), **spec}
    return manifest


def held(name: str, uuid: str, memory_bytes: int, *, exclusive: bool = False) -> Any:
    return job(
        name=name,
        status={
            "phase": "Running",
            "attempt": 1,
            "placement": {"workers": [{"rank": 0, "node": "n0", "gpus": [uuid]}]},
            "reservation": {
                "memoryBytes": memory_bytes,
                "utilizationPercent": 50,
                "source": "Measured",
                "exclusive": exclusive,
            },
        },
    )


@pytest.fixture
def cluster() -> MemoryCluster:
    nodes = [
        node("n0", make_gpu("GPU-0"), make_gpu("GPU-1"), pricePerGpuHour=2.5),
        node("n1", make_gpu("GPU-2"), unschedulable=True, pricePerGpuHour=1.0),
    ]
    jobs = [held("a", "GPU-0", 4 * GIB), held("b", "GPU-0", 2 * GIB)]
    return MemoryCluster(jobs, objects_held=Objects(gpu_nodes=nodes))


def table(cluster: MemoryCluster, *arguments: str) -> list[list[str]]:
    shown = run_command(cluster, *arguments, "-o", "csv").stdout
    return [line.split(",") for line in shown.splitlines()]


def test_gpus_counts_what_is_there_free_and_used(cluster: MemoryCluster) -> None:
    [heading, row] = table(cluster, "gpus")
    found = dict(zip(heading, row, strict=True))
    assert (found["gpus"], found["free"], found["used"]) == ("3", "1", "1")
    assert found["price/h"] == "1.00-2.50"
    answer = json.loads(run_command(cluster, "gpus", "-o", "json").stdout)
    assert (answer["apiVersion"], answer["kind"]) == ("cli.gpujob.dev/v1", "GPUModelList")
    assert answer["items"][0]["free"] == 1


def test_a_closed_node_and_an_exclusive_job_leave_nothing_free(cluster: MemoryCluster) -> None:
    cluster.held = [held("a", "GPU-0", GIB, exclusive=True), held("b", "GPU-1", GIB)]
    answer = json.loads(run_command(cluster, "nodes", "-o", "json").stdout)
    free = {one["uuid"]: one["memoryFreeBytes"] for one in answer["items"]}
    assert (free["GPU-0"], free["GPU-2"]) == (0, 0)
    assert free["GPU-1"] > 0


def test_a_finished_job_holds_nothing(cluster: MemoryCluster) -> None:
    done = held("a", "GPU-0", 4 * GIB)
    cluster.held = [job(name="a", status={**_status(done), "phase": "Succeeded"})]
    [heading, row] = table(cluster, "gpus")
    assert dict(zip(heading, row, strict=True))["used"] == "0"


def _status(held: Any) -> dict[str, Any]:
    from gpujob_api.manifest import to_manifest

    return to_manifest(held)["status"]


def test_nodes_shows_each_node_and_then_each_gpu(cluster: MemoryCluster) -> None:
    rows = [
        dict(zip(table(cluster, "nodes")[0], row, strict=True))
        for row in table(cluster, "nodes")[1:]
    ]
    assert [(row["node"], row["state"]) for row in rows] == [
        ("n0", "Ready"),
        ("n1", "Unschedulable"),
    ]
    assert rows[0]["read"] == "3 s"
    gpus = run_command(cluster, "nodes", "n0").stdout
    assert "vision/a, vision/b" in gpus
    missing = run_command(cluster, "nodes", "nix")
    assert (missing.exit_code, str(missing.exception)) == (1, "not found: gpunode nix")


@pytest.mark.parametrize(
    ("verb", "words"), [("gpus", "no GPU is reported"), ("nodes", "no agent has reported")]
)
def test_an_empty_cluster_names_the_next_step(verb: str, words: str) -> None:
    ran = run_command(MemoryCluster(), verb)
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert words in ran.stderr


# -- queues


def queue(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUQueue",
        "metadata": {"name": name, "uid": name},
        "spec": spec,
        "status": {"pendingJobs": 2, "runningJobs": 1, "reservedGpus": 3},
    }


def test_queue_shows_use_and_quota_and_the_implicit_default() -> None:
    objects = Objects(queues=[queue("research", nominal={"gpus": 8}, parent="all")])
    rows = table(MemoryCluster([job(spec={"queue": "default"})], objects_held=objects), "queue")
    found = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    assert (found[0]["queue"], found[0]["parent"], found[0]["gpus"]) == (
        "research",
        "all",
        "3 of 8",
    )
    assert (found[1]["queue"], found[1]["pending"]) == ("default", "1")


def test_a_queue_whose_parent_does_not_count_says_so() -> None:
    refused = queue("research")
    refused["status"]["conditions"] = [condition("Accepted", "False", "ParentNotFound", "no")]
    cluster = MemoryCluster(objects_held=Objects(queues=[refused]))
    assert "ParentNotFound" in run_command(cluster, "queue").stdout


def test_the_jobs_of_a_queue_come_in_its_order() -> None:
    objects = Objects(queues=[queue("research")])
    jobs = [job(name="late"), job(name="old", created="2026-11-20T09:00:00Z")]
    jobs.append(job(name="urgent", spec={"priority": 5}))
    cluster = MemoryCluster(jobs, objects_held=objects)
    rows = table(cluster, "queue", "research")
    assert [row[2] for row in rows[1:]] == ["urgent", "old", "late"]
    found = json.loads(run_command(cluster, "queue", "research", "-o", "json").stdout)
    assert [one["name"] for one in found["items"]] == ["urgent", "old", "late"]
    assert "no job waits" in run_command(cluster, "queue", "default").stderr
    missing = run_command(cluster, "queue", "visoin")
    assert "not found: gpuqueue visoin" in str(missing.exception)


# -- one job


def event(at: str, reason: str, message: str, count: int = 1) -> dict[str, Any]:
    return {
        "eventTime": None,
        "lastTimestamp": at,
        "reason": reason,
        "message": message,
        "count": count,
    }


def test_the_timeline_is_in_order_with_the_status_own_moments() -> None:
    shown = job(status={"phase": "Running", "startedAt": "2026-11-20T11:51:00Z"})
    events = [
        event("2026-11-20T11:52:00Z", "Tuned", "bfloat16", 3),
        event("2026-11-20T11:50:30Z", "Placed", "on n0"),
        {"reason": "Broken"},
    ]
    cluster = MemoryCluster([shown], event_list=events)
    found = json.loads(run_command(cluster, "timeline", "resnet50", "-o", "json").stdout)["items"]
    assert [one["what"] for one in found] == ["Created", "Placed", "Started", "Tuned"]
    assert found[-1]["message"] == "bfloat16 (3 times)"
    lines = run_command(cluster, "timeline", "resnet50").stdout.splitlines()
    assert lines[1].split()[:3] == ["TIME", "AFTER", "WHAT"]
    assert "events are gone" in run_command(MemoryCluster([shown]), "timeline", "resnet50").stderr


@pytest.mark.parametrize("known", [True, False])
def test_the_timeline_has_one_line_for_the_end(known: bool) -> None:
    shown = job(status={"phase": "Succeeded", "finishedAt": "2026-11-20T11:55:00Z"})
    end = event("2026-11-20T11:55:01Z", "Succeeded", "finished after 4m 00s")
    cluster = MemoryCluster([shown], event_list=[end] if known else [])
    found = json.loads(run_command(cluster, "timeline", "resnet50", "-o", "json").stdout)["items"]
    last = [one["message"] for one in found if one["what"] == "Succeeded"]
    assert last == (["finished after 4m 00s"] if known else [""])


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        (
            {},
            {},
            [
                "-checkpoints if the operator creates claims, else lost with the pod",
                "none yet",
                "not known yet",
            ],
        ),
        (
            {"checkpoint": {"volumeClaimName": "c", "interval": "5m"}},
            {
                "phase": "Running",
                "protection": "Exact",
                "checkpoint": {"step": 400, "bytes": GIB, "writeSeconds": 2},
                "measurement": {
                    "memoryBytes": 1,
                    "utilizationPercent": 1,
                    "samples": 1,
                    "step": 420,
                    "current": {"stepSeconds": 2, "peakMemoryBytes": 1},
                },
            },
            ["claim c", "every 5m", "step 400, 1 GiB", "20 steps, about 40 s", "resumes exactly"],
        ),
        (
            {"suspend": True, "checkpoint": {"volumeClaimName": "c"}},
            {
                "phase": "Pending",
                "protection": "Exact",
                "checkpoint": {"step": 406},
                "measurement": {
                    "memoryBytes": 1,
                    "utilizationPercent": 1,
                    "samples": 1,
                    "step": 407,
                    "task": "Inference",
                },
            },
            ["1 call: made again by the next attempt"],
        ),
        (
            {"checkpoint": {"volumeClaimName": "c", "path": "own/last.pt"}},
            {"phase": "Running"},
            ["by the script: own/last.pt"],
        ),
    ],
)
def test_checkpoints(spec: dict[str, Any], status: dict[str, Any], expected: list[str]) -> None:
    cluster = MemoryCluster([job(spec=spec, status=status)])
    shown = run_command(cluster, "checkpoints", "resnet50").stdout
    assert [words for words in expected if words not in shown] == []
    found = json.loads(run_command(cluster, "checkpoints", "resnet50", "-o", "json").stdout)
    assert found["keep"] == 3


def test_version_reports_what_is_missing() -> None:
    shown = run_command(MemoryCluster(), "version").stdout
    assert "no Deployment of the chart in the cluster" in shown
    assert "gpujobs missing" in shown
    found = json.loads(run_command(MemoryCluster(), "version", "-o", "json").stdout)
    assert set(found) == {"plugin", "operator", "CRDs"}


@pytest.mark.parametrize("arguments", [("gpus",), ("nodes",), ("nodes", "n0")])
def test_tables_fit_a_narrow_terminal(cluster: MemoryCluster, arguments: tuple[str, ...]) -> None:
    shown = run_command(cluster, *arguments, width=60, is_terminal=True).stdout
    assert max(map(len, shown.splitlines())) <= 60
