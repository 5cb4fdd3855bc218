"""Applies YAML files and waits until the API server serves the kinds that they define."""

import time
from collections.abc import Iterable
from pathlib import Path

import yaml

from gpujob_local.control_plane.api_client import ApiClient, Json

ESTABLISHED_LIMIT_SECONDS = 30.0
POLL_SECONDS = 0.05

REPOSITORY = Path(__file__).resolve().parents[4]
CRDS_FOLDER = REPOSITORY / "crds"

_CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def read_manifests(paths: Iterable[Path]) -> list[Json]:
    """Returns all documents of YAML files in order."""
    documents: list[Json] = []
    for path in paths:
        documents += [document for document in yaml.safe_load_all(path.read_bytes()) if document]
    return documents


def install_crds(client: ApiClient, folder: Path = CRDS_FOLDER) -> list[str]:
    """Applies every CRD in a folder, waits until all are served, and returns their names.

    Raises `FileNotFoundError` for a folder without any, and `TimeoutError` after 30 s.
    """
    definitions = read_manifests(sorted(folder.glob("*.yaml")))
    if not definitions:
        raise FileNotFoundError(f"no CRDs in {folder}")
    names = [definition["metadata"]["name"] for definition in definitions]
    for name, definition in zip(names, definitions, strict=True):
        client.apply(f"{_CRD_PATH}/{name}", definition)
    deadline = time.monotonic() + ESTABLISHED_LIMIT_SECONDS
    for name in names:
        while not _established(client, name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"CRD {name} is not served after {ESTABLISHED_LIMIT_SECONDS} s")
            time.sleep(POLL_SECONDS)
    for definition in definitions:
        # A CRD is established shortly before the first request is answered. The client waits for
        # that.
        spec = definition["spec"]
        version = spec["versions"][0]["name"]
        client.get(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}", limit="1")
    return names


def _established(client: ApiClient, name: str) -> bool:
    # A new definition has null for its conditions.
    conditions = client.get(f"{_CRD_PATH}/{name}").get("status", {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)
