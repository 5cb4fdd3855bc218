"""Reads API objects of any shape. A part of a wrong type counts as absent.

The API server validates its own kinds. The operator does not rely on that, because one object that
breaks its reader would stop all jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from gpujob_api.bounds import YEAR_MAX, YEAR_MIN, shown
from gpujob_api.codec import FieldError, parse_time
from gpujob_api.json_values import clean_text
from gpujob_api.visible import visible

_VERSION_DIGITS_MAX = 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies an object and its version."""

    uid: str
    name: str
    namespace: str
    version: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def identity(manifest: object) -> Identity:
    """Returns the object's identity. Raises `FieldError` without a readable UID or name."""
    if isinstance(manifest, Identity):
        return manifest
    metadata = mapping(mapping(manifest).get("metadata"))
    uid, name = metadata.get("uid"), metadata.get("name")
    for field, value in (("uid", uid), ("name", name)):
        if not isinstance(value, str) or not value:
            raise FieldError(f"metadata.{field}", f"must be a string; got {shown(value)}")
    version = version_number(metadata.get("resourceVersion"))
    return Identity(str(uid), str(name), text(metadata.get("namespace")), version)


def identity_or_none(manifest: object) -> Identity | None:
    """Returns the identity, or None for an object whose UID or name cannot be read."""
    try:
        return identity(manifest)
    except FieldError:
        return None


def version_number(resource_version: object) -> int:
    """Returns the resourceVersion as a number, or 0. Versions of one kind only increase."""
    if not isinstance(resource_version, str) or len(resource_version) > _VERSION_DIGITS_MAX:
        return 0
    is_number = resource_version.isascii() and resource_version.isdigit()
    return int(resource_version) if is_number else 0


def mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Returns the objects in a list."""
    if not isinstance(value, list):
        return []
    return [mapping(one) for one in cast("list[object]", value) if isinstance(one, Mapping)]


def text(value: object) -> str:
    return visible(clean_text(value)) if isinstance(value, str) else ""


def texts(value: object) -> dict[str, str]:
    """Returns the readable texts of labels, annotations and the like."""
    return {text(key): text(one) for key, one in mapping(value).items() if isinstance(one, str)}


def moment(value: object) -> datetime | None:
    """Returns the time, or None if the value is not a time in the supported years."""
    try:
        found = parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is None or YEAR_MIN <= found.year <= YEAR_MAX else None


def readable_metadata(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object's metadata with well-formed labels, annotations and owners.

    Raises `FieldError` without a UID or a name.
    """
    found, metadata = identity(manifest), mapping(manifest.get("metadata"))
    owners = [
        {key: one for key, one in owner.items() if isinstance(one, str | bool)}
        for owner in mappings(metadata.get("ownerReferences"))
    ]
    return {
        **metadata,
        "uid": found.uid,
        "name": found.name,
        "namespace": found.namespace,
        "labels": texts(metadata.get("labels")),
        "annotations": texts(metadata.get("annotations")),
        "ownerReferences": owners,
    }
