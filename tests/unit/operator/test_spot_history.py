"""What counts as an interruption of a spot node, and for how long a pool was watched."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.meta import TAINT_RECLAIM
from gpujob_operator.decide.model.snapshot import NodeView, SpotPool, Taint
from gpujob_operator.observe.spot import POOLS_MAX, SpotHistory
from tests.harness.builders import after, make_node

HOUR = 3600.0


class Story:
    """A history whose clock the test moves, in hours."""

    def __init__(self) -> None:
        self.hours = 0.0
        self.history = SpotHistory(lambda: after(self.hours * HOUR))
        self.nodes: dict[str, NodeView] = {}

    def is_there(self, name: str = "n", zone: str = "a", **fields: Any) -> None:
        labels = {
            "node.kubernetes.io/instance-type": "g5",
            "topology.kubernetes.io/zone": zone,
        }
        given: dict[str, Any] = {"spot": True, "labels": labels, **fields}
        view = make_node(name, **given)
        self.history.changed(self.nodes.get(name), view)
        self.nodes[name] = view

    def goes(self, name: str = "n") -> None:
        self.history.changed(self.nodes.pop(name), None)

    def pools(self) -> list[tuple[str, int, int]]:
        return [(p.name, p.node_hours, p.interruptions) for p in self.history.pools()]


def test_a_node_that_vanishes_was_taken_away() -> None:
    story = Story()
    story.is_there()
    story.hours = 5
    story.goes()
    story.hours = 9
    assert story.pools() == [("g5/a", 5, 1)]


def test_a_notice_counts_once_and_ends_the_watching() -> None:
    story = Story()
    story.is_there()
    story.hours = 2
    notice = (Taint(TAINT_RECLAIM, "NoSchedule", "1"),)
    story.is_there(taints=notice)
    story.is_there(taints=notice, ready=False)
    story.hours = 4
    story.goes()
    assert story.pools() == [("g5/a", 2, 1)]


def test_a_notice_that_is_withdrawn_does_not_count() -> None:
    """The node stays, and is watched again."""
    story = Story()
    story.is_there()
    story.hours = 2
    story.is_there(taints=(Taint(TAINT_RECLAIM, "NoSchedule", "1"),))
    story.hours = 3
    story.is_there()
    assert story.pools() == [("g5/a", 2, 0)]
    story.hours = 5
    assert story.pools() == [("g5/a", 4, 0)]
    story.goes()
    assert story.pools() == [("g5/a", 4, 1)]


def test_a_node_that_was_emptied_first_was_not_taken_away() -> None:
    story = Story()
    story.is_there("cordoned")
    story.is_there("scaled")
    story.hours = 1
    story.is_there("cordoned", unschedulable=True)
    story.is_there("scaled", taints=(Taint("karpenter.sh/disrupted", "NoSchedule"),))
    story.goes("cordoned")
    story.goes("scaled")
    assert story.pools() == [("g5/a", 2, 0)]


def test_a_node_that_is_open_again_counts_again() -> None:
    story = Story()
    story.is_there(unschedulable=True)
    story.is_there()
    story.goes()
    assert story.pools() == [("g5/a", 0, 1)]


def test_taints_of_gpu_nodes_close_nothing() -> None:
    story = Story()
    story.is_there(taints=(Taint("nvidia.com/gpu", "NoSchedule"),))
    story.goes()
    assert story.pools() == [("g5/a", 0, 1)]


def test_nodes_that_are_not_spot_are_not_watched() -> None:
    story = Story()
    story.is_there(spot=False)
    story.hours = 3
    story.goes()
    assert story.pools() == []


def test_a_node_that_is_no_spot_node_any_more_is_watched_no_longer() -> None:
    story = Story()
    story.is_there()
    story.hours = 3
    story.is_there(spot=False)
    story.hours = 5
    story.goes()
    assert story.pools() == [("g5/a", 3, 0)]


def test_a_name_that_comes_again_is_another_node() -> None:
    story = Story()
    notice = (Taint(TAINT_RECLAIM, "NoSchedule", "1"),)
    for _ in range(3):
        story.is_there()
        story.hours += 1
        story.is_there(taints=notice)
        story.goes()
    assert story.pools() == [("g5/a", 3, 3)]


def test_hours_of_those_that_are_still_there_count() -> None:
    story = Story()
    story.is_there("one")
    story.hours = 1
    story.is_there("two", "b")
    story.hours = 3.5
    assert story.pools() == [("g5/a", 3, 0), ("g5/b", 2, 0)]


def test_pools_are_bounded() -> None:
    story = Story()
    for number in range(POOLS_MAX + 5):
        story.is_there(f"n{number}", f"zone{number:04}")
    story.goes(f"n{POOLS_MAX + 1}")
    assert len(story.pools()) == POOLS_MAX


def test_the_same_observation_is_the_same_value() -> None:
    story = Story()
    story.is_there()
    assert story.history.pools() == (SpotPool("g5/a", 0, 0),)
    assert replace(story.history.pools()[0]) == SpotPool("g5/a", 0, 0)


# -- from one process to the next


def test_the_next_process_goes_on_from_the_counts_of_the_last() -> None:
    first = Story()
    first.is_there("n")
    first.is_there("m", zone="b")
    first.hours = 5
    first.goes("n")
    second = Story()
    second.hours = 5
    second.is_there("m", zone="b")
    second.history.inherit(first.history.to_text())
    assert second.pools() == [("g5/a", 5, 1), ("g5/b", 5, 0)]
    second.hours = 7
    assert second.pools() == [("g5/a", 5, 1), ("g5/b", 7, 0)]


def test_what_both_saw_is_not_counted_twice() -> None:
    """One leads, the other stands by and sees the same."""
    first, second = Story(), Story()
    for story in (first, second):
        story.is_there()
        story.hours = 3
        story.goes()
        story.is_there()
        story.hours = 4
    second.history.inherit(first.history.to_text())
    assert second.pools() == first.pools() == [("g5/a", 4, 1)]
    second.goes()
    assert second.pools() == [("g5/a", 4, 2)]


def test_without_a_predecessor_a_process_keeps_its_own() -> None:
    story = Story()
    story.is_there()
    story.hours = 2
    story.history.inherit("")
    assert story.pools() == [("g5/a", 2, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        '{"g5/a": 3}',
        '{"g5/a": [1]}',
        '{"g5/a": [1.5, 1]}',
        '{"g5/a": [-1, 1]}',
        '{"g5/a": ["1", 1]}',
        '{"g5/a": [1' + "0" * 400 + ", 1]}",
        "[" * 100_000,
    ],
)
def test_what_nobody_can_read_changes_nothing(text: str) -> None:
    story = Story()
    story.is_there()
    story.hours = 2
    story.history.inherit(text)
    assert story.pools() == [("g5/a", 2, 0)]


def test_no_more_pools_are_inherited_than_are_counted() -> None:
    story = Story()
    story.is_there()
    story.history.inherit(json.dumps({f"p{n}": [3600, 1] for n in range(POOLS_MAX + 5)}))
    assert len(story.pools()) == POOLS_MAX
