"""The snapshot of one cycle: an immutable view of the cluster in the project's own types.

`observe` builds it. The simulator and the replay command build it from other sources. It has no
clock: `plan` gets the time as an argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from gpujob_api.bounds import INT32_MAX
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.meta import Metadata
from gpujob_api.report import Report
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES
from gpujob_operator.decide.model.lanes import Lanes
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.placement_record import PlacementRecord
from gpujob_operator.decide.model.starts import Forecast

LABEL_HOSTNAME = "kubernetes.io/hostname"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_ZONE = "topology.kubernetes.io/zone"


class PodPhase(Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod with a worker's name. `workers` decides whether it is one.

    `exit_code` and `termination` belong to the worker container. Other containers do not affect
    them.
    """

    name: str
    namespace: str
    uid: str
    # UID of the GPUJob that is its controller owner, or "".
    job_uid: str
    # From the pod's name.
    attempt: int
    rank: int
    phase: PodPhase
    node: str | None = None
    # From the pod's annotation. It counts for workers only.
    gpus: tuple[str, ...] = ()
    exit_code: int | None = None
    termination: Report | None = None
    termination_text: str = ""
    # Kubernetes' reason: Evicted, NodeLost, ImagePullBackOff, Unschedulable ...
    reason: str = ""
    message: str = ""
    # The reason is that of the pod as a whole, from its kubelet or a controller, and not that of a
    # container.
    reason_is_of_pod: bool = False
    # Kubernetes' reason to end the pod from outside (its condition DisruptionTarget), independent
    # of `reason`: EvictionByEvictionAPI, DeletionByTaintManager, PreemptionByScheduler ...
    disruption: str = ""
    # Since when this process has seen a kubelet's reason why the pod does not start.
    reason_since: datetime | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deletion_at: datetime | None = None
    grace_seconds: int | None = None
    # Since when kube-scheduler's answer has been the same: the pod's node, or that there is none.
    scheduled_since: datetime | None = None
    # kube-scheduler preempts other pods for this pod and waits for their end.
    preempts: bool = False
    # Its volumes and network are ready. True if the kubelet does not report it.
    sandbox_ready: bool = True
    # As far as the kubelet reports, its containers wait for nothing but their images.
    pulls_images: bool = False
    # When one of its containers last started or ended, init containers included.
    last_change_at: datetime | None = None
    # From the pod's annotation: where its attempt was placed.
    record: PlacementRecord | None = None
    # The pod's network addresses, once a kubelet reports them. The node's addresses with
    # `hostNetwork`.
    addresses: tuple[str, ...] = ()
    # Its readiness probes succeed, so its Service sends requests to it.
    ready: bool = False

    @property
    def finished(self) -> bool:
        """True if the processes are proven gone and the GPU's memory is free."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def ended(self) -> bool:
        """True if the worker has ended and is not started again; other containers may still run."""
        return self.finished or self.exit_code is not None


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A condition of a node that may announce its end: see `notices`."""

    type: str
    message: str = ""


# The pods of a node that reports no limit of them.
PODS_UNLIMITED = INT32_MAX


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Kubernetes node. `*_free` is its allocatable amount minus the requests of every pod bound
    to it. Each pod takes one of the pods that a node may have.
    """

    name: str
    ready: bool = True
    unschedulable: bool = False
    spot: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    cpu_milli_allocatable: int = 0
    cpu_milli_free: int = 0
    memory_bytes_allocatable: int = 0
    memory_bytes_free: int = 0
    pods_allocatable: int = PODS_UNLIMITED
    pods_free: int = PODS_UNLIMITED
    # Of resources other than CPU, memory and pods, in all, by name.
    others_allocatable: Mapping[str, int] = field(default_factory=dict[str, int])
    # Since when the node is not ready; None if it is ready.
    not_ready_since: datetime | None = None
    # Conditions of `notices` that are True, and `Ready` if it is False.
    conditions: tuple[NodeCondition, ...] = ()
    # The node's deletionTimestamp.
    deletion_at: datetime | None = None
    # The node has the label of managed nodes. One without it is in a snapshot only while attempts
    # are on it.
    managed: bool = True


@dataclass(frozen=True, slots=True)
class BoundVolume:
    """A PersistentVolume that a claim is bound to and that only some nodes can use."""

    name: str
    # The claim's namespace.
    namespace: str
    claim: str
    # The volume's `spec.nodeAffinity.required`, unparsed.
    node_selector: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """The newest report of one worker, with the time of its arrival."""

    job_uid: str
    rank: int
    received_at: datetime
    report: Report


@dataclass(frozen=True, slots=True)
class Yielding:
    """The share of its time for which a training is asked to leave its GPUs idle."""

    job_uid: str
    percent: int
    # The service's replica whose requests need it, as the training's status refers to that job.
    replica: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Parking:
    """A request to a replica of a service: to park, or else to wake. Without one it stays as it is.

    While it rests, gates send it no requests: before it is asked to park, and while it is parked.
    """

    job_uid: str
    parks: bool
    rests: bool = False


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """The API server's definite refusal to create a worker's pod. Nothing was created."""

    job_uid: str
    attempt: int
    rank: int
    message: str


@dataclass(frozen=True, slots=True)
class PerhapsCreated:
    """Pods of a starting attempt that must not be created, because they may already exist.

    A pod that cannot be seen may still run on its node. If `by_another` is true, another process
    placed the attempt, and it is unknown which of its pods existed.
    """

    job_uid: str
    attempt: int
    ranks: tuple[int, ...]
    by_another: bool = False


@dataclass(frozen=True, slots=True)
class RefusedTemplate:
    """The API server's refusal of a dry run of a pending job's pod. The dry run is repeated at
    `until`.
    """

    job_uid: str
    message: str
    until: datetime
    reason: PendingReason = PendingReason.POD_REJECTED


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """A GPUJob that the API server accepted and the API types reject, for example under an older
    CRD.
    """

    metadata: Metadata
    field: str
    problem: str
    observed_generation: int = 0


@dataclass(frozen=True, slots=True)
class SeenGPUs:
    """The GPUs on which one worker's processes were seen in the newest reading of its node."""

    rank: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GPUUsage:
    """The use of a job's GPUs over the attempt, from agents, on the worst GPU."""

    memory_peak_bytes: int
    # The largest mean of half a minute in the last minutes, since the start-up ended.
    utilization_percent: float
    # The agent readings that it is of. They saw the pod's processes.
    samples: int
    # What the contexts of its processes may take of a GPU.
    context_bytes: int = CONTEXT_BYTES
    # The GPUs of each worker, by rank.
    seen: tuple[SeenGPUs, ...] = ()
    # In the newest reading.
    memory_bytes: int = 0
    # Whether all of these minutes were observed, and show no less than the job would use alone, or
    # the start-up has just ended.
    may_fall: bool = False
    # No reading is newer than the start-up, whose utilization it therefore is.
    is_of_start_up: bool = False
    # Since when the readings of its nodes show none of its processes.
    absent_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class GonePod:
    """A worker pod that is gone, with the time of its end.

    Older readings still show its processes.
    """

    uid: str
    gone_at: datetime
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramFault:
    """A GPU driver's error that a job's program met in the last hour. See `capacity.suspects`."""

    node: str
    gpu: str
    xid: int
    job_uid: str
    namespace: str


@dataclass(frozen=True, slots=True)
class SpotPool:
    """Spot nodes of one kind, which are reclaimed together.

    It has the node-hours of observation and the number of reclaimed nodes. See `capacity.prices`.
    """

    name: str
    node_hours: int
    interruptions: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    jobs: tuple[GPUJob, ...] = ()
    invalid_jobs: tuple[InvalidJob, ...] = ()
    pods: tuple[PodView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    gpu_nodes: tuple[GPUNode, ...] = ()
    queues: tuple[GPUQueue, ...] = ()
    profiles: tuple[GPUProfile, ...] = ()
    # Volumes that limit a job's nodes. A limit that is missing here shows as a refusal by
    # kube-scheduler.
    volumes: tuple[BoundVolume, ...] = ()
    reports: tuple[ReceivedReport, ...] = ()
    # Trainings that yield to a service.
    yields: tuple[Yielding, ...] = ()
    # Replicas that are asked to park or to wake.
    parking: tuple[Parking, ...] = ()
    spot_pools: tuple[SpotPool, ...] = ()
    gone_pods: tuple[GonePod, ...] = ()
    # The object stays the same until something changes.
    program_faults: tuple[ProgramFault, ...] = ()
    # The newest refusal of each worker's pod, until that pod is created.
    refused_pods: tuple[RefusedPod, ...] = ()
    # Attempts that are starting, until the status has their pods' UIDs.
    perhaps_created: tuple[PerhapsCreated, ...] = ()
    # Pending jobs whose pods a dry run refused, until a dry run passes.
    refused_templates: tuple[RefusedTemplate, ...] = ()
    # UIDs of jobs whose pods record a placement that no status has yet.
    recorded: tuple[str, ...] = ()
    # UIDs of jobs with a write in flight, or with a status that waits to be written. Nothing more
    # of the job is written until then. Keys of profiles and queues may be among them.
    writing: tuple[str, ...] = ()
    # How many more jobs can be written.
    lanes: Lanes = field(default_factory=Lanes)
    # UIDs of jobs whose last write was refused and is not repeated yet.
    backing_off: tuple[str, ...] = ()
    # UIDs of pending jobs that another process may have placed unseen.
    perhaps_placed: tuple[str, ...] = ()
    # Since when this process receives reports; None: always.
    listening_since: datetime | None = None
    # The newest calculation of when pending jobs start. None: statuses stay as they are.
    forecast: Forecast | None = None
    # Measured use by (job UID, attempt).
    usage: Mapping[tuple[str, int], GPUUsage] = field(
        default_factory=dict[tuple[str, int], GPUUsage]
    )
    configuration: Configuration = field(default_factory=Configuration)


def pool_of(node: NodeView) -> str:
    """Returns the instance type and zone from the node's labels."""
    return f"{node.labels.get(_INSTANCE_TYPE, '-')}/{node.labels.get(_ZONE, '-')}"
