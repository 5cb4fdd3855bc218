"""The numbers a platform team may set. Durations in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class DeviceAccess(Enum):
    """How a pod is given its GPU: see docs/guides/install.md."""

    ENVIRONMENT = "Environment"
    DEVICE_PLUGIN = "DevicePlugin"


class OrderPolicy(Enum):
    """`ARRIVAL`: first come, first served. `SHORTEST`: least work left in GPU-seconds first."""

    ARRIVAL = "Arrival"
    SHORTEST = "Shortest"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings of the decision core and of rendering; defaults suit a real cluster."""

    # Reservation = measured peak + the larger of these two.
    memory_margin_fraction: float = 0.10
    memory_margin_bytes: int = 256 * 1024**2
    # A measurement counts once it covers this many samples of the agent.
    measurement_samples_min: int = 3
    measurement_samples_without_reports_min: int = 30
    # Who is next: see docs/design/0011-order-and-sharing.md.
    order_policy: OrderPolicy = OrderPolicy.ARRIVAL
    waiting_seconds_max: float = 86_400.0
    waiting_stretch_max: float = 15.0
    # A job that has waited this long claims GPUs that later jobs may not take (I11).
    claim_after_seconds: float = 60.0
    # Making room for others: see docs/design/0012-making-room.md. A job is interrupted for another
    # one this often at most (0: never), and not where room comes by itself within the wait.
    preemptions_max: int = 3
    preemption_wait_seconds: float = 30.0
    # Jobs move closer together for one that has waited this long; infinite: never.
    consolidate_after_seconds: float = 300.0
    # A job that is slowed by its neighbours beyond its limit for this long gets one of them moved.
    slowed_seconds: float = 120.0
    # What starting an attempt again costs, in the weighing of whom to interrupt.
    restart_seconds: float = 30.0
    # Node labels that say where a node is, from the widest (zone) to the closest (rack): workers of
    # a gang are kept together.
    topology_labels: tuple[str, ...] = ("topology.kubernetes.io/zone",)
    # Agent readings older than this place nothing new (I14).
    telemetry_stale_seconds: float = 30.0
    # The cycle's own pace.
    progress_write_seconds: float = 15.0
    pending_write_seconds: float = 60.0
    # Attempts.
    start_timeout_seconds: float = 600.0
    node_lost_seconds: float = 60.0
    # Of a worker, from SIGTERM to SIGKILL; a template may ask for another number up to the maximum.
    termination_grace_seconds: int = 30
    termination_grace_seconds_max: int = 600
    retry_backoff_seconds: float = 10.0
    retry_backoff_max_seconds: float = 600.0
    report_interval_seconds: float = 2.0
    # Rendering.
    report_url: str = ""
    device_access: DeviceAccess = DeviceAccess.ENVIRONMENT
    runtime_class_name: str | None = None
    checkpoint_mount: str = "/gpujob/checkpoints"
    # Price of one GPU-hour by GPU model, on-demand and spot, as the user's table says.
    price_per_gpu_hour: Mapping[str, float] = field(default_factory=dict[str, float])
    spot_price_per_gpu_hour: Mapping[str, float] = field(default_factory=dict[str, float])
