"""The chart on real kubelets: installed, upgraded, uninstalled, and who leads."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujob_local.kubelets.cluster import KubeletCluster
from tests.harness.repository import ROOT
from tests.harness.waiting import wait_until

Json = dict[str, Any]

NAME = "gpujob"
SYSTEM = "gpujob-system"
CHART = ROOT / "charts" / "gpujob"
INSTALL_SECONDS_MAX = 90.0
READINGS_SECONDS = 90.0
# Shorter times than in a real cluster, so that scenes end; what they show does not depend on them.
VALUES: Mapping[str, Any] = {
    "agent": {"devices": "cpu", "cpu": {"memory": "3Gi", "besideGPUs": True}},
    "configuration": {"nodeLostSeconds": 10, "retryBackoffSeconds": 1},
}


@dataclass(frozen=True, slots=True)
class Release:
    """The chart, installed as README says, with CPU cards."""

    cluster: KubeletCluster
    install_seconds: float

    @classmethod
    def install(
        cls,
        cluster: KubeletCluster,
        *flags: str,
        chart: Path = CHART,
        values: Mapping[str, Any] = VALUES,
    ) -> "Release":
        began = time.monotonic()
        place = (NAME, str(chart), "--namespace", SYSTEM, "--create-namespace")
        _helm(cluster, values, "install", *place, *flags)
        release = cls(cluster, time.monotonic() - began)
        release.wait_for_readings()
        return release

    def upgrade(
        self, *flags: str, values: Mapping[str, Any] | None = None, wait: bool = True
    ) -> None:
        """To this checkout's chart. Without values as the guide says: those of before stay."""
        kept = () if values is not None else ("--reset-then-reuse-values",)
        place = (NAME, str(CHART), "--namespace", SYSTEM)
        _helm(self.cluster, values or {}, "upgrade", *place, *kept, *flags, wait=wait)

    def wait_for_readings(self) -> None:
        wait_until(lambda: gpus_ready(self.cluster), READINGS_SECONDS, "every agent has measured")

    def uninstall(self) -> None:
        self.cluster.command("helm", "uninstall", NAME, "--namespace", SYSTEM, "--wait")

    def leader(self) -> str:
        """The pod that holds the Lease; or ""."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
        leases = self.cluster.client().get(path)["items"]
        holders = [i["spec"].get("holderIdentity") for i in leases if NAME in i["metadata"]["name"]]
        return str((holders or [""])[0] or "")

    def operators(self) -> list[Json]:
        """Its pods, without those that are being deleted."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        selector = "app.kubernetes.io/component=operator"
        found = self.cluster.client().get(path, labelSelector=selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def _helm(
    cluster: KubeletCluster, values: Mapping[str, Any], *arguments: str, wait: bool = True
) -> None:
    limit = ("--wait", f"--timeout={INSTALL_SECONDS_MAX:.0f}s") if wait else ()
    cluster.command("helm", *arguments, *limit, "--values", "-", stdin=json.dumps(values))


def gpu_nodes(cluster: KubeletCluster) -> dict[str, Json]:
    items = cluster.client().get("/apis/gpujob.dev/v1alpha1/gpunodes")["items"]
    return {item["metadata"]["name"]: item for item in items}


def readiness(gpu_node: Json) -> Json:
    """The condition Ready, or an empty one."""
    for condition in gpu_node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            return condition
    return {"status": "", "reason": "", "message": ""}


def gpus_ready(cluster: KubeletCluster) -> bool:
    ready = [node for node in gpu_nodes(cluster).values() if readiness(node)["status"] == "True"]
    return len(ready) == len(cluster.nodes) and all(node["status"]["gpus"] for node in ready)
