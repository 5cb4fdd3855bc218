"""Makes volumes for claims: folders that all nodes of a local cluster share, like a storage system.

`python -m gpujob_local.kubelet.storage KUBECONFIG FOLDER`. Makes a PersistentVolume for every claim
of the storage class `local`, so that the real volume controller binds it, and removes it with its
claim.
"""

import asyncio
import shutil
import sys
from pathlib import Path

from gpujob_local.control_plane.api_client import ApiError, Json
from gpujob_local.control_plane.identity import Identity
from gpujob_local.kubelet.node_api import NodeApi, patiently

STORAGE_CLASS = "local"
PROVISIONER = "gpujob.dev/local"
VOLUMES_PATH = "/api/v1/persistentvolumes"

STORAGE_CLASS_OBJECT: Json = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": STORAGE_CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "volumeBindingMode": "Immediate",
}


def volume_for(claim: Json, folder: Path) -> Json | None:
    """Returns the volume for which a claim waits, or None if it waits for none or for another
    class.
    """
    spec = claim["spec"]
    pending = claim.get("status", {}).get("phase") == "Pending"
    if not pending or spec.get("volumeName") or spec.get("storageClassName") != STORAGE_CLASS:
        return None
    metadata = claim["metadata"]
    name = f"pvc-{metadata['uid']}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder / name)},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


async def provide(api: NodeApi, folder: Path) -> None:
    """Makes volumes for claims, endlessly."""
    async for kind, item in api.watch("/api/v1/persistentvolumeclaims"):
        for claim in item if kind == "SYNC" else [item]:
            volume = volume_for(claim, folder)
            if volume is not None and kind != "DELETED":
                await _create(api, volume, folder)


async def _create(api: NodeApi, volume: Json, folder: Path) -> None:
    await asyncio.to_thread((folder / volume["metadata"]["name"]).mkdir, exist_ok=True)
    try:
        await patiently(lambda: api.request("POST", VOLUMES_PATH, volume))
    except ApiError as error:
        if error.reason != "AlreadyExists":
            sys.stderr.write(f"volume {volume['metadata']['name']} refused: {error}\n")


async def remove_released(api: NodeApi, folder: Path) -> None:
    """Removes volumes whose claim is gone, endlessly."""
    async for kind, item in api.watch(VOLUMES_PATH):
        for volume in item if kind == "SYNC" else [item]:
            name = volume["metadata"]["name"]
            released = volume.get("status", {}).get("phase") == "Released"
            if released and kind != "DELETED" and volume["spec"].get("hostPath"):
                await asyncio.to_thread(shutil.rmtree, folder / name, ignore_errors=True)
                try:
                    await patiently(
                        lambda name=name: api.request("DELETE", f"{VOLUMES_PATH}/{name}")
                    )
                except ApiError as error:
                    sys.stderr.write(f"volume {name} not removed: {error}\n")


async def serve(identity: Identity, folder: Path) -> None:
    async with NodeApi(identity) as api, asyncio.TaskGroup() as group:
        group.create_task(provide(api, folder))
        group.create_task(remove_released(api, folder))


if __name__ == "__main__":
    asyncio.run(serve(Identity.read_kubeconfig(Path(sys.argv[1])), Path(sys.argv[2])))
