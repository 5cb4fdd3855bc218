"""kubectl gpujob rerun: the same job under a new name, perhaps with other arguments."""

import argparse
from collections.abc import Sequence
from typing import Any

from gpujob_api.gpujob import WORKER_CONTAINER
from gpujob_api.meta import API_VERSION
from kubectl_gpujob.cluster import Manifest, jobs_path
from kubectl_gpujob.errors import EXIT_DONE, UsageError
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.names import new_name

# Keys that belong to the first object alone.
_OWN_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)


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
    cluster = world.cluster(options)
    before = cluster.manifest(options.name)
    after = copy_of(before, options.new_name or new_name(options.name), options.set)
    what = f"gpujob {after['metadata']['name']} in namespace {cluster.namespace}"
    made = cluster.create(what, jobs_path(cluster.namespace), after)
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


def copy_of(manifest: Manifest, name: str, settings: Sequence[str]) -> dict[str, Any]:
    """Returns a new job with the spec of the old one. It is not suspended. Raises `UsageError`."""
    import copy

    metadata, spec = manifest["metadata"], copy.deepcopy(manifest["spec"])
    spec.pop("suspend", None)
    container = _worker(spec)
    for text in settings:
        _set(container, text)
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key not in _OWN_ANNOTATIONS
    }
    kept = {"labels": metadata.get("labels"), "annotations": annotations}
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "metadata": {"name": name, **{key: value for key, value in kept.items() if value}},
        "spec": spec,
    }


def _worker(spec: dict[str, Any]) -> dict[str, Any]:
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
