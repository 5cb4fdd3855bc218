"""A small stage on a real API server: a node whose kubelet and agent are played by the test."""

import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpujob_api.codec import format_time
from gpujob_api.quantities import GIB
from gpujob_api.report import Report
from gpujob_api.settings import TOKEN_AUDIENCE
from gpujob_local.control_plane.api_client import ApiError
from tests.harness.cluster import RunningControlPlane
from tests.harness.operator_process import SYSTEM_NAMESPACE, Process, start_operator

OURS = "/apis/gpujob.dev/v1alpha1"
POLL_SECONDS = 0.02
AGENT_SECONDS = 2.0
Json = dict[str, Any]


class Stage:
    def __init__(self, plane: RunningControlPlane, kubeconfig: Path, folder: Path) -> None:
        self.plane = plane
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.client = plane.client()
        name = secrets.token_hex(3)
        self.node = f"node-{name}"
        self.namespace = f"stage-{name}"
        self.processes: list[Process] = []
        # GPUs of the node; the processes are on the first one.
        self.gpus = 1
        self._processes_on_gpu: list[Json] = []
        self._measured_at = 0.0

    def set_up(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.client.create("/api/v1/namespaces", body)
        self._create_node()
        self.client.create(f"{OURS}/gpunodes", self._gpu_node())
        self.measure()

    def end_processes(self) -> None:
        for process in self.processes:
            process.kill()

    def tear_down(self) -> None:
        self.end_processes()
        for path in (f"{OURS}/gpunodes/{self.node}", f"/api/v1/nodes/{self.node}"):
            self.client.delete(path)
        for job in self.client.get(self.jobs_path)["items"]:
            self.client.delete(f"{self.jobs_path}/{job['metadata']['name']}")
        self.client.delete(f"/api/v1/namespaces/{self.namespace}")
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/gpujob-operator"
        try:
            self.client.delete(lease)
        except ApiError:
            return

    @property
    def jobs_path(self) -> str:
        return f"{OURS}/namespaces/{self.namespace}/gpujobs"

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def operator(self, *options: str) -> Process:
        process = start_operator(self.kubeconfig, self.folder, *options)
        self.processes.append(process)
        return process

    def operator_in_a_pod(self, name: str, address: str, service: str = "reports") -> Process:
        """The pod is an object only; the process runs here."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "operator", "image": "any"}]},
        }
        created = self.client.create(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods", pod)
        uid = created["metadata"]["uid"]
        own = (f"--identity={name}", f"--pod-uid={uid}", f"--pod-address={address}")
        return self.operator(f"--report-service={service}", *own)

    def apply_job(self, name: str = "job", **spec: Any) -> None:
        worker = {"name": "worker", "image": "image:1", "command": ["train"]}
        body: Json = {
            "apiVersion": "gpujob.dev/v1alpha1",
            "kind": "GPUJob",
            "metadata": {"name": name},
            "spec": {"template": {"spec": {"containers": [worker]}}} | spec,
        }
        self.client.create(self.jobs_path, body)

    def job(self, name: str = "job") -> Json:
        return self.client.get(f"{self.jobs_path}/{name}")

    def phase(self, name: str = "job") -> str:
        return self.job(name).get("status", {}).get("phase", "")

    def pods(self) -> list[Json]:
        return self.client.get(self.pods_path)["items"]

    def pod_names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() - self._measured_at > AGENT_SECONDS:
                self.measure(self._processes_on_gpu)
            if time.monotonic() > deadline:
                jobs = self.client.get(self.jobs_path)["items"]
                what = f"{what}: {[job.get('status', {}).get('summary') for job in jobs]}"
                logs = "\n".join(one.log_path.read_text()[-3000:] for one in self.processes)
                raise AssertionError(f"{what}: not within {seconds} s\n{logs}")
            time.sleep(POLL_SECONDS)

    def wait_phase(self, phase: str, name: str = "job", seconds: float = 60.0) -> None:
        self.wait(lambda: self.phase(name) == phase, f"{name} is {phase}", seconds)

    def play_kubelet(self, pod: str, phase: str, state: Json) -> None:
        """What a kubelet would say about the worker's container."""
        status: Json = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": "worker",
                    "image": "image:1",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        self.client.merge(f"{self.pods_path}/{pod}/status", {"status": status})

    def run_pod(self, pod: str) -> None:
        self.play_kubelet(pod, "Running", {"running": {"startedAt": now_text()}})

    def end_pod(self, pod: str, exit_code: int = 0, message: str = "") -> None:
        ended = {
            "exitCode": exit_code,
            "reason": "Completed" if exit_code == 0 else "Error",
            "message": message,
            "startedAt": now_text(),
            "finishedAt": now_text(),
        }
        phase = "Succeeded" if exit_code == 0 else "Failed"
        self.play_kubelet(pod, phase, {"terminated": ended})

    def measure(self, processes: list[Json] | None = None) -> None:
        """What an agent would publish now; `wait` goes on publishing it."""
        self._processes_on_gpu = processes or []
        self._measured_at = time.monotonic()
        # An agent's time has fractions: two readings within a second are two.
        status = {
            "observedAt": format_time(datetime.now(UTC)),
            "sampleIntervalSeconds": 2,
            "gpus": [self._gpu(0, self._processes_on_gpu)]
            + [self._gpu(index, []) for index in range(1, self.gpus)],
        }
        self.client.merge(f"{OURS}/gpunodes/{self.node}/status", {"status": status})

    def _gpu(self, index: int, processes: list[Json]) -> Json:
        return {
            "uuid": f"GPU-{self.node}-{index}",
            "index": index,
            "model": "Test GPU",
            "memoryTotalBytes": 8 * GIB,
            "memoryUsedBytes": sum(process["memoryBytes"] for process in processes),
            "processes": processes,
        }

    def token(self, pod: Json, audience: str = TOKEN_AUDIENCE) -> str:
        """What the kubelet would give to the pod's worker."""
        metadata = {name: pod["metadata"][name] for name in ("name", "uid")}
        reference = {"apiVersion": "v1", "kind": "Pod"} | metadata
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token"
        spec = {"audiences": [audience], "boundObjectRef": reference}
        return self.client.create(path, {"spec": spec})["status"]["token"]

    def lease(self) -> Json:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/gpujob-operator"
        return self.client.get(path)

    def lease_holder(self) -> str:
        return self.lease()["spec"].get("holderIdentity") or ""

    def _create_node(self) -> None:
        labels = {"gpujob.dev/managed": "true"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.node, "labels": labels},
        }
        self.client.create("/api/v1/nodes", body)
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Played",
            "message": "",
            "lastHeartbeatTime": now_text(),
            "lastTransitionTime": now_text(),
        }
        room = {"cpu": "8", "memory": "32Gi", "pods": "100"}
        status = {"allocatable": room, "capacity": room, "conditions": [ready]}
        self.client.merge(f"/api/v1/nodes/{self.node}/status", {"status": status})

    def _gpu_node(self) -> Json:
        return {
            "apiVersion": "gpujob.dev/v1alpha1",
            "kind": "GPUNode",
            "metadata": {"name": self.node},
            "spec": {},
        }


def post_report(url: str, token: str, report: Report) -> tuple[int, Json]:
    """As a worker does."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=report.to_text().encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def now_text() -> str:
    return format_time(datetime.now(UTC).replace(microsecond=0))
