"""kubectl gpujob list: one line a job, and the same again when jobs change."""

import argparse
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.manifest import to_manifest
from gpujob_api.quantities import format_duration
from gpujob_operator.decide.model.conditions import FAILED, SCHEDULED, find
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import EXIT_DONE
from kubectl_gpujob.grammar import World, add_output, add_selector, add_target
from kubectl_gpujob.screen import Screen
from kubectl_gpujob.starts import brief_start

COLUMNS = ("NAMESPACE", "NAME", "STATUS", "PROGRESS", "ETA", "GPU", "COST", "AGE")
WIDE = (*COLUMNS, "QUEUE", "SPEED", "MEMORY", "ATTEMPT", "REASON")
# Left out first on a narrow terminal. Names and statuses always fit.
_LEAST = ("REASON", "MEMORY", "SPEED", "ATTEMPT", "QUEUE", "GPU", "COST", "AGE", "ETA", "PROGRESS")
WATCH_SECONDS = 2.0
_POSITION = re.compile(r"; position (\d+) of the jobs waiting")
_SORTS = ("name", "age", "eta", "gpu", "status")


def arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    for phase, meaning in (
        ("pending", "jobs that wait"),
        ("running", "jobs that hold GPUs"),
        ("failed", "jobs that failed"),
    ):
        chosen.add_argument(f"--{phase}", action="store_true", help=f"only {meaning}")
    parser.add_argument("--sort", choices=_SORTS, default="name", help="order (default: name)")
    parser.add_argument(
        "-w", "--watch", action="store_true", help="again whenever jobs change; JSON: a list a line"
    )
    add_selector(parser)
    add_target(parser, all_namespaces=True)
    add_output(parser, "table", "wide", "json", "yaml", "name", "csv")


def run(options: argparse.Namespace, world: World) -> int:
    cluster = world.cluster(options)
    if not options.watch:
        _show(_jobs(options, cluster), options, world, cluster)
        return EXIT_DONE
    before: list[dict[str, str]] = []
    while True:
        jobs = _jobs(options, cluster)
        # Ages change by themselves.
        now = [{**cells(job, world.now()), "AGE": ""} for job in jobs]
        if now != before:
            if options.output in ("table", "wide"):
                world.screen.clear()
            _show(jobs, options, world, cluster)
            world.screen.out.flush()
            before = now
        world.sleep(WATCH_SECONDS)


def _jobs(options: argparse.Namespace, cluster: Cluster) -> list[GPUJob]:
    found = cluster.jobs(all_namespaces=options.all_namespaces, selector=options.selector)
    kept = [job for job in found if _is_chosen(job, options)]
    return sorted(kept, key=lambda job: _order(job, options.sort))


def _is_chosen(job: GPUJob, options: argparse.Namespace) -> bool:
    if options.pending:
        return job.status.phase is JobPhase.PENDING
    if options.running:
        return job.status.placement is not None and not job.finished
    return not options.failed or job.status.phase is JobPhase.FAILED


def _order(job: GPUJob, sort: str) -> tuple[object, ...]:
    name = (job.metadata.namespace, job.metadata.name)
    created = job.metadata.creation_timestamp
    match sort:
        case "age":
            return (-created.timestamp() if created is not None else 0.0, *name)
        case "eta":
            left = remaining_seconds(job)
            return (left is None, left or 0.0, *name)
        case "gpu":
            return (-job.spec.gpus, *name)
        case "status":
            return (job.status.phase.value, *name)
        case _:
            return name


def _show(
    jobs: Sequence[GPUJob], options: argparse.Namespace, world: World, cluster: Cluster
) -> None:
    screen: Screen = world.screen
    manifests = [to_manifest(job) for job in jobs] if options.output in ("json", "yaml") else []
    whole = {"apiVersion": "v1", "kind": "List", "items": manifests}
    columns = WIDE if options.output in ("wide", "csv") else COLUMNS
    columns = columns if options.all_namespaces else columns[1:]
    rows = [cells(job, world.now()) for job in jobs]
    match options.output:
        case "json":
            screen.listing(whole, again=options.watch)
        case "yaml":
            if options.watch:
                screen.line("---")
            screen.yaml(whole)
        case "csv":
            screen.csv(rows, columns)
        case "name":
            for job in jobs:
                screen.line(f"gpujob.gpujob.dev/{job.metadata.name}")
        case _ if jobs:
            screen.table(rows, columns, _LEAST)
        case _:
            where = "any namespace" if options.all_namespaces else f"namespace {cluster.namespace}"
            screen.note(f"no gpujobs in {where}")


def cells(job: GPUJob, now: datetime) -> dict[str, str]:
    """Returns every column of a job."""
    summary, left = job.status.summary, remaining_seconds(job)
    return {
        "NAMESPACE": job.metadata.namespace,
        "NAME": job.metadata.name,
        "STATUS": status(job),
        "PROGRESS": progress(job),
        "ETA": brief_start(job, now) or "-" if left is None else format_duration(left),
        "GPU": gpus(job),
        "COST": summary.cost or "-",
        "AGE": _age(job, now),
        "QUEUE": job.spec.queue,
        "SPEED": summary.speed or "-",
        "MEMORY": summary.memory or "-",
        "ATTEMPT": str(job.status.attempt),
        "REASON": summary.reason,
    }


def status(job: GPUJob) -> str:
    """Returns the phase, or the reason if that says more, with the position of a waiting job."""
    phase = job.status.phase
    if job.metadata.deletion_timestamp is not None:
        return "Terminating"
    if phase is JobPhase.PENDING:
        scheduled = find(job.status, SCHEDULED)
        if scheduled is None or not scheduled.reason:
            return phase.value
        position = planned_position(job)
        return f"{scheduled.reason} #{position}" if position is not None else scheduled.reason
    failed = find(job.status, FAILED)
    if phase is JobPhase.FAILED and failed is not None and failed.reason:
        return f"{phase.value}:{failed.reason}"
    return phase.value


def planned_position(job: GPUJob) -> int | None:
    """Returns the planner's position among all jobs that wait for GPUs, or None if it has none."""
    scheduled = find(job.status, SCHEDULED)
    found = _POSITION.search(scheduled.message) if scheduled is not None else None
    return int(found[1]) if found is not None else None


def progress(job: GPUJob) -> str:
    """Returns the steps or calls so far, of how many, and the share of them."""
    measured = job.status.measurement
    if measured is None or not (measured.step or measured.steps_total):
        return "-"
    total = measured.steps_total
    if not total:
        return measured.progress
    calls = " calls" if measured.counts_calls else ""
    return f"{measured.step}/{total}{calls} {min(measured.step / total, 1):.0%}"


def remaining_seconds(job: GPUJob) -> float | None:
    """Returns the time until the last step of a running job, or None if it is not known."""
    measured = job.status.measurement
    if job.status.phase is not JobPhase.RUNNING or measured is None:
        return None
    return measured.remaining_seconds


def gpus(job: GPUJob) -> str:
    """Returns node, model and number of the GPUs that the job holds."""
    placement = job.status.placement
    if placement is None or job.finished:
        return "-"
    nodes = list(dict.fromkeys(worker.node for worker in placement.workers))
    node = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    count = sum(len(worker.gpus) for worker in placement.workers)
    model = placement.gpu_model.removeprefix("NVIDIA ")
    return " ".join(part for part in (node, model, f"x{count}") if part)


def _age(job: GPUJob, now: datetime) -> str:
    created = job.metadata.creation_timestamp
    return format_duration(max(now - created, timedelta()).total_seconds()) if created else ""
