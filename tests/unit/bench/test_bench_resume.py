"""bench.resume compares both ways of writing a checkpoint, and stops each of them."""

import json

import pytest

from bench import resume
from bench.resuming.training import WAYS

pytestmark = pytest.mark.timeout(240)
ARGUMENTS = ("--quick", "--megabytes", "4", "--stops", "1", "--stopped-megabytes", "2")


def test_both_ways_are_measured_and_a_stop_saves_the_newest_step(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert resume.main(ARGUMENTS) == 0
    lines = capfd.readouterr().out.strip().splitlines()
    rows = json.loads(lines[-1])["results"]
    costs, stops = rows[: len(WAYS)], rows[len(WAYS) :]
    assert [row["way"] for row in costs] == [row["way"] for row in stops] == list(WAYS)
    assert {row["rounds"] for row in costs} == {resume.ROUNDS_QUICK}
    for row in costs:
        assert 0 < row["blocked"] <= row["blocked_max"]
        assert row["write"] > 0
    for row in stops:
        assert (row["stops"], row["saved"], row["megabytes"]) == (1, 1, 2)
        assert row["median"] == row["p95"] == row["longest"]
