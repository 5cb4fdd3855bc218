"""Renders GPUProfiles: the spec once, the status after every new measurement."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpuprofile import GPUProfileStatus, summarize
from gpujob_api.manifest import GPUPROFILE
from gpujob_api.meta import API_VERSION
from gpujob_api.unknown_fields import with_unknown_fields
from gpujob_operator.decide.model.plan import SaveProfile
from gpujob_operator.render.status import replacement


def profile_manifest(save: SaveProfile) -> dict[str, Any]:
    """Returns the whole object, for creation. The API server drops its status."""
    metadata = save.profile.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": GPUPROFILE.kind,
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "spec": encode(save.profile.spec),
        "status": encode(save.profile.status),
    }


def profile_status(
    save: SaveProfile, resource_version: str, unknown: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the profile with the status, valid only at this resourceVersion.

    `unknown` are the fields of the stored status that this version does not know. They are kept.
    """
    profile = save.profile
    metadata = replace(profile.metadata, resource_version=resource_version)
    summary = summarize(profile.spec, profile.status.entries)
    shown = encode(replace(profile.status, summary=summary))
    status = with_unknown_fields(GPUProfileStatus, shown, unknown)
    return replacement(GPUPROFILE, metadata, status)
