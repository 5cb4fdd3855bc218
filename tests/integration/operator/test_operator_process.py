"""The operator as a process against a real API server, with exactly the rights that we ship."""

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.quantities import GIB
from gpujob_api.report import Report, WorkerPhase
from tests.harness.operator_process import (
    SYSTEM_NAMESPACE,
    Process,
    account_kubeconfig,
    start_agent,
)
from tests.harness.stage import OURS, Stage, post_report

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def _complaints(process: Process) -> list[str]:
    """What the API server refused, and what broke."""
    text = process.log_path.read_text()
    return re.findall(r".*(?:orbidden|Traceback|cycle failed|write failed unexpectedly).*", text)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.promise("I5", "I12")
def test_a_job_lives_its_life_and_the_operator_leaves_in_order(stage: Stage) -> None:
    """I12 (the rules suffice), I5, and a graceful stop that gives the Lease back."""
    operator = stage.operator()
    metrics = operator.wait_for("started")["metrics"]
    stage.apply_job()
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "the pod exists")
    stage.wait_phase("Starting")
    pod = stage.pods()[0]
    stage.run_pod("job-1-0")
    stage.wait_phase("Running")
    process = {"pid": 7, "memoryBytes": 2 * GIB, "podUid": pod["metadata"]["uid"]}
    stage.measure([process])
    stage.wait(lambda: "measurement" in stage.job()["status"], "the job is measured")
    stage.end_pod("job-1-0", 0, Report(1, WorkerPhase.FINISHED, step=12).to_text())
    stage.wait_phase("Succeeded")
    assert stage.job()["status"]["measurement"]["step"] == 12
    assert _get(f"{metrics}/healthz")[0] == 200
    assert _get(f"{metrics}/readyz")[0] == 200
    assert "gpujob_leader 1.0" in _get(f"{metrics}/metrics")[1]
    reasons = {event["reason"] for event in _events(stage)}
    assert {"Placed", "Succeeded"} <= reasons
    assert operator.stop() == 0
    assert stage.lease_holder() == ""
    assert stage.pod_names() == ["job-1-0"]
    assert _complaints(operator) == []


def _events(stage: Stage) -> list[dict[str, Any]]:
    return stage.client.get(f"/api/v1/namespaces/{stage.namespace}/events")["items"]


def test_an_operator_that_is_stopped_stores_what_pods_record(stage: Stage) -> None:
    """I3: its successor sees each attempt in a status, whatever becomes of the pod meanwhile."""
    operator = stage.operator()
    operator.wait_for("listed everything and decides from now on", in_doubt=False)
    stage.apply_job()
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "the pod exists")
    assert operator.stop() == 0
    status = stage.job()["status"]
    assert (status["phase"], status["attempt"]) == ("Starting", 1)
    assert stage.lease_holder() == ""
    assert _complaints(operator) == []


def test_kopf_leaves_no_trace_on_objects(stage: Stage) -> None:
    operator = stage.operator()
    operator.wait_for("leadership changed", leads=True)
    stage.apply_job()
    stage.wait_phase("Starting")
    metadata = stage.job()["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    managers = {entry["manager"] for entry in metadata["managedFields"]}
    assert not any("kopf" in manager for manager in managers), managers


@pytest.mark.promise("I7")
def test_deleting_a_job_is_not_held_up_and_its_pod_goes(stage: Stage) -> None:
    """I7, also while no operator runs: nothing of ours blocks a deletion."""
    operator = stage.operator()
    stage.apply_job()
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "the pod exists")
    operator.kill()
    stage.client.delete(f"{stage.jobs_path}/job")
    stage.wait(lambda: stage.client.get(stage.jobs_path)["items"] == [], "the job is gone")
    second = stage.operator()
    second.wait_for("leadership changed", leads=True)
    stage.wait(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in stage.pods()),
        "its pod is being stopped",
    )


@pytest.mark.promise("I3")
def test_only_one_of_two_acts_and_the_other_takes_over(stage: Stage) -> None:
    """I3 through a hard end of the leader."""
    first = stage.operator("--identity=first")
    first.wait_for("leadership changed", leads=True)
    second = stage.operator("--identity=second")
    second.wait_for("started")
    stage.apply_job("before")
    stage.wait(lambda: stage.pod_names() == ["before-1-0"], "the first one acts")
    assert stage.lease_holder() == "first"
    assert not any(line["message"] == "cycle" for line in second.lines())
    first.kill()
    stage.apply_job("after", gpu={"memory": "1Gi"})
    second.wait_for("leadership changed", leads=True)
    stage.wait(lambda: "status" in stage.job("after"), "the second one acts")
    assert stage.lease_holder() == "second"
    assert "before-1-0" in stage.pod_names()
    assert stage.job("before")["status"]["attempt"] == 1


def _reports_go_to(stage: Stage) -> list[str]:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/endpointslices"
    return [
        address
        for item in stage.client.get(path)["items"]
        for endpoint in item["endpoints"]
        for address in endpoint["addresses"]
    ]


def test_reports_go_to_the_pod_that_leads(stage: Stage) -> None:
    first = stage.operator_in_a_pod("first", "10.0.0.1")
    stage.wait(lambda: _reports_go_to(stage) == ["10.0.0.1"], "the first one leads")
    second = stage.operator_in_a_pod("second", "10.0.0.2")
    second.wait_for("started")
    assert _reports_go_to(stage) == ["10.0.0.1"]
    first.kill()
    stage.wait(lambda: _reports_go_to(stage) == ["10.0.0.2"], "the second one leads")
    assert _complaints(second) == []


def _interruptions(stage: Stage) -> list[int]:
    """Of all pools of spot nodes, as the leader left them for the next one."""
    annotations = stage.lease()["metadata"].get("annotations", {})
    known = json.loads(annotations.get("gpujob.dev/spot-pools", "{}"))
    return [interruptions for _, interruptions in known.values()]


def test_what_was_seen_of_spot_nodes_outlives_the_operator(stage: Stage) -> None:
    labels = {"gpujob.dev/managed": "true", "gpujob.dev/spot": "true"}
    name = f"{stage.node}-spot"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    first = stage.operator("--identity=first")
    first.wait_for("leadership changed", leads=True)
    stage.client.create("/api/v1/nodes", node)
    stage.wait(lambda: _interruptions(stage) == [0], "the pool is watched")
    stage.client.delete(f"/api/v1/nodes/{name}")
    stage.wait(lambda: _interruptions(stage) == [1], "the node was taken away")
    first.kill()
    stage.operator("--identity=second")
    stage.wait(lambda: stage.lease_holder() == "second", "another one leads")
    stage.wait(lambda: _interruptions(stage) == [1], "and knows what happened before it")


@pytest.mark.promise("I3")
def test_a_frozen_leader_does_not_write_after_it_wakes(stage: Stage) -> None:
    """Split brain: the Lease is taken from a stopped process, which then goes on."""
    first = stage.operator("--identity=first")
    first.wait_for("leadership changed", leads=True)
    first.send(signal.SIGSTOP)
    second = stage.operator("--identity=second")
    second.wait_for("leadership changed", leads=True)
    stage.apply_job()
    # Attempt 2 where the job came before the second one had listed everything: attempt 1 may have
    # been the sleeper's.
    stage.wait(lambda: len(stage.pod_names()) == 1, "the second one acts")
    first.send(signal.SIGCONT)
    first.wait_for("leadership changed", leads=False)
    assert not any(line["message"] == "cycle" for line in first.lines())
    assert stage.lease_holder() == "second"
    assert first.stop() == 0


@pytest.mark.promise("I12")
def test_a_worker_reports_with_its_own_token_and_nobody_elses(stage: Stage) -> None:
    operator = stage.operator()
    url = operator.wait_for("started")["reports"]
    stage.apply_job()
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "the pod exists")
    stage.run_pod("job-1-0")
    stage.wait_phase("Running")
    pod = stage.pods()[0]
    report = Report(1, WorkerPhase.TRAINING, sequence=1, step=3)
    token = stage.token(pod)
    assert post_report(url, token, report) == (200, {"intervalSeconds": 2.0, "yieldPercent": 0})
    assert post_report(url, stage.token(pod, "https://kubernetes.default.svc"), report)[0] == 401
    assert post_report(url, stage.kubeconfig.name, report)[0] == 401
    assert post_report(url, token, Report(2, WorkerPhase.TRAINING))[0] == 403
    assert post_report(url, token, Report(1, WorkerPhase.TRAINING, rank=1))[0] == 403
    finished = Report(1, WorkerPhase.CHECKPOINTING, sequence=2, step=9)
    assert post_report(url, token, finished)[0] == 200
    stage.client.merge(f"{stage.jobs_path}/job", {"spec": {"suspend": True}})
    stage.wait_phase("Stopping")
    stage.wait(lambda: "stop" in post_report(url, token, finished)[1], "the reply says stop")


@pytest.mark.promise("I10")
def test_bad_input_harms_nobody(stage: Stage) -> None:
    """I10, I15: pods that say they are workers, of this and of another namespace, one of them with
    the very name of the worker; they close no GPU, end no attempt and are not deleted."""
    operator = stage.operator()
    metrics = operator.wait_for("started")["metrics"]
    other = f"{stage.namespace}-other"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}
    stage.client.create("/api/v1/namespaces", namespace)
    elsewhere = f"/api/v1/namespaces/{other}/pods"
    stage.client.create(elsewhere, _impostor("job-1-0", stage, "x"))
    stage.apply_job()
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "the GPU is not closed")
    uid = stage.job()["metadata"]["uid"]
    labels = {"metadata": {"labels": {"gpujob.dev/job-uid": uid}}}
    stage.client.merge(f"{elsewhere}/job-1-0", labels)
    stage.client.merge(f"{elsewhere}/job-1-0/status", {"status": _ended("Failed", 1)})
    stage.client.create(stage.pods_path, _impostor("x-1-0", stage, uid))
    stage.client.merge(f"{stage.pods_path}/x-1-0/status", {"status": _ended("Succeeded", 0)})
    stage.run_pod("job-1-0")
    stage.wait_phase("Running")
    stage.end_pod("job-1-0")
    stage.wait_phase("Succeeded")
    status = stage.job()["status"]
    assert (status["attempt"], any(status.get("counters", {}).values())) == (1, False)
    workers = status["placement"]["workers"]
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stage.pods()}
    assert [worker["podUid"] for worker in workers] == [pods["job-1-0"]]
    assert set(pods) == {"job-1-0", "x-1-0"}
    (foreign,) = stage.client.get(elsewhere)["items"]
    assert "deletionTimestamp" not in foreign["metadata"]
    assert operator.alive
    assert _get(f"{metrics}/healthz")[0] == 200
    stage.client.delete(f"/api/v1/namespaces/{other}")


def _impostor(name: str, stage: Stage, job_uid: str) -> dict[str, Any]:
    gpus = stage.client.get(f"{OURS}/gpunodes/{stage.node}")["status"]["gpus"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "gpujob.dev/job-uid": job_uid,
                "gpujob.dev/attempt": "1",
                "gpujob.dev/rank": "0",
            },
            "annotations": {"gpujob.dev/gpus": ",".join(gpu["uuid"] for gpu in gpus)},
        },
        "spec": {"nodeName": stage.node, "containers": [{"name": "worker", "image": "image:1"}]},
    }


def _ended(phase: str, exit_code: int) -> dict[str, Any]:
    ended = {"exitCode": exit_code, "reason": "Error"}
    container = {
        "name": "worker",
        "image": "image:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    return {"phase": phase, "containerStatuses": [container]}


def test_dump_on_a_signal_and_replay(stage: Stage) -> None:
    folder = stage.folder / "dumps"
    operator = stage.operator(f"--dump-directory={folder}")
    operator.wait_for("leadership changed", leads=True)
    stage.apply_job()
    stage.wait_phase("Starting")
    operator.send(signal.SIGUSR1)
    path = operator.wait_for("cycle dumped")["path"]
    replay = Process("replay", stage.folder, "gpujob_operator", "replay", str(path))
    assert replay.wait(60) == 0
    assert replay.lines()[0]["message"].startswith("same")
    data = json.loads(Path(path).read_text())
    data["snapshot"]["jobs"][0]["status"] = {}
    Path(path).write_text(json.dumps(data))
    changed = Process("replay", stage.folder, "gpujob_operator", "replay", str(path))
    assert changed.wait(60) == 1


@pytest.mark.promise("I12")
def test_the_agents_rules_suffice(stage: Stage) -> None:
    """Without NVML here the agent has nothing to read, and says so in its own node's status."""
    kubeconfig = account_kubeconfig(stage.plane, "agent", stage.folder)
    name = f"{stage.node}-x"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    uid = stage.client.create("/api/v1/nodes", node)["metadata"]["uid"]
    agent = start_agent(kubeconfig, stage.folder, f"--node={name}", "--interval-seconds=0.2")
    stage.processes.append(agent)
    agent.wait_for("NVML failed")
    stage.wait(lambda: _agent_reason(stage, name) == "NVMLFailed", "the condition says why")
    assert agent.stop() == 0
    assert _agent_reason(stage, name) == "AgentStopped"
    assert "orbidden" not in agent.log_path.read_text()
    (owner,) = stage.client.get(f"{OURS}/gpunodes/{name}")["metadata"]["ownerReferences"]
    assert owner["uid"] == uid
    stage.client.delete(f"/api/v1/nodes/{name}")
    stage.wait(lambda: name not in _gpu_node_names(stage), "it goes with its node")


def _gpu_node_names(stage: Stage) -> list[str]:
    return [one["metadata"]["name"] for one in stage.client.get(f"{OURS}/gpunodes")["items"]]


def _agent_reason(stage: Stage, name: str) -> str:
    nodes = stage.client.get(f"{OURS}/gpunodes")["items"]
    for node in nodes:
        if node["metadata"]["name"] == name and node.get("status"):
            return node["status"]["conditions"][0]["reason"]
    return ""
