"""Volumes that some nodes only can use, and the claims of jobs that are bound to them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.workloads import Submission

# As drivers of local and zonal volumes label nodes.
LABEL_NODE = "topology.csi.example/node"


def volume_of(submission: Submission) -> dict[str, Any] | None:
    """The volume that the job's claim is bound to; None where nobody has bound one."""
    workload = submission.workload
    if not (workload.volume_nodes and workload.volume_is_bound):
        return None
    nodes = {"key": LABEL_NODE, "operator": "In", "values": list(workload.volume_nodes)}
    return {
        "metadata": {"name": f"volume-{submission.namespace}-{submission.name}"},
        "spec": {
            "claimRef": {"namespace": submission.namespace, "name": _claim_of(submission)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}},
        },
        "status": {"phase": "Bound"},
    }


def mounting(submission: Submission) -> dict[str, Any]:
    """The job's spec, with a volume for its claim where it has one of its own."""
    if not submission.workload.volume_nodes:
        return submission.spec
    spec = deepcopy(submission.spec)
    claim = {"claimName": _claim_of(submission)}
    spec["template"]["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
    return spec


def keeps_checkpoints(pod: Mapping[str, Any]) -> bool:
    """Whether what the pod's worker saves outlives the pod."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    return "persistentVolumeClaim" in volumes.get("gpujob-checkpoints", {})


def _claim_of(submission: Submission) -> str:
    return f"{submission.name}-data"
