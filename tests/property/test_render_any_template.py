"""Whatever template the CRD lets in becomes a pod, or is refused with the field."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.settings import Settings
from gpujob_operator.decide.lifecycle.pod_cleanup import delete_pod
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.planner import plan
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import T0, make_job, make_pod, make_snapshot, placed
from tests.harness.crds import Schema, schema_of
from tests.harness.schema_values import accepted_values

TEMPLATE: Schema = schema_of(GPUJob)["properties"]["spec"]["properties"]["template"]
CONFIGURATIONS = st.sampled_from(
    [Configuration(report_url="http://operator", device_access=access) for access in DeviceAccess]
)


def job_of(template: dict[str, Any]) -> GPUJob:
    """With a container `worker`, as a rule of the CRD asks for."""
    containers = template.setdefault("spec", {}).setdefault("containers", [])
    if all(one["name"] != "worker" for one in containers):
        containers.append({"name": "worker", "image": "image:1"})
    return placed(make_job(template=template))


@settings(max_examples=150)
@given(accepted_values(TEMPLATE), CONFIGURATIONS)
def test_a_template_that_the_crd_lets_in_becomes_a_pod(
    template: dict[str, Any], configuration: Configuration
) -> None:
    job, fields, pod = job_of(template), list[str](), dict[str, Any]()
    try:
        pod = worker_pod(CreatePod(job, 0, Settings()), configuration)
    except FieldError as error:
        fields.append(error.field)
    assert all(field.startswith("spec.template.spec.affinity.nodeAffinity") for field in fields)
    if fields:
        return
    required = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    for term in required["nodeSelectorTerms"]:
        assert {"key": "metadata.name", "operator": "In", "values": ["n0"]} in term["matchFields"]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@settings(max_examples=60)
@given(accepted_values(TEMPLATE))
def test_decisions_take_any_template_that_the_crd_lets_in(template: dict[str, Any]) -> None:
    job = job_of(template)
    assert profile_name(job)
    delete_pod(job, make_pod(job), "x", Configuration())
    plan(make_snapshot(job, make_job("other", template=template)), T0)


@pytest.mark.parametrize(
    ("affinity", "field"),
    [
        ({"nodeAffinity": "x"}, "nodeAffinity"),
        ({"nodeAffinity": {REQUIRED: ["x"]}}, f"nodeAffinity.{REQUIRED}"),
        ({"nodeAffinity": {REQUIRED: {"x": 1}}}, f"nodeAffinity.{REQUIRED}.nodeSelectorTerms"),
        (
            {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ["x"]}}},
            f"nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]",
        ),
    ],
)
def test_an_affinity_that_is_none_is_refused_by_field(affinity: Any, field: str) -> None:
    job = job_of({"spec": {"affinity": affinity, "containers": []}})
    with pytest.raises(FieldError) as caught:
        worker_pod(CreatePod(job, 0, Settings()), Configuration())
    assert caught.value.field == f"spec.template.spec.affinity.{field}"
