"""The short form of a spec is read as the long one."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, GPUJobSpec
from gpujob_api.manifest import from_manifest, read_spec, to_manifest
from gpujob_api.short_form import GPUs, expanded

SHORT: dict[str, Any] = {"image": "trainer", "command": ["python", "train.py"]}


@pytest.mark.parametrize(
    ("written", "count", "model"),
    [
        (2, 2, ""),
        ("2", 2, ""),
        ("16", 16, ""),
        ("H100", 1, "H100"),
        ("H100:2", 2, "H100"),
        ("NVIDIA RTX 4090:16", 16, "NVIDIA RTX 4090"),
    ],
)
def test_gpus_is_a_number_a_model_or_both(written: object, count: int, model: str) -> None:
    assert GPUs.from_json(written, "spec.gpus") == GPUs(count, model)
    spec = read_spec({**SHORT, "gpus": written})
    assert (spec.gpus_per_worker, spec.gpu.models) == (count, (model,) if model else ())


@pytest.mark.parametrize(
    "written",
    [
        *(0, 17, -1, 1.0, True, None, [], {}, "", "0", "17", "02", "4090", ":2", "H100:", "2:H100"),
        *("H100:0", "H100:17", "H100:02", "a:b:1", "a" * 129),
    ],
)
def test_other_values_of_gpus_are_refused_with_examples(written: object) -> None:
    with pytest.raises(FieldError, match=r"^spec\.gpus: must be .* such as 2, H100 or H100:2; got"):
        GPUs.from_json(written, "spec.gpus")


def test_the_fields_become_a_container() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"key": "k"}}}]
    short = {**SHORT, "args": ["--lr", "1"], "env": env, "priority": 3, "gpu": {"memory": "1Gi"}}
    container = {"name": "worker", **SHORT, "args": ["--lr", "1"], "env": env}
    assert expanded(short) == {
        "priority": 3,
        "gpu": {"memory": "1Gi"},
        "template": {"spec": {"containers": [container]}},
    }
    assert short["image"] == "trainer", "the object of the API server is left as it is"


def test_a_template_may_have_gpus_in_short() -> None:
    template = {"spec": {"containers": [{"name": "worker"}]}}
    found = read_spec({"template": template, "gpus": "A10:2", "gpu": {"memory": "1Gi"}})
    assert (found.template, found.gpus_per_worker) == (template, 2)
    assert found.gpu.memory is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"template": {}}, "spec.image: cannot be combined with template; move image, command"),
        ({"image": None}, "spec.image: is required without template"),
        ({"image": ""}, "spec.image: "),
        ({"image": 3}, "spec.image: must be str"),
        ({"command": "python train.py"}, "spec.command: must be a list, not a string"),
        ({"command": ["python", 1]}, "spec.command[1]: must be str"),
        ({"args": ["x"] * 257}, "spec.args: "),
        ({"env": [{"value": "1"}]}, "spec.env[0].name: is required"),
        ({"env": [{"name": "A"}, {"name": "A"}]}, "spec.env: "),
        ({"env": {"A": "1"}}, "spec.env: must be a list"),
        ({"gpus": "H100", "gpusPerWorker": 2}, "spec.gpus: cannot be combined with gpusPerWorker"),
        ({"gpus": 2, "gpu": {"models": ["A10"]}}, "spec.gpus: cannot be combined with gpu.models"),
        ({"gpus": "H100", "gpu": "20Gi"}, "spec.gpu: must be an object"),
        ({"gpus": "2", "sharing": {"mode": "Shared"}}, "spec.sharing.mode: Shared needs gpusPer"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match="^" + re.escape(said)):
        read_spec({**SHORT, **fields})


def test_the_defaults_of_the_api_server_do_not_conflict() -> None:
    stored = {**SHORT, "gpus": "H100:2", "gpusPerWorker": 1, "gpu": {"models": []}}
    assert read_spec(stored) == read_spec({**SHORT, "gpus": "H100:2"})


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 20) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=5,
)
NAMES = ("image", "command", "args", "env", "gpus", "gpu", "gpusPerWorker", "template", "queue")


@given(st.dictionaries(st.sampled_from(NAMES), ANY))
def test_any_value_is_read_or_refused_with_its_field(spec: dict[str, Any]) -> None:
    try:
        found = read_spec(spec)
    except FieldError as error:
        assert error.field.startswith("spec")  # noqa: PT017 - either outcome is right
    else:
        assert isinstance(found, GPUJobSpec)


def test_a_job_is_written_in_the_long_form_and_read_again() -> None:
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob", "metadata": {"name": "a"}}
    job = from_manifest(GPUJob, {**head, "spec": {**SHORT, "gpus": "A10:2"}})
    written = to_manifest(job)
    assert "image" not in written["spec"]
    assert from_manifest(GPUJob, written) == job
