"""kubectl gpujob submit: a GPUJob from a command line, without YAML."""

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import WORKER_CONTAINER, GPUJob, JobPhase
from gpujob_api.manifest import from_manifest
from gpujob_api.meta import ANNOTATION_GPUS, API_VERSION
from gpujob_api.short_form import GPUs
from kubectl_gpujob import source, text
from kubectl_gpujob.cluster import Cluster, jobs_path
from kubectl_gpujob.errors import EXIT_DONE, NotCheckedError, UsageError, UserError
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.mounted import missing_objects
from kubectl_gpujob.names import check_name, new_name
from kubectl_gpujob.verbs.list import status

IMAGE_VARIABLE = "GPUJOB_IMAGE"
FIRST_ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.5
_SCRIPT = re.compile(r"([^/]+)\.(py|sh)$")
_EXPANDED = re.compile(r"\$(?=[$(])")
_LETTER = re.compile(r"[A-Za-z]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HELP = """
examples:
  kubectl gpujob submit --image registry.example/train:1 --gpus 1:H100 -- python train.py --lr 3e-4
  kubectl gpujob submit --dir . --claim checkpoints --follow -- python train.py
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "kubectl gpujob submit [NAME] [options] -- COMMAND [ARGUMENT ...]"
    parser.epilog = HELP
    add_job(parser)
    after = parser.add_mutually_exclusive_group()
    after.add_argument("--wait", action="store_true", help="wait until the job ends")
    after.add_argument("--follow", action="store_true", help="follow the log until the job ends")
    add_target(parser)
    add_output(parser, "table", "yaml", "json", "name")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds the options from which `manifest_of` makes a job."""
    add = parser.add_argument
    add("words", metavar="NAME", nargs="*", help="name (default: the script's, with letters)")
    add("--image", help=f"container image (default: ${IMAGE_VARIABLE})")
    add("--gpus", default="1", metavar="N|MODEL|N:MODEL", help="GPUs of each worker (default: 1)")
    add("--memory", help="GPU memory of each GPU, such as 20Gi: a hint until it is measured")
    add("--workers", type=int, help="number of workers, each a pod (default: 1)")
    add("--queue", help="GPUQueue (default: default)")
    add("--priority", type=int, help="a higher one goes first in its queue (default: 0)")
    add("--claim", help="PersistentVolumeClaim that keeps the checkpoints")
    add("--data", action="append", default=[], metavar="CLAIM:/PATH", help="mount a claim")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable")
    add("--secret", action="append", default=[], metavar="NAME", help="a Secret's variables")
    add("--spot", choices=("prefer", "never", "require"), help="spot nodes")
    add("--dir", type=Path, metavar="DIR", help="bring this folder along, up to 900 KiB")
    add("--dry-run", action="store_true", help="print the object and the decision, create nothing")


def run(options: argparse.Namespace, world: World) -> int:
    cluster = world.cluster(options)
    folder = source.read_folder(options.dir) if options.dir is not None else None
    manifest = manifest_of(options, cluster.namespace, folder)
    name = str(manifest["metadata"]["name"])
    check(cluster, manifest, world)
    missing = look_for_mounted(cluster, manifest, world)
    if options.dry_run:
        print_object(manifest, options.output, world)
        world.screen.note(missing or _decision(cluster, manifest))
        return EXIT_DONE
    if folder is not None:
        _note_left_behind(folder, world)
    created = create(cluster, manifest, folder)
    if options.output == "table":
        world.screen.line(f"gpujob/{name} created: {_first_answer(cluster, name, world)}")
        if not (options.wait or options.follow):
            world.screen.line(f"log: kubectl gpujob logs -f {name} -n {cluster.namespace}")
    else:
        print_object(created, options.output, world)
    return _afterwards(options, cluster, name, world)


def check(cluster: Cluster, manifest: Mapping[str, Any], world: World) -> None:
    """Asks the API server whether it would take the object. Raises `UserError` with the option."""
    try:
        if words := cluster.refusal(manifest, cluster.namespace):
            raise UserError(_in_options(words))
    except NotCheckedError as error:
        world.screen.note(f"note: not checked by the API server: {error}")


def look_for_mounted(cluster: Cluster, manifest: Mapping[str, Any], world: World) -> str:
    """Warns of claims and Secrets that do not exist. Returns the decision about the job if it
    waits for a claim, else "".
    """
    missing = missing_objects(cluster, manifest)
    for warning in missing.warnings:
        world.screen.note(f"warning: {warning}")
    return missing.decision


def _note_left_behind(folder: source.Source, world: World) -> None:
    if folder.hidden:
        world.screen.note(f"note: {folder.hidden} hidden files and caches of --dir stay behind")
    if folder.links:
        links = ", ".join(folder.links[:10])
        text = "links to folders, to nothing and out of --dir stay behind"
        world.screen.note(f"note: {text}: {links}")


def _afterwards(options: argparse.Namespace, cluster: Cluster, name: str, world: World) -> int:
    if options.follow:
        from kubectl_gpujob.verbs import logs

        parser = argparse.ArgumentParser()
        logs.arguments(parser)
        return logs.follow(cluster, name, parser.parse_args([name, "-f"]), world)
    if options.wait:
        from kubectl_gpujob.verbs.wait import wait

        return wait(cluster, name, "finished", text.SECONDS_MAX, world)
    return EXIT_DONE


def manifest_of(
    options: argparse.Namespace, namespace: str, folder: source.Source | None = None
) -> dict[str, Any]:
    """Returns the GPUJob. Raises `UsageError` naming the option."""
    given, command = _name_and_command(options)
    if given is not None:
        check_name(given, "NAME")
    name = given or new_name(_base_name(command))
    image = options.image or os.environ.get(IMAGE_VARIABLE)
    if not image:
        raise UsageError(f"--image: the job needs a container image (or set ${IMAGE_VARIABLE})")
    gpus = _gpus(options.gpus)
    container: dict[str, Any] = {"name": WORKER_CONTAINER, "image": image}
    container["command"] = [_literal(word) for word in command]
    pod: dict[str, Any] = {"containers": [container]}
    _add_environment(container, options)
    _add_data(pod, container, options.data)
    if folder is not None:
        source.mount(pod, name, folder)
    request = {"memory": options.memory, "models": [gpus.model] if gpus.model else None}
    spec: dict[str, Any] = {
        "queue": options.queue,
        "priority": options.priority,
        "workers": options.workers,
        "gpusPerWorker": gpus.count if gpus.count > 1 else None,
        "gpu": _given(request),
        "checkpoint": _given({"volumeClaimName": options.claim}),
        "spot": _given({"policy": options.spot.capitalize() if options.spot else None}),
        "template": {"spec": pod},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {key: value for key, value in spec.items() if value not in (None, {})},
    }


def _name_and_command(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    words: list[str] = list(options.words)
    command: list[str] = list(options.command)
    if not command:
        raise UsageError("the command is missing: kubectl gpujob submit [options] -- COMMAND ...")
    if len(words) > 1:
        raise UsageError(f"one NAME at most; got {' '.join(words)} (the command comes after --)")
    return (words[0] if words else None), command


def _literal(text: str) -> str:
    """Returns the text so that the kubelet passes it on as it is.

    The kubelet expands $(NAME) in commands and variables, and makes one $ of two.
    """
    return _EXPANDED.sub("$$", text)


def _base_name(command: list[str]) -> str:
    for word in command:
        if found := _SCRIPT.search(word):
            return found[1]
    return PurePosixPath(command[0]).name


def _gpus(given: str) -> GPUs:
    """Parses the short form's `gpus`, and 2:H100 too."""
    count, _, model = given.partition(":")
    turned = f"{model}:{count}" if count.isdigit() and _LETTER.search(model) else given
    try:
        return GPUs.from_json(turned, "--gpus")
    except FieldError as error:
        raise UsageError(str(error)) from None


def _add_environment(container: dict[str, Any], options: argparse.Namespace) -> None:
    entries: list[dict[str, str]] = []
    for given in options.env:
        name, equals, value = given.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise UsageError(f"--env: must be NAME=VALUE; got {given!r}")
        if any(entry["name"] == name for entry in entries):
            raise UsageError(f"--env: {name} is given twice")
        entries.append({"name": name, "value": _literal(value)})
    if entries:
        container["env"] = entries
    if options.secret:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.secret]


def _add_data(pod: dict[str, Any], container: dict[str, Any], data: list[str]) -> None:
    for number, given in enumerate(data):
        claim, colon, path = given.partition(":")
        if not colon or not claim or not path.startswith("/"):
            raise UsageError(f"--data: must be CLAIM:/PATH, such as datasets:/data; got {given!r}")
        volume = f"data-{number}"
        pod.setdefault("volumes", []).append(
            {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
        )
        mounts = container.setdefault("volumeMounts", [])
        mounts.append({"name": volume, "mountPath": path})


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


_OPTIONS = {
    "spec.gpu.memory": "--memory",
    "spec.gpusPerWorker": "--gpus",
    "spec.workers": "--workers",
    "spec.queue": "--queue",
    "spec.priority": "--priority",
    "spec.checkpoint.volumeClaimName": "--claim",
    "metadata.name": "NAME",
}


def _in_options(words: str) -> str:
    """Precedes the API server's words by the option of the field that they name."""
    for field, option in _OPTIONS.items():
        if field in words:
            return f"{option}: {words}"
    return words


def create(cluster: Cluster, manifest: Mapping[str, Any], folder: source.Source | None) -> Any:
    """Creates the job, and its folder, which belongs to it. A half that was made is removed."""
    name, namespace = manifest["metadata"]["name"], cluster.namespace
    what = f"gpujob {name} in namespace {namespace}"
    if folder is None:
        return cluster.create(what, jobs_path(namespace), manifest)
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    of_files = f"configmap {name} in namespace {namespace}"
    cluster.create(of_files, maps, source.config_map(name, namespace, folder))
    try:
        created = cluster.create(what, jobs_path(namespace), manifest)
    except BaseException:
        cluster.delete(of_files, f"{maps}/{name}")
        raise
    owner = {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "name": name,
        "uid": created["metadata"]["uid"],
    }
    try:
        cluster.patch("configmap", name, {"metadata": {"ownerReferences": [owner]}})
    except BaseException:
        cluster.delete(what, jobs_path(namespace, name))
        cluster.delete(of_files, f"{maps}/{name}")
        raise
    return created


def _first_answer(cluster: Cluster, name: str, world: World) -> str:
    """Returns the operator's first word about the job, or that there is none yet."""
    start = world.now()
    while (world.now() - start).total_seconds() < FIRST_ANSWER_SECONDS:
        job = cluster.job(name)
        if job.status.observed_generation or job.status.phase is not JobPhase.PENDING:
            return job.status.summary.reason or status(job)
        # The pod of a first attempt exists before the status that names its place.
        for pod in cluster.pods(job):
            gpus = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_GPUS, "")
            node = pod["spec"].get("nodeName")
            return f"starts on {node or 'its node'} ({gpus})"
        world.sleep(POLL_SECONDS)
    return f"the operator has not answered within {FIRST_ANSWER_SECONDS:.0f} s; is it running?"


def print_object(manifest: Mapping[str, Any], output: str, world: World) -> None:
    match output:
        case "json":
            world.screen.json(manifest)
        case "name":
            world.screen.line(f"gpujob.gpujob.dev/{manifest['metadata']['name']}")
        case _:
            world.screen.yaml(manifest)


def _decision(cluster: Cluster, manifest: Mapping[str, Any]) -> str:
    """Returns where the job would start now, as the operator's own rules decide it."""
    from kubectl_gpujob.observations import observation_from_cluster
    from kubectl_gpujob.verbs import simulate

    job = from_manifest(GPUJob, manifest)
    try:
        observation = observation_from_cluster(cluster, None)
        changes = simulate.Edits(jobs=(job,))
        limits = simulate.Limits(text.seconds_of("24h", "--horizon"))
        found = simulate.answer(observation, changes, [], cluster.namespace, limits)
    except UserError as error:
        return f"no decision: {error}"
    lines = [
        f"{label}: {value}" for one in found.asked for label, value in simulate.rows(one, found)
    ]
    return "; ".join(lines) or "no decision"
