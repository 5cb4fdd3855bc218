"""bench.overhead runs a script in each way, one of them so that it can be brought back."""

import pytest

from bench import overhead
from bench.speed.ways import scale_of
from tests.harness.repository import ROOT

pytestmark = pytest.mark.timeout(300)


def test_what_resumes_is_measured_and_compared_with_another_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overhead, "ROUNDS_MIN", 2)
    rows = overhead.measure(["gpt2"], scale_of("cpu", quick=True), 0.0, 1, ROOT)
    by_way = {row["way"]: row for row in rows}
    assert list(by_way) == [*overhead.WAYS, overhead.BEFORE, overhead.AGAINST]
    assert {row["rounds"] for row in rows} == {2}
    assert by_way[overhead.OFF]["ratio"] == 1.0
    notes = {way: row["note"] for way, row in by_way.items() if row["note"] is not None}
    assert notes == {overhead.RESUMABLE: "resume: Exact"}
