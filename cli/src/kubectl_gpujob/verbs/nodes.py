"""kubectl gpujob nodes: each GPU node, or each GPU of one node with its jobs."""

import argparse
from collections.abc import Sequence
from datetime import datetime

from gpujob_api.gpunode import GPUNode
from gpujob_api.quantities import format_memory
from kubectl_gpujob import text
from kubectl_gpujob.errors import EXIT_DONE, UserError
from kubectl_gpujob.fleet import HeldGPU, held_gpus, price_range, read_nodes
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.screen import list_of

_AGENTS = "kubectl get pods -A -l app.kubernetes.io/component=agent"
_NODES = ("NODE", "GPUS", "FREE", "RESERVED", "UTILIZATION", "PRICE/H", "READ", "STATE")
_GPUS = ("GPU", "MODEL", "RESERVED", "USED", "UTILIZATION", "STATE", "JOBS")
# Left out first on a narrow terminal.
_LEAST = ("PRICE/H", "MODEL", "READ", "UTILIZATION", "RESERVED", "USED")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NODE", nargs="?", help="show each GPU of this node")
    add_target(parser)
    add_output(parser, "table", "json", "csv")


def run(options: argparse.Namespace, world: World) -> int:
    cluster, screen = world.cluster(options), world.screen
    nodes = read_nodes(cluster)
    if options.name is not None:
        nodes = [node for node in nodes if node.metadata.name == options.name]
        if not nodes:
            raise UserError(f"not found: gpunode {options.name}")
    gpus = held_gpus(nodes, cluster.jobs(all_namespaces=True))
    if options.output == "json":
        screen.json(list_of("GPUList", [_json(held) for held in gpus]))
        return EXIT_DONE
    if options.name is not None:
        rows, columns = [_gpu(held) for held in gpus], _GPUS
    else:
        rows = [_node(node, gpus, world.now()) for node in nodes]
        columns = _NODES
    if options.output == "csv":
        screen.csv(rows, columns)
    elif rows:
        screen.table(rows, columns, _LEAST)
    else:
        screen.note(f"no GPU nodes: no agent has reported ({_AGENTS})")
    return EXIT_DONE


def _node(node: GPUNode, gpus: Sequence[HeldGPU], now: datetime) -> dict[str, str]:
    own = [held for held in gpus if held.node is node]
    reserved = sum(held.reserved_bytes for held in own)
    total = sum(held.gpu.memory_total_bytes for held in own)
    read = node.status.observed_at
    return {
        "NODE": node.metadata.name,
        "GPUS": node.status.summary.gpus or "0",
        "FREE": str(sum(held.is_whole for held in own)),
        "RESERVED": f"{format_memory(reserved)} of {format_memory(total)}",
        "UTILIZATION": node.status.summary.utilization or "-",
        "PRICE/H": price_range(own),
        "READ": text.age(read, now) or "never",
        "STATE": _state(node, own),
    }


def _state(node: GPUNode, gpus: Sequence[HeldGPU]) -> str:
    if node.spec.unschedulable:
        return "Unschedulable"
    sick = sum(not held.gpu.healthy for held in gpus)
    return f"{sick} unhealthy" if sick else "Ready"


def _gpu(held: HeldGPU) -> dict[str, str]:
    gpu = held.gpu
    return {
        "GPU": gpu.uuid,
        "MODEL": gpu.model,
        "RESERVED": format_memory(held.reserved_bytes),
        "USED": f"{format_memory(gpu.memory_used_bytes)} of "
        f"{format_memory(gpu.memory_total_bytes)}",
        "UTILIZATION": f"{gpu.utilization_percent:.0f} %",
        "STATE": "Ready" if gpu.healthy else gpu.health_message or "Unhealthy",
        "JOBS": ", ".join(job.metadata.key for job in held.jobs) or "-",
    }


def _json(held: HeldGPU) -> dict[str, object]:
    return {
        "node": held.node.metadata.name,
        "uuid": held.gpu.uuid,
        "model": held.gpu.model,
        "memoryTotalBytes": held.gpu.memory_total_bytes,
        "memoryUsedBytes": held.gpu.memory_used_bytes,
        "memoryReservedBytes": held.reserved_bytes,
        "memoryFreeBytes": held.free_bytes,
        "utilizationPercent": held.gpu.utilization_percent,
        "healthy": held.gpu.healthy,
        "jobs": [job.metadata.key for job in held.jobs],
    }
