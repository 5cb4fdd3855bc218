"""Whatever template the CRD lets in becomes a pod, or is refused with the field."""

from collections.abc import Mapping
from typing import Any, cast

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

KEYS = st.sampled_from(
    [
        *("nodeAffinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
        *("nodeSelectorTerms", "matchFields", "runAsUser", "name", "x"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "1Gi"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=3)
TEMPLATE: Schema = schema_of(GPUJob)["properties"]["spec"]["properties"]["template"]
CONFIGURATIONS = st.sampled_from(
    [Configuration(report_url="http://operator", device_access=access) for access in DeviceAccess]
)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """What the API server lets in at this place, as far as its schema says."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return _objects(schema)
    if kind == "array":
        keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])

        def identity(one: Any) -> object:
            return tuple(one.get(key) for key in keys) if keys else id(one)

        entries, least = values(schema["items"]), schema.get("minItems", 0)
        return st.lists(entries, min_size=least, max_size=2, unique_by=identity)
    if kind in ("integer", "number"):
        return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 9), 10**6))
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.sampled_from(["a", "worker", "b"])
    return st.one_of(st.sampled_from(["1", "250m", "1e3", "x"]), st.integers(0, 9), JSON)


def _objects(schema: Schema) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            return st.dictionaries(KEYS, values(cast("Schema", extra)), max_size=2)
        return OBJECTS
    fields = {name: values(child) for name, child in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)


def job_of(template: dict[str, Any]) -> GPUJob:
    """With a container `worker`, as a rule of the CRD asks for."""
    containers = template.setdefault("spec", {}).setdefault("containers", [])
    if all(one["name"] != "worker" for one in containers):
        containers.append({"name": "worker", "image": "image:1"})
    return placed(make_job(template=template))


@settings(max_examples=150)
@given(values(TEMPLATE), CONFIGURATIONS)
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
@given(values(TEMPLATE))
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
