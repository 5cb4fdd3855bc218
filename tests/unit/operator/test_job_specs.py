"""A spec is read once, and what is equal in specs is held once."""

import json
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


def test_specs_that_differ_in_their_template_have_the_other_fields_in_common() -> None:
    specs = JobSpecs()
    one, other = (specs.read(spec_with(argument, retry={"limit": 5})) for argument in "12")
    assert one.retry is other.retry
    assert (one.retry.limit, one.template == other.template) == (5, False)
    assert specs.read(spec_with("1", retry={"limit": 6})).retry.limit == 6


@pytest.mark.parametrize("template", [None, 3, {}, {"spec": {"containers": []}}])
def test_a_bad_template_is_an_error_although_the_rest_was_read(template: object) -> None:
    specs = JobSpecs()
    specs.read(spec_with())
    bad = {**spec_with(), "template": template}
    with pytest.raises(FieldError) as alone:
        read_spec(bad)
    with pytest.raises(FieldError) as found:
        specs.read(bad)
    assert str(found.value) == str(alone.value)


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
        spec = spec_with(priority=len(str(part)) % 3)
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


@pytest.mark.parametrize("depth", [101, 300, 600, 900, 1100])
def test_so_is_what_is_nested_too_deeply(depth: int) -> None:
    """More deeply than this code can walk, and than what reads JSON can."""
    odd: object = "end"
    for _ in range(depth):
        odd = [odd]
    spec = spec_with()
    spec["template"]["spec"]["odd"] = odd
    with pytest.raises(FieldError, match="nested deeper than 100 levels"):
        JobSpecs().read(spec)


def test_a_job_whose_spec_cannot_be_read_is_an_invalid_one() -> None:
    manifest = job_manifest(make_job())
    manifest["spec"]["workers"] = 0
    found = read_job(manifest, JobSpecs().read)
    assert isinstance(found, InvalidJob)
    assert found.field == "spec.workers"
    assert isinstance(read_job(job_manifest(make_job()), JobSpecs().read), GPUJob)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(json.dumps(spec_with("1")))
    monkeypatch.setattr(job_specs, "KEPT_CHARACTERS_MAX", 3 * one)
    specs = JobSpecs()
    for number in range(10):
        spec = spec_with(str(number))
        assert specs.read(spec) == read_spec(spec)
        assert len(specs._specs) == number % 3 + 1
        assert len(specs._by_other_fields) == 1
        assert len(specs._parts) <= 4


def test_so_is_what_is_kept_of_specs_with_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_specs, "KEPT_CHARACTERS_MAX", 1000)
    specs = JobSpecs()
    for number in range(30):
        with pytest.raises(FieldError, match="workers"):
            specs.read(spec_with(str(number), workers=0))
        assert len(specs._parts) < 30
    assert specs._specs == {}


def test_a_large_spec_is_forgotten_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_specs, "KEPT_CHARACTERS_MAX", 1000)
    specs = JobSpecs()
    large = specs.read(spec_with("x" * 1000))
    specs.read(spec_with())
    assert large not in specs._specs.values()


@given(st.lists(st.sampled_from(["1", "2", "3"]), max_size=8), st.integers(0, 1000))
def test_specs_are_read_right_however_much_is_kept(arguments: list[str], most: int) -> None:
    specs = JobSpecs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_specs, "KEPT_CHARACTERS_MAX", most)
        for argument in arguments:
            spec = spec_with(argument, priority=int(argument))
            assert specs.read(spec) == read_spec(spec)
