"""What the simulated kubelet and scheduler, and the recorder, read off a pod."""

from collections.abc import Mapping
from typing import Any

from gpujob_api.meta import ANNOTATION_GPUS, LABEL_GATE, LABEL_SERVICE_UID
from gpujob_api.settings import ENV_GRACE_SECONDS

SIDECAR = "sidecar"
FINAL = ("Succeeded", "Failed")


def is_foreign(pod: Mapping[str, Any]) -> bool:
    """Nobody of ours made it: it names no node that the scheduler should choose."""
    return "affinity" not in pod["spec"]


def of_service(manifest: Mapping[str, Any]) -> str:
    """The UID of the GPUService that an object belongs to, or ""."""
    return (manifest["metadata"].get("labels") or {}).get(LABEL_SERVICE_UID, "")


def is_gate(pod: Mapping[str, Any]) -> bool:
    """A gate of a GPUService, as the operator makes them."""
    return (pod["metadata"].get("labels") or {}).get(LABEL_GATE) == "true"


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def with_readiness(pod: Mapping[str, Any], *, ready: bool) -> dict[str, Any]:
    """The conditions of a pod that has a readiness probe."""
    others = [one for one in pod["status"].get("conditions") or () if one["type"] != "Ready"]
    return {"conditions": [*others, {"type": "Ready", "status": str(ready)}]}


def has_sidecar(pod: Mapping[str, Any]) -> bool:
    return any(one["name"] == SIDECAR for one in pod["spec"]["containers"])


def wanted_node(pod: Mapping[str, Any]) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]


def gpus_of(pod: Mapping[str, Any]) -> list[str]:
    return pod["metadata"]["annotations"][ANNOTATION_GPUS].split(",")


def worker_status(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "worker", "state": state}


def disruption(reason: str, message: str) -> dict[str, Any]:
    """Of a pod's status: why it is ended from outside."""
    condition = {"type": "DisruptionTarget", "status": "True"}
    return {"conditions": [condition | {"reason": reason, "message": message}]}


def is_marked(pod: Mapping[str, Any]) -> bool:
    """Whether the pod shows that somebody ends it from outside."""
    status = pod["status"]
    told = any(one["type"] == "DisruptionTarget" for one in status.get("conditions") or ())
    return told or status.get("reason") == "Evicted" or "deletionTimestamp" in pod["metadata"]


def worker_ended(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the worker's container ended, whatever else still runs beside it."""
    for container in pod["status"].get("containerStatuses") or ():
        if container["name"] == "worker":
            return container["state"].get("terminated")
    return None


def is_live(pod: Mapping[str, Any]) -> bool:
    """Its worker may still be there, for all that the API knows."""
    return pod["status"]["phase"] not in FINAL and worker_ended(pod) is None


def attempt_of(pod: Mapping[str, Any]) -> tuple[str, int]:
    """The UID of the job, and the attempt."""
    labels = pod["metadata"]["labels"]
    return labels["gpujob.dev/job-uid"], int(labels["gpujob.dev/attempt"])


def told_grace(pod: Mapping[str, Any]) -> int:
    """The seconds between SIGTERM and SIGKILL that the worker was told of."""
    worker = next(one for one in pod["spec"]["containers"] if one["name"] == "worker")
    found = [one["value"] for one in worker["env"] if one["name"] == ENV_GRACE_SECONDS]
    return int(found[0])
