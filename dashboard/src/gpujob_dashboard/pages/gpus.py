"""The map of all GPUs, and the page of one node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.quantities import format_memory
from gpujob_dashboard.history import History
from gpujob_dashboard.pages.contents import NoSuchPage, Page, Query, Section, cut, text_of
from gpujob_dashboard.pages.job_facts import job_link
from gpujob_dashboard.pages.now import STALE
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State
from kubectl_gpujob.fleet import HeldGPU, held_gpus

# Up to this number, each GPU has a tile with texts; above it, a small mark.
TILES_MAX = 128
_PLACE = "/gpus"


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a GPU's memory. `kind` chooses its look. Positions are in per cent of the GPU."""

    kind: str
    start: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A GPU on the map."""

    index: int
    model: str
    # One of free, shared, whole, unhealthy.
    kind: str
    memory_percent: float
    utilization_percent: float
    bars: Sequence[Bar]
    text: str
    stale: bool


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with its GPUs."""

    name: str
    read: datetime | None
    stale: bool
    closed: bool
    summary: str
    tiles: Sequence[Tile]


def gpus_page(state: State, rights: Rights, query: Query) -> Page:
    if not rights.nodes:
        return Page("GPUs", {"map": Section("refused.html", {"kind": "gpunodes"})}, _PLACE)
    model, part = text_of(query, "model"), text_of(query, "node").lower()
    models = sorted({gpu.model for node in state.nodes for gpu in node.status.gpus})
    nodes = [
        node
        for node in state.nodes
        if part in node.metadata.name
        and (not model or any(gpu.model == model for gpu in node.status.gpus))
    ]
    held = held_gpus(nodes, state.jobs)
    shown = [row for row in rows(nodes, held, rights, state.now) if row.tiles or not model]
    filters = {"model": model, "node": part}
    values = {
        "filters": filters,
        "models": models,
        "small": len(held) > TILES_MAX,
        "gpus": len(held),
        "free": sum(one.is_whole for one in held),
        "cut": cut(shown, {**filters, "page": query.get("page", "")}, _PLACE)
        if len(held) <= TILES_MAX
        else None,
        "rows": shown,
    }
    return Page("GPUs", {"map": Section("gpus/map.html", values)}, _PLACE)


def rows(
    nodes: Sequence[GPUNode], held: Sequence[HeldGPU], rights: Rights, now: datetime
) -> Sequence[NodeRow]:
    of_node: dict[str, list[HeldGPU]] = {}
    for one in held:
        of_node.setdefault(one.node.metadata.name, []).append(one)
    return [_row(node, of_node.get(node.metadata.name, []), rights, now) for node in nodes]


def _row(node: GPUNode, held: Sequence[HeldGPU], rights: Rights, now: datetime) -> NodeRow:
    read = node.status.observed_at
    stale = read is None or now - read > STALE
    return NodeRow(
        name=node.metadata.name,
        read=read,
        stale=stale,
        closed=node.spec.unschedulable,
        summary=f"{sum(bool(one.jobs) for one in held)} of {len(held)} in use",
        tiles=[_tile(one, rights, stale) for one in held],
    )


def _tile(held: HeldGPU, rights: Rights, stale: bool) -> Tile:
    gpu = held.gpu
    total = gpu.memory_total_bytes
    whole = any(
        job.status.reservation is not None and job.status.reservation.exclusive for job in held.jobs
    )
    kind = "shared" if held.jobs else "free"
    if not gpu.healthy:
        kind = "unhealthy"
    elif whole:
        kind = "whole"
    used = f"{format_memory(gpu.memory_used_bytes)} of {format_memory(total)} used"
    names = ", ".join(_name(job, rights) for job in held.jobs) or "no job"
    text = f"GPU {gpu.index}, {gpu.model}: {used}, {gpu.utilization_percent:.0f} % busy; {names}"
    return Tile(
        index=gpu.index,
        model=gpu.model.removeprefix("NVIDIA "),
        kind=kind,
        memory_percent=100 * gpu.memory_used_bytes / total,
        utilization_percent=gpu.utilization_percent,
        bars=_bars(held, rights),
        text=text if gpu.healthy else f"{text}; {gpu.health_message or 'unhealthy'}",
        stale=stale,
    )


def _bars(held: HeldGPU, rights: Rights) -> Sequence[Bar]:
    """Returns the memory from left to right: the driver's, the jobs', and of unmanaged processes.

    They are clipped at the GPU, because a reservation may be larger than what is left.
    """
    gpu = held.gpu
    parts = [("driver", gpu.memory_reserved_bytes, "driver")]
    usable = gpu.memory_total_bytes - gpu.memory_reserved_bytes
    for job in held.jobs:
        one = job.status.reservation
        size = 0 if one is None else usable if one.exclusive else one.memory_bytes
        kind = "job" if rights.may_see(job) else "other"
        parts.append((kind, size, f"{_name(job, rights)} reserves {format_memory(size)}"))
    unmanaged = held.unmanaged_bytes
    if unmanaged:
        parts.append(("unmanaged", unmanaged, f"unmanaged: {format_memory(unmanaged)}"))
    bars: list[Bar] = []
    start = 0.0
    for kind, size, text in parts:
        width = min(100 * size / gpu.memory_total_bytes, 100 - start)
        if width > 0:
            bars.append(Bar(kind, round(start, 1), round(width, 1), text))
        start += width
    return bars


def _name(job: GPUJob, rights: Rights) -> str:
    return job.metadata.key if rights.may_see(job) else "a job of another namespace"


def node_page(state: State, rights: Rights, name: str, history: History) -> Page:
    node = next((one for one in state.nodes if one.metadata.name == name), None)
    if node is None or not rights.nodes:
        raise NoSuchPage(f"there is no GPU node {name} that you may see")
    held = held_gpus([node], state.jobs)
    row = _row(node, held, rights, state.now)
    gpus = [_gpu(one, tile, rights, history) for one, tile in zip(held, row.tiles, strict=True)]
    values = {"row": row, "gpus": gpus, "node": node, "drivers": node.status.driver_version}
    return Page(name, {"node": Section("gpus/node.html", values)}, _PLACE)


def _gpu(held: HeldGPU, tile: Tile, rights: Rights, history: History) -> Mapping[str, Any]:
    gpu = held.gpu
    return {
        "gpu": gpu,
        "tile": tile,
        "used": format_memory(gpu.memory_used_bytes),
        "reserved": format_memory(held.reserved_bytes),
        "total": format_memory(gpu.memory_total_bytes),
        "free": format_memory(held.free_bytes),
        "unmanaged": format_memory(held.unmanaged_bytes) if held.unmanaged_bytes else "",
        "jobs": [
            {"name": job.metadata.key, "link": job_link(job)}
            for job in held.jobs
            if rights.may_see(job)
        ],
        "others": sum(not rights.may_see(job) for job in held.jobs),
        "series": history.lines(gpu.uuid),
    }
