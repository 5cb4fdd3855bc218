"""kubectl gpujob rerun: the same job under a new name, perhaps with other arguments."""

import argparse
from collections.abc import Sequence
from typing import Any

from gpujob_api.gpujob import WORKER_CONTAINER
from gpujob_api.meta import API_VERSION
from kubectl_gpujob import source
from kubectl_gpujob.cluster import Cluster, Manifest, jobs_path
from kubectl_gpujob.errors import EXIT_DONE, UsageError, UserError
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.names import check_name, new_name

# Keys that belong to the first object alone. A tool that applies a set of objects finds its own by
# them, and deletes those that are not in its source.
_OWN_KEYS = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
    "helm.sh/",
    "meta.helm.sh/",
    "helm.toolkit.fluxcd.io/",
    "kustomize.toolkit.fluxcd.io/",
    "applyset.kubernetes.io/",
    "gpujob.dev/service",
    "gpujob.dev/revision",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job to repeat")
    parser.add_argument("--name", dest="new_name", help="name of the new job")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FLAG=VALUE",
        help="change --FLAG of the command, or add it",
    )
    add_target(parser)
    add_output(parser, "table", "json", "yaml", "name")


def run(options: argparse.Namespace, world: World) -> int:
    if options.new_name is not None:
        check_name(options.new_name, "--name")
    cluster = world.cluster(options)
    before = cluster.manifest(options.name)
    after = copy_of(before, options.new_name or new_name(options.name), options.set)
    made = _create(cluster, after, options.name)
    match options.output:
        case "json":
            world.screen.json(made)
        case "yaml":
            world.screen.yaml(made)
        case "name":
            world.screen.line(f"gpujob.gpujob.dev/{made['metadata']['name']}")
        case _:
            world.screen.line(f"gpujob/{made['metadata']['name']} created, like {options.name}")
    return EXIT_DONE


def _create(cluster: Cluster, manifest: Manifest, like: str) -> Manifest:
    """Creates the job. The ConfigMap of `submit --dir` then belongs to both jobs, so that the
    earlier one may be deleted.
    """
    namespace, name = cluster.namespace, manifest["metadata"]["name"]
    what = f"gpujob {name} in namespace {namespace}"
    folder = source.config_map_of(manifest["spec"])
    if not folder:
        return cluster.create(what, jobs_path(namespace), manifest)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    of_files = f"configmaps in namespace {namespace}"
    found = cluster.objects(of_files, path, fieldSelector=f"metadata.name={folder}")
    if not found:
        raise UserError(
            f"the folder of {like} is gone with the job that brought it: submit it again with --dir"
        )
    made = cluster.create(what, jobs_path(namespace), manifest)
    owners = found[0]["metadata"].get("ownerReferences") or []
    owner = {"apiVersion": API_VERSION, "kind": "GPUJob", "name": name}
    owner["uid"] = made["metadata"]["uid"]
    try:
        cluster.patch("configmap", folder, {"metadata": {"ownerReferences": [*owners, owner]}})
    except BaseException:
        cluster.delete(what, jobs_path(namespace, name))
        raise
    return made


def copy_of(manifest: Manifest, name: str, settings: Sequence[str]) -> dict[str, Any]:
    """Returns a new job with the spec of the old one. It is not suspended. Raises `UsageError`."""
    import copy

    metadata, spec = manifest["metadata"], copy.deepcopy(manifest["spec"])
    spec.pop("suspend", None)
    container = _worker(spec)
    for text in settings:
        _set(container, text)
    kept = {name: _shared(metadata.get(name) or {}) for name in ("labels", "annotations")}
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "metadata": {"name": name, **{key: value for key, value in kept.items() if value}},
        "spec": spec,
    }


def _shared(keys: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if not key.startswith(_OWN_KEYS)}


def _worker(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the object with the command: the worker's container, or a spec in the short form."""
    if "template" not in spec:
        return spec
    containers = spec["template"]["spec"]["containers"]
    named = [one for one in containers if one.get("name") == WORKER_CONTAINER]
    return (named or containers)[0]


def _set(container: dict[str, Any], text: str) -> None:
    flag, equals, value = text.partition("=")
    if not equals or not flag or flag.startswith("-"):
        raise UsageError(f"--set: must be FLAG=VALUE, such as lr=3e-4; got {text!r}")
    for field in ("args", "command"):
        words = container.get(field)
        if words and _replaced(words, f"--{flag}", value):
            return
    last = "args" if container.get("args") else "command"
    container[last] = [*(container.get(last) or ()), f"--{flag}={value}"]


def _replaced(words: list[str], flag: str, value: str) -> bool:
    """Sets the value of the last such flag, in either spelling. Returns whether there is one."""
    for index in reversed(range(len(words))):
        if words[index].startswith(f"{flag}="):
            words[index] = f"{flag}={value}"
            return True
        if words[index] == flag:
            if index + 1 < len(words) and not words[index + 1].startswith("--"):
                words[index + 1] = value
            else:
                words[index] = f"{flag}={value}"
            return True
    return False
