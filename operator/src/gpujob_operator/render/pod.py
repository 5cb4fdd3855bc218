"""Renders the pod of a worker: the user's template plus the operator's additions for one worker."""

import json
import zlib
from collections.abc import Mapping
from typing import Any, cast

from gpujob_api import settings as names
from gpujob_api.bounds import shown
from gpujob_api.codec import FieldError, encode
from gpujob_api.gpujob import (
    WORKER_CONTAINER,
    DisruptionPolicy,
    GPUJob,
    WorkerPlacement,
)
from gpujob_api.json_values import json_copy
from gpujob_api.meta import (
    ANNOTATION_GPUS,
    ANNOTATION_PLACEMENT,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
)
from gpujob_operator.decide.model.checkpoint_claim import checkpoint_claim
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.grace import grace_seconds
from gpujob_operator.decide.model.held_gpus import is_whole_gpu, memory_cap_bytes
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.pod_template import tolerations
from gpujob_operator.decide.model.services import replica_id
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME
from gpujob_operator.decide.model.workers import worker_name
from gpujob_operator.render.service import (
    LABEL_CHARACTERS_MAX,
    master_address,
    owner_reference,
    service_name,
    worker_hostname,
)

TOKEN_DIRECTORY = "/var/run/gpujob"  # noqa: S105 - a path, not a secret
TOKEN_SECONDS = 3600
WORKER_GROUP = 65532
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
TERMINATION_FILE = "/dev/termination-log"
SHARED_MEMORY_DIRECTORY = "/dev/shm"  # noqa: S108 - where POSIX shared memory is, not a temporary file
SHARED_MEMORY_VOLUME = "gpujob-shared-memory"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Autoscalers then leave the pod's node alone. They would wait forever, so the annotations are safe
# only because the operator itself deletes the pod if the node must nevertheless go.
KEEP_NODE = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
# Below Linux's ephemeral port range.
MASTER_PORT_FIRST, MASTER_PORTS = 20_000, 12_768


def worker_pod(create: CreatePod, configuration: Configuration) -> dict[str, Any]:
    """Returns the pod of one worker. Its placement must be in the job's status."""
    job = create.job
    placement = job.status.placement
    assert placement is not None, "a pod is created only for a placed job"
    worker = next(worker for worker in placement.workers if worker.rank == create.rank)
    template: dict[str, Any] = json_copy(job.spec.template)
    spec: dict[str, Any] = template.get("spec") or {}
    _complete_spec(spec, create, worker, configuration)
    if len(spec["containers"]) == 1:
        # Renames the only container, whatever its name in the template.
        spec["containers"][0]["name"] = WORKER_CONTAINER
    for container in spec["containers"]:
        _restrict(container)
        if container["name"] == WORKER_CONTAINER:
            _complete_worker(container, create, worker, configuration)
            _share_memory(spec, container)
            grace = str(spec["terminationGracePeriodSeconds"])
            container["env"].append({"name": names.ENV_GRACE_SECONDS, "value": grace})
            package_image = configuration.worker_package_image
            if package_image and brings_package(container, package_image):
                add_package(spec, container, package_image)
        else:
            _without_gpus(container)
    for container in spec.get("initContainers") or ():
        _restrict(container)
        _without_gpus(container)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(template.get("metadata") or {}, create, worker),
        "spec": spec,
    }


def _metadata(
    template: dict[str, Any], create: CreatePod, worker: WorkerPlacement
) -> dict[str, Any]:
    job = create.job
    labels = {
        **(template.get("labels") or {}),
        **_service_labels(job),
        LABEL_JOB: job.metadata.name[:LABEL_CHARACTERS_MAX],
        LABEL_JOB_UID: job.metadata.uid,
        LABEL_ATTEMPT: str(job.status.attempt),
        LABEL_RANK: str(worker.rank),
    }
    return {
        "name": worker_name(job.metadata.name, job.status.attempt, worker.rank),
        "namespace": job.metadata.namespace,
        "labels": labels,
        "annotations": {
            **(KEEP_NODE if job.spec.disruption is DisruptionPolicy.AVOID else {}),
            **(template.get("annotations") or {}),
            ANNOTATION_GPUS: ",".join(worker.gpus),
            **_record(create),
        },
        "ownerReferences": [owner_reference(job)],
    }


def _service_labels(job: GPUJob) -> dict[str, str]:
    """Returns the labels by which a GPUService's Service selects its replicas' pods."""
    replica = replica_id(job)
    if replica is None:
        return {}  # A measurement of backends answers no requests.
    return {
        LABEL_SERVICE: replica.service.name,
        LABEL_SERVICE_UID: replica.service.uid,
        LABEL_REVISION: replica.revision,
    }


def _record(create: CreatePod) -> dict[str, str]:
    if create.record is None:
        return {}
    return {ANNOTATION_PLACEMENT: json.dumps(encode(create.record), separators=(",", ":"))}


def _complete_spec(
    spec: dict[str, Any], create: CreatePod, worker: WorkerPlacement, configuration: Configuration
) -> None:
    job = create.job
    spec["restartPolicy"] = "Never"
    spec["affinity"] = _on_node(spec.get("affinity") or {}, worker.node, create.hostname)
    spec["tolerations"] = [dict(toleration) for toleration in tolerations(job)]
    spec["terminationGracePeriodSeconds"] = grace_seconds(job, configuration)
    # The worker has no access to the API. Its only token has the audience of the report endpoint
    # (I12).
    spec["automountServiceAccountToken"] = False
    if job.spec.workers > 1:
        spec["hostname"] = worker_hostname(worker.rank)
        spec["subdomain"] = service_name(job)
    if configuration.runtime_class_name:
        spec.setdefault("runtimeClassName", configuration.runtime_class_name)
    security = spec.setdefault("securityContext", {})
    security.setdefault("runAsNonRoot", True)
    # Makes volumes writable for a worker that is not root.
    security.setdefault("fsGroup", WORKER_GROUP)
    # Walking all files of a large volume at each start would take minutes.
    security.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    claim = checkpoint_claim(job, configuration.checkpoint_claim_template)
    spec["volumes"] = [*(spec.get("volumes") or ()), token_volume(), _checkpoint_volume(claim)]


def _on_node(affinity: Mapping[str, Any], node: str, hostname: str | None) -> dict[str, Any]:
    """Returns the user's affinity, narrowed to the chosen node, to which kube-scheduler binds the
    pod.

    The node's name alone decides. Its label repeats the choice for autoscalers, which do not read
    the name. Raises `FieldError` for an affinity that cannot be narrowed.
    """
    match = {"key": "metadata.name", "operator": "In", "values": [node]}
    label = {"key": LABEL_HOSTNAME, "operator": "In", "values": [hostname]}
    expressions = [label] if hostname is not None else []
    terms: list[Mapping[str, Any]] = [{}]
    path = "spec.template.spec.affinity.nodeAffinity"
    node_affinity = _object(affinity.get("nodeAffinity"), path)
    wanted = _object(node_affinity.get(_REQUIRED), f"{path}.{_REQUIRED}")
    if wanted:
        path = f"{path}.{_REQUIRED}.nodeSelectorTerms"
        listed = _list(wanted.get("nodeSelectorTerms"), path)
        terms = [_object(term, f"{path}[{number}]") for number, term in enumerate(listed)]
        if not terms:
            raise FieldError(path, "must have at least one term")
    narrowed = [_narrowed(term, match, expressions, f"{path}[]") for term in terms]
    required = {"nodeSelectorTerms": narrowed}
    return {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: required}}


def _narrowed(
    term: Mapping[str, Any], match: object, expressions: list[dict[str, Any]], path: str
) -> dict[str, Any]:
    """Returns the term with the node's name among its fields and with more expressions."""
    found = {**term, "matchFields": [*_list(term.get("matchFields"), path), match]}
    if expressions:
        found["matchExpressions"] = [*_list(term.get("matchExpressions"), path), *expressions]
    return found


def _object(value: object, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FieldError(path, f"must be an object; got {shown(value)}")
    return cast("Mapping[str, Any]", value)


def _list(value: object, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise FieldError(path, f"must be a list; got {shown(value)}")
    return cast("list[Any]", value)


def token_volume() -> dict[str, Any]:
    """Returns the volume of a token for the report port alone."""
    source = {
        "serviceAccountToken": {
            "audience": names.TOKEN_AUDIENCE,
            "expirationSeconds": TOKEN_SECONDS,
            "path": "token",
        }
    }
    return {"name": "gpujob-token", "projected": {"sources": [source]}}


def _checkpoint_volume(claim: str | None) -> dict[str, Any]:
    source: dict[str, Any] = (
        {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    )
    return {"name": "gpujob-checkpoints", **source}


def _share_memory(spec: dict[str, Any], worker: dict[str, Any]) -> None:
    """Adds a larger /dev/shm for data that a worker's processes share: data loader batches, NCCL.

    The default is 64 MiB, and a process that writes more is killed by SIGBUS. The content counts as
    the container's memory, so the container's memory limit is the bound.
    """
    mounts: list[dict[str, Any]] = worker["volumeMounts"]
    if any(mount["mountPath"].rstrip("/") == SHARED_MEMORY_DIRECTORY for mount in mounts):
        return
    mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_DIRECTORY})
    spec["volumes"].append({"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}})


def _restrict(container: dict[str, Any]) -> None:
    """Sets what Pod Security "restricted" requires of every container, unless the user sets it."""
    security = container.setdefault("securityContext", {})
    security.setdefault("allowPrivilegeEscalation", False)
    security.setdefault("capabilities", {"drop": ["ALL"]})


def _without_gpus(container: dict[str, Any]) -> None:
    """Hides all GPUs. CUDA images request all GPUs, and only the worker container gets any (I2)."""
    entries = [e for e in container.get("env") or () if e["name"] != VISIBLE_DEVICES]
    container["env"] = [*entries, {"name": VISIBLE_DEVICES, "value": "void"}]


def _complete_worker(
    container: dict[str, Any],
    create: CreatePod,
    worker: WorkerPlacement,
    configuration: Configuration,
) -> None:
    ours = _environment(create, worker, configuration)
    # The operator or the device plugin decides which GPUs it gets, never the template.
    reserved = {VISIBLE_DEVICES, *(entry["name"] for entry in ours)}
    users = [entry for entry in container.get("env") or () if entry["name"] not in reserved]
    folder = hook_folder(container, configuration.worker_package_image)
    container["env"] = [*ours, *(_with_hook(entry, folder) for entry in users)]
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": "gpujob-token", "mountPath": TOKEN_DIRECTORY, "readOnly": True},
        {"name": "gpujob-checkpoints", "mountPath": configuration.checkpoint_mount},
    ]
    # The container must not restart, because its end is the end of the attempt.
    for name in ("restartPolicy", "restartPolicyRules"):
        container.pop(name, None)
    container["terminationMessagePath"] = TERMINATION_FILE
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if configuration.device_access is DeviceAccess.DEVICE_PLUGIN:
        limits = container.setdefault("resources", {}).setdefault("limits", {})
        limits["nvidia.com/gpu"] = str(create.job.spec.gpus_per_worker)


def _with_hook(entry: dict[str, Any], folder: str) -> dict[str, Any]:
    """Adds the hook's folder to the user's own path, which would otherwise hide the hook.

    A path that is only read when the container starts is unknown here and stays unchanged.
    """
    if entry["name"] != names.PYTHON_PATH_VARIABLE or "valueFrom" in entry:
        return entry
    paths = [path for path in (entry.get("value") or "").split(":") if path]
    if folder in paths:
        return entry
    return {**entry, "value": ":".join([folder, *paths])}


def _environment(
    create: CreatePod, worker: WorkerPlacement, configuration: Configuration
) -> list[dict[str, Any]]:
    job = create.job
    metadata = job.metadata
    directory = f"{metadata.namespace}/{metadata.name}-{metadata.uid[:8]}"
    values = {
        names.ENV_NAME: metadata.name,
        names.ENV_NAMESPACE: metadata.namespace,
        names.ENV_UID: metadata.uid,
        names.ENV_ATTEMPT: str(job.status.attempt),
        names.ENV_SETTINGS: create.settings.to_text(),
        names.ENV_CHECKPOINT_DIRECTORY: f"{configuration.checkpoint_mount}/{directory}",
        names.ENV_REPORT_URL: configuration.report_url,
        names.ENV_TOKEN_FILE: f"{TOKEN_DIRECTORY}/token",
        names.ENV_TERMINATION_FILE: TERMINATION_FILE,
        **_limits(job),
        **_ranks(job, worker),
    }
    if configuration.device_access is DeviceAccess.ENVIRONMENT:
        values[VISIBLE_DEVICES] = ",".join(worker.gpus)
    entries: list[dict[str, Any]] = [{"name": k, "value": v} for k, v in values.items()]
    uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
    return [*entries, {"name": names.ENV_POD_UID, "valueFrom": uid}]


def _limits(job: GPUJob) -> dict[str, str]:
    """Returns a memory limit only if the GPU is shared. A job alone on its GPU may use
    all of it.
    """
    held = job.status.reservation
    if held is None or is_whole_gpu(held):
        return {}
    cap_bytes = memory_cap_bytes(job)
    limit_bytes = held.memory_bytes if cap_bytes is None else cap_bytes
    return {names.ENV_MEMORY_LIMIT_BYTES: str(limit_bytes)}


def _ranks(job: GPUJob, worker: WorkerPlacement) -> dict[str, str]:
    """Returns the variables that torchrun and torch.distributed read."""
    if job.spec.workers == 1:
        return {}
    return {
        "RANK": str(worker.rank),
        "WORLD_SIZE": str(job.spec.workers),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": master_address(job),
        "MASTER_PORT": str(_master_port(job)),
    }


def _master_port(job: GPUJob) -> int:
    """Returns a different port for every attempt.

    If pods share a network, as on process nodes, this avoids collisions between gangs and with an
    old attempt's closing connections.
    """
    key = f"{job.metadata.uid}/{job.status.attempt}"
    return MASTER_PORT_FIRST + zlib.crc32(key.encode()) % MASTER_PORTS


# Images of this name have the packages, whatever their registry and tag.
WORKER_IMAGE = "gpujob-worker"
PACKAGE = "gpujob-package"
PACKAGE_DIRECTORY = "/gpujob/package"
PACKAGE_SIZE_MAX = "64Mi"
SWITCH = "GPUJOB_INJECT"
_COPY = ["python", "-m", "gpujob_worker.launch.package", PACKAGE_DIRECTORY]
# A ResourceQuota that requires requests requires them of init containers too.
_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def hook_folder(worker: dict[str, Any], package_image: str | None) -> str:
    """Returns the folder that comes first on PYTHONPATH of the container."""
    brought = brings_package(worker, package_image)
    return f"{PACKAGE_DIRECTORY}/hook" if brought else names.HOOK_FOLDER


def brings_package(worker: dict[str, Any], package_image: str | None) -> bool:
    """Returns whether the packages are copied.

    They are not copied into images that have them, or if the template opts out.
    """
    if not package_image or _repository(str(worker.get("image", ""))) == WORKER_IMAGE:
        return False
    entries = {entry["name"]: entry for entry in worker.get("env") or ()}
    path = entries.get(names.PYTHON_PATH_VARIABLE, {})
    return entries.get(SWITCH, {}).get("value") != "0" and "valueFrom" not in path


def add_package(spec: dict[str, Any], worker: dict[str, Any], package_image: str) -> None:
    """Brings the worker's packages into a pod whose image does not have them.

    An init container copies them into a volume of the pod, from the operator's image, which the
    node's agent has already pulled. The folder comes first on PYTHONPATH, so every Python process
    of the image finds the hook in it. A PYTHONPATH of the template stays unchanged.
    """
    mount = {"name": PACKAGE, "mountPath": PACKAGE_DIRECTORY}
    copier: dict[str, Any] = {
        "name": PACKAGE,
        "image": package_image,
        "imagePullPolicy": "IfNotPresent",
        "command": _COPY,
        "volumeMounts": [mount],
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    if resources := _resources(worker):
        copier["resources"] = resources
    spec["initContainers"] = [copier, *(spec.get("initContainers") or ())]
    volume = {"name": PACKAGE, "emptyDir": {"sizeLimit": PACKAGE_SIZE_MAX}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    worker["volumeMounts"] = [*(worker.get("volumeMounts") or ()), mount]
    entries = worker.get("env") or []
    if not any(entry["name"] == names.PYTHON_PATH_VARIABLE for entry in entries):
        path = {"name": names.PYTHON_PATH_VARIABLE, "value": f"{PACKAGE_DIRECTORY}/hook"}
        worker["env"] = [*entries, path]


def _repository(image: str) -> str:
    """Returns the last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _resources(worker: dict[str, Any]) -> dict[str, Any]:
    """Returns the worker's own resources, so that the pod as a whole requests no more
    than before.
    """
    found: dict[str, Any] = {}
    for kind in ("requests", "limits"):
        asked = (worker.get("resources") or {}).get(kind) or {}
        if kept := {name: asked[name] for name in _RESOURCES if name in asked}:
            found[kind] = kept
    return found
