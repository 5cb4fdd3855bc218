"""The requests and tolerations of a job's pod template."""

from collections.abc import Mapping
from typing import Any

from gpujob_api.gpujob import GPUJob, SpotPolicy
from gpujob_operator.decide.model.checkpoint_claim import ClaimTemplate, checkpoint_claim
from gpujob_operator.decide.model.pod_requests import PodRequests, pod_requests

# GPU nodes often carry this taint to keep other pods away.
DEFAULT_TOLERATIONS: tuple[Mapping[str, Any], ...] = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)
# Clouds keep other pods away from spot nodes with these taints: AKS always does, GKE and
# Oracle Cloud do on request. A job that may use spot nodes tolerates them.
SPOT_TOLERATIONS: tuple[Mapping[str, str], ...] = tuple(
    {"key": key, "operator": "Exists", "effect": "NoSchedule"}
    for key in (
        "kubernetes.azure.com/scalesetpriority",
        "cloud.google.com/gke-spot",
        "cloud.google.com/gke-preemptible",
        "oci.oraclecloud.com/oke-is-preemptible",
    )
)
DEFAULT_AND_SPOT_TOLERATIONS: tuple[Mapping[str, Any], ...] = (
    *DEFAULT_TOLERATIONS,
    *SPOT_TOLERATIONS,
)


def pod_spec(job: GPUJob) -> Mapping[str, Any]:
    return job.spec.template.get("spec") or {}


def tolerations(job: GPUJob) -> tuple[Mapping[str, Any], ...]:
    own = pod_spec(job).get("tolerations")
    never = job.spec.spot.policy is SpotPolicy.NEVER
    ours = DEFAULT_TOLERATIONS if never else DEFAULT_AND_SPOT_TOLERATIONS
    return (*own, *ours) if own else ours


def claims(job: GPUJob, template: ClaimTemplate | None = None) -> tuple[str, ...]:
    """Returns the names of the PersistentVolumeClaims that every worker of the job mounts.

    `template` is the template of claims that the operator creates.
    """
    try:
        sources = [one.get("persistentVolumeClaim") for one in pod_spec(job).get("volumes") or ()]
        found = [str(source.get("claimName") or "") for source in sources if source]
    except (AttributeError, TypeError):
        # Rendering and the API server refuse such a template and name the field.
        return ()
    own = checkpoint_claim(job, template)
    return tuple(dict.fromkeys(filter(None, (own, *found))))


def missing_claim_text(name: str, namespace: str) -> str:
    """Returns the message about a claim of a job that does not exist."""
    return (
        f'persistentvolumeclaim "{name}" does not exist in the namespace {namespace}:'
        " create it, or create the job again with another one"
    )


def host_requests(job: GPUJob) -> PodRequests:
    """Returns what one worker pod requests of its node."""
    return pod_requests(pod_spec(job))
