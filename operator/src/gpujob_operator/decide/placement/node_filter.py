"""Decides which nodes a job may use: labels, affinity, volumes, devices, taints and spot."""

from collections.abc import Mapping
from typing import Any

from gpujob_api.gpujob import SpotPolicy
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.capacity.cluster import Capacity, NodeCapacity
from gpujob_operator.decide.model.node_affinity import NodeRequirement, affinity_mismatch
from gpujob_operator.decide.model.protection import Unprotected
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME, NodeView, Taint
from gpujob_operator.decide.packing.apart import DomainLimit
from gpujob_operator.decide.placement.requirements import JobRequirements

_NO_NEW_PODS = ("NoSchedule", "NoExecute")
_A_SPOT_NODE = {
    None: "a spot node",
    Unprotected.NO_DURABLE_PLACE: "a spot node, not used without checkpoint.volumeClaimName",
    Unprotected.NOT_RESUMABLE: "a spot node, not used by a run that cannot be resumed",
}


def nodes_for(requirements: JobRequirements, capacity: Capacity) -> list[NodeCapacity]:
    """Returns open nodes that the job may use, by name."""
    nodes = capacity.nodes.values()
    return [node for node in nodes if not node.closed and not why_not_on(requirements, node.node)]


def why_not_on(requirements: JobRequirements, node: NodeView) -> str:
    """Returns why the job may not use this node now, or ""."""
    mismatch = node_mismatch(requirements, node)
    if mismatch or not requirements.refused_by:
        return mismatch
    refused = next(
        (one for one in requirements.refused_by if one.node == node.name not in one.beside), None
    )
    return avoided_text(refused) if refused is not None else ""


def avoided_text(refused: StartRefusal) -> str:
    """Returns why a node is not used that refused the job."""
    return f"avoided: {refused.message}"


def spread_limits(requirements: JobRequirements, capacity: Capacity) -> list[DomainLimit[str]]:
    """Returns how the job's workers must be spread, by node name."""
    found: list[DomainLimit[str]] = []
    for rule in requirements.spread:
        by_name = rule.topology_key == LABEL_HOSTNAME
        domains = {
            name: name if by_name else node.node.labels.get(rule.topology_key)
            for name, node in capacity.nodes.items()
            if not why_not_on(requirements, node.node)
        }
        known = {name: domain for name, domain in domains.items() if domain is not None}
        found.append(DomainLimit(known, rule.most, rule.skew))
    return found


def constraint_fields(node: NodeView) -> tuple[object, ...]:
    """Returns the node fields that `node_mismatch` reads, except the name, which never changes."""
    return node.spot, node.taints, node.labels, node.others_allocatable


def node_mismatch(requirements: JobRequirements, node: NodeView) -> str:
    """Returns why the node's name, labels, taints, spot or devices exclude the job, or "".

    Devices that other pods use are not subtracted.
    """
    policy = requirements.spot
    if policy is SpotPolicy.REQUIRE and not node.spot:
        return "not a spot node"
    if policy is SpotPolicy.NEVER and node.spot:
        return _A_SPOT_NODE[requirements.kept_off_spot]
    for key, value in requirements.selector.items():
        if node.labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    if mismatch := affinity_mismatch(requirements.affinity, node.name, node.labels):
        return mismatch
    for claim, affinity in requirements.volumes:
        if mismatch := affinity_mismatch(affinity, node.name, node.labels):
            return f"volume of claim {claim}: {mismatch}"
    for taint in node.taints:
        if not _tolerated(taint, requirements.tolerations):
            return f"taint {taint.key} is not tolerated"
    return _lack_of_others(requirements, node)


def _lack_of_others(requirements: JobRequirements, node: NodeView) -> str:
    for name, asked in requirements.refused_others:
        there = node.others_allocatable.get(name, 0)
        if there < asked:
            return f"insufficient {name} ({asked} requested, {there} allocatable)"
    return ""


# Of cordoned nodes, of nodes that are not ready or lack disk or memory, of nodes that just start.
_TEMPORARY = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/")
_OF_A_START = "not-ready"


def is_temporary(taint: Taint) -> bool:
    """Returns whether the taint comes and goes while the node stays what it is."""
    return taint.key.startswith(_TEMPORARY) or taint.key.endswith(_OF_A_START)


def _tolerated(taint: Taint, tolerations: tuple[Mapping[str, Any], ...]) -> bool:
    if taint.effect not in _NO_NEW_PODS:
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    effect = toleration.get("effect") or taint.effect
    if effect != taint.effect:
        return False
    operator, value = toleration.get("operator"), toleration.get("value") or ""
    if operator == "Exists":
        return toleration.get("key") in (None, "", taint.key)
    if toleration.get("key") != taint.key:
        return False
    if operator in ("Gt", "Lt"):
        # Numbers, as in an expression on a label.
        wanted = NodeRequirement(taint.key, operator, (str(value),))
        return wanted.holds({taint.key: taint.value})
    return value == taint.value
