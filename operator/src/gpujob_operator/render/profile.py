"""Renders GPUProfiles: the spec once, the status after every new measurement."""

from typing import Any

from gpujob_api.codec import encode
from gpujob_api.meta import API_VERSION
from gpujob_operator.decide.model.plan import SaveProfile


def profile_manifest(save: SaveProfile) -> dict[str, Any]:
    """The whole object, for creation. The API server drops the status then."""
    metadata = save.profile.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUProfile",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "spec": encode(save.profile.spec),
        "status": encode(save.profile.status),
    }


def profile_status_patch(save: SaveProfile, resource_version: str) -> dict[str, Any]:
    """The status patch, valid only at this resourceVersion."""
    return {
        "metadata": {"resourceVersion": resource_version},
        "status": encode(save.profile.status),
    }
