"""Specs that the API server takes and of which no attempt is started."""

import re
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Checkpoint, GPUJob, SpotPolicy
from gpujob_operator.decide.model.checkpoint_claim import ClaimSize, ClaimTemplate
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.spec_refusals import GPU_RESOURCE_PATTERN, spec_refusal
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    GIB,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    statuses,
)
from tests.harness.repository import ROOT

CLASSES = "deviceclass.resource.kubernetes.io"
GPUS = (
    *(
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-7g.80gb.me",
    ),
    *(
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/vgpu",
    ),
    *(
        "nvidia.com/a100.shared",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "k8s.amazonaws.com/vgpu",
    ),
    *("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/gpu-memory", "amd.com/gpu"),
    *("tencent.com/vcuda-core", "tencent.com/vcuda-memory", "gpu.intel.com/i915"),
    *(f"{CLASSES}/{name}" for name in ("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com")),
)
OTHERS = (
    *("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "rdma/hca", "rdma/gpu_nic"),
    *(
        "nvidia.com/hostdev",
        "nvidia.com/mlnxnics",
        "example.com/migrations",
        "vpc.amazonaws.com/efa",
    ),
    *(f"{CLASSES}/{name}" for name in ("rdma.dranet.dev", "compute-domain.nvidia.com")),
)
TEMPLATE = ClaimTemplate(ClaimSize(GIB))


def template(container: dict[str, Any], *sidecars: dict[str, Any]) -> dict[str, Any]:
    worker = {"name": "worker", "image": "i", "command": ["train"], **container}
    return {"spec": {"containers": [worker], "initContainers": list(sidecars)}}


def refusal(job: GPUJob, configuration: Configuration | None = None) -> str:
    return spec_refusal(job, configuration or Configuration())


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("amounts", ["limits", "requests"])
def test_gpus_by_any_name_are_refused_in_every_container(name: str, amounts: str) -> None:
    asked = {"resources": {amounts: {"cpu": "1", name: 1}}}
    words = (
        "is not allowed: create the job again without it, and request GPUs in spec.gpusPerWorker "
        "and spec.gpu"
    )
    said = refusal(make_job(template=template(asked)))
    assert said == f"spec.template.spec.containers[0].resources.{amounts}.{name} {words}"
    said = refusal(make_job(template=template({}, {"name": "a"}, {"name": "side", **asked})))
    assert said == f"spec.template.spec.initContainers[1].resources.{amounts}.{name} {words}"


@pytest.mark.parametrize("name", ["cdi.k8s.io/all", "nvidia.cdi.k8s.io/container.worker"])
def test_devices_by_annotation_are_refused(name: str) -> None:
    annotations = {"example.com/cdi.k8s.io": "x", name: "nvidia.com/gpu=all"}
    said = refusal(make_job(template={**template({}), "metadata": {"annotations": annotations}}))
    assert said.startswith(f"spec.template.metadata.annotations.{name} is not allowed")


@pytest.mark.parametrize("odd", [None, [], {"annotations": None}, {"annotations": "cdi.k8s.io/a"}])
def test_odd_metadata_is_passed_over(odd: Any) -> None:
    assert refusal(make_job(template={**template({}), "metadata": odd})) == ""


@pytest.mark.parametrize("name", OTHERS)
def test_other_resources_are_not(name: str) -> None:
    asked = {"resources": {"limits": {name: 1}, "requests": {name: 1}}}
    assert refusal(make_job(template=template(asked, {"name": "side", **asked}))) == ""


@pytest.mark.parametrize(
    "odd",
    [{"resources": None}, {"resources": []}, {"resources": {"limits": "nvidia.com/gpu.shared"}}],
)
def test_what_is_no_object_is_passed_over(odd: dict[str, Any]) -> None:
    assert refusal(make_job(template=template(odd))) == ""


def test_the_admission_rule_has_the_same_pattern() -> None:
    path = ROOT / "charts" / "gpujob" / "files" / "policies" / "jobs" / "gpu-resources.yaml"
    assert re.findall(r"r'([^']*)'", path.read_text()) == [GPU_RESOURCE_PATTERN] * 2


def test_such_a_job_is_never_placed_and_says_why() -> None:
    asked = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}
    job = make_job(template=template(asked))
    status = statuses(plan(make_snapshot(job), T0).items)[job.metadata.name]
    assert status.placement is None
    (scheduled,) = (one for one in status.conditions if one.type == "Scheduled")
    assert scheduled.reason == "SpecRejected"
    assert "nvidia.com/mig-1g.10gb is not allowed" in scheduled.message


# -- spot.policy: Require


def on_spot(claim: str | None = None, path: str | None = None, workers: int = 1) -> GPUJob:
    job = make_job(spot=SpotPolicy.REQUIRE, workers=workers)
    return replace(job, spec=replace(job.spec, checkpoint=Checkpoint(claim, path=path)))


@pytest.mark.parametrize(
    ("job", "made", "words"),
    [
        (on_spot("ckpt"), None, ""),
        (on_spot(), TEMPLATE, ""),
        (on_spot(path="last.pt"), TEMPLATE, ""),
        (on_spot(), None, "the operator makes none (checkpointClaimTemplate)"),
        (on_spot(path="last.pt"), None, "the operator makes none ("),
        (on_spot(workers=2), TEMPLATE, "the operator makes none for this job"),
        (on_spot(path="/elsewhere/last.pt"), TEMPLATE, "the operator makes none for this job"),
        (make_job(claim=None, spot=SpotPolicy.PREFER), None, ""),
    ],
)
def test_what_must_be_on_spot_nodes_needs_a_place_for_its_checkpoints(
    job: GPUJob, made: ClaimTemplate | None, words: str
) -> None:
    said = refusal(job, Configuration(checkpoint_claim_template=made))
    assert bool(said) is bool(words)
    assert words in said
    if said:
        assert said.startswith(
            "spec.checkpoint.volumeClaimName is required by spot.policy: Require"
        )


def test_with_a_claim_that_the_operator_makes_it_is_placed_on_a_spot_node() -> None:
    seen = make_snapshot(
        on_spot(),
        nodes=[make_node("s", spot=True)],
        gpu_nodes=[make_gpu_node("s", make_gpu())],
        configuration=Configuration(checkpoint_claim_template=TEMPLATE),
    )
    (status,) = statuses(plan(seen, T0).items).values()
    assert status.placement is not None
