"""Reads everything that a simulation needs, once, and the claims of the jobs that it shows."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE
from gpujob_dashboard.api_server import APIServer, APIServerError
from gpujob_dashboard.watched import OURS
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.listing import CONFIGURATION, Listing, texts_of
from kubectl_gpujob.mounted import Key, claim_warning
from kubectl_gpujob.observations import Observation, observation_of


async def read_observation(
    server: APIServer, now: datetime, configuration: Path | None
) -> Observation:
    """Returns the present cluster. Raises `APIServerError`, and `UserError` if it is unreadable."""
    jobs, gpu_nodes, queues, profiles, nodes, pods = await asyncio.gather(
        _items(server, f"{OURS}/{GPUJOB.plural}"),
        _items(server, f"{OURS}/{GPUNODE.plural}"),
        _items(server, f"{OURS}/{GPUQUEUE.plural}"),
        _items(server, f"{OURS}/{GPUPROFILE.plural}"),
        _items(server, "/api/v1/nodes"),
        _items(server, "/api/v1/pods"),
    )
    try:
        volumes = await _items(server, "/api/v1/persistentvolumes")
    except APIServerError:
        # Without them, a job may be shown on nodes that its volume is not on.
        volumes = []
    texts = None
    if configuration is None:
        try:
            found = await _items(server, "/api/v1/configmaps", labelSelector=CONFIGURATION)
            texts = texts_of(found)
        except APIServerError:
            texts = None
    objects = Objects(jobs, gpu_nodes, queues, profiles, pods, nodes, volumes)
    return observation_of(Listing(objects, now, texts), configuration)


async def missing_claims(server: APIServer, keys: Sequence[Key]) -> list[str]:
    """Returns a warning for each of these claims that does not exist, if it may be read."""
    found = await asyncio.gather(*(_is_missing(server, *key) for key in keys))
    return [claim_warning(key) for key, missing in zip(keys, found, strict=True) if missing]


async def _is_missing(server: APIServer, namespace: str, name: str) -> bool:
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    try:
        return not await _items(server, path, fieldSelector=f"metadata.name={name}")
    except APIServerError:
        return False


async def _items(server: APIServer, path: str, **query: str) -> list[Mapping[str, Any]]:
    items, _ = await server.list(path, **query)
    return items
