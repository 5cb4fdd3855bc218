"""Renders what a GPUService owns: its jobs, its Service, and its status."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import WORKER_CONTAINER, Checkpoint, GPUJobSpec, Sharing, SharingMode
from gpujob_api.gpuservice import GPUService, GPUServiceStatus
from gpujob_api.json_values import json_copy
from gpujob_api.manifest import GPUJOB, GPUSERVICE
from gpujob_api.meta import (
    API_VERSION,
    LABEL_GATE,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
)
from gpujob_api.optimize import Optimize
from gpujob_api.serving import (
    ENV_SERVING,
    ENV_SERVING_CACHE,
    ENV_SERVING_HOST,
    BackendName,
)
from gpujob_api.settings import Task
from gpujob_api.unknown_fields import with_unknown_fields
from gpujob_operator.decide.model.node_affinity import PREFERRED
from gpujob_operator.decide.model.service_plan import CreateJob, Role
from gpujob_operator.decide.services.grace import GRACE_SECONDS_DEFAULT, needed_grace_seconds
from gpujob_operator.render.service import owner_reference
from gpujob_operator.render.status import replacement

READY_PATH = "/v2/health/ready"
# Where compiled models are kept, if the service has a claim for them.
ARTIFACTS_DIRECTORY = "/var/cache/gpujob"
ARTIFACTS_VOLUME = "gpujob-artifacts"
_PROBE_SECONDS = 2


def service_job(create: CreateJob) -> dict[str, Any]:
    """Returns the job of a replica, or of a measurement of backends."""
    service, spec = create.service, create.service.spec
    is_replica = create.role is Role.REPLICA
    labels = {
        LABEL_SERVICE: service.metadata.name,
        LABEL_SERVICE_UID: service.metadata.uid,
    }
    if is_replica:
        labels[LABEL_REVISION] = create.revision
    job = GPUJobSpec(
        template=_template(create),
        # Replicas and measurements have different needs, so they share no measurements.
        workload=spec.workload or (service.metadata.name if is_replica else create.name),
        queue=spec.queue,
        priority=spec.priority,
        gpu=spec.gpu,
        # A neighbour would change what is measured.
        sharing=spec.sharing if is_replica else Sharing(SharingMode.EXCLUSIVE),
        optimize=Optimize(task=Task.SERVING),
        checkpoint=Checkpoint(volume_claim_name=None),
        spot=spec.spot,
    )
    return {
        "apiVersion": API_VERSION,
        "kind": GPUJOB.kind,
        "metadata": {
            "name": create.name,
            "namespace": service.metadata.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(service)],
        },
        "spec": encode(job),
    }


def _template(create: CreateJob) -> dict[str, Any]:
    service = create.service
    template: dict[str, Any] = json_copy(service.spec.template)
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    one = next((one for one in containers if one.get("name") == WORKER_CONTAINER), containers[0])
    ours: list[dict[str, Any]] = [
        {"name": ENV_SERVING, "value": create.settings.to_text()},
        {"name": ENV_SERVING_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    claim = service.spec.artifacts_claim_name
    if claim is not None:
        ours.append({"name": ENV_SERVING_CACHE, "value": ARTIFACTS_DIRECTORY})
        _mount(template["spec"], one, claim)
    names = (ENV_SERVING, ENV_SERVING_HOST, ENV_SERVING_CACHE)
    users = [entry for entry in one.get("env") or () if entry.get("name") not in names]
    one["env"] = [*users, *ours]
    needed = needed_grace_seconds(service.spec)
    if needed > GRACE_SECONDS_DEFAULT and not _is_external(service):
        # A smaller number of the template was refused.
        template["spec"].setdefault("terminationGracePeriodSeconds", needed)
    if create.avoid_nodes:
        _avoid(template["spec"], create.avoid_nodes)
    if create.role is Role.REPLICA:
        one.setdefault("readinessProbe", _probe(service))
    else:
        # A measurement answers no requests.
        for name in ("readinessProbe", "livenessProbe", "startupProbe"):
            one.pop(name, None)
    return template


def _avoid(spec: dict[str, Any], nodes: Sequence[str]) -> None:
    """Adds a preference for other nodes to those of the template."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    preference = {"weight": 100, "preference": {"matchFields": fields}}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity[PREFERRED] = [*(affinity.get(PREFERRED) or ()), preference]


def _mount(spec: dict[str, Any], container: dict[str, Any], claim: str) -> None:
    volume = {"name": ARTIFACTS_VOLUME, "persistentVolumeClaim": {"claimName": claim}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    mount = {"name": ARTIFACTS_VOLUME, "mountPath": ARTIFACTS_DIRECTORY}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def _is_external(service: GPUService) -> bool:
    return service.spec.optimize.backend is BackendName.EXTERNAL


def _probe(service: GPUService) -> dict[str, Any]:
    """Returns the readiness probe. Of an engine of the user's own, only the port is known."""
    port = service.spec.port
    action = (
        {"tcpSocket": {"port": port}}
        if _is_external(service)
        else {"httpGet": {"path": READY_PATH, "port": port}}
    )
    return {**action, "periodSeconds": _PROBE_SECONDS, "failureThreshold": 1}


def core_service(service: GPUService, *, to_gate: bool = False) -> dict[str, Any]:
    """Returns the Service in front of the replicas, or of their gate. Only ready pods get
    requests.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service.metadata.name,
            "namespace": service.metadata.namespace,
            "labels": {
                LABEL_SERVICE: service.metadata.name,
                LABEL_SERVICE_UID: service.metadata.uid,
            },
            "ownerReferences": [owner_reference(service)],
        },
        "spec": {
            "selector": front_selector(service, to_gate=to_gate),
            "ports": [{"name": "http", "port": service.spec.port, "targetPort": service.spec.port}],
        },
    }


def front_selector(service: GPUService, *, to_gate: bool) -> dict[str, str]:
    """Returns the labels of the pods that get requests."""
    of_gate = {LABEL_GATE: "true"} if to_gate else {}
    return {LABEL_SERVICE_UID: service.metadata.uid, **of_gate}


def service_status(
    service: GPUService, status: GPUServiceStatus, unknown: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the service with the status, valid only at the service's resourceVersion."""
    written = with_unknown_fields(GPUServiceStatus, encode(status), unknown)
    return replacement(GPUSERVICE, service.metadata, written)
