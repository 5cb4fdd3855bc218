"""bench.resume saves a plain script, compares both ways of writing a checkpoint, and stops each."""

import json

import pytest

from bench import resume
from bench.resuming.script import BEFORE, NOW, RATIOS, ROUNDS_QUICK
from bench.resuming.training import WAYS
from tests.harness.repository import ROOT

pytestmark = pytest.mark.timeout(240)
ARGUMENTS = (
    *("--quick", "--megabytes", "4", "--stops", "1", "--stopped-megabytes", "2"),
    *("--before", str(ROOT)),
)


def test_both_ways_are_measured_and_a_stop_saves_the_newest_step(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert resume.main(ARGUMENTS) == 0
    lines = capfd.readouterr().out.strip().splitlines()
    result = json.loads(lines[-1])
    script, rows = result["script"], result["results"]
    assert [row["way"] for row in script] == [NOW, BEFORE]
    assert [(row["rounds"], row["note"]) for row in script] == [(ROUNDS_QUICK, None)] * 2
    assert all(row["blocked"] <= row["written"] for row in script)
    assert all(" to " in script[0][f"{name}_ratio"] for name in RATIOS)
    costs, stops = rows[: len(WAYS)], rows[len(WAYS) :]
    assert [row["way"] for row in costs] == [row["way"] for row in stops] == list(WAYS)
    assert {row["rounds"] for row in costs} == {resume.ROUNDS_QUICK}
    for row in costs:
        assert 0 < row["blocked"] <= row["blocked_max"]
        assert row["write"] > 0
    for row in stops:
        assert (row["stops"], row["saved"], row["megabytes"]) == (1, 1, 2)
        assert row["median"] == row["p95"] == row["longest"]
