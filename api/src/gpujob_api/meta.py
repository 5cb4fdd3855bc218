"""The parts that every Kubernetes object has: names, labels, conditions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated

from gpujob_api.bounds import Count, Items, Message, Text

GROUP = "gpujob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

LABEL_MANAGED = f"{GROUP}/managed"
LABEL_SPOT = f"{GROUP}/spot"
LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_RANK = f"{GROUP}/rank"
# Of a GPUService's jobs and pods: its name, its UID, the revision of its spec, and the job's task.
LABEL_SERVICE = f"{GROUP}/service"
LABEL_SERVICE_UID = f"{GROUP}/service-uid"
LABEL_REVISION = f"{GROUP}/revision"
# Of a pod that is a GPUService's gate.
LABEL_GATE = f"{GROUP}/gate"
ANNOTATION_GPUS = f"{GROUP}/gpus"
# The placement of a pod's attempt, until its job's status has it; see `PlacementRecord`.
ANNOTATION_PLACEMENT = f"{GROUP}/placement"
# On the operator's Lease: its knowledge of spot pools, for the operator after it.
ANNOTATION_SPOT_POOLS = f"{GROUP}/spot-pools"
# `kubectl delete --cascade=orphan` puts this on an object until it owns nothing any more.
FINALIZER_ORPHAN = "orphan"
TAINT_RECLAIM = f"{GROUP}/reclaim"

MESSAGE_CHARACTERS_MAX = 1024


class ConditionStatus(Enum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One finding about an object, as the Kubernetes API conventions define it."""

    type: Annotated[str, Text(316, r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", 1)]
    status: ConditionStatus
    reason: Annotated[str, Text(256, r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$", 1)]
    message: Message
    last_transition_time: datetime
    observed_generation: Count = 0


Conditions = Annotated[tuple[Condition, ...], Items(16, keys=("type",))]


@dataclass(frozen=True, slots=True)
class OwnerReference:
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    """The part of ObjectMeta that decisions need. `namespace` is empty for cluster-scoped kinds."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The namespace and name as text, or the name alone for cluster-scoped kinds."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name
