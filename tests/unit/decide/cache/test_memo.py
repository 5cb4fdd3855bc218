"""What the memo of the nodes remembers, and for how long."""

from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.node_arrays import ANSWERS_MAX, NodeMemo
from gpujob_operator.decide.capacity.cluster import NodeCapacity
from gpujob_operator.decide.placement.finding import NodeDiagnosis, UnfitReason
from gpujob_operator.decide.placement.memo import Forgetful
from tests.harness.builders import make_node


def node(name: str) -> NodeCapacity:
    return NodeCapacity(make_node(name), None, (), cpu_milli_free=1, memory_bytes_free=GIB)


def test_an_answer_is_found_once_until_it_is_forgotten() -> None:
    memo, asked = NodeMemo(), list[str]()

    def find() -> int:
        asked.append("again")
        return len(asked)

    assert [memo.once("key", find), memo.once("key", find)] == [1, 1]
    memo.forget()
    assert memo.once("key", find) == 2
    assert Forgetful().once("key", find) == 3


def test_the_least_recently_used_answers_are_dropped() -> None:
    memo = NodeMemo()
    memo.once("first", lambda: "kept")
    for number in range(ANSWERS_MAX):
        memo.once(number, lambda: "")
        memo.once("first", lambda: "found again")
    assert memo.once("first", lambda: "found again") == "kept"
    assert memo.once(0, lambda: "found again") == "found again"


def test_findings_are_the_sum_over_the_nodes_and_only_other_nodes_are_looked_at_again() -> None:
    nodes, claimed_on = {name: node(name) for name in "abc"}, {"b": frozenset({"GPU-b"})}
    looked = list[str]()

    def look(node: NodeCapacity, claimed: frozenset[str]) -> NodeDiagnosis:
        name = node.node.name
        looked.append(name)
        text = "kept" if claimed else "full"
        return NodeDiagnosis({UnfitReason(text): 2}, (ord(name), f"GPU-{name}", name))

    memo = NodeMemo()
    expected = {UnfitReason("full"): 4, UnfitReason("kept"): 2}, (ord("a"), "GPU-a", "a")
    assert memo.findings("kind", nodes, claimed_on, look) == expected
    assert Forgetful().findings("kind", nodes, claimed_on, look) == expected
    looked.clear()
    nodes = {**nodes, "c": node("c")}
    assert memo.findings("kind", nodes, claimed_on, look) == expected
    assert looked == ["c"]
