"""What keeps jobs off the GPUs: kept from one time to the next, it says what a fresh look says."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.cache.node_arrays import DiagnosisCounts
from gpujob_operator.decide.capacity.cluster import NodeCapacity
from gpujob_operator.decide.placement.finding import FARTHEST, NO_GPUS, NodeDiagnosis, UnfitReason
from tests.harness.builders import make_node

FULL, KEPT = UnfitReason("full"), UnfitReason("kept")


def node(name: str, free: int = 0) -> NodeCapacity:
    return NodeCapacity(make_node(name), None, (), free, 0)


def look(one: NodeCapacity, claimed: frozenset[str]) -> NodeDiagnosis:
    """Stands for a look at GPUs: as many are full as the node has processor free."""
    if not one.cpu_milli_free:
        return NodeDiagnosis()
    counts = {FULL: one.cpu_milli_free, KEPT: len(claimed)}
    return NodeDiagnosis(counts, (one.cpu_milli_free, "GPU", one.node.name))


def surveyed(
    survey: DiagnosisCounts, nodes: dict[str, NodeCapacity], claimed: dict[str, frozenset[str]]
) -> list[str]:
    """Renews it; the nodes that were looked at."""
    seen: list[str] = []

    def noted(one: NodeCapacity, here: frozenset[str]) -> NodeDiagnosis:
        seen.append(one.node.name)
        return look(one, here)

    survey.renew(nodes, claimed, noted)
    return seen


def test_only_what_changed_is_looked_at_again() -> None:
    nodes = {name: node(name, 1) for name in ("a", "b", "c")}
    survey = DiagnosisCounts()
    assert surveyed(survey, nodes, {}) == ["a", "b", "c"]
    assert surveyed(survey, nodes, {}) == []
    nodes["b"] = node("b", 5)
    assert surveyed(survey, nodes, {}) == ["b"]
    assert surveyed(survey, nodes, {"c": frozenset({"GPU-c"})}) == ["c"]
    assert (survey.counts[FULL], survey.counts[KEPT], survey.nearest) == (7, 1, (1, "GPU", "a"))
    assert surveyed(survey, nodes, {}) == ["c"]
    assert dict(survey.counts) == {FULL: 7}


def test_of_no_nodes_there_is_nothing() -> None:
    survey = DiagnosisCounts()
    survey.renew({}, {}, look)
    assert (dict(survey.counts), survey.nearest) == ({}, FARTHEST)


@given(st.randoms(use_true_random=False))
def test_kept_is_as_fresh(random: Random) -> None:
    survey, nodes = DiagnosisCounts(), dict[str, NodeCapacity]()
    for _ in range(8):
        name = random.choice("abcdef")
        before = nodes.get(name, node(name))
        nodes[name] = replace(before, cpu_milli_free=random.randrange(3))
        if random.random() < 0.3:
            nodes.pop(random.choice(sorted(nodes)))
        nodes = {key: nodes[key] for key in sorted(nodes)}
        claimed = {
            key: frozenset({f"GPU-{key}"}) if random.random() < 0.5 else NO_GPUS
            for key in random.sample("abcdef", 2)
        }
        survey.renew(nodes, claimed, look)
        fresh = DiagnosisCounts()
        fresh.renew(nodes, claimed, look)
        assert (survey.counts, survey.nearest) == (fresh.counts, fresh.nearest)
