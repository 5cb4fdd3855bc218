"""kubectl gpujob why --places: from the cluster and from a dump, in words and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpujob_api.gpujob import SharingMode
from gpujob_operator.cycle import cycle_to_text
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import UserError
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_snapshot,
    running,
)
from tests.harness.cli_jobs import EVERYTHING, Clock, MemoryCluster, Ran, run_command
from tests.harness.manifests import (
    gpu_node_manifest,
    job_manifest,
    node_manifest,
    pod_manifest,
)

NOW = after(10)


def invoke(*arguments: str, cluster: MemoryCluster | None = None) -> Ran:
    return run_command(cluster or MemoryCluster(), "why", *arguments, clock=Clock(NOW))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """The cycle that places `new` on one of two nodes; a third is closed."""
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}"), unschedulable=n == 2) for n in range(3)]
    snapshot: Snapshot = make_snapshot(
        make_job("new", sharing=SharingMode.EXCLUSIVE), gpu_nodes=nodes
    )
    path = tmp_path / "cycle.json"
    path.write_text(cycle_to_text(snapshot, NOW, plan(snapshot, NOW)))
    return path


def test_a_dump_says_why_there_and_not_elsewhere(dump: Path) -> None:
    result = invoke("new", "--from", str(dump))
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == (
        f"team/new, as this cycle decides it, from {dump} of 2026-01-01 00:00:10 UTC"
    )
    assert lines[1].startswith("Needs 1 x a whole GPU at 100 % (WholeGPU)")
    assert lines[2].startswith("Placed n0 (GPU-0), costs ")
    assert lines[3] == "Because it costs future jobs the least"
    assert lines[4].startswith("Next best 1 n1 (GPU-1), costs ")
    assert lines[4].endswith("then the order of nodes decides")
    assert lines[5] == "Lacks n2: of 1 GPUs: 1 the node is cordoned"


def test_json_holds_the_terms_of_every_cost(dump: Path) -> None:
    found = json.loads(invoke("new", "-n", "team", "--from", str(dump), "-o", "json").stdout)
    assert (found["name"], found["decidedHere"], found["placedBefore"]) == ("new", True, 0)
    assert found["chosen"]["placement"]["workers"][0]["node"] == "n0"
    assert set(found["best"][1]["costs"][0]) == {
        "total",
        "worth",
        "usable",
        "stranded",
        "scarcity",
    }
    assert found["lacks"] == {"n2": "of 1 GPUs: 1 the node is cordoned"}


def test_the_cluster_is_asked_for_a_placed_job() -> None:
    job = running(make_job("here", sharing=SharingMode.EXCLUSIVE))
    objects = Objects(
        jobs=[job_manifest(job)],
        pods=[pod_manifest(job)],
        nodes=[node_manifest()],
        gpu_nodes=[gpu_node_manifest(observed_at="2026-01-01T00:00:05Z")],
    )
    cluster = MemoryCluster(namespace="team", objects_held=objects, now=NOW)
    result = invoke("here", "--places", cluster=cluster)
    assert "team/here, as if it were placed now, from the cluster (all defaults: " in result.stdout
    assert "n0 (GPU-0), costs " in result.stdout
    assert "it fits nowhere else" in result.stdout
    assert cluster.asked == EVERYTHING


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["nobody"], "no job nobody"), (["new", "-n", "x"], "no job x/new")],
)
def test_a_job_that_is_not_there_is_told(dump: Path, arguments: list[str], problem: str) -> None:
    result = invoke(*arguments, "--from", str(dump))
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == problem


def test_a_name_in_two_namespaces_needs_one(tmp_path: Path) -> None:
    first, second = make_job("new"), make_job("new", uid="other")
    second = replace(second, metadata=replace(second.metadata, namespace="beam"))
    snapshot = make_snapshot(first, second)
    path = tmp_path / "cycle.json"
    path.write_text(cycle_to_text(snapshot, NOW, plan(snapshot, NOW)))
    result = invoke("new", "--from", str(path))
    assert str(result.exception) == "there are several jobs new: team/new, beam/new"
    assert invoke("new", "-n", "beam", "--from", str(path)).exit_code == 0
