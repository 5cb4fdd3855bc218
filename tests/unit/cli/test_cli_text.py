"""Numbers for people."""

from datetime import timedelta

import pytest

from kubectl_gpujob import text
from tests.harness.cli_jobs import NOW


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 ms"),
        (0.0123, "12.3 ms"),
        (1, "1 s"),
        (59.4, "59.4 s"),
        (60, "1m 00s"),
        (200, "3m 20s"),
        (3599.6, "1h 00m"),
        (7500, "2h 05m"),
        (4 * 86400 + 3 * 3600, "4d 3h"),
        (-5, "-5 s"),
    ],
)
def test_durations_show_their_two_largest_units(seconds: float, expected: str) -> None:
    assert text.duration(seconds) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st")],
)
def test_ordinals(number: int, expected: str) -> None:
    assert text.ordinal(number) == expected


def test_changes_are_signed_percentages() -> None:
    assert text.change_percent(10, 5.2) == "-48 %"
    assert text.change_percent(4, 6) == "+50 %"


def test_a_change_from_nothing_is_not_a_number() -> None:
    assert text.change_percent(0, 6) == ""


def test_ages_are_in_whole_seconds() -> None:
    ages = [text.age(NOW - timedelta(seconds=seconds), NOW) for seconds in (-5, 0.3, 6.64, 90.2)]
    assert ages == ["0 s", "0 s", "7 s", "1m 30s"]


def test_no_moment_has_no_age() -> None:
    assert text.age(None, NOW) == ""
