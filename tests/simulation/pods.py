"""What the simulated kubelet and scheduler read off a pod."""

from typing import Any

from gpujob_api.meta import ANNOTATION_GPUS
from tests.simulation.api_server import Manifest


def wanted_node(pod: Manifest) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]


def cards_of(pod: Manifest) -> list[str]:
    return pod["metadata"]["annotations"][ANNOTATION_GPUS].split(",")


def worker_status(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "worker", "state": state}
