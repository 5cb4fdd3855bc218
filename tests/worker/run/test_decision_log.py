"""Decisions are values: a refusal is one, whatever the words of any line are."""

import pytest

from gpujob_worker.run.decision_log import ITEMS_MAX, LINE_CHARACTERS_MAX, DecisionLog, Verdict

pytestmark = pytest.mark.any_torch


def test_the_newest_decision_of_an_item_counts() -> None:
    log = DecisionLog()
    log.refused("compile", "tried later")
    log.refused("precision", "switched off")
    log.applied("compile", "after 3.0 s")
    assert [(d.item, d.verdict) for d in log.refusals] == [("precision", Verdict.REFUSED)]
    assert log.lines == ("compile applied: after 3.0 s", "precision refused: switched off")
    assert log.decision("batch split") is None


def test_words_make_no_refusal() -> None:
    log = DecisionLog()
    log.note("settings", "of Net refused: too large")
    log.applied("data loading", "refused: is a word of the reason")
    assert log.refusals == ()


def test_what_is_said_of_one_of_several_is_said_with_its_name() -> None:
    log = DecisionLog()
    one = log.about("Critic")
    one.refused("batch split", "2 samples")
    assert one.lines == ("batch split refused: 2 samples",)
    assert [str(decision) for decision in log.refusals] == [
        "batch split of Critic refused: 2 samples"
    ]


def test_it_is_bounded() -> None:
    log = DecisionLog()
    for number in range(2 * ITEMS_MAX):
        log.note(f"item {number}", "x" * 2 * LINE_CHARACTERS_MAX)
    assert len(log.lines) == ITEMS_MAX
    assert {len(line) for line in log.lines} == {LINE_CHARACTERS_MAX}
