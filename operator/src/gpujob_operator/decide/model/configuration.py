"""The numbers that a platform team may set. Durations are in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpujob_operator.decide.model.checkpoint_claim import ClaimTemplate


class DeviceAccess(Enum):
    """How a pod gets its GPU. See docs/guides/install.md."""

    ENVIRONMENT = "Environment"
    DEVICE_PLUGIN = "DevicePlugin"


class OrderPolicy(Enum):
    """The order of pending jobs.

    `ARRIVAL` is first come, first served. `SHORTEST` puts the job with the least remaining work, in
    GPU-seconds, first.
    """

    ARRIVAL = "Arrival"
    SHORTEST = "Shortest"


class NodeAutoscaler(Enum):
    """Whether an autoscaler may add nodes that are larger than, or different from, the present
    ones.

    `AUTO` means yes if a node with GPUs has a label of Karpenter.
    """

    AUTO = "Auto"
    PRESENT = "Present"
    ABSENT = "Absent"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings of the decisions and of rendering. The defaults suit a real cluster."""

    # Reservation = measured peak + the larger of these two.
    memory_margin_fraction: float = 0.10
    memory_margin_bytes: int = 256 * 1024**2
    # A measurement counts once it covers this many samples of the agent.
    measurement_samples_min: int = 3
    measurement_samples_without_reports_min: int = 30
    # The order of pending jobs: see docs/design/0011-order-and-sharing.md.
    order_policy: OrderPolicy = OrderPolicy.ARRIVAL
    waiting_seconds_max: float = 86_400.0
    waiting_stretch_max: float = 15.0
    # GPUs are nominated for a job after this wait. Later jobs may not take them (I11).
    nominate_after_seconds: float = 60.0
    # Preemption. See docs/design/0012-preemption.md. A job is preempted at most `preemptions_max`
    # times (0: never), and not if capacity becomes free by itself within the wait.
    preemptions_max: int = 3
    preemption_wait_seconds: float = 30.0
    # Other jobs are migrated after this wait to make a job fit. Infinity turns migration off.
    consolidate_after_seconds: float = 300.0
    # A job or one of its co-tenants is migrated after this time above its slowdown limit.
    slowed_seconds: float = 120.0
    # Cost of restarting an attempt, for choosing the victims of a preemption.
    restart_seconds: float = 30.0
    # Node labels of the topology, from the widest (zone) to the closest (rack). Workers of a gang
    # are placed close together.
    topology_labels: tuple[str, ...] = ("topology.kubernetes.io/zone",)
    node_autoscaler: NodeAutoscaler = NodeAutoscaler.AUTO
    # Nothing is placed on GPUs whose reading is older than this (I14).
    telemetry_stale_seconds: float = 30.0
    # Whether `spot.policy: Prefer` also places jobs on spot nodes if an interruption would start
    # them again from the beginning.
    spot_allow_unprotected: bool = False
    # How often a cycle writes progress and pending statuses.
    progress_write_seconds: float = 15.0
    pending_write_seconds: float = 60.0
    # Attempts.
    start_timeout_seconds: float = 600.0
    # Replaces `start_timeout_seconds` while images are pulled.
    image_pull_timeout_seconds: float = 3600.0
    node_lost_seconds: float = 60.0
    # From SIGTERM to SIGKILL of a worker. A template may set another value up to the maximum.
    termination_grace_seconds: int = 30
    termination_grace_seconds_max: int = 600
    retry_backoff_seconds: float = 10.0
    retry_backoff_max_seconds: float = 600.0
    report_interval_seconds: float = 2.0
    # A profile that no job has used for this long is deleted. 0 turns deletion off.
    profile_unused_days: int = 90
    # Rendering.
    report_url: str = ""
    device_access: DeviceAccess = DeviceAccess.ENVIRONMENT
    runtime_class_name: str | None = None
    # The image that provides the worker's packages to pods of other images. Those pods get no
    # packages if it is None.
    worker_package_image: str | None = None
    # The image of the gates of services that may have no replica: the operator's own.
    gate_image: str | None = None
    checkpoint_mount: str = "/gpujob/checkpoints"
    # The template of claims for jobs that name no place for checkpoints. No claim is created if it
    # is None.
    checkpoint_claim_template: ClaimTemplate | None = None
    # Price of one GPU-hour by GPU model, on demand and spot.
    price_per_gpu_hour: Mapping[str, float] = field(default_factory=dict[str, float])
    spot_price_per_gpu_hour: Mapping[str, float] = field(default_factory=dict[str, float])
