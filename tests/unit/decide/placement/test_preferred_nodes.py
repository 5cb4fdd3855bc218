"""A job goes to a node that its template prefers, and to another one rather than wait."""

from typing import Any

import pytest

from gpujob_operator.decide.model.node_affinity import (
    affinity_mismatch,
    preferred_affinity,
    required_affinity,
    with_preferences,
)
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    make_template,
    statuses,
)

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def not_on(*nodes: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in nodes]
    return {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchFields": fields}}]}}


def node_of(affinity: dict[str, Any], *names: str) -> str | None:
    template = make_template(affinity=affinity)
    snapshot = make_snapshot(
        make_job("a", template=template),
        nodes=[make_node(name) for name in names],
        gpu_nodes=[make_gpu_node(name, make_gpu(f"GPU-{name}")) for name in names],
    )
    placement = statuses(plan(snapshot, T0).items)["a"].placement
    return placement.workers[0].node if placement is not None else None


def test_a_preferred_node_comes_before_all_others() -> None:
    assert node_of({}, "n0", "n1") == "n0"
    assert node_of(not_on("n0"), "n0", "n1") == "n1"


def test_without_a_preferred_node_any_node_will_do() -> None:
    assert node_of(not_on("n0", "n1"), "n0", "n1") == "n0"


def test_a_preference_opens_no_node_that_is_not_required() -> None:
    affinity = not_on("n0")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
    affinity["nodeAffinity"][REQUIRED] = {"nodeSelectorTerms": [term]}
    assert node_of(affinity, "n0", "n1") == "n0"


@pytest.mark.parametrize("odd", [None, 1, [], {"nodeAffinity": {PREFERRED: [1]}}, {"x": 1}])
def test_a_preference_that_cannot_be_read_is_none(odd: Any) -> None:
    assert preferred_affinity({"affinity": odd}) == ()


def test_both_hold_on_a_preferred_node() -> None:
    expression = {"key": "zone", "operator": "In", "values": ["a"]}
    required = required_affinity(
        {
            "affinity": {
                "nodeAffinity": {
                    REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
                }
            }
        }
    )
    both = with_preferences(required, preferred_affinity({"affinity": not_on("n0")}))
    assert affinity_mismatch(both, "n1", {"zone": "a"}) == ""
    assert affinity_mismatch(both, "n0", {"zone": "a"})
    assert affinity_mismatch(both, "n1", {"zone": "b"})
