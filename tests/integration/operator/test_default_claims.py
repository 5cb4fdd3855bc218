"""The operator makes claims for checkpoints on a real API server, with the rights of the chart."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_local.control_plane.api_client import ApiError
from tests.harness.operator_process import RULES_FOLDER, SYSTEM_NAMESPACE, Process
from tests.harness.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = "operator-claims"
CONFIGURATION = {"checkpointClaimTemplate": {"size": "1Gi"}, "retryBackoffSeconds": 1.0}
Json = dict[str, Any]


@pytest.fixture
def may_make_claims(stage: Stage) -> Generator[Stage]:
    """The rights that the chart adds with the value."""
    rules = yaml.safe_load((RULES_FOLDER / "operator-claim-rules.yaml").read_text())
    role: Json = {"kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": rules}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": SYSTEM_NAMESPACE}
    binding: Json = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [subject],
    }
    version = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    stage.client.create(f"{RBAC}/clusterroles", role | version)
    stage.client.create(f"{RBAC}/clusterrolebindings", binding | version)
    yield stage
    stage.client.delete(f"{RBAC}/clusterrolebindings/{ROLE}")
    stage.client.delete(f"{RBAC}/clusterroles/{ROLE}")


def start_operator(stage: Stage, folder: Path) -> Process:
    path = folder / "configuration.yaml"
    path.write_text(yaml.safe_dump(CONFIGURATION))
    operator = stage.operator(f"--configuration={path}")
    operator.wait_for("leadership changed", 60.0, leads=True)
    return operator


def claims_of(stage: Stage) -> str:
    return f"/api/v1/namespaces/{stage.namespace}/persistentvolumeclaims"


def claim(stage: Stage) -> Json:
    try:
        return stage.client.get(f"{claims_of(stage)}/job-checkpoints")
    except ApiError:
        return {}


def mounted_by(stage: Stage, pod: str) -> str:
    volumes = stage.client.get(f"{stage.pods_path}/{pod}")["spec"]["volumes"]
    (checkpoints,) = [one for one in volumes if one["name"] == "gpujob-checkpoints"]
    return checkpoints.get("persistentVolumeClaim", {}).get("claimName", "")


def said(stage: Stage) -> str:
    conditions = stage.job().get("status", {}).get("conditions") or []
    return "\n".join(f"{one['reason']}: {one['message']}" for one in conditions)


def test_every_attempt_mounts_the_claim_which_goes_with_the_job(
    may_make_claims: Stage, tmp_path: Path
) -> None:
    """Nobody makes its volume here: no pod runs, and none is missed."""
    stage = may_make_claims
    start_operator(stage, tmp_path)
    stage.apply_job()
    stage.wait(lambda: "job-1-0" in stage.pod_names(), "the first attempt has a pod")
    first = claim(stage)
    assert first["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert first["spec"]["resources"]["requests"] == {"storage": "1Gi"}
    (owner,) = first["metadata"]["ownerReferences"]
    assert owner["uid"] == stage.job()["metadata"]["uid"]
    assert mounted_by(stage, "job-1-0") == "job-checkpoints"
    stage.client.delete(f"{stage.pods_path}/job-1-0")
    stage.wait(lambda: "job-2-0" in stage.pod_names(), "the second attempt has a pod")
    assert mounted_by(stage, "job-2-0") == "job-checkpoints"
    assert claim(stage)["metadata"]["uid"] == first["metadata"]["uid"]
    stage.client.delete(f"{stage.jobs_path}/job")
    stage.wait(lambda: claim(stage) == {}, "the claim goes with the job")


def test_a_claim_of_somebody_else_is_named_and_left_alone(
    may_make_claims: Stage, tmp_path: Path
) -> None:
    stage = may_make_claims
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    stage.client.create(claims_of(stage), body | {"metadata": {"name": "job-checkpoints"}})
    start_operator(stage, tmp_path)
    stage.apply_job()
    words = 'persistentvolumeclaim "job-checkpoints" exists and is not this job\'s'
    stage.wait(lambda: words in said(stage), "the condition names the claim")
    assert "PodRejected" in said(stage)
    assert stage.pod_names() == []
    assert claim(stage)["spec"]["resources"]["requests"] == {"storage": "2Gi"}


def test_without_the_right_the_condition_says_so(stage: Stage, tmp_path: Path) -> None:
    start_operator(stage, tmp_path)
    stage.apply_job()
    stage.wait(lambda: "persistentvolumeclaims" in said(stage), "it says which right is missing")
    assert "files/operator-rules.yaml" in said(stage)
    assert stage.pod_names() == []
