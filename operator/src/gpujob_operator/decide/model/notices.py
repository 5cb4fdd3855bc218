"""Signs on a node that its provider, an autoscaler or an administrator is about to take the node.

One table for each kind of sign. The sources of keys and lead times are in
docs/design/0019-signs-of-a-node-that-goes.md, and docs/reference/nodes.md has the tables for users.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from gpujob_api.meta import TAINT_RECLAIM
from gpujob_operator.decide.model.snapshot import NodeView

# A Unix time in seconds. Ten digits last until 2286.
_SECONDS = re.compile(r"^[0-9]{1,10}$", re.ASCII)
READY_CONDITION = "Ready"
_LABEL_DRIVER_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


class NoticeKind(Enum):
    """What a sign means, the most urgent first. The first two stop the jobs on the node."""

    RECLAIM = "is being reclaimed"
    DRAIN = "is being drained"
    # The node may go. Jobs on it continue, and nothing new is placed on it.
    CLOSE = "may be reclaimed soon"

    @property
    def stops_jobs(self) -> bool:
        return self is not NoticeKind.CLOSE


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """The signs on a node.

    `ends_at` is when the machine goes, if a sign has a time. `lead_seconds` is how long after the
    sign the machine goes, if that is known. If both are known, the earlier one counts. The jobs'
    own grace counts if both are None.
    """

    kind: NoticeKind
    # The signs in words. "" for the operator's own taint, which adds nothing to the kind.
    sign: str
    ends_at: datetime | None = None
    lead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TaintRow:
    key: str
    kind: NoticeKind
    setter: str
    lead_seconds: float | None = None
    # Replaces `lead_seconds` on spot nodes, where the same taint announces a reclamation.
    spot_lead_seconds: float | None = None
    # The taint's value is the time at which the machine goes.
    value_is_end: bool = False


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition that is True, or `Ready` that is False.

    The condition's text must contain one of the parts in `message`. Any text matches if there are
    none.
    """

    type: str
    kind: NoticeKind
    setter: str
    message: tuple[str, ...] = ()
    lead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LabelRow:
    key: str
    values: frozenset[str]
    kind: NoticeKind
    setter: str


_EC2_SECONDS = 118.0
TAINT_ROWS = (
    TaintRow(TAINT_RECLAIM, NoticeKind.RECLAIM, "anybody", value_is_end=True),
    TaintRow(
        "aws-node-termination-handler/spot-itn",
        NoticeKind.RECLAIM,
        "AWS Node Termination Handler",
        lead_seconds=_EC2_SECONDS,
    ),
    TaintRow(
        "cloud.google.com/impending-node-termination",
        NoticeKind.DRAIN,
        "GKE",
        spot_lead_seconds=25.0,
    ),
    TaintRow(
        "karpenter.sh/disrupted",
        NoticeKind.DRAIN,
        "Karpenter since 1.0",
        spot_lead_seconds=_EC2_SECONDS,
    ),
    TaintRow(
        "karpenter.sh/disruption",
        NoticeKind.DRAIN,
        "Karpenter before 1.0",
        spot_lead_seconds=_EC2_SECONDS,
    ),
    TaintRow(
        "ToBeDeletedByClusterAutoscaler",
        NoticeKind.DRAIN,
        "Cluster Autoscaler",
        lead_seconds=600.0,
    ),
    TaintRow(
        "aws-node-termination-handler/asg-lifecycle-termination",
        NoticeKind.DRAIN,
        "AWS Node Termination Handler",
    ),
    TaintRow(
        "aws-node-termination-handler/scheduled-maintenance",
        NoticeKind.DRAIN,
        "AWS Node Termination Handler",
    ),
    TaintRow("remediator.kubernetes.azure.com/unschedulable", NoticeKind.DRAIN, "AKS"),
    TaintRow(
        "aws-node-termination-handler/rebalance-recommendation",
        NoticeKind.CLOSE,
        "AWS Node Termination Handler",
    ),
)
CONDITION_ROWS = (
    ConditionRow("PreemptionScheduled", NoticeKind.RECLAIM, "AKS", lead_seconds=25.0),
    ConditionRow(
        "VMEventScheduled", NoticeKind.RECLAIM, "AKS", ("Preempt Scheduled",), lead_seconds=10.0
    ),
    # The kubelet gives user pods the shutdown's time minus the time for critical pods: 15 s on GKE.
    ConditionRow(
        READY_CONDITION,
        NoticeKind.RECLAIM,
        "kubelet (graceful node shutdown)",
        ("node is shutting down",),
        lead_seconds=15.0,
    ),
    ConditionRow(
        "VMEventScheduled",
        NoticeKind.DRAIN,
        "AKS",
        ("Reboot Scheduled", "Redeploy Scheduled", "Terminate Scheduled"),
    ),
    ConditionRow("Terminating", NoticeKind.DRAIN, "OpenShift"),
)
LABEL_ROWS = (
    LabelRow(
        _LABEL_DRIVER_UPGRADE,
        frozenset(
            {"cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required"}
        ),
        NoticeKind.DRAIN,
        "NVIDIA GPU Operator",
    ),
)
# The time left to a spot node with a deletionTimestamp. An autoscaler deletes the node when its
# notice arrives.
SPOT_DELETION_SECONDS = _EC2_SECONDS
# The condition types that a node's view keeps. Others have no effect.
CONDITION_TYPES = frozenset(row.type for row in CONDITION_ROWS)
NOTICE_TAINTS = frozenset(row.key for row in TAINT_ROWS)
_TAINTS = {row.key: row for row in TAINT_ROWS}
_ORDER = tuple(NoticeKind)


def notice_of(node: NodeView) -> NodeNotice | None:
    """Returns the signs on the node with the most urgent kind and the least time of any, or None.

    Signs that stop no jobs do not count beside signs that do.
    """
    found = sorted(_notices(node), key=lambda notice: _ORDER.index(notice.kind))
    if len(found) < 2:
        return found[0] if found else None
    kind = found[0].kind
    alike = [one for one in found if one.kind.stops_jobs is kind.stops_jobs]
    ends = [one.ends_at for one in alike if one.ends_at is not None]
    leads = [one.lead_seconds for one in alike if one.lead_seconds is not None]
    sign = ", ".join(dict.fromkeys(one.sign for one in alike if one.sign))
    return NodeNotice(kind, sign, min(ends, default=None), min(leads, default=None))


def _notices(node: NodeView) -> Iterator[NodeNotice]:
    for taint in node.taints:
        row = _TAINTS.get(taint.key)
        if row is not None:
            yield _of_taint(row, taint.value, spot=node.spot)
    for condition in node.conditions:
        for row in CONDITION_ROWS:
            if row.type == condition.type and _matches(row, condition.message):
                sign = f"condition {row.type} of {row.setter}"
                yield NodeNotice(row.kind, sign, lead_seconds=row.lead_seconds)
    if node.deletion_at is not None:
        lead_seconds = SPOT_DELETION_SECONDS if node.spot else None
        yield NodeNotice(NoticeKind.DRAIN, "the Node is being deleted", lead_seconds=lead_seconds)
    for row in LABEL_ROWS:
        value = node.labels.get(row.key)
        if value in row.values:
            yield NodeNotice(row.kind, f"label {row.key}={value} of {row.setter}")


def _of_taint(row: TaintRow, value: str, *, spot: bool) -> NodeNotice:
    lead_seconds = row.spot_lead_seconds if spot else None
    ends_at = None
    if row.value_is_end and _SECONDS.match(value):
        ends_at = datetime.fromtimestamp(int(value), UTC)
    sign = "" if row.key == TAINT_RECLAIM else f"taint {row.key} of {row.setter}"
    return NodeNotice(row.kind, sign, ends_at, lead_seconds or row.lead_seconds)


def _matches(row: ConditionRow, message: str) -> bool:
    return not row.message or any(part in message for part in row.message)
