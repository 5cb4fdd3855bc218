"""Every sign by which a node says that it is about to go, and what the sign does to a job there."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpujob_api.gpujob import JobPhase
from gpujob_operator.decide.capacity.availability import ClosedReason
from gpujob_operator.decide.capacity.sites import sites_of
from gpujob_operator.decide.lifecycle import faults
from gpujob_operator.decide.model.configuration import DeviceAccess
from gpujob_operator.decide.model.notices import (
    CONDITION_ROWS,
    LABEL_ROWS,
    TAINT_ROWS,
    NodeNotice,
    NoticeKind,
    notice_of,
)
from gpujob_operator.decide.model.snapshot import NodeCondition, NodeView, Taint
from tests.harness.builders import after, make_job, make_node, make_snapshot, running
from tests.harness.capacity import build_capacity

GRACE_SECONDS = 90.0
RECLAIM, DRAIN, CLOSE = NoticeKind.RECLAIM, NoticeKind.DRAIN, NoticeKind.CLOSE
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


def tainted(key: str, value: str = "", effect: str = "NoSchedule", **node: Any) -> NodeView:
    return make_node(taints=(Taint(key, effect, value),), **node)


def with_condition(kind: str, message: str = "", **node: Any) -> NodeView:
    return make_node(conditions=(NodeCondition(kind, message),), **node)


def labelled(key: str, value: str) -> NodeView:
    return make_node(labels={key: value})


# Node, kind, and how many seconds the job's workers have (their own grace is 90 s).
SIGNS: list[tuple[NodeView, NoticeKind, float]] = [
    (tainted("gpujob.dev/reclaim", str(int(after(40).timestamp()))), RECLAIM, 40),
    (tainted("gpujob.dev/reclaim", "soon"), RECLAIM, GRACE_SECONDS),
    (tainted("aws-node-termination-handler/spot-itn", "evt-1", spot=True), RECLAIM, 90),
    (tainted("cloud.google.com/impending-node-termination", spot=True), DRAIN, 25),
    (tainted("cloud.google.com/impending-node-termination"), DRAIN, GRACE_SECONDS),
    (tainted("karpenter.sh/disrupted", spot=True), DRAIN, GRACE_SECONDS),
    (tainted("karpenter.sh/disrupted"), DRAIN, GRACE_SECONDS),
    (tainted("karpenter.sh/disruption", "disrupting"), DRAIN, GRACE_SECONDS),
    (tainted("ToBeDeletedByClusterAutoscaler", "1767225600"), DRAIN, GRACE_SECONDS),
    (tainted("aws-node-termination-handler/asg-lifecycle-termination"), DRAIN, GRACE_SECONDS),
    (tainted("aws-node-termination-handler/scheduled-maintenance"), DRAIN, GRACE_SECONDS),
    (tainted("remediator.kubernetes.azure.com/unschedulable"), DRAIN, GRACE_SECONDS),
    (with_condition("PreemptionScheduled", "eviction is coming"), RECLAIM, 25),
    (with_condition("VMEventScheduled", "Preempt Scheduled: Mon, 01 Jan 2029"), RECLAIM, 10),
    (with_condition("VMEventScheduled", "Reboot Scheduled: Mon, 01 Jan 2029"), DRAIN, 90),
    (with_condition("VMEventScheduled", "Redeploy Scheduled: Mon"), DRAIN, GRACE_SECONDS),
    (with_condition("VMEventScheduled", "Terminate Scheduled: Mon"), DRAIN, GRACE_SECONDS),
    (with_condition("Ready", "node is shutting down", ready=False), RECLAIM, 15),
    (with_condition("Terminating"), DRAIN, GRACE_SECONDS),
    (make_node(deletion_at=after(0)), DRAIN, GRACE_SECONDS),
    (labelled(UPGRADE, "cordon-required"), DRAIN, GRACE_SECONDS),
    (labelled(UPGRADE, "wait-for-jobs-required"), DRAIN, GRACE_SECONDS),
    (labelled(UPGRADE, "pod-deletion-required"), DRAIN, GRACE_SECONDS),
    (labelled(UPGRADE, "drain-required"), DRAIN, GRACE_SECONDS),
    (tainted("aws-node-termination-handler/rebalance-recommendation"), CLOSE, 0),
]


@pytest.mark.parametrize(("node", "kind", "seconds"), SIGNS)
def test_a_sign_stops_the_job_in_time_and_closes_the_node(
    node: NodeView, kind: NoticeKind, seconds: float
) -> None:
    job = running(make_job("a"))
    capacity = build_capacity(make_snapshot(job, nodes=[node]), after(0), {})
    closed = capacity.nodes["n0"].closed
    reasons = {
        RECLAIM: ClosedReason.RECLAIMED,
        DRAIN: ClosedReason.DRAINED,
        CLOSE: ClosedReason.MAY_GO,
    }
    assert closed is not None
    assert closed.reason is reasons[kind]
    sites = sites_of(job.status.placement, capacity)
    stop = faults.of(job, sites, after(0), after(GRACE_SECONDS), DeviceAccess.ENVIRONMENT)
    if kind is CLOSE:
        assert stop is None
        return
    assert stop is not None
    assert stop.reason == {RECLAIM: "NodeReclaimed", DRAIN: "NodeDrained"}[kind]
    assert (stop.deadline - after(0)).total_seconds() == seconds
    assert f"node n0 {kind.value}" in stop.message
    assert f"the workers have {seconds:.0f} s to end" in stop.message


def test_every_row_of_the_tables_is_shown_above() -> None:
    seen = [node for node, _, _ in SIGNS]
    keys = {taint.key for node in seen for taint in node.taints}
    assert keys == {row.key for row in TAINT_ROWS}
    kinds = [(one.type, one.message) for node in seen for one in node.conditions]
    for row in CONDITION_ROWS:
        for part in row.message or ("",):
            assert any(row.type == kind and part in message for kind, message in kinds), row
    for label in LABEL_ROWS:
        assert label.values <= {node.labels.get(label.key) for node in seen}


@pytest.mark.parametrize(
    "node",
    [
        make_node(),
        make_node(unschedulable=True),
        # An autoscaler thinks about it: the node is as good as before, and a job there keeps it.
        tainted("DeletionCandidateOfClusterAutoscaler", "1767225600", "PreferNoSchedule"),
        tainted("nvidia.com/gpu", "present"),
        with_condition("VMEventScheduled", "Freeze Scheduled: Mon, 01 Jan 2029"),
        with_condition("Ready", "container runtime is down", ready=False),
        labelled(UPGRADE, "upgrade-done"),
        labelled(UPGRADE, "upgrade-required"),
    ],
)
def test_what_does_not_announce_the_end_of_a_node(node: NodeView) -> None:
    assert notice_of(node) is None


def test_the_most_urgent_sign_counts() -> None:
    taints = (
        Taint("aws-node-termination-handler/rebalance-recommendation", "NoSchedule"),
        Taint("karpenter.sh/disrupted", "NoSchedule"),
    )
    node = make_node(taints=taints, spot=True)
    drained = notice_of(node)
    assert drained == NodeNotice(
        DRAIN, "taint karpenter.sh/disrupted of Karpenter since 1.0", lead_seconds=118.0
    )
    value = str(int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()))
    own = Taint("gpujob.dev/reclaim", "NoSchedule", value)
    reclaimed = notice_of(replace(node, taints=(*taints, own)))
    assert reclaimed is not None
    assert (reclaimed.kind, reclaimed.ends_at) == (RECLAIM, datetime(2030, 1, 1, tzinfo=UTC))


OWN_LATE = Taint("gpujob.dev/reclaim", "NoSchedule", str(int(after(1000).timestamp())))
OWN_SOON = Taint("gpujob.dev/reclaim", "NoSchedule", str(int(after(9).timestamp())))
GKE = Taint("cloud.google.com/impending-node-termination", "NoSchedule")
CLUSTER_AUTOSCALER = Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule")


@pytest.mark.parametrize(
    ("node", "seconds"),
    [
        (replace(tainted(GKE.key), spot=True, taints=(OWN_LATE, GKE)), 25),
        (replace(tainted(GKE.key), spot=True, taints=(GKE, OWN_SOON)), 9),
        (replace(with_condition("PreemptionScheduled"), taints=(OWN_LATE,)), 25),
        (replace(with_condition("PreemptionScheduled"), taints=(CLUSTER_AUTOSCALER,)), 25),
        (replace(labelled(UPGRADE, "drain-required"), spot=True, taints=(GKE,)), 25),
    ],
)
def test_of_several_signs_the_one_that_leaves_the_least_time_counts(
    node: NodeView, seconds: float
) -> None:
    job = running(make_job("a"))
    sites = sites_of(
        job.status.placement,
        build_capacity(make_snapshot(job, nodes=[node]), after(0), {}),
    )
    stop = faults.of(job, sites, after(0), after(GRACE_SECONDS), DeviceAccess.ENVIRONMENT)
    assert stop is not None
    assert (stop.deadline - after(0)).total_seconds() == seconds


def test_a_job_that_waits_sees_why_the_node_is_closed() -> None:
    job = make_job("a")
    assert job.status.phase is JobPhase.PENDING
    node = tainted("karpenter.sh/disrupted")
    closed = build_capacity(make_snapshot(job, nodes=[node]), after(0), {}).nodes["n0"].closed
    assert closed is not None
    assert closed.text == (
        "the node is being drained (taint karpenter.sh/disrupted of Karpenter since 1.0)"
    )
