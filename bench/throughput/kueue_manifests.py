"""What Kueue is given: its configuration, its webhooks and kinds, and queues. Pure.

All but the queues is made out of the manifests of the version that is run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.throughput.kwok import NODE_CPU, NODE_MEMORY
from bench.throughput.load import KUEUE_QUEUE

GROUP = "kueue.x-k8s.io"
VERSION = f"{GROUP}/v1beta2"
SYSTEM = "kueue-system"
# The prefix of its default installation, by which Kueue finds its webhooks.
PREFIX = "kueue-"
SERVICE, SECRET = f"{PREFIX}webhook-service", f"{PREFIX}webhook-server-cert"
LOOPBACK = "127.0.0.1"
# As many as the scheduler and the controller manager of the control plane may make.
QUERIES_PER_SECOND = 1000
# Its second API server would listen on all addresses.
FEATURE_GATES = "VisibilityOnDemand=false"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ports:
    """On which Kueue listens, on loopback."""

    webhook: int
    health: int
    metrics: int


def configuration(default: Mapping[str, Any], certificates: Path, ports: Ports) -> Json:
    """That of the default installation, for batch Jobs alone and one process on loopback."""
    return {
        **default,
        "namespace": SYSTEM,
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{ports.health}"},
        "metrics": {"bindAddress": f"{LOOPBACK}:{ports.metrics}"},
        "webhook": {"host": LOOPBACK, "port": ports.webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": QUERIES_PER_SECOND, "burst": QUERIES_PER_SECOND},
        "integrations": {"frameworks": ["batch/job"]},
    }


def service() -> Json:
    """What the API server calls is this machine's loopback."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {"type": "ExternalName", "externalName": LOOPBACK},
    }


def secret() -> Json:
    """Empty: Kueue puts its own certificates into it."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}


def webhook_configurations(manifests: Iterable[Mapping[str, Any]], port: int) -> list[Json]:
    """Those that concern batch Jobs or Kueue's own kinds; the others' frameworks are off."""
    return [
        {
            **manifest,
            "metadata": {"name": f"{PREFIX}{manifest['metadata']['name']}"},
            "webhooks": [
                {**hook, "clientConfig": _client_config(hook["clientConfig"], port)}
                for hook in manifest["webhooks"]
                if any(_concerns(rule) for rule in hook["rules"])
            ],
        }
        for manifest in manifests
    ]


def _concerns(rule: Mapping[str, Any]) -> bool:
    batch_jobs = "batch" in rule["apiGroups"] and "jobs" in rule["resources"]
    return batch_jobs or GROUP in rule["apiGroups"]


def _client_config(config: Mapping[str, Any], port: int) -> Json:
    path = config["service"]["path"]
    return {"service": {"namespace": SYSTEM, "name": SERVICE, "path": path, "port": port}}


def definitions(
    crds: Iterable[Mapping[str, Any]], patches: Iterable[Mapping[str, Any]], port: int
) -> list[Json]:
    """CRDs with the version alone that is stored and used: for each other version the API server
    would ask Kueue to convert whatever is written. Kueue starts only where the CRDs that are
    patched say who converts.
    """
    by_name = {patch["metadata"]["name"]: patch["spec"]["conversion"] for patch in patches}
    found: list[Json] = []
    for crd in crds:
        stored = [version for version in crd["spec"]["versions"] if version["storage"]]
        spec = {**crd["spec"], "versions": stored}
        if given := by_name.get(crd["metadata"]["name"]):
            config = _client_config(given["webhook"]["clientConfig"], port)
            spec["conversion"] = {**given, "webhook": {**given["webhook"], "clientConfig": config}}
        found.append({**crd, "spec": spec})
    return found


def resource_flavor() -> Json:
    return _object("ResourceFlavor", {})


def cluster_queue(nodes: int, gpus: int) -> Json:
    """Its quota is all that the nodes have."""
    quotas = {
        "cpu": str(nodes * int(NODE_CPU)),
        "memory": f"{nodes * int(NODE_MEMORY.removesuffix('Ti'))}Ti",
        "nvidia.com/gpu": str(nodes * gpus),
    }
    resources = [{"name": name, "nominalQuota": quota} for name, quota in quotas.items()]
    flavor = {"name": KUEUE_QUEUE, "resources": resources}
    group = {"coveredResources": list(quotas), "flavors": [flavor]}
    return _object("ClusterQueue", {"namespaceSelector": {}, "resourceGroups": [group]})


def local_queue() -> Json:
    return _object("LocalQueue", {"clusterQueue": KUEUE_QUEUE})


def _object(kind: str, spec: Mapping[str, Any]) -> Json:
    head = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": KUEUE_QUEUE}}
    return head | {"spec": dict(spec)}
