"""Decides why a node or a GPU is closed to new placements."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from gpujob_api.gpunode import GPU, UNREADABLE, GPUNode
from gpujob_api.meta import LABEL_MANAGED
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.notices import NodeNotice, NoticeKind
from gpujob_operator.decide.model.snapshot import NodeView


class ClosedReason(Enum):
    RECLAIMED = "the node is being reclaimed"
    DRAINED = "the node is being drained"
    MAY_GO = "the node may be reclaimed soon"
    NOT_READY = "the node is not ready"
    CORDONED = "the node is cordoned"
    UNMANAGED = f"the node lacks the label {LABEL_MANAGED}=true"
    UNMEASURED = "no reading from the agent yet"
    STALE = "readings are too old"


_REASONS = {
    NoticeKind.RECLAIM: ClosedReason.RECLAIMED,
    NoticeKind.DRAIN: ClosedReason.DRAINED,
    NoticeKind.CLOSE: ClosedReason.MAY_GO,
}


@dataclass(frozen=True, slots=True)
class NodeClosed:
    """The reason why a node is closed. `text` has the numbers, if any.

    `stale` means that its newest reading is too old, or that there is none, whatever the reason is.
    """

    reason: ClosedReason
    text: str
    stale: bool = False


def why_closed(
    view: NodeView,
    gpu_node: GPUNode,
    notice: NodeNotice | None,
    configuration: Configuration,
    now: datetime,
) -> NodeClosed | None:
    """Returns why nothing new may be placed on the node, or None. `notice` is the view's."""
    old = _outdated(gpu_node, configuration, now)
    if notice is not None:
        reason = _REASONS[notice.kind]
        text = f"{reason.value}{f' ({notice.sign})' if notice.sign else ''}"
        return NodeClosed(reason, text, stale=old is not None)
    reason = _closed_for_good(view, gpu_node)
    if reason is not None:
        return NodeClosed(reason, reason.value, stale=old is not None)
    return old


def _outdated(gpu_node: GPUNode, configuration: Configuration, now: datetime) -> NodeClosed | None:
    """Returns why the readings do not show the present state, or None."""
    observed = gpu_node.status.observed_at
    if observed is None:
        return NodeClosed(ClosedReason.UNMEASURED, ClosedReason.UNMEASURED.value, stale=True)
    age, limit_seconds = now - observed, configuration.telemetry_stale_seconds
    if age <= timedelta(seconds=limit_seconds):
        return None
    text = f"readings are {age.total_seconds():.0f} s old (limit {limit_seconds:.0f} s)"
    return NodeClosed(ClosedReason.STALE, text, stale=True)


def _closed_for_good(view: NodeView, gpu_node: GPUNode) -> ClosedReason | None:
    """Returns the reason that holds until the node or its GPUNode changes."""
    if not view.ready:
        return ClosedReason.NOT_READY
    if view.unschedulable or gpu_node.spec.unschedulable:
        return ClosedReason.CORDONED
    return None if view.managed else ClosedReason.UNMANAGED


class BlockedReason(Enum):
    UNHEALTHY = "unhealthy"
    # Stale readings close the GPU to new jobs and stop no running job (I14).
    UNREADABLE = UNREADABLE
    # Programs failed on the GPU. This closes it to new jobs and stops no running job.
    SUSPECT = "programs of different jobs failed on it"
    STRAY_POD = "a pod of an earlier attempt has not ended yet"


@dataclass(frozen=True, slots=True)
class GPUBlocked:
    reason: BlockedReason
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


def why_blocked(gpu: GPU, *, stray_pod: bool, suspect: str = "") -> GPUBlocked | None:
    """Returns why nothing new may be placed on the GPU, or None.

    `stray_pod` means that a pod of an ended attempt still uses it. `suspect` is why failures of
    programs may be the GPU's fault (see `suspects`).
    """
    message = gpu.health_message
    if not gpu.healthy and message.startswith(UNREADABLE):
        return GPUBlocked(BlockedReason.UNREADABLE, message.removeprefix(UNREADABLE).lstrip(": "))
    if not gpu.healthy:
        return GPUBlocked(BlockedReason.UNHEALTHY, message or "no reason given")
    if suspect:
        return GPUBlocked(BlockedReason.SUSPECT, suspect)
    return GPUBlocked(BlockedReason.STRAY_POD) if stray_pod else None
