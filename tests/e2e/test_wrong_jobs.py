"""What goes wrong in a cluster says what to do, in the job's own conditions."""

from typing import Any

import pytest

from tests.harness.audit import AuditTrail
from tests.harness.ground import Team
from tests.harness.release import SYSTEM, VALUES, Release, gpu_nodes, readiness
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

AGENT_SECONDS = 120.0

Json = dict[str, Any]


def test_an_image_that_cannot_be_pulled(team: Team) -> None:
    """Nobody answers at the registry's address, which is the node's own loopback."""
    team.submit("unpulled", container={"image": "127.0.0.1:1/team/trainer:1"})
    team.wait_for_words("unpulled", "ImagePull", "127.0.0.1:1/team/trainer:1", "imagePullSecrets")


def test_a_claim_that_is_not_there(team: Team) -> None:
    team.submit("homeless", spec={"checkpoint": {"volumeClaimName": "nowhere"}})
    team.wait_for_words("homeless", 'persistentvolumeclaim "nowhere" does not exist', "create it")


def test_a_claim_that_does_not_bind(team: Team) -> None:
    """Nobody makes volumes of its class."""
    claim: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    room = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "loose", "namespace": team.namespace}
    team.apply(claim | {"metadata": metadata, "spec": room | {"storageClassName": "none"}})
    team.submit("unbound", spec={"checkpoint": {"volumeClaimName": "loose"}})
    team.wait_for_words(
        "unbound",
        "unbound immediate",
        "what the claim waits for",
        "kubectl describe persistentvolumeclaim",
    )


def test_a_runtime_class_that_is_not_there(team: Team) -> None:
    team.submit("classless", template={"runtimeClassName": "kata"})
    team.wait_for_words("classless", 'RuntimeClass "kata" not found', "kubectl get runtimeclass")


def test_a_quota_that_is_used_up(team: Team) -> None:
    team.apply(limit(team, "ResourceQuota", {"hard": {"pods": "0"}}))
    team.submit("squeezed")
    team.wait_for_words(
        "squeezed",
        "exceeded quota: small",
        "ResourceQuota small: pods 0 of 0 used (0 by pods of GPUJobs)",
        "have the ResourceQuota raised",
    )


def test_a_quota_that_wants_requests(team: Team) -> None:
    team.apply(limit(team, "ResourceQuota", {"hard": {"requests.cpu": "8"}}))
    team.submit("modest")
    team.wait_for_words(
        "modest", "must specify requests.cpu for: worker", "the template's containers"
    )


def test_a_limit_range(team: Team) -> None:
    rule = {"type": "Container", "min": {"memory": "1Gi"}}
    team.apply(limit(team, "LimitRange", {"limits": [rule]}))
    team.submit("small", container={"resources": {"requests": {"memory": "100Mi"}}})
    team.wait_for_words(
        "small", "minimum memory usage per Container is 1Gi", "kubectl describe limitrange"
    )


def test_a_command_that_is_not_in_the_image(team: Team) -> None:
    team.submit("commandless", command=["no-such-program"])
    team.wait_for_words("commandless", "no-such-program", "executable file not found")


def limit(team: Team, kind: str, spec: Json) -> Json:
    metadata = {"name": "small", "namespace": team.namespace}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def test_agents_for_gpus_that_are_not_there(release: Release, audit: AuditTrail) -> None:
    """Without the runtime class no agent starts; without NVML every agent says what is missing."""
    cluster = release.cluster
    nvml = {**VALUES, "agent": {"devices": "nvml"}}
    path = f"/api/v1/namespaces/{SYSTEM}/events"

    def events() -> str:
        return " ".join(one["message"] for one in cluster.client().get(path)["items"])

    try:
        release.upgrade(values=nvml, wait=False)
        wait_until(
            lambda: 'RuntimeClass "nvidia" not found' in events(), AGENT_SECONDS, "the class"
        )
        nvml["agent"]["runtimeClassName"] = ""
        release.upgrade(values=nvml)

        def said() -> bool:
            found = [readiness(node) for node in gpu_nodes(cluster).values()]
            return all(
                (one["status"], one["reason"]) == ("False", "NVMLFailed")
                and "agent.runtimeClassName" in one["message"]
                for one in found
            )

        wait_until(said, AGENT_SECONDS, "every GPUNode says that NVML is missing")
    finally:
        release.upgrade(values=VALUES)
        release.wait_for_readings()
    # With CPU cards, the agents' role has a right more, and goes before the agents do.
    audit.forget()
