"""Writes the files that a process node and its agent read, once per node: cards, credentials,
settings.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from gpujob_api.cpu_cards import cpu_card_uuid
from gpujob_local.cluster.options import ClusterOptions, NodeOptions
from gpujob_local.control_plane.control_plane import ControlPlane
from gpujob_local.gpus.cpu_cards import write_cards
from gpujob_local.gpus.driver import driver_environment
from gpujob_local.kubelet.process_node import NodeConfiguration
from gpujob_operator.agent.cpu.cards import CpuCard


def configure_node(
    control_plane: ControlPlane,
    options: ClusterOptions,
    node: NodeOptions,
    *,
    directory: Path,
    environment: Mapping[str, str],
    pod_network: str,
) -> None:
    """Writes nodes/NAME/{cards.json,node.json,node.kubeconfig} below the cluster's directory."""
    folder = directory / "nodes" / node.name
    folder.mkdir(parents=True)
    write_cards(folder / "cards.json", make_cards(options, node))
    identity = control_plane.certificate_identity(
        f"{node.name}-client", f"system:node:{node.name}", "system:nodes"
    )
    certificate, key = control_plane.issue(f"{node.name}-server", node.name)
    labels = {"gpujob.dev/managed": "true", **node.labels}
    if node.spot:
        labels["gpujob.dev/spot"] = "true"
    configuration = NodeConfiguration(
        name=node.name,
        kubeconfig=str(identity.write_kubeconfig(folder / "node.kubeconfig")),
        folder=str(folder),
        shared_volumes=str(directory / "volumes"),
        cards_file=str(folder / "cards.json"),
        certificate=str(certificate),
        key=str(key),
        pod_network=pod_network,
        labels=labels,
        images={name: str(path) for name, path in options.images.items()},
        environment=dict(environment) | (driver_environment() if node.gpus else {}),
        gpus=list(node.gpus),
        cpu=node.cpu,
        memory=node.memory,
    )
    (folder / "node.json").write_text(configuration.to_text())


def make_cards(options: ClusterOptions, node: NodeOptions) -> list[CpuCard]:
    """Returns the cards of one node. The cluster's cards are spread over the available cores in
    turn.
    """
    cores = sorted(os.sched_getaffinity(0))
    names = [other.name for other in options.nodes]
    before = sum(other.cards for other in options.nodes[: names.index(node.name)])
    memory_bytes = node.card_bytes or options.card_bytes
    usable_bytes = memory_bytes - options.card_reserved_bytes
    name = node.name.replace(".", "-")[:30]
    return [
        CpuCard(
            uuid=cpu_card_uuid(f"{name}-{index}", usable_bytes, secrets.token_hex(4)),
            core=cores[(before + index) % len(cores)],
            memory_bytes=memory_bytes,
            reserved_bytes=options.card_reserved_bytes,
            model=options.card_model,
        )
        for index in range(node.cards)
    ]
