"""Nouns to and from JSON: what goes out comes back, and what does not fit names its field."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpujob_api.bounds import Items, Range, Text
from gpujob_api.codec import FieldError, check, decode, encode, format_time, parse_time
from gpujob_api.field_types import camel_case
from gpujob_api.gpujob import GPUJob, GPUJobSpec, GPUJobStatus
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.meta import Condition
from gpujob_api.report import Reply, Report
from gpujob_api.settings import Settings
from tests.harness.nouns import TIMES, nouns

ROUND_TRIPPED: tuple[type[Any], ...] = (
    GPUJob,
    GPUNode,
    GPUQueue,
    GPUProfile,
    Report,
    Reply,
    Settings,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


class Colour(Enum):
    ON = "On"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class Leaf:
    count: Annotated[int, Range(1, 9)]
    share_percent: Annotated[float, Range(0, 100, clamp=True)] | None = None
    colour: Colour = Colour.ON


@dataclass(frozen=True, slots=True)
class Tree:
    leaves: Annotated[tuple[Leaf, ...], Items(2, keys=("count",))] = ()
    notes: Annotated[tuple[Annotated[str, Text(8, clip=True)], ...], Items(2, clip=True)] = ()
    names: Annotated[tuple[Annotated[str, Text(3)], ...], Items(3, unique=True)] = ()
    grown_at: datetime | None = None
    by_name: Mapping[str, int] | None = None


@pytest.mark.parametrize("kind", ROUND_TRIPPED)
def test_every_noun_survives_a_round_trip_through_json(kind: type[Any]) -> None:
    @hypothesis_settings(max_examples=40)
    @given(nouns(kind))
    def round_trip(noun: Any) -> None:
        text = json.dumps(encode(noun), allow_nan=False)
        assert decode(kind, json.loads(text)) == noun

    round_trip()


@pytest.mark.parametrize("kind", [GPUJobSpec, GPUJobStatus, GPUNode, GPUQueue, GPUProfile, Report])
def test_any_json_is_read_or_refused_by_field(kind: type[Any]) -> None:
    known = [camel_case(name) for name in kind.__dataclass_fields__]
    objects = st.dictionaries(st.sampled_from(known), JSON, max_size=6)

    @hypothesis_settings(max_examples=100)
    @given(objects)
    def read(data: dict[str, Any]) -> None:
        noun = _read_or_error(kind, data)
        if isinstance(noun, FieldError):
            assert noun.field
            assert noun.problem
        else:
            json.dumps(encode(noun), allow_nan=False)

    read()


def _read_or_error(kind: type[Any], data: object) -> Any:
    try:
        return decode(kind, data)
    except FieldError as error:
        return error


@pytest.mark.parametrize(
    ("data", "field", "problem"),
    [
        ({"leaves": [{"count": 1}, {"count": 0}]}, "tree.leaves[1].count", "from 1 to 9; got 0"),
        ({"leaves": [{"count": 1}, {"count": 1}]}, "tree.leaves", "same count"),
        ({"leaves": [{}]}, "tree.leaves[0].count", "is required"),
        ({"leaves": [{"count": True}]}, "tree.leaves[0].count", "must be int, not a boolean"),
        ({"leaves": [{"count": 1.5}]}, "tree.leaves[0].count", "must be int, not a number"),
        ({"leaves": [{"count": "1"}]}, "tree.leaves[0].count", "must be int, not a string"),
        ({"leaves": [[]]}, "tree.leaves[0]", "must be an object, not a list"),
        ({"leaves": {}}, "tree.leaves", "must be a list, not an object"),
        ({"leaves": "no"}, "tree.leaves", "must be a list, not a string"),
        ({"leaves": [{"count": 1, "colour": "red"}]}, "tree.leaves[0].colour", "On, Off"),
        ({"leaves": [{"count": 1, "sharePercent": float("nan")}]}, "sharePercent", "finite"),
        ({"names": ["a", "a"]}, "tree.names", "same value"),
        ({"names": ["abcd"]}, "tree.names[0]", "at most 3 characters; got 4"),
        ({"names": ["a", "b", "c", "d"]}, "tree.names", "at most 3 items; got 4"),
        ({"grownAt": "yesterday"}, "tree.grownAt", "RFC 3339"),
        ({"grownAt": 7}, "tree.grownAt", "must be a time, not a number"),
        ({"grownAt": "0001-01-01T00:00:00+23:00"}, "tree.grownAt", "RFC 3339"),
        ({"grownAt": "9000-01-01T00:00:00Z"}, "tree.grownAt", "1000 to 8999"),
        ({"grownAt": "0999-12-31T00:00:00Z"}, "tree.grownAt", "1000 to 8999"),
        ({"grownAt": []}, "tree.grownAt", "must be a time, not a list"),
        ({"byName": {"a": "b"}}, "tree.byName.a", "must be int"),
        ({"byName": 3}, "tree.byName", "must be an object, not a number"),
        (None, "tree", "must be an object, not null"),
    ],
)
def test_errors_name_the_field_and_the_value(data: object, field: str, problem: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(Tree, data, "tree")
    assert caught.value.field.endswith(field)
    assert problem in caught.value.problem
    assert str(caught.value) == f"{caught.value.field}: {caught.value.problem}"


def test_texts_and_lists_for_people_are_shortened_both_ways() -> None:
    tree = Tree(notes=("exactly8", "far too long", "third"))
    assert encode(tree)["notes"] == ["exactly8", "far t..."]
    read = decode(Tree, {"notes": ["far too long", "b", "c"]})
    assert read.notes == ("far t...", "b")


def test_noisy_numbers_are_clamped_and_nan_is_left_out() -> None:
    assert decode(Leaf, {"count": 1, "sharePercent": 100.0000001}).share_percent == 100
    assert encode(Leaf(1, share_percent=-0.001))["sharePercent"] == 0
    assert "sharePercent" not in encode(Leaf(1, share_percent=float("nan")))
    assert encode(Leaf(1, share_percent=float("inf")))["sharePercent"] == 100


def test_check_refuses_in_python_what_decode_refuses() -> None:
    with pytest.raises(FieldError, match=r"^count: must be from 1 to 9; got 10$"):
        check(Leaf(10))
    with pytest.raises(FieldError, match=r"^names\[1\]: must have at most 3 characters"):
        check(Tree(names=("a", "abcd")))
    check(Tree(notes=("far too long, but shortened when written",)))


def test_yaml_booleans_are_off_and_on() -> None:
    assert decode(Leaf, {"count": 1, "colour": False}).colour is Colour.OFF
    assert decode(Leaf, {"count": 1, "colour": True}).colour is Colour.ON


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    assert decode(Tree, {"grownAt": None, "leaves": None, "newer": 1}) == Tree()


def test_a_pattern_fits_the_whole_text_without_a_trailing_newline() -> None:
    with pytest.raises(FieldError, match=r"checkpoint\.interval"):
        decode(GPUJobSpec, {"checkpoint": {"interval": "Auto\n"}, "template": {}}, "spec")


@given(TIMES)
def test_times_survive(moment: datetime) -> None:
    assert parse_time(format_time(moment)) == moment


def test_times_are_written_in_utc_with_a_z() -> None:
    berlin = timezone(timedelta(hours=2))
    assert format_time(datetime(2026, 7, 1, 12, 0, tzinfo=berlin)) == "2026-07-01T10:00:00Z"
    assert parse_time("2026-07-01T12:00:00+02:00") == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert parse_time("2026-07-01T10:00:00.123456789Z").microsecond == 123456
    assert parse_time("2026-07-01T10:00:00").tzinfo is UTC


def test_a_condition_without_its_reason_is_refused() -> None:
    data = {"type": "Ready", "status": "True", "reason": "", "message": ""}
    with pytest.raises(FieldError, match="reason: must have at least 1 characters"):
        decode(Condition, data | {"lastTransitionTime": "2026-01-01T00:00:00Z"})
