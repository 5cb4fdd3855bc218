"""kubectl gpujob top: running jobs or GPUs by their measured use, and the same again every 2 s."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import GPU, STATUS_SECONDS_MAX, GPUNode
from gpujob_api.quantities import format_memory
from kubectl_gpujob import text
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import EXIT_DONE, UserError
from kubectl_gpujob.fleet import HeldGPU, held_gpus, read_nodes
from kubectl_gpujob.grammar import World, add_output, add_selector, add_target
from kubectl_gpujob.screen import list_of

COLUMNS = ("NAMESPACE", "NAME", "GPU-UTIL", "MEMORY", "POWER", "STEP/S", "READ")
CARDS = ("CARD", "MODEL", "MEMORY", "UTIL", "POWER", "JOBS", "NOTE")
# Left out first on a narrow terminal.
_LEAST = ("NAMESPACE", "POWER", "READ", "STEP/S", "MEMORY")
_LEAST_OF_CARDS = ("POWER", "MODEL", "NOTE", "JOBS")
WATCH_SECONDS = 2.0
# An agent writes more often than this, so an older reading is not the present use.
STALE_SECONDS = 2 * STATUS_SECONDS_MAX
_SORTS = ("utilization", "memory", "name")
HELP = """
MEMORY is used/reserved, and used/reserved/total of a GPU. READ is the age of the oldest reading
that counts. Agents write a reading at least every 300 s, and one of more than 600 s is stale. POWER
is that of GPUs that a job has alone. With -w, -o json prints one list a line.
"""


@dataclass(frozen=True, slots=True)
class Use:
    """The measured use of a job, on all of its GPUs. None: not known."""

    job: GPUJob
    gpus: int
    # Per GPU.
    utilization_percent: float | None
    memory_bytes: int | None
    reserved_bytes: int
    power_watts: float | None
    steps_per_second: float | None
    read_at: datetime | None


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP
    parser.add_argument("--gpus", action="store_true", help="each GPU of the cluster")
    parser.add_argument(
        "--sort", choices=_SORTS, default="utilization", help="order (default: utilization)"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="again every 2 s")
    add_selector(parser)
    add_target(parser, all_namespaces=True)
    add_output(parser, "table", "json", "csv")


def run(options: argparse.Namespace, world: World) -> int:
    cluster = world.cluster(options)
    show = _show_gpus if options.gpus else _show_jobs
    while True:
        show(options, world, cluster)
        if not options.watch:
            return EXIT_DONE
        world.screen.out.flush()
        world.sleep(WATCH_SECONDS)


def _show_jobs(options: argparse.Namespace, world: World, cluster: Cluster) -> None:
    jobs = cluster.jobs(all_namespaces=options.all_namespaces, selector=options.selector)
    running = [job for job in jobs if job.status.placement is not None and not job.finished]
    readings = _readings(cluster, world) if running else {}
    uses = sorted((use_of(job, readings) for job in running), key=_order(options.sort))
    now, columns = world.now(), COLUMNS if options.all_namespaces else COLUMNS[1:]
    if options.output == "json":
        items = [_json(use, now) for use in uses]
        world.screen.listing(list_of("JobUseList", items), again=options.watch)
        return
    where = "any namespace" if options.all_namespaces else f"namespace {cluster.namespace}"
    rows = [_cells(use, now) for use in uses]
    _table(options, world, rows, columns, _LEAST, f"no running gpujobs in {where}")


def _show_gpus(options: argparse.Namespace, world: World, cluster: Cluster) -> None:
    gpus = held_gpus(read_nodes(cluster), cluster.jobs(all_namespaces=True))
    if options.selector:
        chosen = cluster.jobs(all_namespaces=True, selector=options.selector)
        uids = {job.metadata.uid for job in chosen}
        gpus = [held for held in gpus if any(job.metadata.uid in uids for job in held.jobs)]
    gpus.sort(key=_order_of_gpus(options.sort))
    now = world.now()
    if options.output == "json":
        items = [_json_of_gpu(held, now) for held in gpus]
        world.screen.listing(list_of("GPUUseList", items), again=options.watch)
        return
    rows = [_card(held, now) for held in gpus]
    empty = "no GPU is reported: kubectl gpujob nodes shows the nodes with an agent"
    if options.selector:
        empty = f"no job with {options.selector} holds a GPU"
    _table(options, world, rows, CARDS, _LEAST_OF_CARDS, empty)


def _table(
    options: argparse.Namespace,
    world: World,
    rows: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    least: Sequence[str],
    empty: str,
) -> None:
    if options.watch:
        world.screen.clear()
    if options.output == "csv":
        world.screen.csv(rows, columns)
    elif rows:
        world.screen.table(rows, columns, least)
    else:
        world.screen.note(empty)


# -- jobs

_Reading = tuple[GPUNode, GPU]


def _readings(cluster: Cluster, world: World) -> dict[tuple[str, str], _Reading]:
    """Returns the readings by node and GPU. Without the right to read them there are none."""
    try:
        nodes = read_nodes(cluster)
    except UserError as error:
        world.screen.note(f"note: only the figures of the jobs' status: {error}")
        return {}
    return {(n.metadata.name, gpu.uuid): (n, gpu) for n in nodes for gpu in n.status.gpus}


def use_of(job: GPUJob, readings: Mapping[tuple[str, str], _Reading]) -> Use:
    """Returns the use by the agents' readings. A figure that they do not have is the status'."""
    status = job.status
    workers = status.placement.workers if status.placement is not None else ()
    places = [(worker.node, uuid) for worker in workers for uuid in worker.gpus]
    pods = {worker.pod_uid for worker in workers if worker.pod_uid is not None}
    found = [readings[place] for place in places if place in readings]
    # A reading that shows no process of the job was taken before it started, or by another agent.
    seen = [one for one in found if any(p.pod_uid in pods for p in one[1].processes)]
    is_read = bool(places) and len(seen) == len(places)
    gpus = [gpu for _, gpu in seen] if is_read else []
    measured, held = status.measurement, status.reservation
    utilization_percent = _mean([_utilization_percent(gpu, pods) for gpu in gpus])
    memory_bytes = sum(_memory_bytes(gpu, pods) for gpu in gpus) if is_read else None
    times = [node.status.observed_at for node, _ in seen] if is_read else []
    if measured is not None and (utilization_percent is None or memory_bytes is None):
        times.append(status.observed_at)
        if utilization_percent is None:
            utilization_percent = measured.utilization_percent
        if memory_bytes is None:
            memory_bytes = measured.memory_bytes * len(places)
    current = measured.current if measured is not None else None
    steps = 1 / current.step_seconds if current is not None and current.step_seconds else None
    return Use(
        job=job,
        gpus=len(places),
        utilization_percent=utilization_percent,
        memory_bytes=memory_bytes,
        reserved_bytes=(held.memory_bytes if held is not None else 0) * len(places),
        power_watts=_sum([gpu.power_watts if _is_alone(gpu, pods) else None for gpu in gpus]),
        steps_per_second=steps if status.phase is JobPhase.RUNNING else None,
        read_at=None if None in times else min((t for t in times if t is not None), default=None),
    )


def _is_alone(gpu: GPU, pods: Iterable[str]) -> bool:
    own = set(pods)
    return all(process.pod_uid in own for process in gpu.processes)


def _utilization_percent(gpu: GPU, pods: Iterable[str]) -> float | None:
    """Returns the utilization of the GPU by these pods, or None if it is not reported."""
    own = set(pods)
    if _is_alone(gpu, own):
        return gpu.utilization_percent
    shares = [one.utilization_percent for one in gpu.processes if one.pod_uid in own]
    total_percent = _sum(shares)
    return min(total_percent, 100.0) if total_percent is not None else None


def _memory_bytes(gpu: GPU, pods: Iterable[str]) -> int:
    own = set(pods)
    return sum(process.memory_bytes for process in gpu.processes if process.pod_uid in own)


def _sum(values: Sequence[float | None]) -> float | None:
    """Returns the sum, or None if one of the values is not known or there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)


def _order(sort: str) -> Callable[[Use], tuple[object, ...]]:
    def key(use: Use) -> tuple[object, ...]:
        name = (use.job.metadata.namespace, use.job.metadata.name)
        if sort == "name":
            return name
        used = use.utilization_percent if sort == "utilization" else use.memory_bytes
        # Jobs without a figure come last.
        return (used is None, -(used or 0), *name)

    return key


def _cells(use: Use, now: datetime) -> dict[str, str]:
    used = format_memory(use.memory_bytes) if use.memory_bytes is not None else "-"
    steps = use.steps_per_second
    return {
        "NAMESPACE": use.job.metadata.namespace,
        "NAME": use.job.metadata.name,
        "GPU-UTIL": _percent(use.utilization_percent) + (f" x{use.gpus}" if use.gpus > 1 else ""),
        "MEMORY": f"{used}/{format_memory(use.reserved_bytes)}",
        "POWER": _watts(use.power_watts),
        "STEP/S": f"{steps:.3g}" if steps is not None else "-",
        "READ": _age(use.read_at, now),
    }


def _percent(value: float | None) -> str:
    return f"{value:.0f} %" if value is not None else "-"


def _watts(value: float | None) -> str:
    return f"{value:.0f} W" if value is not None else "-"


def is_stale(read_at: datetime | None, now: datetime) -> bool:
    return read_at is None or (now - read_at).total_seconds() > STALE_SECONDS


def _age(read_at: datetime | None, now: datetime) -> str:
    if read_at is None:
        return "never"
    return ("stale " if is_stale(read_at, now) else "") + text.age(read_at, now)


def _json(use: Use, now: datetime) -> dict[str, object]:
    return {
        "namespace": use.job.metadata.namespace,
        "name": use.job.metadata.name,
        "gpus": use.gpus,
        "utilizationPercent": use.utilization_percent,
        "memoryUsedBytes": use.memory_bytes,
        "memoryReservedBytes": use.reserved_bytes,
        "powerWatts": use.power_watts,
        "stepsPerSecond": use.steps_per_second,
        **_read_json(use.read_at, now),
    }


def _read_json(read_at: datetime | None, now: datetime) -> dict[str, object]:
    moment = read_at.isoformat().replace("+00:00", "Z") if read_at is not None else None
    return {"readAt": moment, "stale": is_stale(read_at, now)}


# -- GPUs


def _order_of_gpus(sort: str) -> Callable[[HeldGPU], tuple[object, ...]]:
    def key(held: HeldGPU) -> tuple[object, ...]:
        place = (held.node.metadata.name, held.gpu.index, held.gpu.uuid)
        if sort == "name":
            return place
        gpu = held.gpu
        used = gpu.utilization_percent if sort == "utilization" else gpu.memory_used_bytes
        return (-used, *place)

    return key


def _card(held: HeldGPU, now: datetime) -> dict[str, str]:
    gpu = held.gpu
    sizes = (gpu.memory_used_bytes, held.reserved_bytes, gpu.memory_total_bytes)
    return {
        "CARD": f"{held.node.metadata.name}/{gpu.index}",
        "MODEL": gpu.model.removeprefix("NVIDIA "),
        "MEMORY": "/".join(map(format_memory, sizes)),
        "UTIL": _percent(gpu.utilization_percent),
        "POWER": _watts(gpu.power_watts),
        "JOBS": ", ".join(job.metadata.key for job in held.jobs) or "-",
        "NOTE": ", ".join(_notes(held, now)) or "-",
    }


def _notes(held: HeldGPU, now: datetime) -> list[str]:
    """Returns remarks on the GPU, the most important first."""
    notes: list[str] = []
    read_at = held.node.status.observed_at
    if is_stale(read_at, now):
        notes.append(_age(read_at, now) if read_at is not None else "never read")
    if not held.gpu.healthy:
        notes.append(held.gpu.health_message or "unhealthy")
    if held.node.spec.unschedulable:
        notes.append("unschedulable")
    if held.unmanaged_bytes:
        notes.append(f"unmanaged {format_memory(held.unmanaged_bytes)}")
    if held.is_whole and not notes:
        notes.append("free")
    return notes


def _json_of_gpu(held: HeldGPU, now: datetime) -> dict[str, object]:
    gpu = held.gpu
    return {
        "node": held.node.metadata.name,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memoryUsedBytes": gpu.memory_used_bytes,
        "memoryReservedBytes": held.reserved_bytes,
        "memoryTotalBytes": gpu.memory_total_bytes,
        "utilizationPercent": gpu.utilization_percent,
        "powerWatts": gpu.power_watts,
        "healthy": gpu.healthy,
        "jobs": [job.metadata.key for job in held.jobs],
        "notes": _notes(held, now),
        **_read_json(held.node.status.observed_at, now),
    }
