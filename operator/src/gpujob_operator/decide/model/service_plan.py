"""What is known about services in one round, and what is to be done about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService, GPUServiceStatus
from gpujob_api.serving import ServingReport, ServingSettings
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import NO_CHANGES, Gate, GateChanges
from gpujob_operator.decide.model.plan import EventNote
from gpujob_operator.decide.model.snapshot import Parking, PodView


class Role(Enum):
    """What a job does for its service."""

    REPLICA = "replica"
    # Measures backends once, on a GPU of its own, and ends.
    MEASUREMENT = "measurement"


@dataclass(frozen=True, slots=True)
class ServiceJob:
    """A job of a service with its pod, and what its process reported."""

    job: GPUJob
    pod: PodView | None = None
    report: ServingReport | None = None


@dataclass(frozen=True, slots=True)
class ServiceInputs:
    """One service, its jobs and its gates.

    `problem` is why the last job was refused, `front_problem` why there is no Service in front of
    the replicas, `gate_problem` why there is no gate.
    """

    service: GPUService
    jobs: tuple[ServiceJob, ...] = ()
    problem: str = ""
    front_problem: str = ""
    gates: tuple[Gate, ...] = ()
    gate_problem: str = ""
    # The revision of new gates.
    gate_revision: str = ""
    # Whether the Service selects the gate. None until it was written or read.
    selects_gate: bool | None = None
    # Since when its replicas are asked to wake, by the UIDs of their jobs.
    waking_since: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    configuration: Configuration = field(default_factory=Configuration)


@dataclass(frozen=True, slots=True)
class CreateJob:
    """A job to create for a service. Its name makes a repeated request harmless."""

    service: GPUService
    name: str
    role: Role
    revision: str
    settings: ServingSettings
    # Nodes of other replicas. It goes elsewhere if it can.
    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """A job to delete. Its pod answers what it has accepted, and ends."""

    job: GPUJob
    reason: str


@dataclass(frozen=True, slots=True)
class ServiceStep:
    """What to do for one service, in this order."""

    service: GPUService
    creates: tuple[CreateJob, ...] = ()
    removes: tuple[RemoveJob, ...] = ()
    gates: GateChanges = NO_CHANGES
    # None if it is unchanged.
    status: GPUServiceStatus | None = None
    events: tuple[EventNote, ...] = ()

    @property
    def changes(self) -> bool:
        gates = self.gates.creates or self.gates.removes
        return bool(self.creates or self.removes or gates or self.status is not None)


@dataclass(frozen=True, slots=True)
class ServicePlan:
    steps: tuple[ServiceStep, ...] = ()
    # UIDs of the services whose Service has to select the gate. Others select the replicas.
    to_gate: frozenset[str] = frozenset()
    parking: tuple[Parking, ...] = ()
