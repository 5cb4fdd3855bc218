"""Jobs on real kubelets: a team's namespace, its jobs, and what they say."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpujob_local.cluster.options import WORKER_IMAGE
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelets.cluster import KubeletCluster
from tests.harness.repository import ROOT
from tests.harness.waiting import wait_until

Json = dict[str, Any]

SCRIPTS = ROOT / "tests" / "e2e" / "workers"
STEPS = 40
PAUSE_SECONDS = 0.3
# A reconnected node may not be Ready at once.
BACK_SECONDS = 120.0
LOG_SECONDS = 60.0


class Team:
    """One namespace with Pod Security "restricted", and a volume that both nodes share."""

    def __init__(self, cluster: KubeletCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.client = cluster.client()
        self.folder = cluster.directory / "volumes" / namespace
        self.jobs_path = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs"

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
            | {"data": {path.name: path.read_text() for path in SCRIPTS.glob("*.py")}},
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
        return self.client.get(f"{self.jobs_path}/{name}")

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

    def wait_for_phase(self, name: str, phase: str, seconds: float = 180) -> None:
        """Fails at once when the job ends otherwise, with what it says."""

        def reached() -> bool:
            found = self.status(name).get("phase", "")
            assert found == phase or found not in ("Failed", "Succeeded"), self.said(name)
            return found == phase

        wait_until(reached, seconds, _Late(lambda: f"{name} {phase}; it says:\n{self.said(name)}"))

    def wait_for_checkpoint(self, name: str, step: int = 1, seconds: float = 180) -> int:
        """The durable step, as soon as it is at least this one."""

        def durable() -> int:
            return self.status(name).get("checkpoint", {}).get("step", 0)

        wait_until(lambda: durable() >= step, seconds, _Late(lambda: self.said(name)))
        return durable()

    def wait_for_words(self, name: str, *words: str, seconds: float = 120) -> str:
        """Everything that the job says, as soon as all the words are in it."""
        said = ""

        def found() -> bool:
            nonlocal said
            said = self.said(name)
            return all(word.lower() in said.lower() for word in words)

        wait_until(found, seconds, _Late(lambda: f"{words} in what {name} says:\n{said}"))
        return said

    def wait_for_profile(self, seconds: float = 60) -> None:
        """Until something is known of a workload of this namespace, after a job's end."""
        path = f"/apis/gpujob.dev/v1alpha1/namespaces/{self.namespace}/gpuprofiles"

        def known() -> bool:
            return any(item.get("status") for item in self.client.get(path)["items"])

        wait_until(known, seconds, "a profile")

    def events(self, name: str) -> dict[str, list[str]]:
        """The messages of the job's events, by reason."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = self.client.get(path, fieldSelector=f"involvedObject.name={name}")["items"]
        return {
            reason: [one["message"] for one in found if one["reason"] == reason]
            for reason in {one["reason"] for one in found}
        }

    def log(self, pod: str) -> str:
        try:
            return self.client.request_bytes(
                "GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
            ).decode()
        except ApiError as error:
            return f"no log: {error}"

    def final_digest(self, name: str) -> str:
        """What the last attempt printed of its weights.

        A kubelet may know of a container's end before the runtime has written all that it printed.
        """
        pod, found = f"{name}-{self.status(name)['attempt']}-0", list[str]()

        def printed() -> bool:
            found[:] = [one for one in self.log(pod).splitlines() if one.startswith("final")]
            return len(found) == 1

        wait_until(printed, LOG_SECONDS, _Late(lambda: f"final in {self.log(pod)[-2000:]}"))
        _, steps, digest = (line := found[0]).split()
        assert int(steps) == STEPS, line
        return digest

    def steps_of(self, name: str, attempt: int) -> list[int]:
        """The steps that an attempt printed."""
        lines = self.log(f"{name}-{attempt}-0").splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("step ")]


@contextmanager
def closed(team: Team, node: str) -> Generator[None]:
    """The node takes no jobs for the time."""
    path = f"/apis/gpujob.dev/v1alpha1/gpunodes/{node}"
    team.client.merge(path, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        team.client.merge(path, {"spec": {"unschedulable": False}})


@contextmanager
def drained(team: Team, node: str) -> Generator[None]:
    """As before a maintenance: the node's pods are evicted, and it takes none for the time."""
    try:
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
        team.cluster.kubectl("drain", node, *flags)
        yield
    finally:
        team.cluster.kubectl("uncordon", node)


def wait_for_nodes(cluster: KubeletCluster) -> None:
    """Every node takes pods again."""

    def ready() -> bool:
        nodes = cluster.client().get("/api/v1/nodes")["items"]
        return sum(not node["spec"].get("taints") for node in nodes) == len(cluster.nodes)

    wait_until(ready, BACK_SECONDS, "every node is ready and open")


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
