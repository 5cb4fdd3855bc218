"""Brings the worker's packages into a pod whose image does not have them.

An init container copies them from the operator's image, which the node's agent has already, into a
volume of the pod. The folder stands first on PYTHONPATH, so that every Python process of the image
finds the hook in it.
"""

from typing import Any

from gpujob_api import settings as names

# Images of this name have the packages, whatever their registry and tag.
WORKER_IMAGE = "gpujob-worker"
PACKAGE = "gpujob-package"
PACKAGE_DIRECTORY = "/gpujob/package"
PACKAGE_SIZE_MAX = "64Mi"
SWITCH = "GPUJOB_INJECT"
_COPY = ["python", "-m", "gpujob_worker.launch.package", PACKAGE_DIRECTORY]
# Where a ResourceQuota wants requests, it wants them of init containers too.
_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def hook_folder(worker: dict[str, Any], package_image: str | None) -> str:
    """The folder that stands first on PYTHONPATH of the container."""
    brought = brings_package(worker, package_image)
    return f"{PACKAGE_DIRECTORY}/hook" if brought else names.HOOK_FOLDER


def brings_package(worker: dict[str, Any], package_image: str | None) -> bool:
    """Whether the packages are copied: not into images that have them, and not where the template
    keeps them out."""
    if not package_image or _repository(str(worker.get("image", ""))) == WORKER_IMAGE:
        return False
    entries = {entry["name"]: entry for entry in worker.get("env") or ()}
    path = entries.get(names.PYTHON_PATH_VARIABLE, {})
    return entries.get(SWITCH, {}).get("value") != "0" and "valueFrom" not in path


def add_package(spec: dict[str, Any], worker: dict[str, Any], package_image: str) -> None:
    """The init container, the volume, its mount, and PYTHONPATH where the template has none."""
    mount = {"name": PACKAGE, "mountPath": PACKAGE_DIRECTORY}
    copier: dict[str, Any] = {
        "name": PACKAGE,
        "image": package_image,
        "imagePullPolicy": "IfNotPresent",
        "command": _COPY,
        "volumeMounts": [mount],
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    if resources := _resources(worker):
        copier["resources"] = resources
    spec["initContainers"] = [copier, *(spec.get("initContainers") or ())]
    volume = {"name": PACKAGE, "emptyDir": {"sizeLimit": PACKAGE_SIZE_MAX}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    worker["volumeMounts"] = [*(worker.get("volumeMounts") or ()), mount]
    entries = worker.get("env") or []
    if not any(entry["name"] == names.PYTHON_PATH_VARIABLE for entry in entries):
        path = {"name": names.PYTHON_PATH_VARIABLE, "value": f"{PACKAGE_DIRECTORY}/hook"}
        worker["env"] = [*entries, path]


def _repository(image: str) -> str:
    """The last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _resources(worker: dict[str, Any]) -> dict[str, Any]:
    """The worker's own, so that the pod as a whole asks for no more than before."""
    found: dict[str, Any] = {}
    for kind in ("requests", "limits"):
        asked = (worker.get("resources") or {}).get(kind) or {}
        if kept := {name: asked[name] for name in _RESOURCES if name in asked}:
            found[kind] = kept
    return found
