"""GPUProfiles as the API server keeps them."""

from typing import Any

from gpujob_local.control_plane.api_client import ApiClient

_KIND = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUProfile"}


def add_unused_profile(client: ApiClient, profiles_path: str, name: str = "unused") -> None:
    """One whose workload was measured for the last time long ago."""
    entry: dict[str, Any] = {
        "gpuModel": "none-such",
        "torchVersion": "",
        "memoryBytes": 1,
        "utilizationPercent": 1,
        "samples": 3,
        "updatedAt": "2020-01-01T00:00:00Z",
    }
    spec = {"fingerprint": name, "image": "image:1"}
    client.create(profiles_path, _KIND | {"metadata": {"name": name}, "spec": spec})
    client.merge(f"{profiles_path}/{name}/status", {"status": {"entries": [entry]}})
