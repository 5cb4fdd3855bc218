"""The CRD files as data, and ways to walk their schemas."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import RESOURCES
from tests.harness.repository import ROOT

Schema = dict[str, Any]
KINDS: tuple[type[Any], ...] = (GPUJob, GPUNode, GPUQueue, GPUProfile, GPUService)


@cache
def crd_of(kind: type) -> Schema:
    resource = RESOURCES[kind]
    path = ROOT / "crds" / f"gpujob.dev_{resource.plural}.yaml"
    return yaml.safe_load(path.read_text(encoding="ascii"))


def version_of(kind: type) -> Schema:
    (version,) = crd_of(kind)["spec"]["versions"]
    return version


def schema_of(kind: type) -> Schema:
    """The root schema: `properties` are apiVersion, kind, metadata, spec, status."""
    return version_of(kind)["schema"]["openAPIV3Schema"]


def walk(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every schema below (and this one) with its path; list entries as `path[]`."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")
