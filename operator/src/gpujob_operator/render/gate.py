"""Renders the pod of a service's gate.

It runs the operator's image and has no right at the API server. Its only token has the audience of
the report port.
"""

import hashlib
import json
from typing import Any
from urllib.parse import urljoin

from gpujob_api.gate import (
    ENV_GATE_HOST,
    ENV_GATE_PORT,
    ENV_GATE_TOKEN_FILE,
    ENV_GATE_URL,
    GATE_GRACE_SECONDS,
    GATE_PATH,
    GATE_READY_PATH,
)
from gpujob_api.gpuservice import GPUService
from gpujob_api.json_values import json_copy
from gpujob_api.meta import LABEL_GATE, LABEL_REVISION, LABEL_SERVICE, LABEL_SERVICE_UID
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import gate_name
from gpujob_operator.render.pod import TOKEN_DIRECTORY, VISIBLE_DEVICES, token_volume
from gpujob_operator.render.service import owner_reference

COMMAND = ["python", "-m", "gpujob_operator.gate"]
# The memory of the process, and of what it reads of the requests that it holds.
RESOURCES = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}
_PROBE_SECONDS = 2


def gate_pod(service: GPUService, ordinal: int, configuration: Configuration) -> dict[str, Any]:
    """Returns the pod of a gate. The configuration must have an image for it."""
    spec = _spec(service, configuration)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": gate_name(service.metadata.name, ordinal),
            "namespace": service.metadata.namespace,
            "labels": {
                LABEL_SERVICE: service.metadata.name,
                LABEL_SERVICE_UID: service.metadata.uid,
                LABEL_GATE: "true",
                LABEL_REVISION: _digest(spec),
            },
            "ownerReferences": [owner_reference(service)],
        },
        "spec": spec,
    }


def gate_revision(service: GPUService, configuration: Configuration) -> str:
    """Returns the revision of new gates. Another image, or another address of the operator, is
    another revision.
    """
    return _digest(_spec(service, configuration))


def _digest(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:6]


def _spec(service: GPUService, configuration: Configuration) -> dict[str, Any]:
    template: dict[str, Any] = json_copy(service.spec.template)
    secrets = template["spec"].get("imagePullSecrets")
    return {
        "containers": [_container(service, configuration)],
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GATE_GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [token_volume()],
        **({"imagePullSecrets": secrets} if secrets else {}),
    }


def _container(service: GPUService, configuration: Configuration) -> dict[str, Any]:
    port = service.spec.port
    values = {
        ENV_GATE_URL: urljoin(configuration.report_url, GATE_PATH),
        ENV_GATE_TOKEN_FILE: f"{TOKEN_DIRECTORY}/token",
        ENV_GATE_PORT: str(port),
        # Images of CUDA apart, a node's runtime may give every container all GPUs.
        VISIBLE_DEVICES: "void",
    }
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return {
        "name": "gate",
        "image": configuration.gate_image,
        "imagePullPolicy": "IfNotPresent",
        "command": COMMAND,
        "env": [
            *({"name": name, "value": value} for name, value in values.items()),
            {"name": ENV_GATE_HOST, "valueFrom": address},
        ],
        "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": {
            "httpGet": {"path": GATE_READY_PATH, "port": port},
            "periodSeconds": _PROBE_SECONDS,
            "timeoutSeconds": _PROBE_SECONDS,
        },
        "resources": RESOURCES,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "gpujob-token", "mountPath": TOKEN_DIRECTORY, "readOnly": True},
        ],
    }
