"""Decisions are values: a skipped item is one, whatever the words of any line are."""

import pytest

from gpujob_worker.run.decision_log import ITEMS_MAX, LINE_CHARACTERS_MAX, DecisionLog, Verdict

pytestmark = pytest.mark.any_torch


def test_the_newest_decision_of_an_item_counts() -> None:
    log = DecisionLog()
    log.skipped("compile", "tried later")
    log.skipped("precision", "switched off")
    log.applied("compile", "after 3.0 s")
    assert [(d.item, d.verdict) for d in log.skips] == [("precision", Verdict.SKIPPED)]
    assert log.lines == ("compile applied: after 3.0 s", "precision skipped: switched off")
    assert log.decision("batch split") is None


def test_words_skip_nothing() -> None:
    log = DecisionLog()
    log.note("settings", "of Net skipped: too large")
    log.applied("data loading", "skipped: is a word of the reason")
    assert log.skips == ()


def test_what_is_said_of_one_of_several_is_said_with_its_name() -> None:
    log = DecisionLog()
    one = log.about("Critic")
    one.skipped("batch split", "2 samples")
    assert one.lines == ("batch split skipped: 2 samples",)
    assert [str(decision) for decision in log.skips] == ["batch split of Critic skipped: 2 samples"]


def test_it_is_bounded() -> None:
    log = DecisionLog()
    for number in range(2 * ITEMS_MAX):
        log.note(f"item {number}", "x" * 2 * LINE_CHARACTERS_MAX)
    assert len(log.lines) == ITEMS_MAX
    assert {len(line) for line in log.lines} == {LINE_CHARACTERS_MAX}
