"""The requests and tolerations of a job's pod template."""

from collections.abc import Mapping
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.pod_requests import PodRequests, pod_requests

# GPU nodes often carry this taint to keep other pods away.
DEFAULT_TOLERATIONS: tuple[Mapping[str, Any], ...] = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)


def pod_spec(job: GPUJob) -> Mapping[str, Any]:
    return job.spec.template.get("spec") or {}


def tolerations(job: GPUJob) -> tuple[Mapping[str, Any], ...]:
    own = pod_spec(job).get("tolerations")
    return (*own, *DEFAULT_TOLERATIONS) if own else DEFAULT_TOLERATIONS


def host_requests(job: GPUJob) -> PodRequests:
    """What one worker pod asks of its node."""
    return pod_requests(pod_spec(job))
