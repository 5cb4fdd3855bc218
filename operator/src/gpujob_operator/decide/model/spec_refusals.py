"""Why the operator starts no attempt of a spec that the API server accepted.

The schema cannot express the rule, or the configuration decides it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from gpujob_api.gpujob import GPUJob, SpotPolicy
from gpujob_api.start_refusal import StartRefusal
from gpujob_api.visible import visible
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.checkpoint_claim import checkpoint_claim
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.pod_template import pod_spec
from gpujob_operator.decide.model.protection import Unprotected, why_unprotected
from gpujob_operator.decide.model.stop_reasons import rule_for

# GPUs and their memory under the names that device plugins give them: nvidia.com/gpu.shared,
# nvidia.com/mig-1g.10gb, aliyun.com/gpu-mem, volcano.sh/vgpu-memory, nvidia.com/gpumem. Classes of
# DRA drivers have names as well, as deviceclass.resource.kubernetes.io/mig.nvidia.com. The chart's
# policy gpu-resources has the same pattern.
GPU_RESOURCE_PATTERN = (
    r"^gpu\.[^/]*/|^[^/]+/([vpq]?gpu($|[.-]|mem|cores?|s$)|mig-|vcuda)|^nvidia\.com/.*\.shared$"
    r"|^deviceclass\.resource\.kubernetes\.io/(.*[.-])?(gpu|mig)[.-]"
)
_GPU_RESOURCE = re.compile(GPU_RESOURCE_PATTERN)
# Annotations by which some runtimes add devices to containers: cdi.k8s.io/a: nvidia.com/gpu=all.
_DEVICES = re.compile(r"^([^/]*\.)?cdi\.k8s\.io/")
_CONTAINERS = ("containers", "initContainers")
_AMOUNTS = ("limits", "requests")
_CHARACTERS_MAX = 128


def spec_refusal(job: GPUJob, configuration: Configuration) -> str:
    """Returns the field and what to do about it, or "" if attempts may be started."""
    return _gpu_resource(job) or _spot_without_a_claim(job, configuration)


def _gpu_resource(job: GPUJob) -> str:
    annotations = _object(_object(job.spec.template.get("metadata")).get("annotations"))
    devices = (f"metadata.annotations.{one}" for one in annotations if _DEVICES.match(one))
    field = next(chain(_gpu_resources(pod_spec(job)), devices), "")
    if not field:
        return ""
    shown = visible(field[:_CHARACTERS_MAX])
    return (
        f"spec.template.{shown} is not allowed: create the job again without it, and request "
        "GPUs in spec.gpusPerWorker and spec.gpu"
    )


def _gpu_resources(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yields fields of the pod's spec that request GPUs from a device plugin.

    No reservation and no quota counts such GPUs.
    """
    for kind in _CONTAINERS:
        for index, container in enumerate(_objects(pod.get(kind))):
            resources = _object(container.get("resources"))
            for amounts in _AMOUNTS:
                for name in _object(resources.get(amounts)):
                    if _GPU_RESOURCE.search(name):
                        yield f"spec.{kind}[{index}].resources.{amounts}.{name}"


def _spot_without_a_claim(job: GPUJob, configuration: Configuration) -> str:
    if job.spec.spot.policy is not SpotPolicy.REQUIRE:
        return ""
    template = configuration.checkpoint_claim_template
    if checkpoint_claim(job, template) is not None:
        return ""
    if why_unprotected(job, configuration) is not Unprotected.NO_DURABLE_PLACE:
        return ""
    made = "makes none" if template is None else "makes none for this job"
    return (
        "spec.checkpoint.volumeClaimName is required by spot.policy: Require, because the operator "
        f"{made} (checkpointClaimTemplate); set spot.policy: Prefer, or create a new GPUJob that "
        "names a claim"
    )


def _objects(value: object) -> list[Mapping[str, Any]]:
    """Skips values that are not objects. Rendering and the API server refuse them and name the
    field.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [_object(one) for one in cast("Sequence[object]", value)]


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def current_refusals(job: GPUJob) -> tuple[StartRefusal, ...]:
    """Returns the refusals of the current spec. An edit may have fixed the others."""
    refusals, generation = job.status.start_refusals, job.metadata.generation
    if not refusals:
        return ()
    return tuple([one for one in refusals if one.generation in (None, generation)])


def is_edited_since_refused(job: GPUJob) -> bool:
    """Returns whether the job pauses after a refusal, and every refusal is of an earlier spec.

    Refusals are kept while the job runs. A pause after a failure or an interruption is none of
    theirs.
    """
    running = conditions.find(job.status, conditions.RUNNING)
    if running is None or not rule_for(running.reason).is_refusal:
        return False
    return bool(job.status.start_refusals) and not current_refusals(job)
