"""The CRD schemas and the Python nouns say the same, and every schema is complete."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, get_args, get_origin

import pytest
import yaml

from gpujob_api import settings
from gpujob_api.bounds import Bound, Items, Range, Text
from gpujob_api.codec import encode
from gpujob_api.field_types import bounded_fields, camel_case
from gpujob_api.gpujob import GPUS_PER_WORKER_MAX, JOB_NAME_CHARACTERS_MAX, GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import RESOURCES
from gpujob_api.optimize import PerStep
from gpujob_api.quantities import QUANTITY_PATTERN, FleetMemory, Memory
from gpujob_api.settings import Precision, TunedSettings
from gpujob_api.short_form import GPUS_CHARACTERS_MAX, GPUS_PATTERN, SHORT_FIELDS, GPUs, ShortForm
from tests.harness.crds import KINDS, Schema, crd_of, schema_of, version_of, walk
from tests.harness.repository import ROOT

pytestmark = pytest.mark.promise("I10")

# What Python cannot say: texts for people, rules across fields (tested against a real API
# server), and how server-side apply merges lists, of which `Items.keys` says the essence.
_PROSE = {"description", "x-kubernetes-validations"}
_TIME_PATTERN = (
    r"^[1-8][0-9]{3}-[01][0-9]-[0-3][0-9]T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
_TIME = {"type": "string", "format": "date-time", "maxLength": 40, "pattern": _TIME_PATTERN}
_QUANTITY = {"x-kubernetes-int-or-string": True, "maxLength": 24, "pattern": QUANTITY_PATTERN}
_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: _TIME,
    Memory: _QUANTITY,
    FleetMemory: _QUANTITY,
    PerStep: {
        "x-kubernetes-int-or-string": True,
        "maxLength": 16,
        "pattern": "^Auto$",
        "minimum": 1,
        "maximum": 2**31 - 1,
    },
    GPUs: {
        "x-kubernetes-int-or-string": True,
        "maxLength": GPUS_CHARACTERS_MAX,
        "pattern": GPUS_PATTERN,
        "minimum": 1,
        "maximum": GPUS_PER_WORKER_MAX,
    },
    Mapping[str, Any]: {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def _unwrapped(hint: Any) -> tuple[Any, tuple[Bound, ...]]:
    if get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is typing.Annotated:
        bare, *bounds = get_args(hint)
        return bare, tuple(bounds)
    return hint, ()


def _bound_schema(bound: Bound) -> Schema:
    if isinstance(bound, Range):
        return {"minimum": bound.minimum, "maximum": bound.maximum}
    if isinstance(bound, Text):
        shape: Schema = {"maxLength": bound.characters_max}
        shape |= {"pattern": bound.pattern} if bound.pattern else {}
        return shape | ({"minLength": bound.characters_min} if bound.characters_min else {})
    assert isinstance(bound, Items)
    kind = "map" if bound.keys else "set" if bound.unique else "atomic"
    listed: Schema = {"maxItems": bound.items_max, "x-kubernetes-list-type": kind}
    keys = [camel_case(key) for key in bound.keys]
    return listed | ({"x-kubernetes-list-map-keys": keys} if keys else {})


def _enum_schema(kind: type[Enum], without: frozenset[str]) -> Schema:
    values: list[Any] = [member.value for member in kind if member.value not in without]
    if "Off" not in values:
        return {"type": "string", "enum": values}
    # YAML 1.1 reads an unquoted Off as false: such fields have no type and accept both.
    booleans = [True, False] if "On" in values else [False]
    return {"enum": values + booleans, "x-kubernetes-preserve-unknown-fields": True}


def _value_schema(hint: Any, defaults: bool, without: frozenset[str] = frozenset()) -> Schema:
    """The schema that a Python type asks for."""
    bare, bounds = _unwrapped(hint)
    schema: Schema
    if bare in _SCALARS:
        schema = dict(_SCALARS[bare])
    elif isinstance(bare, type) and issubclass(bare, Enum):
        schema = _enum_schema(bare, without)
    elif get_origin(bare) is tuple:
        schema = {"type": "array", "items": _value_schema(get_args(bare)[0], defaults)}
    else:
        schema = _noun_schema(bare, defaults)
    for bound in bounds:
        schema |= _bound_schema(bound)
    return schema


def _noun_schema(kind: type[Any], defaults: bool) -> Schema:
    properties: dict[str, Schema] = {}
    required: list[str] = []
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for json_name, (name, hint) in bounded_fields(kind).items():
        if json_name == "template":
            continue
        without = frozenset({"Auto"} if kind is TunedSettings and hint is Precision else ())
        schema = _value_schema(hint, defaults, without)
        default = _default(fields[name])
        if default is dataclasses.MISSING:
            required.append(json_name)
        elif defaults and default is not None:
            schema["default"] = default
        properties[json_name] = schema
    schema = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def _default(field: "dataclasses.Field[Any]") -> Any:
    """The default in JSON. An object's own fields have theirs, so its default is {}."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING or value is None:
        return value
    if dataclasses.is_dataclass(value):
        return {}
    holder = dataclasses.make_dataclass("holder", [("value", type(value))])
    return encode(holder(value))["value"]


def _without_prose(schema: Schema) -> Schema:
    result = {key: value for key, value in schema.items() if key not in _PROSE}
    if "properties" in result:
        result["properties"] = {
            name: _without_prose(child)
            for name, child in result["properties"].items()
            if name != "template"
        }
    if "items" in result:
        result["items"] = _without_prose(result["items"])
    if "required" in result:
        required = [name for name in result.pop("required") if name != "template"]
        result |= {"required": required} if required else {}
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["spec", "status"])
def test_schema_and_noun_are_equal(kind: type[Any], part: str) -> None:
    hint = typing.get_type_hints(kind)[part]
    expected = _value_schema(hint, defaults=part == "spec")
    if part == "spec" and not expected.get("required") and kind not in (GPUJob, GPUService):
        expected["default"] = {}
    if part == "spec" and kind is GPUJob:
        expected["properties"] |= _value_schema(ShortForm, defaults=True)["properties"]
    if part == "status":
        # One program writes it: a record of who set which of its fields would double its size.
        expected["x-kubernetes-map-type"] = "atomic"
    if part == "status" and kind is GPUJob:
        # The rules of these two compare them with what they were.
        for name, default in (("phase", "Pending"), ("attempt", 0)):
            expected["properties"][name]["default"] = default
    actual = _without_prose(schema_of(kind)["properties"][part])
    assert dict(_flat(actual)) == dict(_flat(expected))


def test_the_short_form_has_the_containers_own_fields() -> None:
    """The words, the bounds and the rules of the one are those of the other."""
    spec = schema_of(GPUJob)["properties"]["spec"]["properties"]
    pod = spec["template"]["properties"]["spec"]["properties"]
    container = pod["containers"]["items"]["properties"]
    assert {"image", "command", "args", "env", "gpus"} == SHORT_FIELDS
    for name in ("image", "command", "args", "env"):
        own = {key: value for key, value in spec[name].items() if key not in _PROSE}
        assert own == {key: value for key, value in container[name].items() if key not in _PROSE}


def _flat(schema: Schema, path: str = "") -> list[tuple[str, Any]]:
    """One line a fact, so that a difference shows as the field that differs."""
    facts: list[tuple[str, Any]] = []
    for found, one in walk(schema, path):
        nested = ("properties", "items", "additionalProperties")
        facts += [(f"{found}: {key}", one[key]) for key in one if key not in nested]
    return facts


def _schemas() -> list[Any]:
    return [
        pytest.param(schema, id=f"{RESOURCES[kind].kind}.{path}")
        for kind in KINDS
        for path, schema in walk(schema_of(kind), "")
        if path not in ("", "metadata")
    ]


@pytest.mark.parametrize("schema", _schemas())
def test_every_field_is_described_and_bounded(schema: Schema) -> None:
    description = schema["description"]
    assert len(description) >= 5
    assert description.endswith(".")
    kind = schema.get("type")
    if kind == "string" and description[:7] not in ("Version", "Always "):
        assert "maxLength" in schema or "enum" in schema
    if kind in ("integer", "number"):
        # The API server compares whole numbers as 64-bit integers; larger bounds overflow there.
        assert -(2**63) < schema["minimum"] < schema["maximum"] < 2**63
        # It also cuts the fraction off a bound when it compares it with a whole number.
        assert isinstance(schema["minimum"], int)
        assert isinstance(schema["maximum"], int)
    if schema.get("format") == "date-time":
        # Without any rule the API server takes a list for a time.
        assert schema["x-kubernetes-validations"]
    if kind == "array":
        assert schema["maxItems"] >= 1
        assert schema["x-kubernetes-list-type"] in ("atomic", "set", "map")
    if "additionalProperties" in schema:
        assert schema["maxProperties"] >= 1
    if kind is None:
        untyped = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
        assert any(schema.get(key) for key in untyped)


@pytest.mark.parametrize("kind", KINDS)
def test_names_scope_and_printer_columns(kind: type[Any]) -> None:
    crd, resource = crd_of(kind), RESOURCES[kind]
    names = crd["spec"]["names"]
    assert crd["metadata"]["name"] == resource.crd_name
    assert crd["spec"]["scope"] == ("Namespaced" if resource.namespaced else "Cluster")
    assert (names["kind"], names["plural"], names["shortNames"]) == (
        resource.kind,
        resource.plural,
        [resource.short_name],
    )
    # A category named as a resource would hijack it: `kubectl get gpujobs NAME` would be refused.
    assert names["categories"] == ["gpujob-dev"]
    assert version_of(kind)["subresources"] == {"status": {}}
    assert all(column["description"] for column in version_of(kind)["additionalPrinterColumns"])


def test_names_of_jobs_and_queues_are_bounded_as_in_python() -> None:
    job, queue = (
        schema_of(kind)["properties"]["metadata"]["properties"]["name"]
        for kind in (GPUJob, GPUQueue)
    )
    # A rule gives the reason, which a schema's own words do not.
    assert set(job) == {"description", "type", "maxLength"}
    [rule] = [
        one
        for one in version_of(GPUJob)["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
        if one["fieldPath"] == ".metadata.name"
    ]
    assert f"size(self.metadata.name) <= {JOB_NAME_CHARACTERS_MAX} " in rule["rule"]
    assert f"'{queue['pattern']}'" in rule["rule"]
    assert queue["maxLength"] == 63


def test_the_operators_environment_is_refused_in_the_template() -> None:
    contract = {
        value
        for name, value in vars(settings).items()
        if name.startswith("ENV_") and isinstance(value, str)
    }
    pod = schema_of(GPUJob)["properties"]["spec"]["properties"]["template"]["properties"]["spec"]
    for containers in ("containers", "initContainers"):
        env = pod["properties"][containers]["items"]["properties"]["env"]["items"]
        (rule,) = env["x-kubernetes-validations"]
        refused = set(rule["rule"].split("'")[1::2])
        assert refused >= contract | {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}


def test_init_containers_are_containers_that_may_be_sidecars() -> None:
    pod = schema_of(GPUJob)["properties"]["spec"]["properties"]["template"]["properties"]["spec"]
    init = dict(pod["properties"]["initContainers"]["items"]["properties"])
    assert init.pop("restartPolicy")["enum"] == ["Always"]
    assert init == pod["properties"]["containers"]["items"]["properties"]


def test_the_template_keeps_no_unknown_field_where_fields_are_listed() -> None:
    """CEL equality passes a renamed unknown key, so listed levels must not keep unknown ones.

    `limits` and `requests` are the exception: resource names cannot be listed.
    """
    template = schema_of(GPUJob)["properties"]["spec"]["properties"]["template"]
    mixed = [
        path.rpartition(".")[2]
        for path, schema in walk(template, "template")
        if "properties" in schema and schema.get("x-kubernetes-preserve-unknown-fields")
    ]
    assert set(mixed) == {"limits", "requests"}


def test_crd_files_are_ascii_and_nothing_else_lies_beside_them() -> None:
    files = sorted(path.name for path in (ROOT / "crds").iterdir())
    assert files == sorted(f"gpujob.dev_{RESOURCES[kind].plural}.yaml" for kind in KINDS)
    for name in files:
        text = (ROOT / "crds" / name).read_text(encoding="ascii")
        assert len(list(yaml.safe_load_all(text))) == 1
