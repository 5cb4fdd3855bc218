"""The real helm against a real API server: install, upgrade as the guide says, uninstall."""

import json
import subprocess
from collections.abc import Generator, Mapping
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, helm_binary
from tests.harness.cluster import RunningControlPlane

pytestmark = pytest.mark.cluster
RELEASE = "probe"
# The CRDs are the fixture's, and of no release.
VALUES: Mapping[str, Any] = {
    "crds": {"install": False},
    "configuration": {"preemptionsMax": 7},
    "defaultQueue": {"create": True},
}


class Release:
    def __init__(self, control_plane: RunningControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        # What the install said.
        self.said = ""

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        where = ["--namespace", self.namespace, "--kubeconfig", str(self.control_plane.kubeconfig)]
        given = [] if values is None else ["--values", "-"]
        done = subprocess.run(
            [str(helm_binary()), *arguments, *where, *given],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str) -> dict[str, Any]:
        command = ["get", kind, name, "--namespace", self.namespace, "--output", "json"]
        return json.loads(self.control_plane.kubectl(*command).stdout)


@pytest.fixture
def release(control_plane: RunningControlPlane, namespace: str) -> Generator[Release]:
    made = Release(control_plane, namespace)
    made.said = made.helm("install", RELEASE, str(CHART), values=VALUES)
    yield made
    made.helm("uninstall", RELEASE, "--ignore-not-found")
    control_plane.kubectl("delete", "gpuqueue", "default", "--ignore-not-found")


def test_a_release_is_installed_upgraded_and_leaves_nothing_but_the_crds(release: Release) -> None:
    upgrade = ("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values")
    set_by_somebody = '{"spec": {"nominal": {"gpus": 3}}}'
    release.control_plane.kubectl(
        *("patch", "gpuqueue", "default", "--type", "merge", "--patch", set_by_somebody)
    )
    release.helm(*upgrade, values={"agent": {"intervalSeconds": 3}})
    assert release.get("gpuqueue", "default")["spec"]["nominal"] == {"gpus": 3}
    agent = release.get("daemonset", "probe-gpujob-agent")["spec"]["template"]["spec"]
    assert "--interval-seconds=3" in agent["containers"][0]["args"]
    file = release.get("configmap", "probe-gpujob-configuration")["data"]["configuration.yaml"]
    assert yaml.safe_load(file)["preemptionsMax"] == 7, "values of the first install were lost"
    release.helm("uninstall", RELEASE)
    kinds = (
        "deployments,daemonsets,services,roles,rolebindings,clusterroles,clusterrolebindings,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    chosen = f"app.kubernetes.io/instance={RELEASE}"
    listing = ["get", kinds, "--selector", chosen, "--namespace", release.namespace]
    left = release.control_plane.kubectl(*listing, "--output", "name").stdout
    assert left == ""
    assert "gpujobs.gpujob.dev" in release.control_plane.kubectl("get", "crds").stdout


def test_a_missing_runtime_class_is_said_in_words_until_there_is_one(release: Release) -> None:
    assert 'RuntimeClass "nvidia" not found' in release.said
    assert "--set agent.devices=cpu" in release.said
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    text = json.dumps({**kind, "metadata": {"name": "nvidia"}})
    release.control_plane.kubectl("create", "--filename", "-", stdin=text)
    try:
        said = release.helm("upgrade", RELEASE, str(CHART), values=VALUES)
    finally:
        release.control_plane.kubectl("delete", "runtimeclass", "nvidia")
    assert "not found" not in said
    assert "runtime class nvidia" in said
