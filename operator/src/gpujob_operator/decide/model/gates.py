"""A service's gates: their pods, and what they report."""

from dataclasses import dataclass
from datetime import datetime

from gpujob_api.gate import GateReport


@dataclass(frozen=True, slots=True)
class GatePod:
    """The pod of a gate. `revision` is a digest of how it was rendered."""

    name: str
    namespace: str
    uid: str
    service_uid: str
    revision: str = ""
    ready: bool = False
    # It is being deleted, and takes no more requests soon.
    leaving: bool = False
    # Its process is not started again.
    finished: bool = False
    addresses: tuple[str, ...] = ()
    # Kubernetes' reason why it does not run.
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate, and its newest report with the time at which it arrived."""

    pod: GatePod
    report: GateReport | None = None
    reported_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class GateChanges:
    """Gates to create, by ordinal, and to remove."""

    creates: tuple[int, ...] = ()
    removes: tuple[GatePod, ...] = ()


NO_CHANGES = GateChanges()


def gate_name(service: str, ordinal: int) -> str:
    """Returns the pod's name, which no worker of a job has: its last but one part is no number."""
    return f"{service}-gate-{ordinal}"
