"""What scanners such as checkov and kube-score ask of a pod: it is so, or a reason stands here.

A finding that is not in `JUSTIFIED` fails, and so does a reason for what is not found any more.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.harness.chart import ALL_ON, Manifest, of_kind, pod_spec, render

pytestmark = pytest.mark.cluster

# (component, finding): why it stays.
JUSTIFIED: Mapping[tuple[str, str], str] = {
    ("operator", "no processor limit"): (
        "a throttled operator places late; its request keeps its share, and it uses one core"
    ),
    ("agent", "no processor limit"): (
        "throttled readings are late, and late readings are not placed on; it uses 1 % of a core"
    ),
    ("agent", "host process namespace"): (
        "NVML and /proc name processes by their number on the host, and only so are pods told apart"
    ),
    ("agent", "no readiness probe"): "it serves nobody; its GPUNode says whether it reads",
    ("agent", "service account token"): "it writes its GPUNode",
    ("operator", "service account token"): "it reads and writes the API",
    ("test", "service account token"): "helm test makes a job, with a role for that job alone",
    ("test", "no processor limit"): "it ends by itself in minutes",
    ("test", "no liveness probe"): "it ends by itself, and its end is the answer",
    ("test", "no readiness probe"): "it serves nobody",
    ("dashboard", "no processor limit"): "a throttled page is late; its request keeps its share",
    ("dashboard", "service account token"): "it reads the API",
    ("dashboard", "image without a digest"): "the same image",
    ("dashboard", "image is not pulled always"): "the same image",
    ("operator", "image without a digest"): "image.digest is a value: only a release knows it",
    ("agent", "image without a digest"): "the same image",
    ("test", "image without a digest"): "the same image",
    (
        "operator",
        "image is not pulled always",
    ): "a version is never moved; image.pullPolicy is a value",
    ("agent", "image is not pulled always"): "the same image",
    ("test", "image is not pulled always"): "the same image",
}


def container_findings(container: Manifest, pod: Manifest) -> Iterator[str]:
    security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    resources = container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    image: str = container["image"]
    variables = container.get("env", ())
    holds = {
        "no processor request": "cpu" in requests,
        "no memory request": "memory" in requests,
        "no memory limit": "memory" in limits,
        "no processor limit": "cpu" in limits,
        "no liveness probe": "livenessProbe" in container,
        "no readiness probe": "readinessProbe" in container,
        "privilege escalation": security.get("allowPrivilegeEscalation") is False,
        "capabilities": security.get("capabilities") == {"drop": ["ALL"]},
        "privileged": not security.get("privileged"),
        "writable root": security.get("readOnlyRootFilesystem") is True,
        "may be root": security.get("runAsNonRoot") is True and security.get("runAsUser", 0) > 0,
        "low user or group": min(security["runAsUser"], security["runAsGroup"]) >= 10_000,
        "no seccomp profile": security.get("seccompProfile") == {"type": "RuntimeDefault"},
        "latest image": not image.endswith(":latest") and (":" in image or "@" in image),
        "image without a digest": "@sha256:" in image,
        "image is not pulled always": container["imagePullPolicy"] == "Always",
        "a secret in a variable": not any("secretKeyRef" in str(e) for e in variables),
    }
    yield from (finding for finding, well in holds.items() if not well)


def pod_findings(pod: Manifest) -> Iterator[str]:
    for name, finding in (
        ("hostPID", "host process namespace"),
        ("hostNetwork", "host network"),
        ("hostIPC", "host IPC"),
    ):
        if pod.get(name):
            yield finding
    if any("hostPath" in volume for volume in pod.get("volumes", ())):
        yield "host path"
    if pod.get("automountServiceAccountToken") is not False:
        yield "service account token"
    if pod.get("serviceAccountName", "default") == "default" and (
        pod.get("automountServiceAccountToken") is not False
    ):
        yield "default service account"
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        yield from container_findings(container, pod)


def findings(values: Mapping[str, Any]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for workload in of_kind(render(values), "Deployment", "DaemonSet", "Pod"):
        template = workload if workload["kind"] == "Pod" else workload["spec"]["template"]
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        found |= {(component, one) for one in pod_findings(pod_spec(workload))}
    return found


@pytest.mark.parametrize(
    "values",
    [{}, ALL_ON, {"agent": {"devices": "cpu"}}],
    ids=["defaults", "all on", "CPU cards"],
)
def test_every_finding_has_its_reason(values: Mapping[str, Any]) -> None:
    assert findings(values) - JUSTIFIED.keys() == set()


def test_every_reason_has_its_finding() -> None:
    assert JUSTIFIED.keys() - findings({"dashboard": {"enabled": True}}) == set()


def test_what_a_scanner_looks_for_is_found() -> None:
    """A check that finds nothing would pass for ever."""
    pod = {
        "hostNetwork": True,
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
        "containers": [
            {
                "image": "x:latest",
                "imagePullPolicy": "Always",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}],
                "securityContext": {"privileged": True, "runAsUser": 0, "runAsGroup": 0},
            }
        ],
    }
    found = set(pod_findings(pod))
    assert {"host network", "host path", "default service account", "privileged"} <= found
    assert {"writable root", "may be root", "no seccomp profile", "no memory limit"} <= found
    assert {"latest image", "a secret in a variable", "capabilities"} <= found


def test_services_and_accounts_are_of_this_release_alone() -> None:
    """No object names a node port, an external address or a load balancer."""
    for service in of_kind(render(ALL_ON), "Service"):
        assert service["spec"].get("type", "ClusterIP") == "ClusterIP"
        assert "externalIPs" not in service["spec"]


def test_the_agents_user_is_no_other_pods() -> None:
    """It sees all processes of the node; the kernel keeps those of other users from it."""
    objects = render()
    users = {
        found["kind"]: pod_spec(found)["securityContext"]
        for found in of_kind(objects, "Deployment", "DaemonSet")
    }
    agent = users.pop("DaemonSet")
    assert agent["runAsUser"] == agent["runAsGroup"]
    assert agent["runAsUser"] not in {one["runAsUser"] for one in users.values()}
    assert agent["runAsUser"] not in {0, 65532, 65534}
