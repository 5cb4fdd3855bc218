"""GPUProfile objects: spec once, status whenever something was learned."""

from typing import Any

from gpujob_api.codec import encode
from gpujob_api.meta import API_VERSION
from gpujob_operator.decide.model.plan import SaveProfile


def profile_manifest(save: SaveProfile) -> dict[str, Any]:
    """The whole object, for creation; the API server drops its status there."""
    metadata = save.profile.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUProfile",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "spec": encode(save.profile.spec),
        "status": encode(save.profile.status),
    }


def profile_status_patch(save: SaveProfile, resource_version: str) -> dict[str, Any]:
    """The status, provided that the profile still is at this resourceVersion."""
    return {
        "metadata": {"resourceVersion": resource_version},
        "status": encode(save.profile.status),
    }
