"""kubectl gpujob queue: the queues with their use, or the jobs that wait in one."""

import argparse
from collections.abc import Iterable, Sequence

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_api.meta import ConditionStatus
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.model.conditions import ACCEPTED, find
from kubectl_gpujob.errors import EXIT_DONE, UserError
from kubectl_gpujob.fleet import read_queues
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.screen import list_of
from kubectl_gpujob.starts import brief_start
from kubectl_gpujob.verbs.list import cells
from kubectl_gpujob.verbs.why import in_queue_order

_QUEUES = ("QUEUE", "PARENT", "GPUS", "MEMORY", "RUNNING", "PENDING", "STATE")
_JOBS = ("#", "NAMESPACE", "NAME", "STATUS", "START", "PRIORITY", "GPUS", "AGE", "REASON")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="QUEUE", nargs="?", help="show the jobs that wait in it")
    add_target(parser)
    add_output(parser, "table", "json", "csv")


def run(options: argparse.Namespace, world: World) -> int:
    cluster, screen = world.cluster(options), world.screen
    queues, jobs = read_queues(cluster), cluster.jobs(all_namespaces=True)
    if options.name is None:
        if options.output == "json":
            screen.json(list_of("QueueList", [_json(queue) for queue in queues]))
            return EXIT_DONE
        rows, columns = queue_rows(queues, jobs), _QUEUES
    else:
        known = {DEFAULT_QUEUE, *(queue.metadata.name for queue in queues)}
        if options.name not in known:
            existing = ", ".join(sorted(known))
            raise UserError(f"not found: gpuqueue {options.name}; existing queues: {existing}")
        waiting = in_queue_order(jobs, options.name)
        if options.output == "json":
            screen.json(list_of("PendingJobList", [_job_json(job) for job in waiting]))
            return EXIT_DONE
        rows = [
            {
                **cells(job, world.now()),
                "#": str(number),
                "START": brief_start(job, world.now()) or "-",
                "PRIORITY": str(job.spec.priority),
                "GPUS": str(job.spec.gpus),
            }
            for number, job in enumerate(waiting, 1)
        ]
        columns = _JOBS
        if not rows:
            screen.note(f"no job waits in queue {options.name}")
            return EXIT_DONE
    if options.output == "csv":
        screen.csv(rows, columns)
    else:
        screen.table(rows, columns)
    return EXIT_DONE


def queue_rows(queues: Sequence[GPUQueue], jobs: Iterable[GPUJob]) -> list[dict[str, str]]:
    """Returns a row for each queue, and for the default one, which may have no object."""
    rows = [_row(queue) for queue in queues]
    if all(queue.metadata.name != DEFAULT_QUEUE for queue in queues):
        rows.append(_implicit(jobs))
    return rows


def _row(queue: GPUQueue) -> dict[str, str]:
    status, nominal = queue.status, queue.spec.nominal
    memory = nominal.gpu_memory
    gpus = "" if nominal.gpus is None else f" of {nominal.gpus}"
    of_memory = "" if memory is None else f" of {format_memory(memory.bytes)}"
    accepted = find(status, ACCEPTED)
    refused = accepted is not None and accepted.status is ConditionStatus.FALSE
    return {
        "QUEUE": queue.metadata.name,
        "PARENT": queue.spec.parent or "-",
        "GPUS": f"{status.reserved_gpus}{gpus}",
        "MEMORY": f"{format_memory(status.reserved_memory_bytes)}{of_memory}",
        "RUNNING": str(status.running_jobs),
        "PENDING": str(status.pending_jobs),
        "STATE": accepted.reason if refused and accepted is not None else "Ready",
    }


def _implicit(jobs: Iterable[GPUJob]) -> dict[str, str]:
    """Returns the row of the queue that exists without an object."""
    own = [job for job in jobs if job.spec.queue == DEFAULT_QUEUE and not job.finished]
    running = [job for job in own if job.status.placement is not None]
    held = [job.status.reservation for job in running]
    memory = sum(
        job.spec.gpus * one.memory_bytes
        for job, one in zip(running, held, strict=True)
        if one is not None
    )
    return {
        "QUEUE": DEFAULT_QUEUE,
        "PARENT": "-",
        "GPUS": str(sum(job.spec.gpus for job in running)),
        "MEMORY": format_memory(memory),
        "RUNNING": str(len(running)),
        "PENDING": str(len(own) - len(running)),
        "STATE": "Ready, without an object",
    }


def _json(queue: GPUQueue) -> dict[str, object]:
    from gpujob_api.codec import encode

    return {
        "name": queue.metadata.name,
        "spec": encode(queue.spec),
        "status": encode(queue.status),
    }


def _job_json(job: GPUJob) -> dict[str, object]:
    return {
        "namespace": job.metadata.namespace,
        "name": job.metadata.name,
        "priority": job.spec.priority,
        "gpus": job.spec.gpus,
        "reason": job.status.summary.reason,
    }
