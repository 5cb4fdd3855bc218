"""Reads PersistentVolume manifests into `BoundVolume`."""

from collections.abc import Mapping
from typing import Any

from gpujob_operator.decide.model.snapshot import BoundVolume
from gpujob_operator.read.shapes import identity, mapping, text


def bound_volume(manifest: Mapping[str, Any]) -> BoundVolume:
    """Returns the volume with the claim that it is bound to, or "".

    Other fields of a volume (its driver, its secrets) are not kept. Raises `FieldError` for a
    volume without a UID or a name.
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
    """Returns False for a volume without a claim, and for one that every node can use."""
    return bool(volume.claim and volume.node_selector)
