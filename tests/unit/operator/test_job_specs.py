"""A spec is read once, and what is equal in specs is held once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import read_spec
from gpujob_operator.decide.model.snapshot import InvalidJob
from gpujob_operator.read import job_specs
from gpujob_operator.read.job_specs import JobSpecs
from gpujob_operator.read.nouns import read_job
from tests.harness.builders import make_job
from tests.harness.manifests import job_manifest


def spec_with(*arguments: str, **fields: object) -> dict[str, Any]:
    """Built anew, of other objects, as each event is."""
    requests = {"cpu": "1", "memory": "-".join(["4Gi"])}
    container = {
        "name": "worker",
        "command": ["python", *arguments],
        "resources": {"requests": requests},
    }
    return {"template": {"spec": {"containers": [container]}}, **fields}


def test_a_spec_that_was_read_is_not_read_again() -> None:
    specs = JobSpecs()
    one, same, other = (specs.read(spec_with(argument)) for argument in ("1", "1", "2"))
    assert one is same
    assert other is not one
    assert other.worker_container()["command"] == ["python", "2"]


def test_specs_that_differ_in_an_argument_have_the_rest_in_common() -> None:
    specs = JobSpecs()
    one, other = (specs.read(spec_with(argument)).worker_container() for argument in "12")
    assert one["resources"]["requests"] is other["resources"]["requests"]
    assert one["name"] is other["name"]
    assert [*map(id, one)] == [*map(id, other)]


@pytest.mark.parametrize(("value", "twin"), [(True, 1), (1, 1.0), (0, False), ("1", 1)])
def test_what_python_takes_for_equal_is_not_the_same_spec(value: object, twin: object) -> None:
    specs = JobSpecs()
    for given_value in (value, twin):
        spec = spec_with()
        spec["template"]["spec"]["x"] = [given_value]
        (found,) = specs.read(spec).template["spec"]["x"]
        assert type(found) is type(given_value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(JSON, min_size=1, max_size=5))
def test_every_spec_is_as_it_would_be_read_alone(parts: list[object]) -> None:
    specs = JobSpecs()
    for part in parts * 2:
        spec = spec_with(priority=3)
        spec["template"]["metadata"] = part
        assert specs.read(spec) == read_spec(spec)


def test_an_error_names_the_field_whenever_it_is_read() -> None:
    specs = JobSpecs()
    for _ in range(2):
        with pytest.raises(FieldError, match=r"^spec\.workers: must be"):
            specs.read(spec_with(workers="many"))


@pytest.mark.parametrize("odd", [float("nan"), 2**63, "\ud800", {1: 2}, {(): 1}, b"bytes"])
def test_what_no_json_holds_is_an_error_with_its_field(odd: object) -> None:
    spec = spec_with()
    spec["template"]["spec"]["odd"] = odd
    with pytest.raises(FieldError, match=r"^spec\.template\.spec"):
        JobSpecs().read(spec)


def test_a_job_whose_spec_cannot_be_read_is_an_invalid_one() -> None:
    manifest = job_manifest(make_job())
    manifest["spec"]["workers"] = 0
    found = read_job(manifest, JobSpecs().read)
    assert isinstance(found, InvalidJob)
    assert found.field == "spec.workers"
    assert isinstance(read_job(job_manifest(make_job()), JobSpecs().read), GPUJob)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_specs, "SPECS_MAX", 3)
    specs = JobSpecs()
    for number in range(10):
        read = specs.read(spec_with(str(number)))
        assert read == read_spec(spec_with(str(number)))
        assert len(specs._specs) <= 3
    monkeypatch.setattr(job_specs, "PARTS_MAX", 4)
    for number in range(10):
        specs.read(spec_with(str(number)))
        # Those of one spec at most are added to full ones.
        assert len(specs._parts) <= 4 + 2
