"""Reads PersistentVolumeClaim manifests: why kube-scheduler takes no new pod that mounts one."""

from collections.abc import Mapping
from typing import Any

from gpujob_operator.decide.model.pod_template import missing_claim_text
from gpujob_operator.read.shapes import mapping


def claim_problem(name: str, namespace: str, claim: Mapping[str, Any] | None) -> str:
    """Returns what is wrong with a claim and what to do, or "". None: it does not exist."""
    if claim is None:
        return missing_claim_text(name, namespace)
    if "deletionTimestamp" in mapping(claim.get("metadata")):
        return (
            f'persistentvolumeclaim "{name}" is being deleted: once it is gone, create it again, or'
            " create the job again with another one"
        )
    if mapping(claim.get("status")).get("phase") == "Lost":
        return (
            f'persistentvolumeclaim "{name}" has lost its volume (phase Lost): delete it and create'
            " it again, or create the job again with another one"
        )
    return ""
