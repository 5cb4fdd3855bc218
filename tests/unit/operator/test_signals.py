"""Signals: who is connected is called, in order, with what was reported."""

import pytest

from gpujob_operator.signals import Signal


def test_listeners_are_called_in_the_order_in_which_they_were_connected() -> None:
    changed, seen = Signal[[bool]](), list[tuple[str, bool]]()
    changed(True)
    changed.connect(lambda leads: seen.append(("first", leads)))
    changed.connect(
        lambda leads: seen.append(("second", leads)), lambda leads: seen.append(("third", leads))
    )
    changed(False)
    assert seen == [("first", False), ("second", False), ("third", False)]


def test_an_error_of_a_listener_reaches_the_part_that_reports() -> None:
    restored = Signal[[]]()

    def fails() -> None:
        raise OSError("no")

    restored.connect(fails)
    with pytest.raises(OSError, match="no"):
        restored()
