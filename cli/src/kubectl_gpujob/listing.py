"""Reads all objects that decisions need from the API server: the project's kinds, nodes and pods.

The time is the API server's own, from its answers. With a local clock that is off by a minute,
every reading would look stale.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE
from gpujob_api.meta import GROUP, LABEL_MANAGED, VERSION
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import (
    PAGE_OBJECTS,
    PAGES_MAX,
    REQUEST_SECONDS_MAX,
    UserError,
    answered,
    explain_status,
)

OURS = f"/apis/{GROUP}/{VERSION}"
HTTP_OK = 200
MANAGED = f"{LABEL_MANAGED}=true"
# The chart's ConfigMap with the operator's configuration file.
CONFIGURATION = "app.kubernetes.io/name=gpujob,app.kubernetes.io/component=operator"
CONFIGURATION_FILE = "configuration.yaml"


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects, and the API server's time when the first of them were read.

    `configurations` are the texts of operators' files by namespace and name, or None if they may
    not be read.
    """

    objects: Objects
    now: datetime
    configurations: Mapping[str, str] | None = None


def read_all(api: Any) -> Listing:
    """Lists every kind once, jobs first and pods last. `api` is a `kubernetes` ApiClient.

    Raises `UserError` naming a kind that may not be read.
    """
    jobs, now = _list(api, "gpujobs of all namespaces", f"{OURS}/{GPUJOB.plural}")
    gpu_nodes, _ = _list(api, "gpunodes", f"{OURS}/{GPUNODE.plural}")
    queues, _ = _list(api, "gpuqueues", f"{OURS}/{GPUQUEUE.plural}")
    profiles, _ = _list(api, "gpuprofiles of all namespaces", f"{OURS}/{GPUPROFILE.plural}")
    nodes, _ = _list(api, "nodes", "/api/v1/nodes", labelSelector=MANAGED)
    pods, _ = _list(api, "pods of all namespaces", "/api/v1/pods")
    volumes = _volumes(api)
    objects = Objects(jobs, gpu_nodes, queues, profiles, pods, nodes, volumes)
    return Listing(objects, now, _configurations(api))


def _volumes(api: Any) -> list[Mapping[str, Any]]:
    """Returns the volumes, or none, because few users may list them.

    Without them, a job may be shown on nodes that its volume is not on.
    """
    try:
        return _list(api, "persistentvolumes", "/api/v1/persistentvolumes")[0]
    except UserError:
        return []


def _configurations(api: Any) -> dict[str, str] | None:
    what = "configmaps of all namespaces"
    try:
        found, _ = _list(api, what, "/api/v1/configmaps", labelSelector=CONFIGURATION)
    except UserError:
        return None
    texts: dict[str, str] = {}
    for item in found:
        metadata, data = item.get("metadata") or {}, item.get("data") or {}
        if CONFIGURATION_FILE in data:
            texts[f"{metadata.get('namespace')}/{metadata.get('name')}"] = data[CONFIGURATION_FILE]
    return texts


def _list(api: Any, what: str, path: str, **query: str) -> tuple[list[Mapping[str, Any]], datetime]:
    items: list[Mapping[str, Any]] = []
    token, now = "", None
    for _ in range(PAGES_MAX):
        parameters = {"limit": str(PAGE_OBJECTS), **query, **({"continue": token} if token else {})}
        page, at = _page(api, what, path, parameters)
        now = now or at
        items += page.get("items") or []
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            break
    else:
        raise UserError(f"there are more than {len(items)} {what}")
    return items, now or datetime.now(UTC)


def _page(
    api: Any, what: str, path: str, parameters: Mapping[str, str]
) -> tuple[Mapping[str, Any], datetime | None]:
    request = api.param_serialize(
        method="GET",
        resource_path=path,
        query_params=list(parameters.items()),
        header_params={"Accept": "application/json"},
        auth_settings=["BearerToken"],
    )
    response = answered(what, api.call_api, *request, _request_timeout=REQUEST_SECONDS_MAX)
    body = response.read()
    if response.status != HTTP_OK:
        raise UserError(explain_status(what, response.status))
    return json.loads(body), _date(response.headers.get("Date"))


def _date(text: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None
