"""Reads PersistentVolume manifests into `BoundVolume`."""

from collections.abc import Mapping
from typing import Any

from gpujob_operator.decide.model.snapshot import BoundVolume
from gpujob_operator.read.shapes import identity, mapping, text


def bound_volume(manifest: Mapping[str, Any]) -> BoundVolume:
    """The volume with the claim that it is bound to, "" if there is none. What else a volume says
    (its driver, its secrets) is not kept. Raises `FieldError` for a volume without a UID or a name.
    """
    spec, status = mapping(manifest.get("spec")), mapping(manifest.get("status"))
    claim = mapping(spec.get("claimRef")) if status.get("phase") == "Bound" else {}
    affinity = mapping(spec.get("nodeAffinity"))
    return BoundVolume(
        name=identity(manifest).name,
        namespace=text(claim.get("namespace")),
        claim=text(claim.get("name")),
        node_selector=mapping(affinity.get("required")),
    )


def limits_nodes(volume: BoundVolume) -> bool:
    """False for a volume that nobody claims, and for one that every node can use."""
    return bool(volume.claim and volume.node_selector)
