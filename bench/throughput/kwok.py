"""Nodes whose kubelets are played by kwok: what it is told to do, and how it is started.

Nothing runs on these nodes. A pod is Running as soon as it is bound, and has succeeded at once, if
pods end: two status writes a pod, as a kubelet makes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME

NODE_CPU, NODE_MEMORY, NODE_PODS = "128", "1Ti", "250"
LEASE_SECONDS = 40
PODS_AT_ONCE, NODES_AT_ONCE = 16, 4

# Of the pod as it is: a kubelet knows its own pods, and takes none back from its end. kwok lists
# all pods again where the API server has closed its watch, and plays also what it had in hand.
_STATE = """
{{ $now := Now }}
metadata:
  resourceVersion: {{ .metadata.resourceVersion | Quote }}
status:
  phase: %(phase)s
  startTime: {{ $now | Quote }}
  conditions:
  - {type: Ready, status: %(ready)s, lastTransitionTime: {{ $now | Quote }}}
  containerStatuses:
  {{ range .spec.containers }}
  - name: {{ .name | Quote }}
    image: {{ .image | Quote }}
    ready: %(is_ready)s
    restartCount: 0
    state:
      %(state)s
  {{ end }}
"""
_RUNNING = "running: {startedAt: {{ $now | Quote }}}"
_ENDED = (
    "terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, "
    "finishedAt: {{ $now | Quote }}}"
)


_READY_NODE = """
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: ""
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
"""
_DELETED = ".metadata.deletionTimestamp"
_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'


def _is(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def _stage(
    name: str, kind: str, when: Sequence[Mapping[str, Any]], then: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": [dict(one) for one in when]},
            "next": dict(then),
        },
    }


def _patched(template: str) -> dict[str, Any]:
    return {"patches": [{"subresource": "status", "type": "merge", "template": template}]}


def stages(*, pods_end: bool = True) -> list[dict[str, Any]]:
    """The life of a pod, and a node that is ready. kwok renews the nodes' leases besides."""
    stays = _is(_DELETED, "DoesNotExist")
    running = _STATE % {
        "phase": "Running",
        "ready": '"True"',
        "is_ready": "true",
        "state": _RUNNING,
    }
    ended = _STATE % {
        "phase": "Succeeded",
        "ready": '"False"',
        "is_ready": "false",
        "state": _ENDED,
    }
    pending, runs = _is(".status.phase", "In", "Pending"), _is(".status.phase", "In", "Running")
    return [
        _stage(
            "node-ready", "Node", [_is(_READY, "NotIn", "True")], {"statusTemplate": _READY_NODE}
        ),
        _stage("pod-starts", "Pod", [stays, pending], _patched(running)),
        *([_stage("pod-succeeds", "Pod", [stays, runs], _patched(ended))] if pods_end else []),
        _stage("pod-goes", "Pod", [_is(_DELETED, "Exists")], {"delete": True}),
    ]


def kwok_command(
    binary: Path, kubeconfig: Path, folder: Path, *, pods_end: bool = True
) -> list[str]:
    """Writes the stages into the folder. Returns the command that plays all nodes."""
    file = folder / "kwok.yaml"
    file.write_text(yaml.safe_dump_all([_options(), *stages(pods_end=pods_end)]))
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--config={file}",
        "--manage-all-nodes=true",
        f"--node-lease-duration-seconds={LEASE_SECONDS}",
    ]


def _options() -> dict[str, Any]:
    """Each node has a kubelet of its own: kwok's four writes at a time for all of them would make
    pods run for seconds that end at once. With 64 the API server, which buffers few events for a
    watch while it is young, closed that of kwok, which listed pods again and played them twice.
    """
    parallel = {"podPlayStageParallelism": PODS_AT_ONCE, "nodePlayStageParallelism": NODES_AT_ONCE}
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            **parallel,
            "nodeLeaseParallelism": NODES_AT_ONCE,
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "enableCRDs": [],
        },
    }


def node_manifest(name: str, gpus: int) -> dict[str, Any]:
    """A node with GPUs, for the device plugin's resource and for the operator alike."""
    size = {"cpu": NODE_CPU, "memory": NODE_MEMORY, "pods": NODE_PODS, "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"gpujob.dev/managed": "true", LABEL_HOSTNAME: name},
        },
        "status": {"capacity": size, "allocatable": size},
    }


def node_names(count: int) -> list[str]:
    return [f"node-{number:04d}" for number in range(count)]
