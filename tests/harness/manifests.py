"""Objects as the API server sends them: pods, nodes, and our own kinds from the nouns."""

from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPU
from gpujob_api.manifest import to_manifest
from tests.harness.builders import make_gpu

Manifest = dict[str, Any]


def job_manifest(job: GPUJob, version: int = 1, **metadata: Any) -> Manifest:
    manifest = to_manifest(job)
    manifest["metadata"] |= {"resourceVersion": str(version), **metadata}
    return manifest


def pod_manifest(
    job: GPUJob | None = None,
    rank: int = 0,
    *,
    name: str | None = None,
    uid: str | None = None,
    version: int = 1,
    attempt: int = 1,
    node: str | None = "n0",
    phase: str = "Running",
    state: Manifest | None = None,
    cpu: str = "1",
    memory: str = "1Gi",
    **metadata: Any,
) -> Manifest:
    """A worker's pod, or an unmanaged process's when no job is given."""
    name = name or (f"{job.metadata.name}-{attempt}-{rank}" if job else "unmanaged")
    meta: Manifest = {
        "name": name,
        "namespace": job.metadata.namespace if job else "other",
        "uid": uid or f"pod-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if job is not None:
        meta["labels"] = {
            "gpujob.dev/job": job.metadata.name,
            "gpujob.dev/job-uid": job.metadata.uid,
            "gpujob.dev/attempt": str(attempt),
            "gpujob.dev/rank": str(rank),
        }
        meta["annotations"] = {"gpujob.dev/gpus": "GPU-0"}
        meta["ownerReferences"] = [
            {
                "apiVersion": "gpujob.dev/v1alpha1",
                "kind": "GPUJob",
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
            }
        ]
    container = {
        "name": "worker",
        "image": "image:1",
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }
    status: Manifest = {"phase": phase}
    if state is not None:
        status["containerStatuses"] = [{"name": "worker", "state": state}]
    spec: Manifest = {"containers": [container]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": meta | metadata, "spec": spec, "status": status}


def node_manifest(
    name: str = "n0",
    *,
    version: int = 1,
    cpu: str = "8",
    memory: str = "32Gi",
    ready: str = "True",
    **fields: Any,
) -> Manifest:
    labels = {"gpujob.dev/managed": "true"} | fields.pop("labels", {})
    pods = fields.pop("pods", None)
    limit = {} if pods is None else {"pods": pods}
    return {
        "metadata": {
            "name": name,
            "uid": f"node-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
        },
        "spec": fields,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, **limit},
            "conditions": [
                {
                    "type": "Ready",
                    "status": ready,
                    "lastTransitionTime": "2026-01-01T01:00:00Z",
                }
            ],
        },
    }


def volume_manifest(
    *zones: str,
    claim: str | None = "checkpoints",
    phase: str = "Bound",
    namespace: str = "team",
    version: int = 1,
) -> Manifest:
    """A PersistentVolume that nodes with these labels `zone` can use; without zones all nodes."""
    expression = {"key": "zone", "operator": "In", "values": list(zones)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"required": required}} if zones else {}
    of = {"claimRef": {"name": claim, "namespace": namespace, "uid": "c"}} if claim else {}
    secrets = {"csi": {"driver": "csi.example", "volumeAttributes": {"key": "value"}}}
    return {
        "metadata": {"name": "volume", "uid": "uid-volume", "resourceVersion": str(version)},
        "spec": {**affinity, **of, **secrets},
        "status": {"phase": phase},
    }


def gpu_node_manifest(
    name: str = "n0",
    *gpus: GPU,
    version: int = 1,
    observed_at: str = "2026-01-01T12:00:00Z",
) -> Manifest:
    return {
        "metadata": {"name": name, "uid": f"gpunode-{name}", "resourceVersion": str(version)},
        "spec": {},
        "status": {
            "observedAt": observed_at,
            "sampleIntervalSeconds": 2,
            "gpus": [encode(gpu) for gpu in (gpus or (make_gpu(),))],
        },
    }
