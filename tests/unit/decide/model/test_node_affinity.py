"""Required node affinity, as kube-scheduler reads it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.model.node_affinity import affinity_mismatch, required_affinity

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def name(operator: str, *values: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": operator, "values": list(values)}]
    return {"matchFields": fields}


def mismatch(*terms: Any, labels: dict[str, str] | None = None, node: str = "n") -> str:
    return affinity_mismatch(required_affinity(pod(*terms)), node, labels or {})


@pytest.mark.parametrize(
    ("term", "labels", "matches"),
    [
        (label("zone", "In", "a", "b"), {"zone": "b"}, True),
        (label("zone", "In", "a", "b"), {"zone": "c"}, False),
        (label("zone", "In", "a"), {}, False),
        (label("zone", "NotIn", "a"), {"zone": "b"}, True),
        (label("zone", "NotIn", "a"), {}, True),
        (label("zone", "NotIn", "a"), {"zone": "a"}, False),
        (label("zone", "Exists"), {"zone": ""}, True),
        (label("zone", "Exists"), {}, False),
        (label("zone", "DoesNotExist"), {}, True),
        (label("zone", "DoesNotExist"), {"zone": "a"}, False),
        (label("gpus", "Gt", "4"), {"gpus": "8"}, True),
        (label("gpus", "Gt", "4"), {"gpus": "4"}, False),
        (label("gpus", "Lt", "4"), {"gpus": "-1"}, True),
        (label("gpus", "Lt", "4"), {"gpus": "many"}, False),
        (label("gpus", "Lt", "4"), {}, False),
        (name("In", "n"), {}, True),
        (name("In", "m"), {}, False),
        (name("NotIn", "n"), {}, False),
        ({**label("zone", "In", "a"), **name("In", "m")}, {"zone": "a"}, False),
        ({**label("zone", "In", "a"), **name("In", "n")}, {"zone": "a"}, True),
        ({}, {}, False),
    ],
)
def test_every_operator(term: Any, labels: dict[str, str], matches: bool) -> None:
    assert (mismatch(term, labels=labels) == "") is matches


def test_one_term_is_enough() -> None:
    terms = label("zone", "In", "a"), {}, name("In", "m")
    assert mismatch(*terms, labels={"zone": "a"}) == ""
    assert mismatch(*terms, node="m") == ""
    said = mismatch(*terms, labels={"zone": "b"})
    assert said == (
        "nodeAffinity zone In (a) or an empty term or metadata.name In (m) does not match"
    )


def test_a_long_list_is_told_in_short() -> None:
    said = mismatch(*(label("zone", "In", str(number)) for number in range(9)))
    assert (
        said == "nodeAffinity zone In (0) or zone In (1) or zone In (2) and 6 more does not match"
    )


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"affinity": None},
        {"affinity": {}},
        {"affinity": "x"},
        {"affinity": {"podAffinity": {}}},
        {"affinity": {"nodeAffinity": None}},
        {"affinity": {"nodeAffinity": {REQUIRED: None}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}}},
        pod("x"),
        pod({"matchExpressions": "x"}),
        pod({"matchExpressions": [{"operator": "In"}]}),
        pod({"matchExpressions": [{"key": "zone", "operator": "Resembles", "values": ["a"]}]}),
    ],
)
def test_what_cannot_be_read_or_is_not_there_excludes_no_node(spec: dict[str, Any]) -> None:
    assert affinity_mismatch(required_affinity(spec), "n", {}) == ""


KEYS = st.sampled_from(("zone", "gpus"))
VALUES = st.sampled_from(("a", "b", "3", "5"))
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
EXPRESSIONS = st.fixed_dictionaries(
    {
        "key": KEYS,
        "operator": st.sampled_from(OPERATORS),
        "values": st.lists(VALUES, min_size=1, max_size=1),
    }
)
OPPOSITES = {"In": "NotIn", "Exists": "DoesNotExist"}


@given(st.lists(EXPRESSIONS, min_size=1, max_size=3), st.dictionaries(KEYS, VALUES))
def test_a_term_matches_where_each_of_its_expressions_does(
    expressions: list[dict[str, Any]], labels: dict[str, str]
) -> None:
    whole = mismatch({"matchExpressions": expressions}, labels=labels)
    parts = [mismatch({"matchExpressions": [one]}, labels=labels) for one in expressions]
    assert (whole == "") == (not any(parts))


@given(KEYS, st.sampled_from(sorted(OPPOSITES)), VALUES, st.dictionaries(KEYS, VALUES))
def test_an_operator_and_its_opposite_never_agree(
    key: str, operator: str, value: str, labels: dict[str, str]
) -> None:
    found = mismatch(label(key, operator, value), labels=labels)
    opposite = mismatch(label(key, OPPOSITES[operator], value), labels=labels)
    assert (found == "") != (opposite == "")
