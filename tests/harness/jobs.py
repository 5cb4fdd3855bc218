"""The least GPUJob manifest, and changing one field of it."""

import copy
from typing import Any

Json = dict[str, Any]
_LEAST: Json = {
    "apiVersion": "gpujob.dev/v1alpha1",
    "kind": "GPUJob",
    "metadata": {"name": "job"},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {"name": "worker", "image": "trainer", "command": ["python", "train.py"]}
                ]
            }
        }
    },
}


def job_manifest(name: str = "job", **fields: Any) -> Json:
    """A GPUJob; fields of `spec` by dotted path, list entries by number.

    For example `**{"gpu.memory": "20Gi", "template.spec.containers.0.image": "other"}`.
    """
    manifest = copy.deepcopy(_LEAST)
    manifest["metadata"]["name"] = name
    for path, value in fields.items():
        set_field(manifest["spec"], path, value)
    return manifest


def set_field(target: Any, path: str, value: Any) -> None:
    """Sets what a dotted path leads to; objects on the way are made."""
    *ways, last = path.split(".")
    for step in ways:
        target = target[int(step)] if isinstance(target, list) else target.setdefault(step, {})
    target[int(last) if isinstance(target, list) else last] = value


def short_manifest(**fields: Any) -> Json:
    """A GPUJob in the short form; fields of `spec` as for `job_manifest`."""
    manifest = job_manifest(**fields)
    (container,) = manifest["spec"].pop("template")["spec"]["containers"]
    given = {key: value for key, value in container.items() if key != "name"}
    manifest["spec"] = {**given, **manifest["spec"]}
    return manifest
