"""The plan of one cycle: the writes that bring the cluster closer to the desired state."""

from dataclasses import dataclass, field
from enum import Enum

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue, GPUQueueStatus
from gpujob_api.settings import Settings
from gpujob_operator.decide.model.placement_record import PlacementRecord
from gpujob_operator.decide.model.snapshot import InvalidJob, PodView


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EventNote:
    """A Kubernetes event to post on the job: a unique reason, and a message with numbers."""

    reason: str
    message: str
    type: EventType = EventType.NORMAL


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write `status` if the job still has the resourceVersion of the snapshot.

    With `pod`, create that pod, which records the placement of `status`. The status is not written
    if the pod is created.
    """

    job: GPUJob
    status: GPUJobStatus
    events: tuple[EventNote, ...] = ()
    pod: "CreatePod | None" = None


@dataclass(frozen=True, slots=True)
class RejectJob:
    """Write Accepted=False, with the field and the problem, to a job that cannot be read."""

    job: InvalidJob


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create one worker's pod. The placement is in `job.status`, which is durable or is recorded by
    the pod itself (`record`).
    """

    job: GPUJob
    rank: int
    settings: Settings
    # The label `kubernetes.io/hostname` of the worker's node, if it has one.
    hostname: str | None = None
    record: PlacementRecord | None = None


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Stop a pod: SIGTERM, its grace, SIGKILL.

    The preconditions are the pod's UID and its state in the snapshot, which the executor fills in
    (`resource_version`). A pod that ended meanwhile is judged before it is deleted.
    """

    pod: PodView
    grace_seconds: int
    reason: str
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a finished job whose time to live is over.

    The job must still have the UID and the resourceVersion of the snapshot. The garbage collector
    deletes its pods.
    """

    job: GPUJob


@dataclass(frozen=True, slots=True)
class SaveProfile:
    """Create or update a GPUProfile."""

    profile: GPUProfile


@dataclass(frozen=True, slots=True)
class DeleteProfile:
    """Delete a profile that no job uses any more.

    The profile must still have the UID and the resourceVersion of the snapshot.
    """

    profile: GPUProfile


@dataclass(frozen=True, slots=True)
class WriteQueueStatus:
    queue: GPUQueue
    status: GPUQueueStatus


@dataclass(frozen=True, slots=True)
class TryTemplate:
    """Repeat the dry run of a pending job's pod, which was refused.

    A job that is placed is tried anyway. One that waits for capacity would never learn that its
    pods are accepted by now, and nothing is preempted or nominated for it until then.
    """

    job: GPUJob


PlanItem = (
    WriteStatus
    | RejectJob
    | CreatePod
    | DeletePod
    | DeleteJob
    | SaveProfile
    | DeleteProfile
    | WriteQueueStatus
    | TryTemplate
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Items in the order in which they are written, at most one per job and step.

    `next_seconds` is when the next cycle is due even if nothing happens, because a back-off or a
    deadline ends.
    """

    items: tuple[PlanItem, ...] = ()
    next_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NextStep:
    """The job's next status and the writes that belong to it."""

    status: GPUJobStatus
    events: tuple[EventNote, ...] = ()
    creates: tuple[CreatePod, ...] = ()
    deletes: tuple[DeletePod, ...] = ()
    next_seconds: float | None = field(default=None)
