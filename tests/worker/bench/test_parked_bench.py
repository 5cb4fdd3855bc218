"""The benchmark of parking runs, and its memory and times are those of the process."""

import pytest

from bench.parked import COLUMNS, play_parked, summary


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_turn_parks_wakes_and_answers() -> None:
    rows = play_parked(64, 1)
    (row,) = rows
    assert set(row) == set(COLUMNS)
    assert row["parked_mib"] < row["awake_mib"] - 48
    assert row["wake_seconds"] > 0
    assert row["park_seconds"] > 0
    assert row["cold_to_wake"] == pytest.approx(row["cold_seconds"] / row["wake_seconds"], rel=0.05)
    assert "64 MiB of weights (" in summary(rows, 64)
