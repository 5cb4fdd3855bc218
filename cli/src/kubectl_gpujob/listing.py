"""Reads all objects that decisions need: the project's kinds, nodes, pods and volumes.

The time is the API server's own. With a local clock that is off by a minute, every reading would
look stale.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.cluster import OURS, Cluster, Manifest
from kubectl_gpujob.errors import UserError

# The chart's ConfigMap with the operator's configuration file.
CONFIGURATION = "app.kubernetes.io/name=gpujob,app.kubernetes.io/component=operator"
CONFIGURATION_FILE = "configuration.yaml"


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects, and the API server's time just before the first of them were read.

    `configurations` are the texts of operators' files by namespace and name, or None if they may
    not be read.
    """

    objects: Objects
    now: datetime
    configurations: Mapping[str, str] | None = None


def read_all(cluster: Cluster) -> Listing:
    """Lists every kind once, jobs first and pods last. Raises `UserError` naming a kind that may
    not be read.
    """
    now = cluster.server_time() or datetime.now(UTC)
    objects = Objects(
        jobs=cluster.objects("gpujobs of all namespaces", f"{OURS}/{GPUJOB.plural}"),
        gpu_nodes=cluster.objects("gpunodes", f"{OURS}/{GPUNODE.plural}"),
        queues=cluster.objects("gpuqueues", f"{OURS}/{GPUQUEUE.plural}"),
        profiles=cluster.objects("gpuprofiles of all namespaces", f"{OURS}/{GPUPROFILE.plural}"),
        nodes=cluster.objects("nodes", "/api/v1/nodes"),
        pods=cluster.objects("pods of all namespaces", "/api/v1/pods"),
        volumes=_volumes(cluster),
    )
    return Listing(objects, now, operator_configurations(cluster))


def _volumes(cluster: Cluster) -> list[Manifest]:
    """Returns the volumes, or none, because few users may list them.

    Without them, a job may be shown on nodes that its volume is not on.
    """
    try:
        return cluster.objects("persistentvolumes", "/api/v1/persistentvolumes")
    except UserError:
        return []


def operator_configurations(cluster: Cluster) -> dict[str, str] | None:
    """Returns the operators' configuration files, or None if they may not be read."""
    what, path = "configmaps of all namespaces", "/api/v1/configmaps"
    try:
        found = cluster.objects(what, path, labelSelector=CONFIGURATION)
    except UserError:
        return None
    return texts_of(found)


def texts_of(configurations: Iterable[Manifest]) -> dict[str, str]:
    """Returns the texts of the operators' files by namespace and name of their ConfigMaps."""
    texts: dict[str, str] = {}
    for item in configurations:
        metadata, data = item.get("metadata") or {}, item.get("data") or {}
        if CONFIGURATION_FILE in data:
            texts[f"{metadata.get('namespace')}/{metadata.get('name')}"] = data[CONFIGURATION_FILE]
    return texts
