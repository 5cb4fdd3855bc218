"""Hypothesis strategies for every noun, derived from its types and bounds."""

import types
import typing
from datetime import UTC, datetime
from enum import Enum
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

from gpujob_api.bounds import INT32_MAX, INTEGER_MAX, Bound, Items, Range, Text
from gpujob_api.codec import FieldError
from gpujob_api.field_types import bounded_fields
from gpujob_api.gpujob import GPU_MEMORY_BYTES_MIN
from gpujob_api.optimize import PerStep
from gpujob_api.quantities import FLEET_MEMORY_BYTES_MAX, MEMORY_BYTES_MAX, FleetMemory, Memory
from gpujob_api.visible import visible

TIMES = st.datetimes(
    min_value=datetime(1970, 1, 1),
    max_value=datetime(8999, 12, 30),
    timezones=st.just(UTC),
)
_PATTERNED = (
    *("a", "default", "x-1", "node-7.example", "a" * 52, "Auto", "30s", "2h", "999999m"),
    *("Ready", "OutOfMemory", "GPU-0", "GPU-5c1e-77", "MIG-a", "CPU-0-1", "GPU-" + "f" * 63),
)
_TEXTS = st.characters(exclude_categories=("Cs",))
_CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("worker"), "image": st.just("trainer")},
    optional={
        "args": st.lists(st.text(_TEXTS, max_size=9), max_size=2),
        "env": st.just([{"name": "EPOCHS", "value": "3"}]),
        "resources": st.just({"limits": {"cpu": 0.5, "memory": "1Gi"}}),
    },
)
TEMPLATES = _CONTAINERS.map(
    lambda worker: {"spec": {"containers": [{"name": "log", "image": "log"}, worker]}}
)
_FIXED: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    datetime: TIMES,
    Memory: st.integers(GPU_MEMORY_BYTES_MIN, MEMORY_BYTES_MAX).map(Memory),
    FleetMemory: st.integers(0, FLEET_MEMORY_BYTES_MAX).map(FleetMemory),
    PerStep: st.none().map(PerStep) | st.integers(1, INT32_MAX).map(PerStep),
}
# Fields whose rules stand elsewhere than in their type.
_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "template": TEMPLATES,
    "name": st.sampled_from(("a", "resnet50", "a" * 52)),
}


def nouns(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a noun that its rules across fields accept."""
    fields = {name: values(hint, name) for name, hint in bounded_fields(kind).values()}

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        drawn = {name: draw(strategy) for name, strategy in fields.items()}
        try:
            return kind(**drawn)
        except FieldError:
            return None

    return build().filter(lambda noun: noun is not None)


def values(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a field's type within its bounds; None as well where the field is optional."""
    if get_origin(hint) in (types.UnionType, typing.Union):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return st.none() | values(inner, name)
    bare, bounds = hint, ()
    if get_origin(hint) is typing.Annotated:
        bare, *rest = get_args(hint)
        bounds = tuple(rest)
    if bare in _FIXED:
        return _FIXED[bare]
    if name in _BY_NAME:
        return _BY_NAME[name]
    return _of_type(bare, bounds)


def _of_type(bare: Any, bounds: tuple[Bound, ...]) -> st.SearchStrategy[Any]:
    if isinstance(bare, type) and issubclass(bare, Enum):
        return st.sampled_from(bare)
    if bare is str:
        return _texts(bounds)
    if bare in (int, float):
        return _numbers(bare, bounds)
    if get_origin(bare) is tuple:
        return _lists(values(get_args(bare)[0]), bounds)
    if get_origin(bare) is not None:
        return st.dictionaries(st.text(_TEXTS, max_size=9), st.text(_TEXTS, max_size=9), max_size=3)
    return nouns(bare)


def _texts(bounds: tuple[Bound, ...]) -> st.SearchStrategy[str]:
    for bound in bounds:
        if isinstance(bound, Text):
            if bound.pattern is not None:
                # Generating from the pattern itself is a hundred times slower.
                fitting = [text for text in _PATTERNED if bound.problem(text) is None]
                return st.sampled_from(fitting)
            longest = min(bound.characters_max, 40)
            texts = st.text(_TEXTS, min_size=bound.characters_min, max_size=longest)
            # Reading replaces control characters in these.
            return texts.map(visible) if bound.clip else texts
    return st.text(_TEXTS, max_size=40)


def _numbers(kind: type[Any], bounds: tuple[Bound, ...]) -> st.SearchStrategy[Any]:
    low, high = next(
        ((bound.minimum, bound.maximum) for bound in bounds if isinstance(bound, Range)),
        (-INTEGER_MAX, INTEGER_MAX),
    )
    if kind is int:
        return st.integers(int(low), int(high))
    return st.floats(low, high, allow_nan=False)


def _lists(
    entries: st.SearchStrategy[Any], bounds: tuple[Bound, ...]
) -> st.SearchStrategy[tuple[Any, ...]]:
    lists = st.lists(entries, max_size=3).map(tuple)
    for bound in bounds:
        if isinstance(bound, Items):
            lists = lists.filter(lambda entry, bound=bound: bound.problem(entry) is None)
    return lists
