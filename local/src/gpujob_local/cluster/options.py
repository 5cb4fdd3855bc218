"""The options of a local cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpujob_api.quantities import GIB, MIB
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.control_plane.manifests import REPOSITORY

# The name that `make images` and the examples use.
WORKER_IMAGE = f"gpujob-worker:{version('gpujob')}"
# For the gates of services. Their command needs no file of the folder.
OPERATOR_IMAGE = f"gpujob-operator:{version('gpujob')}"
DEFAULT_IMAGES = {
    WORKER_IMAGE: REPOSITORY / "examples",
    OPERATOR_IMAGE: REPOSITORY / "examples",
}
NODES_MAX = 64
CARDS_MAX = 64


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """One process node. If `card_bytes` is None, the cluster's value applies.

    `gpus` are UUIDs of this machine's GPUs, for a node without CPU cards (`cards=0`).
    """

    name: str
    cards: int = 2
    gpus: tuple[str, ...] = ()
    spot: bool = False
    card_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    cpu: str = "16"
    memory: str = "64Gi"

    def __post_init__(self) -> None:
        if not 0 <= self.cards <= CARDS_MAX:
            raise ValueError(f"node {self.name}: cards must be 0 to {CARDS_MAX}; got {self.cards}")
        if self.gpus and self.cards:
            raise ValueError(
                f"node {self.name}: cards must be 0 beside gpus; got {self.cards} cards and "
                f"{len(self.gpus)} GPUs"
            )


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A local cluster. `images` maps image names to the folder in a copy of which a container's
    process starts.

    `operator_configuration` has the fields of the operator's configuration file, in camelCase.
    `environment` is added to the operator's and the agents'. With `admission_policies` the chart's
    policies apply.
    """

    nodes: tuple[NodeOptions, ...] = (NodeOptions("node-1"), NodeOptions("node-2"))
    card_bytes: int = 2 * GIB
    card_reserved_bytes: int = 64 * MIB
    card_model: str = "CPU card"
    images: Mapping[str, Path] = field(default_factory=lambda: dict(DEFAULT_IMAGES))
    agents: bool = True
    operator: bool = True
    admission_policies: bool = True
    agent_interval_seconds: float = 1.0
    operator_lease_seconds: float = 5.0
    operator_configuration: Mapping[str, Any] = field(
        default_factory=lambda: {"retryBackoffSeconds": 1.0}
    )
    operator_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    control_plane: ControlPlaneOptions = field(default_factory=ControlPlaneOptions)

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            raise ValueError(f"node names must differ; got {', '.join(names)}")
        if len(names) > NODES_MAX:
            raise ValueError(f"at most {NODES_MAX} nodes; got {len(names)}")
        if self.card_reserved_bytes >= self.card_bytes:
            raise ValueError(
                f"a card of {self.card_bytes} bytes cannot reserve {self.card_reserved_bytes}"
            )
