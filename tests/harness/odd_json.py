"""JSON as nobody expects it: any value, and objects of a kind with any value somewhere in them."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

# What has broken readers before: beyond a float, beyond Python's digits, halves of characters,
# no number at all, a digit that is none, far-away times.
ODD_SCALARS: tuple[Any, ...] = (
    None,
    True,
    10**400,
    -(10**400),
    10**4200,
    2**63,
    float("nan"),
    float("inf"),
    float("-inf"),
    1e308,
    "",
    "\ud800",
    "\udcff tail",
    "\x00\x1b[2J",
    "²",
    "9" * 5000,
    "x" * 100_000,
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-13-45T99:99:99Z",
    '{"attempt":1,"phase":"training","loss":1' + "0" * 400 + "}",
    '{"attempt":1,"phase":"training","step":' + "9" * 4400 + "}",
    '{"attempt":1,"phase":"training","device":"\\ud800"}',
    '{"a":' * 2000,
)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def odd_values() -> st.SearchStrategy[Any]:
    scalars = st.one_of(
        st.sampled_from(ODD_SCALARS),
        st.integers(),
        st.floats(),
        st.text(st.characters(), max_size=20),
    )
    return st.one_of(
        scalars,
        st.just(nested(300)),
        st.recursive(
            scalars,
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3),
            ),
            max_leaves=5,
        ),
    )


def paths(value: Any, prefix: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value, its own included."""
    yield prefix
    entries = value.items() if isinstance(value, dict) else ()
    entries = enumerate(value) if isinstance(value, list) else entries
    for key, one in entries:
        yield from paths(one, (*prefix, key))


def with_value(value: Any, path: Path, put: Any) -> Any:
    if not path:
        return put
    result = copy.copy(value)
    result[path[0]] = with_value(value[path[0]], path[1:], put)
    return result


@st.composite
def odd_objects(draw: st.DrawFn, plausible: dict[str, Any]) -> Any:
    """A plausible object with odd values in one to three places; seldom any JSON at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(odd_values())
    result: Any = copy.deepcopy(plausible)
    for _ in range(draw(st.integers(1, 3))):
        places = list(paths(result))
        result = with_value(result, draw(st.sampled_from(places)), draw(odd_values()))
        if not isinstance(result, dict):
            break
    return result


def to_json(value: Any) -> bytes:
    """As Python writes it, with numbers of any length; what is no JSON (NaN) included."""
    if isinstance(value, dict):
        inner = b",".join(
            json.dumps(key).encode() + b":" + to_json(one) for key, one in value.items()
        )
        return b"{" + inner + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(to_json(one) for one in value) + b"]"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**4000:
        return (b"-" if value < 0 else b"") + b"1" + b"0" * 5000
    return json.dumps(value).encode()
