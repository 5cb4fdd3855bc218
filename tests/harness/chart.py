"""The chart as users meet it: rendered by the real helm, and what Pod Security asks of its pods."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpujob_local.control_plane.tools import find_tools
from tests.harness.repository import ROOT

CHART = ROOT / "charts" / "gpujob"
RELEASE = "gpujob"
NAMESPACE = "gpujob-system"
Manifest = dict[str, Any]

# What a platform team adds to a pod: its proxy, a certificate.
EXTRAS: Mapping[str, Any] = {
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/certificates/ca.crt"}],
    "extraVolumes": [{"name": "certificates", "configMap": {"name": "company"}}],
    "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates", "readOnly": True}],
}

# Everything that is off by default, on.
ALL_ON: Mapping[str, Any] = {
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "operator": {
        "replicas": 2,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"example.org/team": "ml"},
        "podLabels": {"example.org/team": "ml"},
        "logLevel": "debug",
        **EXTRAS,
    },
    "agent": {
        "nodeSelector": {"example.org/gpu": "yes"},
        "logLevel": "warning",
        **EXTRAS,
        "podAnnotations": {"example.org/team": "ml"},
        "podLabels": {"example.org/team": "ml"},
    },
    "dashboard": {
        "enabled": True,
        "nodeSelector": {"example.org/infra": "yes"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "podAnnotations": {"example.org/team": "ml"},
        "podLabels": {"example.org/team": "ml"},
    },
    "configuration": {
        "waitingStretchMax": 10,
        "deviceAccess": "DevicePlugin",
        "pricePerGpuHour": {"NVIDIA H100 80GB HBM3": 2.5},
    },
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "ml"}},
    },
    "rbac": {"aggregate": {"view": True, "edit": True, "admin": True}},
    "defaultQueue": {"create": True, "spec": {"nominal": {"gpus": 4, "gpuMemory": "320Gi"}}},
    "tests": {"job": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    "serviceAccount": {"operator": {"annotations": {"example.org/role": "gpujob"}}},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "dashboardFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "apiServerPorts": [6443],
        "apiServerCIDRs": ["10.0.0.0/8", "fd00::/8"],
    },
    "podDisruptionBudget": {"enabled": True},
}


@cache
def helm_binary() -> Path:
    return find_tools("helm")["helm"]


def helm(
    *arguments: str, values: Mapping[str, Any] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs helm with the values on its standard input; never raises for its exit code."""
    return subprocess.run(
        [str(helm_binary()), *arguments, "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )


def template(values: Mapping[str, Any] | None = None) -> "subprocess.CompletedProcess[str]":
    return helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, values=values)


def render(values: Mapping[str, Any] | None = None) -> list[Manifest]:
    """All objects of a release. Raises with helm's words when it refuses."""
    done = template(values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(objects: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    return [found for found in objects if found["kind"] in kinds]


def named(objects: Iterable[Manifest], kind: str, name: str) -> Manifest:
    """The object of a kind with this name after the release's. Raises `ValueError` for none."""
    (found,) = (
        one for one in of_kind(objects, kind) if one["metadata"]["name"] == f"{RELEASE}-{name}"
    )
    return found


def pod_spec(workload: Manifest) -> Manifest:
    """The pod of a Pod, Deployment or DaemonSet."""
    return workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]


_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir"),
    *("ephemeral", "persistentVolumeClaim", "projected", "secret"),
}


def restricted_findings(spec: Manifest) -> list[str]:
    """What of Pod Security "restricted" a pod breaks, in the standard's own field names."""
    found = [f"spec.{name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [
        f"spec.volumes[{volume['name']}]"
        for volume in spec.get("volumes", ())
        if not volume.keys() - {"name"} <= _VOLUMES
    ]
    pod = spec.get("securityContext", {})
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        found += [
            f"{container['name']}.{problem}" for problem in _container_findings(container, pod)
        ]
    return found


def _container_findings(container: Manifest, pod: Manifest) -> list[str]:
    security = container.get("securityContext", {})
    effective = {**pod, **security}
    rules = {
        "runAsNonRoot": effective.get("runAsNonRoot") is True,
        "runAsUser": effective.get("runAsUser") != 0,
        "seccompProfile": effective.get("seccompProfile", {}).get("type")
        in ("RuntimeDefault", "Localhost"),
        "allowPrivilegeEscalation": security.get("allowPrivilegeEscalation") is False,
        "privileged": not security.get("privileged"),
        "capabilities.drop": "ALL" in security.get("capabilities", {}).get("drop", ()),
        "capabilities.add": set(security.get("capabilities", {}).get("add", ()))
        <= {"NET_BIND_SERVICE"},
        "ports.hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
    }
    return [name for name, holds in rules.items() if not holds]
