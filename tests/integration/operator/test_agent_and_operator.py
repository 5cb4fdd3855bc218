"""An agent process sends its readings to an operator process, which has no others of its GPUs."""

import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.settings import TOKEN_AUDIENCE
from tests.harness.operator_process import Process, account_kubeconfig, start_agent
from tests.harness.stage import OURS, Stage
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.promise("I14")

ACCOUNT = "gpu-agents"
STALE_SECONDS = 5


@dataclass(slots=True)
class _Node:
    """The stage's node, with one CPU card that only its agent knows."""

    stage: Stage
    metrics_url: str
    agent: Process

    def metric(self, series: str) -> float:
        with urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(series)), 0.0)

    @property
    def status(self) -> dict[str, Any]:
        return self.stage.client.get(f"{OURS}/gpunodes/{self.stage.node}")["status"]

    @property
    def card(self) -> str:
        (gpu,) = self.status["gpus"]
        return gpu["uuid"]

    def gpus_of(self, job: str) -> list[str]:
        placement = self.stage.job(job).get("status", {}).get("placement") or {}
        return [gpu for worker in placement.get("workers", ()) for gpu in worker["gpus"]]

    def reason(self, job: str) -> str:
        conditions = self.stage.job(job).get("status", {}).get("conditions", ())
        return next((one["message"] for one in conditions if one["type"] == "Scheduled"), "")


def _token(stage: Stage, folder: Path) -> Path:
    """What the kubelet would mount into the agent's pod."""
    path = f"/api/v1/namespaces/{stage.namespace}"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    stage.client.create(f"{path}/serviceaccounts", account)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "nodeName": stage.node,
            "containers": [{"name": "agent", "image": "any"}],
        },
    }
    uid = stage.client.create(f"{path}/pods", pod)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": uid}
    spec = {"audiences": [TOKEN_AUDIENCE], "boundObjectRef": reference}
    answer = stage.client.create(f"{path}/serviceaccounts/{ACCOUNT}/token", {"spec": spec})
    token = folder / "token"
    token.write_text(answer["status"]["token"])
    return token


@pytest.fixture
def node(stage: Stage, tmp_path: Path) -> _Node:
    configuration = tmp_path / "configuration.yaml"
    configuration.write_text(f"telemetryStaleSeconds: {STALE_SECONDS}\n")
    operator = stage.operator(
        f"--configuration={configuration}", f"--agent-account={stage.namespace}:{ACCOUNT}"
    )
    started = operator.wait_for("started")
    address = started["reports"].removeprefix("http://").partition("/")[0]
    agent = start_agent(
        account_kubeconfig(stage.plane, "agent", tmp_path),
        tmp_path,
        f"--node={stage.node}",
        "--devices=cpu",
        "--interval-seconds=0.5",
        f"--readings-url=ws://{address}/readings",
        f"--token-file={_token(stage, tmp_path)}",
    )
    stage.processes.append(agent)
    node = _Node(stage, started["metrics"], agent)
    wait_until(lambda: node.metric("gpujob_agent_connections") == 1, what="the agent is connected")
    # The stage's own GPU is taken back by the first status that the agent writes.
    wait_until(lambda: node.card != f"GPU-{stage.node}-0", what="the agent wrote a status")
    return node


def test_a_job_is_placed_by_what_the_agent_sent(node: _Node) -> None:
    """Its status is for people, and stays as it is (I14: the readings go on)."""
    taken = 'gpujob_readings_total{result="accepted"}'
    written_at, count = node.status["observedAt"], node.metric(taken)
    node.stage.apply_job()
    wait_until(lambda: node.gpus_of("job") == [node.card], what="the job has the GPU")
    wait_until(lambda: node.metric(taken) >= count + 3, what="heartbeats")
    assert node.status["observedAt"] == written_at
    assert node.metric("gpujob_stale_nodes") == 0


def test_nothing_is_placed_on_a_node_whose_agent_fell_silent(node: _Node) -> None:
    """I14: it is frozen, and its connection stays open."""
    node.agent.send(signal.SIGSTOP)
    try:
        wait_until(lambda: node.metric("gpujob_stale_nodes") == 1, what="the node is stale")
        node.stage.apply_job()
        wait_until(lambda: "GPU" in node.reason("job"), what="the job waits with a reason")
        assert node.gpus_of("job") == []
    finally:
        node.agent.send(signal.SIGCONT)
    wait_until(lambda: node.gpus_of("job") != [], what="the job is placed")
