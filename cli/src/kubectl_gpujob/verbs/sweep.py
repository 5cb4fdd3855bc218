"""kubectl gpujob sweep: one job for each point of a grid, and the table of their losses.

The jobs share `spec.workload`, so the second one starts with what the first one measured.
"""

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import GROUP
from kubectl_gpujob import source
from kubectl_gpujob.errors import EXIT_DONE, EXIT_FAILED, UsageError, UserError
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.verbs import submit
from kubectl_gpujob.verbs.list import progress, status

LABEL_SWEEP = f"{GROUP}/sweep"
ANNOTATION_POINT = f"{GROUP}/sweep-point"
POINTS_MAX = 200
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COLUMNS = ("NAME", "STATUS", "PROGRESS", "LOSS", "POINT")
HELP = """
examples:
  kubectl gpujob sweep rates --grid lr=1e-4,3e-4 --grid seed=1..5 --image i \\
      -- python train.py --lr {lr} --seed {seed}
  kubectl gpujob sweep rates            # the jobs, the lowest loss first
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    submit.add_job(parser)
    parser.usage = "kubectl gpujob sweep NAME [--grid KEY=VALUES ... -- COMMAND with {KEY} ...]"
    parser.epilog = HELP
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="values such as 1e-4,3e-4 or 1..5",
    )
    add_target(parser)
    add_output(parser, "table", "json", "yaml", "name")


def run(options: argparse.Namespace, world: World) -> int:
    if len(options.words) != 1:
        raise UsageError("sweep needs one NAME")
    name = str(options.words[0])
    if not options.command:
        return _show(name, options, world)
    points = points_of(options.grid, options.command)
    cluster = world.cluster(options)
    folder = source.read_folder(options.dir) if options.dir is not None else None
    manifests = [
        _manifest(name, number, point, options, cluster.namespace, folder)
        for number, point in enumerate(points, 1)
    ]
    submit.check(cluster, manifests[0], world)
    submit.look_for_mounted(cluster, manifests[0], world)
    if options.dry_run:
        for manifest in manifests:
            if options.output in ("table", "yaml"):
                world.screen.line("---")
            submit.print_object(manifest, options.output, world)
        return EXIT_DONE
    for number, manifest in enumerate(manifests):
        try:
            submit.create(cluster, manifest, folder)
        except UserError as error:
            world.screen.note(f"error: {error}")
            remedy = f"kubectl gpujob cancel -l {LABEL_SWEEP}={name} removes them"
            world.screen.note(f"{number} of {len(manifests)} jobs were created; {remedy}")
            return EXIT_FAILED
    world.screen.line(f"{len(manifests)} jobs created; the table: kubectl gpujob sweep {name}")
    return EXIT_DONE


def points_of(grid: Sequence[str], command: Sequence[str]) -> list[dict[str, str]]:
    """Returns the points of the grid, the last key changing fastest. Raises `UsageError`."""
    axes: dict[str, list[str]] = {}
    for text in grid:
        key, equals, values = text.partition("=")
        if not equals or not _KEY.fullmatch(key) or not values:
            raise UsageError(f"--grid: must be KEY=VALUES, such as lr=1e-4,3e-4; got {text!r}")
        if key in axes:
            raise UsageError(f"--grid: {key} is given twice")
        if not any(f"{{{key}}}" in word for word in command):
            raise UsageError(f"--grid: {key} is not in the command: write {{{key}}} in it")
        axes[key] = _values(values)
    if not axes:
        raise UsageError("--grid: a sweep needs at least one, such as --grid lr=1e-4,3e-4")
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > POINTS_MAX:
        raise UsageError(f"--grid: {count} points, more than {POINTS_MAX}")
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _values(text: str) -> list[str]:
    if (found := _RANGE.fullmatch(text)) is None:
        return text.split(",")
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < POINTS_MAX:
        raise UsageError(f"--grid: {text} must go up, by at most {POINTS_MAX} values")
    return [str(value) for value in range(first, last + 1)]


def _manifest(
    name: str,
    number: int,
    point: Mapping[str, str],
    options: argparse.Namespace,
    namespace: str,
    folder: source.Source | None,
) -> dict[str, Any]:
    given = argparse.Namespace(**vars(options))
    given.words = [f"{name}-{number}"]
    given.command = [_filled(word, point) for word in options.command]
    manifest = submit.manifest_of(given, namespace, folder)
    manifest["metadata"]["labels"] = {LABEL_SWEEP: name}
    text = " ".join(f"{key}={value}" for key, value in point.items())
    manifest["metadata"]["annotations"] = {ANNOTATION_POINT: text}
    manifest["spec"]["workload"] = name
    return manifest


def _filled(word: str, point: Mapping[str, str]) -> str:
    for key, value in point.items():
        word = word.replace(f"{{{key}}}", value)
    return word


def _show(name: str, options: argparse.Namespace, world: World) -> int:
    """Shows the jobs of the sweep, the lowest loss first."""
    cluster, screen = world.cluster(options), world.screen
    jobs = sorted(cluster.jobs(selector=f"{LABEL_SWEEP}={name}"), key=_by_loss)
    if not jobs:
        raise UserError(f"not found: no job of sweep {name} in namespace {cluster.namespace}")
    if options.output == "json":
        from kubectl_gpujob.screen import list_of

        screen.json(list_of("SweepJobList", [_json(job) for job in jobs]))
    elif options.output == "name":
        for job in jobs:
            screen.line(f"gpujob.gpujob.dev/{job.metadata.name}")
    else:
        screen.table([_cells(job) for job in jobs], _COLUMNS)
    return EXIT_DONE


def _loss(job: GPUJob) -> float | None:
    return job.status.measurement.loss if job.status.measurement is not None else None


def _by_loss(job: GPUJob) -> tuple[object, ...]:
    loss = _loss(job)
    return loss is None, loss or 0.0, job.metadata.creation_timestamp, job.metadata.name


def _cells(job: GPUJob) -> dict[str, str]:
    loss = _loss(job)
    return {
        "NAME": job.metadata.name,
        "STATUS": status(job),
        "PROGRESS": progress(job),
        "LOSS": "-" if loss is None else f"{loss:.6g}",
        "POINT": job.metadata.annotations.get(ANNOTATION_POINT, ""),
    }


def _json(job: GPUJob) -> dict[str, object]:
    point = job.metadata.annotations.get(ANNOTATION_POINT, "")
    return {
        "name": job.metadata.name,
        "status": status(job),
        "loss": _loss(job),
        "point": dict(pair.split("=", 1) for pair in point.split() if "=" in pair),
    }
