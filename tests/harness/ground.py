"""GPUJob on real kubelets: the release, a team's namespace, its jobs."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujob_local.cluster.options import WORKER_IMAGE
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelets.cluster import KubeletCluster
from tests.harness.repository import ROOT
from tests.harness.waiting import wait_until

Json = dict[str, Any]

SYSTEM = "gpujob-system"
CHART = ROOT / "charts" / "gpujob"
SCRIPT = ROOT / "tests" / "e2e" / "workers" / "resumable.py"
STEPS = 40
PAUSE_SECONDS = 0.3
INSTALL_SECONDS_MAX = 60.0
# Shorter than in a real cluster, so that scenes end; what they show does not depend on them.
CONFIGURATION: Mapping[str, Any] = {"nodeLostSeconds": 10, "retryBackoffSeconds": 1}


@dataclass(frozen=True, slots=True)
class Release:
    """The chart, installed as README says, with CPU cards."""

    cluster: KubeletCluster
    install_seconds: float

    @classmethod
    def install(cls, cluster: KubeletCluster, *flags: str) -> "Release":
        began = time.monotonic()
        agent = {"devices": "cpu", "cpu": {"memory": "3Gi", "besideGPUs": True}}
        values = {"agent": agent, "configuration": CONFIGURATION}
        cluster.command(
            "helm",
            *("install", "gpujob", str(CHART), "--namespace", SYSTEM, "--create-namespace"),
            *("--wait", f"--timeout={INSTALL_SECONDS_MAX:.0f}s", "--values", "-", *flags),
            stdin=json.dumps(values),
        )
        seconds = time.monotonic() - began
        wait_until(lambda: gpus_ready(cluster), 60, "the agents' first measurements")
        return cls(cluster, seconds)

    def uninstall(self) -> None:
        self.cluster.command("helm", "uninstall", "gpujob", "--namespace", SYSTEM, "--wait")

    def leader(self) -> str:
        """The pod that holds the Lease."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
        leases = self.cluster.client().get(path)["items"]
        (lease,) = [item for item in leases if "gpujob" in item["metadata"]["name"]]
        return str(lease["spec"].get("holderIdentity", ""))

    def operators(self) -> list[Json]:
        """Its pods, without those that are being deleted."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        selector = "app.kubernetes.io/component=operator"
        found = self.cluster.client().get(path, labelSelector=selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def gpus_ready(cluster: KubeletCluster) -> bool:
    nodes = cluster.client().get("/apis/gpujob.dev/v1alpha1/gpunodes")["items"]
    ready = [
        node
        for node in nodes
        for condition in node.get("status", {}).get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    return len(ready) == len(cluster.nodes) and all(node["status"]["gpus"] for node in ready)


class Team:
    """One namespace with Pod Security "restricted", and a volume that both nodes share."""

    def __init__(self, cluster: KubeletCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.client = cluster.client()
        self.folder = cluster.directory / "volumes" / namespace
        self._jobs = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs"

    def create(self) -> None:
        self.folder.mkdir(parents=True)
        # As a claim's driver would: workers are user 65532, and hostPath knows no fsGroup.
        self.folder.chmod(0o777)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.apply(
            _object("v1", "Namespace", self.namespace, labels=labels),
            _volume(self.namespace, self.folder),
            _claim(self.namespace),
            _object("v1", "ConfigMap", "script", self.namespace)
            | {"data": {"resumable.py": SCRIPT.read_text()}},
        )

    def remove(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
        self.cluster.kubectl("delete", "persistentvolume", self.namespace, "--wait=false")

    def apply(self, *objects: Json) -> None:
        text = "\n---\n".join(json.dumps(item) for item in objects)
        self.cluster.kubectl("apply", "--server-side", "--filename", "-", stdin=text)

    def submit(self, name: str, **changes: Any) -> None:
        self.apply(resumable_job(self.namespace, name, **changes))

    def job(self, name: str) -> Json:
        return self.client.get(f"{self._jobs}/{name}")

    def status(self, name: str) -> Json:
        return self.job(name).get("status", {})

    def condition(self, name: str, kind: str) -> Json:
        for condition in self.status(name).get("conditions", []):
            if condition["type"] == kind:
                return condition
        return {}

    def said(self, name: str) -> str:
        """Every condition's reason and message, for finding words in and for failures."""
        conditions = self.status(name).get("conditions", [])
        return "\n".join(
            f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions
        )

    def pods(self, name: str) -> list[Json]:
        found = self.client.get(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=f"gpujob.dev/job={name}"
        )
        return found["items"]

    def node_of(self, name: str) -> str:
        return self.status(name)["placement"]["workers"][0]["node"]

    def step(self, name: str) -> int:
        return self.status(name).get("measurement", {}).get("step", 0)

    def wait_for_phase(self, name: str, phase: str, seconds: float = 120) -> None:
        """Fails at once when the job ends otherwise, with what it says."""

        def reached() -> bool:
            found = self.status(name).get("phase", "")
            assert found == phase or found not in ("Failed", "Succeeded"), self.said(name)
            return found == phase

        wait_until(reached, seconds, _Late(lambda: f"{name} {phase}; it says:\n{self.said(name)}"))

    def wait_for_checkpoint(self, name: str, step: int = 1, seconds: float = 90) -> int:
        """The durable step, as soon as it is at least this one."""

        def durable() -> int:
            return self.status(name).get("checkpoint", {}).get("step", 0)

        wait_until(lambda: durable() >= step, seconds, _Late(lambda: self.said(name)))
        return durable()

    def wait_for_words(self, name: str, words: str, seconds: float = 60) -> str:
        """Everything that the job says, as soon as the words are in it."""
        wait_until(
            lambda: words.lower() in self.said(name).lower(),
            seconds,
            _Late(lambda: f"{words!r} in what {name} says:\n{self.said(name)}"),
        )
        return self.said(name)

    def log(self, pod: str) -> str:
        try:
            return self.client.request_bytes(
                "GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
            ).decode()
        except ApiError as error:
            return f"no log: {error}"

    def final_digest(self, name: str) -> str:
        """What the last attempt printed of its weights."""
        attempt = self.status(name)["attempt"]
        log = self.log(f"{name}-{attempt}-0")
        (line,) = [line for line in log.splitlines() if line.startswith("final")]
        _, steps, digest = line.split()
        assert int(steps) == STEPS, line
        return digest

    def steps_of(self, name: str, attempt: int) -> list[int]:
        """The steps that an attempt printed."""
        lines = self.log(f"{name}-{attempt}-0").splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("step ")]


class _Late(str):
    """A text that is only made when a wait fails."""

    __slots__ = ("_make",)

    def __new__(cls, make: Any) -> "_Late":
        made = super().__new__(cls, "")
        made._make = make
        return made

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self._make())

    def __format__(self, _spec: str) -> str:
        return str(self)


def resumable_job(
    namespace: str,
    name: str,
    *,
    steps: int = STEPS,
    pause_seconds: float = PAUSE_SECONDS,
    command: list[str] | None = None,
    spec: Json | None = None,
    container: Json | None = None,
    template: Json | None = None,
) -> Json:
    """A job of `resumable.py`, a checkpoint every 3 s; `spec`, ... are added to their levels."""
    script = ["gpujob-run", "--", "python", "/script/resumable.py", str(steps), str(pause_seconds)]
    worker: Json = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "command": command or script,
        "volumeMounts": [{"name": "script", "mountPath": "/script"}],
    }
    pod: Json = {
        "terminationGracePeriodSeconds": 20,
        "volumes": [{"name": "script", "configMap": {"name": "script"}}],
    }
    containers = [worker | (container or {}), *(template or {}).get("containers", [])]
    body: Json = {
        "gpu": {"memory": "900Mi"},
        "optimize": {"mode": "Off"},
        "checkpoint": {"volumeClaimName": "checkpoints", "interval": "3s", "keep": 3},
        "spot": {"policy": "Prefer"},
        "template": {"spec": pod | (template or {}) | {"containers": containers}},
    }
    return _object("gpujob.dev/v1alpha1", "GPUJob", name, namespace) | {"spec": body | (spec or {})}


def _object(
    version: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    metadata: Json = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _volume(name: str, folder: Path) -> Json:
    return _object("v1", "PersistentVolume", name) | {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": name, "name": "checkpoints"},
            "hostPath": {"path": str(folder), "type": "Directory"},
        }
    }


def _claim(namespace: str) -> Json:
    return _object("v1", "PersistentVolumeClaim", "checkpoints", namespace) | {
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        }
    }
