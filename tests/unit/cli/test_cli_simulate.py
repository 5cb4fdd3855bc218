"""kubectl gpujob simulate: questions from files and options, answers in words and JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.manifest import to_manifest
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport
from gpujob_operator.cycle import cycle_to_text
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.question import changes_of, more_nodes, nouns_of, read_files, with_quota
from kubectl_gpujob.text import seconds_of
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_queue,
    make_snapshot,
    measured,
    running,
    with_status,
)
from tests.harness.cli_jobs import EVERYTHING, Clock, MemoryCluster, Ran, run_command
from tests.harness.manifests import gpu_node_manifest, job_manifest, node_manifest, pod_manifest
from tests.harness.repository import ROOT

NOW = after(10)


def busy(**fields: Any) -> GPUJob:
    """Runs alone on the only GPU; 100 s left, by 1,000 steps of 0.1 s."""
    known = replace(measured(4 * GIB, step=500), steps_total=1500)
    job = running(make_job("busy", sharing=SharingMode.EXCLUSIVE, **fields), measurement=known)
    saved = CheckpointReport(450, write_seconds=2.0)
    return with_status(job, observed_at=NOW, checkpoint=saved)


def dump(folder: Path, snapshot: Snapshot) -> Path:
    path = folder / "cycle.json"
    path.write_text(cycle_to_text(snapshot, NOW, plan(snapshot, NOW)))
    return path


def job_file(folder: Path, *jobs: dict[str, Any], name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump_all(jobs))
    return path


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker", "image": "i"}]}}
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUJob",
        "metadata": {"name": name},
        "spec": {"template": template, "sharing": {"mode": "Exclusive"}} | spec,
    }


def invoke(*arguments: str, cluster: MemoryCluster | None = None) -> Ran:
    return run_command(cluster or MemoryCluster(), "simulate", *arguments, clock=Clock(NOW))


def one_busy_gpu() -> Snapshot:
    job = busy()
    return make_snapshot(job, pods=make_pods(job))


def test_a_job_that_would_wait_is_told_why_and_when(tmp_path: Path) -> None:
    source = dump(tmp_path, one_busy_gpu())
    path = job_file(tmp_path, manifest("new"))
    result = invoke("-f", str(path), "--from", str(source), "-n", "team")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"Simulated from {source} of 2026-01-01 00:00:10 UTC: ")
    assert lines[0].endswith("until no job was pending. Nothing was written.")
    assert lines[1] == "team/new"
    assert lines[2].split()[0] == "Pending"
    assert "InsufficientCapacity: needs 1 x a whole GPU" in lines[2]
    assert "could start in about 100 s" in lines[2]
    assert "Placed" in lines[3]
    assert "in 1m 41s on n0 (GPU-0)" in lines[3]
    assert len(lines) == 4


def test_who_would_be_interrupted_is_told_with_the_lost_work(tmp_path: Path) -> None:
    source = dump(tmp_path, one_busy_gpu())
    path = job_file(tmp_path, manifest("new", priority=5))
    result = invoke("-f", str(path), "--from", str(source), "-n", "team")
    assert "Preempting: waiting for team/busy to stop" in result.stdout
    others = result.stdout[result.stdout.index("Others") :]
    assert "team/busy" in others
    assert "is interrupted at once (Preempted: stopped for team/new" in others
    assert "loses 32 GPU-seconds" in others


def test_more_nodes_answer_when_a_waiting_job_would_start(tmp_path: Path) -> None:
    snapshot = one_busy_gpu()
    waiting = make_job("next", sharing=SharingMode.EXCLUSIVE, created=5)
    source = dump(tmp_path, replace(snapshot, jobs=(*snapshot.jobs, waiting)))
    result = invoke("next", "--add-nodes", "n0=1", "--from", str(source), "-n", "team")
    assert "Placed   at once on n0-what-if-0" in result.stdout
    as_is = invoke("--from", str(source), "-n", "team")
    assert as_is.stdout.splitlines()[1] == "team/next"
    assert "in 1m 41s on n0" in as_is.stdout


def test_json_holds_the_same(tmp_path: Path) -> None:
    source = dump(tmp_path, one_busy_gpu())
    path = job_file(tmp_path, manifest("new", priority=5))
    result = invoke("-f", str(path), "--from", str(source), "-n", "team", "-o", "json")
    found = json.loads(result.stdout)
    assert (found["ended"], found["now"]) == ("horizon", "2026-01-01T00:00:10Z")
    job = found["jobs"][0]
    assert (job["namespace"], job["name"]) == ("team", "new")
    assert job["startsSeconds"] == pytest.approx(30, abs=2)
    assert job["placements"][0]["placement"]["workers"][0]["node"] == "n0"
    assert job["waits"][0]["reason"] == "Preempting"
    other = found["others"][0]
    assert (other["name"], other["without"]["interruptions"]) == ("busy", [])
    assert other["with"]["interruptions"][0]["lostGpuSeconds"] == pytest.approx(32)


def test_what_never_fits_is_not_placed_and_the_horizon_is_told(tmp_path: Path) -> None:
    source = dump(tmp_path, one_busy_gpu())
    path = job_file(tmp_path, manifest("huge", workers=2))
    result = invoke("-f", str(path), "--from", str(source), "-n", "team", "--horizon", "2h")
    assert "up to the horizon of 2h 00m" in result.stdout
    assert "Unsatisfiable" in result.stdout
    assert "Not placed" in result.stdout


def test_a_lost_node_is_told_for_those_on_it(tmp_path: Path) -> None:
    job = busy()
    spare = make_gpu_node("n1", make_gpu("GPU-1"))
    snapshot = make_snapshot(job, pods=make_pods(job), gpu_nodes=[make_gpu_node(), spare])
    source = dump(tmp_path, snapshot)
    result = invoke("busy", "--without-node", "n0", "--from", str(source), "-n", "team")
    assert "already on n0 (GPU-0)" in result.stdout
    assert "NodeLost" in result.stdout
    assert "on n1 (GPU-1)" in result.stdout


def test_a_quota_keeps_a_job_waiting(tmp_path: Path) -> None:
    source = dump(tmp_path, make_snapshot(queues=(make_queue("vision", gpus=4),)))
    path = job_file(tmp_path, manifest("new", queue="vision"))
    arguments = ["-f", str(path), "--from", str(source), "--horizon", "10m"]
    assert "at once on n0" in invoke(*arguments).stdout
    assert "OverQuota" in invoke(*arguments, "--quota", "vision.gpus=0").stdout


def idle_cluster(
    configurations: Mapping[str, str] | None, observed_at: str = "2026-01-01T00:00:05Z"
) -> MemoryCluster:
    """One job waits; the only node was read 5 s ago."""
    waiting = make_job("next", sharing=SharingMode.EXCLUSIVE)
    objects = Objects(
        jobs=[job_manifest(waiting)],
        nodes=[node_manifest()],
        gpu_nodes=[gpu_node_manifest(observed_at=observed_at)],
    )
    return MemoryCluster(
        namespace="team", objects_held=objects, now=NOW, configurations=configurations
    )


@pytest.mark.parametrize(
    ("configurations", "whose"),
    [
        (None, "all defaults: you may not read the operator's configuration"),
        ({}, "all defaults: no operator's configuration was found"),
        ({"system/gpujob": "telemetryStaleSeconds: 60"}, "configuration of system/gpujob"),
    ],
)
def test_the_cluster_is_listed_once_and_its_time_counts(
    configurations: Mapping[str, str] | None, whose: str
) -> None:
    cluster = idle_cluster(configurations)
    result = invoke("next", cluster=cluster)
    assert f"Simulated from the cluster ({whose}) of 2026-01-01 00:00:10 UTC" in result.stdout
    assert "at once on n0" in result.stdout
    assert cluster.asked == [*EVERYTHING, "/api/v1/namespaces/team/persistentvolumeclaims"]


def test_the_operators_configuration_counts_unless_there_is_another(tmp_path: Path) -> None:
    """The status of a GPUNode is for people, and written every five minutes: it counts so long."""
    configurations = {"system/gpujob": "telemetryStaleSeconds: 1"}
    cluster = idle_cluster(configurations, observed_at="2025-12-31T23:54:40Z")
    assert "readings are 330 s old (limit 301 s)" in invoke("next", cluster=cluster).stdout
    own = tmp_path / "own.yaml"
    own.write_text("telemetryStaleSeconds: 60")
    result = invoke("next", "--configuration", str(own), cluster=cluster)
    assert "Simulated from the cluster of 2026-01-01 00:00:10 UTC" in result.stdout
    assert "at once on n0" in result.stdout


@pytest.mark.parametrize(
    ("configurations", "problem"),
    [
        (
            {"a/gpujob": "", "b/gpujob": ""},
            "there are 2 operators (a/gpujob, b/gpujob): choose",
        ),
        ({"a/gpujob": "rows: 1"}, "configmap a/gpujob: configuration.rows: is an unknown field"),
        ({"a/gpujob": "{"}, "configmap a/gpujob: "),
    ],
)
def test_an_operators_configuration_that_cannot_be_taken_is_named(
    configurations: Mapping[str, str], problem: str
) -> None:
    result = invoke("next", cluster=idle_cluster(configurations))
    assert result.exit_code == 1
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(problem)


def test_nobody_waits_is_an_answer(tmp_path: Path) -> None:
    result = invoke("--from", str(dump(tmp_path, make_snapshot())))
    assert "no pending jobs" in result.stdout


# -- questions that cannot be asked


def failing(tmp_path: Path, *arguments: str, snapshot: Snapshot | None = None) -> str:
    source = dump(tmp_path, snapshot or one_busy_gpu())
    result = invoke(*arguments, "--from", str(source), "-n", "team")
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--without-node", "n9"], "--without-node: no node n9 with an agent"),
        (["--add-nodes", "n9=1"], "--add-nodes: no node n9 with an agent"),
        (["--add-nodes", "n0"], "--add-nodes: must be NODE=COUNT"),
        (["--add-nodes", "n0=0"], "--add-nodes: must be 1 to 1000; got 0"),
        (["--quota", "vision"], "--quota: must be QUEUE.FIELD=VALUE"),
        (["--quota", "vision.rows=1"], "--quota: must be QUEUE.FIELD=VALUE"),
        (["--quota", "vision.gpus=-1"], "--quota vision.gpus: "),
        (["--quota", "vision.weight=0"], "--quota vision.weight: "),
        (["--horizon", "soon"], "--horizon: must be such as 90s"),
        (["nobody"], "not found: gpujob nobody in namespace team"),
        (["-f", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--configuration", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, arguments: list[str], problem: str) -> None:
    assert failing(tmp_path, *arguments).startswith(problem)


def test_a_broken_dump_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "cycle.json"
    path.write_text('{"format": "gpujob-cycle/1", "now": "noon"}')
    result = invoke("--from", str(path))
    assert str(result.exception) == f"{path}: now: must be an RFC 3339 time"


def test_a_job_that_is_there_already_is_told(tmp_path: Path) -> None:
    path = job_file(tmp_path, manifest("busy"))
    assert "job team/busy already exists" in failing(tmp_path, "-f", str(path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "job.yaml: is empty"),
        ("{", "job.yaml: is not YAML"),
        ("- 1", "job.yaml: document: must be an object"),
        ("kind: Pod", "job.yaml: kind: must be GPUJob or GPUQueue; got 'Pod'"),
        (
            yaml.safe_dump_all([manifest("a"), manifest("b", workers=0)]),
            "job.yaml, document 2: spec.workers",
        ),
        (yaml.safe_dump(manifest("a") | {"spec": {"workers": 1}}), "job.yaml: spec.template"),
    ],
)
def test_a_wrong_file_names_document_and_field(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        nouns_of(text, "job.yaml", "team")
    assert str(caught.value).startswith(problem)


def test_a_file_holds_jobs_and_queues(tmp_path: Path) -> None:
    there = make_job("elsewhere")
    path = job_file(
        tmp_path, manifest("here"), to_manifest(there), to_manifest(make_queue("vision", gpus=1))
    )
    found = changes_of(
        read_files([path]),
        namespace="mine",
        queues=[make_queue("vision", gpus=9, weight=2)],
        add_nodes=["n0=2"],
        without_nodes=["n1"],
        quotas=["vision.gpuMemory=8Gi", "vision.borrowingLimit.gpus=3", "text.weight=5"],
    )
    names = [(job.metadata.namespace, job.metadata.name) for job in found.jobs]
    assert names == [("mine", "here"), ("team", "elsewhere")]
    queues = {queue.metadata.name: queue.spec for queue in found.queues}
    # The file replaces the queue, the options change what it says.
    assert (queues["vision"].nominal.gpus, queues["vision"].weight) == (1, 1)
    assert queues["vision"].nominal.gpu_memory is not None
    assert queues["vision"].nominal.gpu_memory.bytes == 8 * GIB
    assert queues["vision"].borrowing_limit.gpus == 3
    assert queues["text"].weight == 5
    assert found.more_nodes == (more_nodes("n0=2"),)
    assert found.without_nodes == ("n1",)


def test_one_field_of_a_queue_leaves_the_others() -> None:
    before = {"vision": make_queue("vision", gpus=9, borrow=2, parent="all", weight=3)}
    after_it = with_quota("vision.gpus=4", before).spec
    assert (after_it.nominal.gpus, after_it.borrowing_limit.gpus) == (4, 2)
    assert (after_it.parent, after_it.weight) == ("all", 3)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2h", 7200), ("7d", 604_800)])
def test_horizons(text: str, seconds: float) -> None:
    assert seconds_of(text, "--horizon") == seconds


@pytest.mark.parametrize("text", ["", "0s", "31d", "1.5h", "h", "-1h"])
def test_other_horizons_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--horizon"):
        seconds_of(text, "--horizon")


def test_help_says_what_is_simulated() -> None:
    text = " ".join(invoke("--help").stdout.split())
    wanted: Sequence[str] = ("--add-nodes", "--without-node", "--quota", "--from", "Read-only")
    assert [one for one in wanted if one not in text] == []


# -- what the API server would not take


CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "first"}}


def simulated(tmp_path: Path, *documents: dict[str, Any]) -> Ran:
    source = dump(tmp_path, one_busy_gpu())
    return invoke("-f", str(job_file(tmp_path, *documents)), "--from", str(source), "-n", "team")


def test_the_files_of_the_examples_can_be_asked_about(tmp_path: Path) -> None:
    source = dump(tmp_path, make_snapshot())
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text()))
        if any(one.get("kind") == "GPUJob" for one in documents if one):
            result = invoke("-f", str(path), "--from", str(source), "-n", "team")
            assert result.exit_code == 0, f"{path}: {result.exception}"


def test_objects_of_other_groups_are_passed_over_and_ours_are_not(tmp_path: Path) -> None:
    assert "team/new" in simulated(tmp_path, CLAIM, manifest("new")).stdout
    alone = simulated(tmp_path, CLAIM)
    assert "has neither a GPUJob nor a GPUQueue" in str(alone.exception)
    for odd in ({"kind": "GPUJobs"}, {"apiVersion": "gpujob.dev/v1", "kind": "GpuJob"}, {"a": 1}):
        assert "kind: must be GPUJob or GPUQueue" in str(simulated(tmp_path, odd).exception)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"gpuMemory": "1Gi"}, 'strict decoding error: unknown field "spec.gpuMemory"'),
        ({"gpu": {"memmory": "1Gi"}}, 'strict decoding error: unknown field "spec.gpu.memmory"'),
        ({"gpu": {"memory": "20"}}, "spec.gpu.memory: "),
        (
            {"template": {"sped": {}, "spec": {"containers": [{"name": "a", "image": "i"}]}}},
            'unknown field "spec.template.sped"',
        ),
        (
            {"template": {"spec": {"containers": [{"name": "worker"}]}}},
            "spec.template.spec.containers[0].image: Required value",
        ),
    ],
)
def test_what_would_not_be_taken_is_not_simulated(
    tmp_path: Path, spec: dict[str, Any], words: str
) -> None:
    result = simulated(tmp_path, manifest("new", **spec))
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)
    assert not result.stdout


def test_a_cluster_is_asked_and_its_words_are_shown(tmp_path: Path) -> None:
    path = job_file(tmp_path, CLAIM, manifest("new"))
    said = 'strict decoding error: unknown field "spec.template.spec.hostPID"'
    cluster = MemoryCluster(namespace="team", refuses=said)
    result = invoke("-f", str(path), cluster=cluster)
    assert (
        str(result.exception) == f"{path}, document 2: {said}; hostPID is not available in a GPUJob"
    )
    assert "dry run of new in team" in cluster.asked


CHECKPOINT: dict[str, Any] = {"checkpoint": {"volumeClaimName": "mine"}}
MISSING = (
    'warning: persistentvolumeclaim "mine" does not exist in the namespace team: create it, or '
    "create the job again with another one (kubectl get pvc -n team lists the existing ones)"
)


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_claim_that_does_not_exist_is_named(tmp_path: Path, output: str) -> None:
    cluster = MemoryCluster(namespace="team", claim_names=["other"])
    path = job_file(tmp_path, manifest("new", **CHECKPOINT), manifest("same", **CHECKPOINT))
    result = invoke("-f", str(path), "-o", output, cluster=cluster)
    assert result.exit_code == 0, result.exception
    assert result.stderr.splitlines() == [MISSING]


@pytest.mark.parametrize("claims", [["mine"], None])
def test_a_claim_that_exists_or_may_not_be_read_is_no_warning(
    tmp_path: Path, claims: list[str] | None
) -> None:
    cluster = MemoryCluster(namespace="team", claim_names=claims)
    path = job_file(tmp_path, manifest("new", **CHECKPOINT))
    assert invoke("-f", str(path), cluster=cluster).stderr == ""


@pytest.mark.parametrize(
    ("metadata", "warned"),
    [
        ({"name": "mine"}, False),
        ({"name": "mine", "namespace": "team"}, False),
        ({"name": "mine", "namespace": "other"}, True),
        ({"name": "yours"}, True),
        ("nonsense", True),
        (None, True),
    ],
)
def test_a_claim_in_the_file_will_exist(tmp_path: Path, metadata: object, warned: bool) -> None:
    cluster = MemoryCluster(namespace="team", claim_names=[])
    claim = {**CLAIM, "metadata": metadata}
    path = job_file(tmp_path, claim, manifest("new", **CHECKPOINT))
    result = invoke("-f", str(path), cluster=cluster)
    assert result.exit_code == 0, result.exception
    assert result.stderr.splitlines() == [MISSING] * warned


def test_claims_of_a_dump_are_unknown(tmp_path: Path) -> None:
    result = simulated(tmp_path, manifest("new", **CHECKPOINT))
    assert result.exit_code == 0
    assert result.stderr == ""


def test_claims_of_a_running_job_are_mounted() -> None:
    cluster = idle_cluster({})
    runs = busy()
    pods = [pod_manifest(runs)]
    held = replace(cluster.objects_held, jobs=[job_manifest(runs)], pods=pods)
    cluster.objects_held, cluster.claim_names = held, []
    result = invoke("busy", cluster=cluster)
    assert "already on n0" in result.stdout
    assert result.stderr == ""


def test_who_may_not_ask_it_is_told_so_and_gets_an_answer(tmp_path: Path) -> None:
    words = "you may not create gpujobs in namespace team"
    cluster = MemoryCluster(namespace="team", not_checked=words)
    path = job_file(tmp_path, manifest("new"))
    result = invoke("-f", str(path), cluster=cluster)
    assert result.exit_code == 0, result.exception
    assert f"note: {path}: not checked by the API server: {words}" in result.stderr
    wrong = job_file(tmp_path, manifest("new", gpuMemory="1Gi"))
    assert "spec.gpuMemory" in str(invoke("-f", str(wrong), cluster=cluster).exception)


def test_quota_of_a_queue_that_is_not_there_is_refused_unless_a_job_names_it(
    tmp_path: Path,
) -> None:
    source = dump(tmp_path, replace(one_busy_gpu(), queues=(make_queue("vision", gpus=4),)))
    path = job_file(tmp_path, manifest("new", queue="text"))
    asked = ("-f", str(path), "--from", str(source), "-n", "team", "--quota")
    words = "GPUQueue 'visoin' does not exist, and no job names it; existing queues: default, "
    assert words in str(invoke(*asked, "visoin.gpus=3").exception)
    for known in ("vision.gpus=3", "default.gpus=3", "text.gpus=3"):
        assert invoke(*asked, known).exit_code == 0
