"""kubectl gpujob gpus: the GPU models of the cluster, and how much of them is free."""

import argparse
from collections.abc import Sequence

from gpujob_api.quantities import format_memory
from kubectl_gpujob.errors import EXIT_DONE
from kubectl_gpujob.fleet import HeldGPU, by_model, held_gpus, price_range, read_nodes
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.screen import list_of

_COLUMNS = ("MODEL", "GPUS", "FREE", "USED", "LARGEST SHARE", "NODES", "PRICE/H")
# Left out first on a narrow terminal.
_LEAST = ("NODES", "PRICE/H", "USED", "LARGEST SHARE")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_output(parser, "table", "json", "csv")


def run(options: argparse.Namespace, world: World) -> int:
    cluster, screen = world.cluster(options), world.screen
    gpus = held_gpus(read_nodes(cluster), cluster.jobs(all_namespaces=True))
    models = by_model(gpus)
    if options.output == "json":
        screen.json(list_of("GPUModelList", [_json(name, held) for name, held in models.items()]))
        return EXIT_DONE
    rows = [_row(name, held) for name, held in models.items()]
    if options.output == "csv":
        screen.csv(rows, _COLUMNS)
    elif rows:
        screen.table(rows, _COLUMNS, _LEAST)
    else:
        screen.note("no GPU is reported: kubectl gpujob nodes shows the nodes with an agent")
    return EXIT_DONE


def _row(model: str, gpus: Sequence[HeldGPU]) -> dict[str, str]:
    return {
        "MODEL": model,
        "GPUS": str(len(gpus)),
        "FREE": str(sum(held.is_whole for held in gpus)),
        "USED": str(sum(bool(held.jobs) for held in gpus)),
        "LARGEST SHARE": format_memory(max(held.free_bytes for held in gpus)),
        "NODES": str(len({held.node.metadata.name for held in gpus})),
        "PRICE/H": price_range(gpus),
    }


def _json(model: str, gpus: Sequence[HeldGPU]) -> dict[str, object]:
    return {
        "model": model,
        "gpus": len(gpus),
        "free": sum(held.is_whole for held in gpus),
        "used": sum(bool(held.jobs) for held in gpus),
        "largestShareBytes": max(held.free_bytes for held in gpus),
        "nodes": sorted({held.node.metadata.name for held in gpus}),
    }
