"""The operator on a real API server reads where the volume of a job's claim can be used."""

from typing import Any

import pytest

from tests.harness.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

VOLUMES = "/api/v1/persistentvolumes"
SIZE = {"storage": "1Gi"}
Json = dict[str, Any]


def claims_of(stage: Stage) -> str:
    return f"/api/v1/namespaces/{stage.namespace}/persistentvolumeclaims"


def make_claim(stage: Stage, **more: Any) -> Json:
    access = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    return stage.client.create(
        claims_of(stage),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {**access, "resources": {"requests": SIZE}, **more},
        },
    )


def bind_elsewhere(stage: Stage) -> str:
    """The claim `data` is bound to a volume that no node of the stage can use."""
    name = f"volume-of-{stage.namespace}"
    claim = make_claim(stage, volumeName=name)
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["elsewhere"]}
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "capacity": SIZE,
        "csi": {"driver": "csi.example", "volumeHandle": name},
        "claimRef": {"namespace": stage.namespace, "name": "data", "uid": claim["metadata"]["uid"]},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}},
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    stage.client.create(VOLUMES, {**body, "spec": spec})
    stage.wait(lambda: phase_of(stage, name) == "Bound", "the volume is bound")
    return name


def phase_of(stage: Stage, volume: str) -> str:
    """As kube-controller-manager says, which would take back what anybody else says."""
    return stage.client.get(f"{VOLUMES}/{volume}").get("status", {}).get("phase", "")


def why(stage: Stage) -> str:
    conditions = stage.job().get("status", {}).get("conditions") or []
    return next((one["message"] for one in conditions if one["type"] == "Scheduled"), "")


def test_a_job_waits_for_its_volume_without_a_pod(stage: Stage) -> None:
    volume = bind_elsewhere(stage)
    operator = stage.operator()
    operator.wait_for("leadership changed", 60.0, leads=True)
    stage.apply_job(checkpoint={"volumeClaimName": "data"})
    stage.wait(lambda: "volume of claim data" in why(stage), "it says what it waits for")
    assert stage.pod_names() == []
    assert stage.job()["status"].get("attempt", 0) == 0
    stage.client.delete(f"{claims_of(stage)}/data")
    stage.wait(lambda: phase_of(stage, volume) == "Released", "the volume is released")
    stage.wait(lambda: "does not exist" in why(stage), "the claim is looked for")
    assert stage.job()["status"].get("attempt", 0) == 0
    make_claim(stage)
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "nothing keeps it from the node any more")
