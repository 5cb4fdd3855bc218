"""The options of a cluster of real kubelets, and the addresses that follow from them."""

from dataclasses import dataclass, field

from gpujob_local.control_plane.control_plane import ControlPlaneOptions

NODES_MAX = 8
HUB_ADDRESS = "10.199.0.1"
HUB_NETWORK_BITS = 24
POD_NETWORK = "10.200.0.0/16"
DNS_ADDRESS = "10.96.0.10"
# The port of API servers in most clusters, and the one that the chart's NetworkPolicies allow.
API_PORT = 6443
# The first address of the API server's service range, by which pods reach the API server.
API_SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node. All differences between nodes are derived from its number and cluster."""

    cluster: str
    number: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return f"10.199.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.200.{self.number}.0/24"

    @property
    def link(self) -> str:
        """The hub's end of the cable to this node."""
        return f"to-{self.name}"

    @property
    def cgroup(self) -> str:
        """The group of the node's pods, below each controller's root."""
        return f"/gpujob-{self.cluster}-{self.name}"


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The number of nodes, and their heartbeat.

    The heartbeat is quicker than a real cluster's (2 s and 12 s, not 10 s and 50 s), so that a lost
    node is noticed in a test's time.
    """

    nodes: int = 2
    lease_seconds: int = 8
    control_plane: ControlPlaneOptions = field(default_factory=ControlPlaneOptions)

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= NODES_MAX:
            raise ValueError(f"kubelets must be 1 to {NODES_MAX}; got {self.nodes}")

    def plans(self, cluster: str) -> tuple[NodePlan, ...]:
        return tuple(NodePlan(cluster, number) for number in range(1, self.nodes + 1))
