"""What a field of a spec does: two values of it, and where the product behaves differently."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.manifest import from_manifest
from tests.harness.crds import Schema
from tests.harness.jobs import job_manifest, set_field

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """The values are put at the field's own path; `beside` are further fields of both specs."""

    looks: Callable[[Any], object]
    before: object
    after: object
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def seen(self, path: str, spec_of: Callable[[Json], object]) -> tuple[object, object]:
        """What the product does without and with the field."""
        one, other = (spec_of(self._fields(path, value)) for value in (self.before, self.after))
        return self.looks(one), self.looks(other)

    def _fields(self, path: str, value: object) -> Json:
        """None is a field that is not there."""
        given = {} if value is None else {path: value}
        return {**copy.deepcopy(dict(self.beside)), **given}


def job_of(fields: Json) -> GPUJob:
    """A job as the operator reads it from the API server."""
    manifest = job_manifest("job", **fields)
    manifest["metadata"] |= {
        "namespace": "team",
        "uid": "uid-job",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return from_manifest(GPUJob, manifest)


def queue_of(fields: Json) -> GPUQueue:
    spec: Json = {}
    for path, value in fields.items():
        set_field(spec, path, value)
    return from_manifest(
        GPUQueue,
        {
            "apiVersion": "gpujob.dev/v1alpha1",
            "kind": "GPUQueue",
            "metadata": {"name": "default", "uid": "uid-queue", "generation": 1},
            "spec": spec,
        },
    )


def leaves(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field that a user can set; an entry of a list is number 0."""
    for name, child in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        items = child.get("items", {})
        if "properties" in child:
            yield from leaves(child, below)
        elif "properties" in items:
            yield from leaves(items, f"{below}.0")
        else:
            yield below, child
