"""Good, bad and borderline values for a CRD schema, and putting them into an object."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

from hypothesis import strategies as st

from tests.harness.crds import Schema

# A way into an object: names of fields, and ITEM for an entry of a list.
ITEM = "[]"
Path = tuple[str, ...]
_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, 2.0, 2**63 - 1, -(2**63), 2**53, 1e300, -1e-300),
    *("", " ", "Auto", "Off", "on", "NaN", "1", "-1Gi", "16GB", "1e308", "a\n", "x" * 70_000),
    *("\u00e9", "\U0001f697", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01"),
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "2026-01-01T24:00:00Z"),
    *([], {}, [{}], [[]], ["a", "a"], {"a": "b"}),
)
_PATTERNED = ("Auto", "20Gi", "2026-01-01T00:00:00Z", "a", "Ready", "GPU-a")
_QUANTITIES = (
    "1Mi",
    "20Gi",
    "0.5Ki",
    "1048575",
    "1048576",
    "16Ti",
    "17592186044417",
    "H100:2",
    "2:H100",
    "0",
    7,
    2**40,
)
# Of objects that a schema says nothing of.
_KEYS = st.sampled_from(
    [
        *("nodeAffinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
        *("nodeSelectorTerms", "matchFields", "runAsUser", "name", "x"),
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "1Gi"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=2),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(_KEYS, _JSON, max_size=3)


def mutable_paths(schema: Schema, path: Path = ()) -> list[tuple[Path, Schema]]:
    """Every place below a schema; the pod template is Kubernetes' own and left alone."""
    found = [(path, schema)] if path else []
    for name, child in schema.get("properties", {}).items():
        if name != "template":
            found += mutable_paths(child, (*path, name))
    if "items" in schema:
        found += mutable_paths(schema["items"], (*path, ITEM))
    return found


def filled(schema: Schema) -> Any:
    """An object with every field, as small as its bounds allow; without the pod template."""
    if "properties" in schema:
        fields = {name: child for name, child in schema["properties"].items() if name != "template"}
        return {name: filled(child) for name, child in fields.items()}
    if "items" in schema:
        return [filled(schema["items"])]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") in ("integer", "number"):
        return schema["minimum"]
    if schema.get("type") == "boolean":
        return False
    if schema.get("type") == "object":
        return {}
    pattern = re.compile(schema.get("pattern", ""))
    return next(text for text in _PATTERNED if pattern.fullmatch(text) or not pattern.pattern)


def sweep_for(schema: Schema) -> tuple[Any, ...]:
    """A value of every JSON type, and those around the bounds."""
    return (*_borderline(schema), [], ["a"], {}, "", "x", 0, 0.5, True, None)


def values_for(schema: Schema) -> st.SearchStrategy[Any]:
    """Values around what the schema allows, and junk of every type."""
    return st.sampled_from((*_borderline(schema), *_JUNK))


def _borderline(schema: Schema) -> tuple[Any, ...]:
    candidates: list[Any] = [*schema.get("enum", ())]
    if "minimum" in schema:
        low, high = schema["minimum"], schema["maximum"]
        candidates += [low - 1, low, high, high + 1, float(high), (low + high) / 2]
    if schema.get("x-kubernetes-int-or-string"):
        candidates += _QUANTITIES
    if "maxLength" in schema:
        longest = min(schema["maxLength"], 70_000)
        candidates += ["a" * longest, "a" * (longest + 1), "\u00e9" * longest]
    if "maxItems" in schema:
        candidates += [["a"] * (schema["maxItems"] + 1)]
    return tuple(candidates)


def put(target: Any, path: Path, value: Any) -> bool:
    """Sets a value; False where the object has something else than an object or list there."""
    for step, after in pairwise(path):
        target = _child(target, step, [] if after == ITEM else {})
    last = path[-1]
    if last == ITEM and isinstance(target, list):
        target[:1] = [value]
        return True
    if last != ITEM and isinstance(target, dict):
        target[last] = value
        return True
    return False


def _child(target: Any, step: str, empty: Any) -> Any:
    if step == ITEM and isinstance(target, list):
        if not target:
            target.append(empty)
        return target[0]
    if step != ITEM and isinstance(target, dict):
        return target.setdefault(step, empty)
    return None


def accepted_values(schema: Schema) -> st.SearchStrategy[Any]:
    """What the API server lets in at this place, as far as its schema says."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return _accepted_objects(schema)
    if kind == "array":
        keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])

        def identity(one: Any) -> object:
            return tuple(one.get(key) for key in keys) if keys else id(one)

        entries, least = accepted_values(schema["items"]), schema.get("minItems", 0)
        return st.lists(entries, min_size=least, max_size=2, unique_by=identity)
    if kind in ("integer", "number"):
        return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 9), 10**6))
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.sampled_from(["a", "worker", "b"])
    return st.one_of(st.sampled_from(["1", "250m", "1e3", "x"]), st.integers(0, 9), _JSON)


def _accepted_objects(schema: Schema) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            return st.dictionaries(_KEYS, accepted_values(cast("Schema", extra)), max_size=2)
        return _OBJECTS
    fields = {name: accepted_values(child) for name, child in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)
