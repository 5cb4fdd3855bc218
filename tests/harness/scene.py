"""A whole local cluster under fault: jobs of small workers, waits, processes, and a recorder."""

import copy
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions, NodeOptions
from gpujob_local.control_plane.api_client import ApiClient, ApiError
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.control_plane.manifests import REPOSITORY
from gpujob_local.kubelet.container_process import CONTAINER_MARKER
from gpujob_local.processes import watchdog
from tests.harness.history import IMPOSTOR, LEAVING
from tests.harness.recorder import Recorder

Json = dict[str, Any]
OURS = "/apis/gpujob.dev/v1alpha1"
JOBS = f"{OURS}/namespaces/default/gpujobs"
GPU_NODES = "/apis/gpujob.dev/v1alpha1/gpunodes"
PODS = "/api/v1/namespaces/default/pods"
CONTROL_PLANE = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
IMAGE = "chaos-worker:dev"
# Generous: other work may share the machine. Nothing waits for as long when all is well.
LIMIT_SECONDS = 90.0
POLL_SECONDS = 0.05
STALE_SECONDS = 4.0
# Short, so that whole lives fit into seconds.
CONFIGURATION: Mapping[str, Any] = {
    "memoryMarginBytes": 32 * 1024**2,
    "measurementSamplesMin": 2,
    "measurementSamplesWithoutReportsMin": 4,
    "telemetryStaleSeconds": STALE_SECONDS,
    "startTimeoutSeconds": 60.0,
    "nodeLostSeconds": 5.0,
    "terminationGraceSeconds": 3,
    "retryBackoffSeconds": 0.2,
    "reportIntervalSeconds": 0.2,
    "progressWriteSeconds": 1.0,
}


class Scene:
    """Jobs are those of one namespace; all else is the whole cluster's."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.namespace = "default"
        self.client: ApiClient = cluster.client()
        self.recorder = Recorder(cluster.control_plane, STALE_SECONDS)
        self._gates = Path(tempfile.mkdtemp(dir=cluster.directory))
        self._jobs: set[str] = set()

    # Jobs

    def submit(self, name: str, *faults: str, **spec: Any) -> Json:
        """A job whose worker runs until `finish`; `faults` are ATTEMPT=FAULT for worker.py."""
        command = ["python", "worker.py", "--gate", str(self.gate(name))]
        command += [word for fault in faults for word in ("--fault", fault)]
        return self.submit_command(name, command, **spec)

    def submit_command(self, name: str, command: list[str], **spec: Any) -> Json:
        pod = spec.pop("pod", {})
        beside = spec.pop("beside", [])
        worker = {"name": "worker", "image": spec.pop("image", IMAGE), "command": command}
        body: Json = {
            "apiVersion": "gpujob.dev/v1alpha1",
            "kind": "GPUJob",
            "metadata": {"name": name},
            "spec": {"template": {"spec": {"containers": [worker, *beside], **pod}}} | spec,
        }
        return self.create_job(body)

    def create_job(self, body: Json) -> Json:
        self._jobs.add(body["metadata"]["name"])
        return self.client.create(self._jobs_path, body)

    def create_namespace(self, name: str) -> "Scene":
        """Another tenant's, and the scene for its jobs."""
        self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return self.in_namespace(name)

    def pretend(self, victim: str, name: str, namespace: str, *, labels: bool = True) -> Json:
        """A pod that says of itself that it is a worker of the job, on every GPU there is."""
        job = self.job(victim) or {}
        gpus = [
            gpu["uuid"]
            for node in self.client.get(GPU_NODES)["items"]
            for gpu in (node.get("status") or {}).get("gpus") or ()
        ]
        worker_labels = {
            "gpujob.dev/job": victim, "gpujob.dev/job-uid": job["metadata"]["uid"],
            ATTEMPT: "1", RANK: "0",
        }  # fmt: skip
        body: Json = {
            "metadata": {
                "name": name,
                "labels": {IMPOSTOR: "yes", **(worker_labels if labels else {})},
                "annotations": {"gpujob.dev/gpus": ",".join(gpus)},
            },
            # Bound by its author: nobody checks that, and no process runs for it.
            "spec": {
                "nodeName": "nowhere",
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "worker", "image": "image:1"}],
            },
        }
        return self.client.create(f"/api/v1/namespaces/{namespace}/pods", body)

    def say(self, pod: Json, exit_code: int | None, message: str = "") -> None:
        """What a kubelet would say of an impostor's container; without a code that it runs."""
        state: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        phase = "Running"
        if exit_code is not None:
            phase = "Failed" if exit_code else "Succeeded"
            ended = {"exitCode": exit_code, "message": message, "reason": "Ended"}
            state = {"terminated": ended}
        status = {"name": "worker", "image": "", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [{**status, "state": state}]
        path = pod_path(pod)
        self.client.merge(
            f"{path}/status", {"status": {"phase": phase, "containerStatuses": statuses}}
        )

    def take_impostors(self) -> None:
        """Their author takes all of them away."""
        for pod in self.client.get("/api/v1/pods", labelSelector=IMPOSTOR)["items"]:
            path = pod_path(pod)
            self.client.merge(path, {"metadata": {"annotations": {LEAVING: "yes"}}})
            self.client.request("DELETE", path, {"gracePeriodSeconds": 0})

    def create_claim(self, name: str) -> None:
        resources = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteMany"], "resources": resources}
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.client.create(path, {"metadata": {"name": name}, "spec": spec})

    def in_namespace(self, namespace: str) -> "Scene":
        """The same scene for jobs of another namespace; `clear` leaves those alone."""
        other = copy.copy(self)
        other.namespace, other._jobs = namespace, set()
        return other

    @property
    def _jobs_path(self) -> str:
        return f"{OURS}/namespaces/{self.namespace}/gpujobs"

    @property
    def _pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def gate(self, name: str) -> Path:
        return self._gates / name

    def take_memory(self, name: str, amount_mebibytes: int) -> None:
        """Has the job's workers take that much more memory; once, in this and later attempts."""
        file = self.gate(name).with_suffix(".take")
        temporary = file.with_suffix(".new")
        temporary.write_text(str(amount_mebibytes))
        temporary.rename(file)

    def finish(self, *names: str) -> None:
        """Lets the jobs' workers end with 0."""
        for name in names:
            self.gate(name).touch()

    def finish_and_wait(self, *names: str) -> None:
        self.finish(*names)
        for name in names:
            self.wait_phase(name, "Succeeded")

    def job(self, name: str) -> Json | None:
        return self.get(f"{self._jobs_path}/{name}")

    def uid(self, name: str) -> str:
        return (self.job(name) or {})["metadata"]["uid"]

    def status(self, name: str) -> Json:
        return (self.job(name) or {}).get("status") or {}

    def phase(self, name: str) -> str:
        return self.status(name).get("phase", "")

    def condition(self, name: str, kind: str) -> Json:
        found = [c for c in self.status(name).get("conditions", ()) if c["type"] == kind]
        return found[0] if found else {"status": "", "reason": "", "message": ""}

    def counters(self, name: str) -> dict[str, int]:
        """Those that are not zero, but for `fruitless`: whether an attempt got as far as a new
        checkpoint depends on the time that a test takes.
        """
        counters = self.status(name).get("counters", {})
        return {key: n for key, n in counters.items() if n and key != "fruitless"}

    def place(self, name: str) -> tuple[str, str]:
        """Node and GPU of a job's only worker; empty while it has none."""
        placement = self.status(name).get("placement")
        if not placement:
            return "", ""
        worker = placement["workers"][0]
        return worker["node"], worker["gpus"][0]

    def step(self, name: str) -> int:
        return (self.status(name).get("measurement") or {}).get("step", 0)

    def pods(self, name: str) -> list[Json]:
        return self.client.get(self._pods_path, labelSelector=f"gpujob.dev/job={name}")["items"]

    def pod_names(self, name: str) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods(name))

    def delete(self, name: str) -> None:
        self.client.delete(f"{self._jobs_path}/{name}")

    def clear(self) -> None:
        """Takes away all jobs of a test, so that the next one finds the GPUs free."""
        for name in sorted(self._jobs):
            self.gate(name).unlink(missing_ok=True)
            self.gate(name).with_suffix(".take").unlink(missing_ok=True)
            if self.job(name) is not None:
                self.delete(name)
        self.wait(lambda: not self.client.get(self._pods_path)["items"], "all pods are gone")
        self._jobs.clear()

    # The API server

    @contextmanager
    def without_api_server(self) -> Generator[None]:
        """It is killed, and started again afterwards; scheduler and controllers with it, as they
        are on one machine, and because alone they take up to a minute to find it again.
        """
        plane = self.cluster.control_plane
        self.recorder.expect_an_outage()
        for name in CONTROL_PLANE:
            plane.stop_component(name)
        try:
            yield
        finally:
            plane.start_component(CONTROL_PLANE[0])
            plane.wait_until(plane.ready, "the API server again")
            self.recorder.outage_ends()
            for name in CONTROL_PLANE[1:]:
                plane.start_component(name)

    # Waits

    def wait(
        self, condition: Callable[[], bool], what: str, seconds: float = LIMIT_SECONDS
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{self.describe()}")
            time.sleep(POLL_SECONDS)

    def wait_phase(self, name: str, *phases: str) -> None:
        self.wait(lambda: self.phase(name) in phases, f"{name} is {' or '.join(phases)}")

    def wait_steps(self, name: str, above: int = 0) -> None:
        """Until the worker's steps reached the job's status."""
        self.wait_phase(name, "Running")
        self.wait(lambda: self.step(name) > above, f"{name} makes steps beyond {above}")

    def describe(self) -> str:
        """What a failed test needs to be understood."""
        jobs = [
            (job["metadata"]["name"], job.get("status", {}).get("phase"), conditions_of(job))
            for job in self.client.get(f"{OURS}/gpujobs")["items"]
        ]
        pods = [
            (pod["metadata"]["name"], pod.get("status", {}).get("phase"))
            for pod in self.client.get("/api/v1/pods")["items"]
        ]
        log = self.cluster.logs().get("operator")
        tail = log.read_text()[-4000:] if log is not None else ""
        return f"jobs {jobs}\npods {pods}\n{tail}"

    # Processes

    def worker_pids(self, pod: Json) -> list[int]:
        """The processes of a pod's worker."""
        return watchdog.marked_processes(f"{CONTAINER_MARKER}={pod['metadata']['uid']}/worker")

    def signal_worker(self, name: str, number: signal.Signals, rank: int = 0) -> None:
        """To all processes of the newest pod of this rank."""
        pods = [p for p in self.pods(name) if p["metadata"]["labels"][RANK] == str(rank)]
        pod = max(pods, key=lambda pod: int(pod["metadata"]["labels"][ATTEMPT]))
        pids = self.worker_pids(pod)
        assert pids, f"{pod['metadata']['name']} has no process"
        for pid in pids:
            os.kill(pid, number)

    def get(self, path: str) -> Json | None:
        """Any object; None when there is none."""
        try:
            return self.client.get(path)
        except ApiError as error:
            if error.code != 404:
                raise
            return None


def pod_path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


ATTEMPT = "gpujob.dev/attempt"
RANK = "gpujob.dev/rank"


def conditions_of(job: Json) -> list[str]:
    found = job.get("status", {}).get("conditions", ())
    return [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in found]


def chaos_options(
    nodes: tuple[NodeOptions, ...],
    audit: bool = False,
    operator: bool = True,
    node_grace_seconds: int = 6,
    images: Mapping[str, Path] | None = None,
    **configuration: Any,
) -> ClusterOptions:
    return ClusterOptions(
        nodes=nodes,
        operator=operator,
        # These scenes have impostors among the pods, as in a cluster without the policies.
        admission_policies=False,
        images={IMAGE: REPOSITORY / "tests" / "chaos" / "workers", **(images or {})},
        agent_interval_seconds=0.5,
        operator_lease_seconds=2.0,
        operator_configuration={**CONFIGURATION, **configuration},
        control_plane=ControlPlaneOptions(audit=audit, node_grace_seconds=node_grace_seconds),
    )


@contextmanager
def running_scene(options: ClusterOptions) -> Generator[Scene]:
    with LocalCluster.start(options) as cluster:
        scene = Scene(cluster)
        try:
            yield scene
        finally:
            scene.recorder.stop()
