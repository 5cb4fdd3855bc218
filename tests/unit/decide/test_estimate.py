import pytest

from gpujob_operator.decide import estimate
from gpujob_operator.decide.estimate import RunHistory, remaining_seconds


def test_units_left_times_measured_pace() -> None:
    assert remaining_seconds(30, 100, 0.5) == 35
    assert remaining_seconds(120, 100, 0.5) == 0


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_no_estimate_without_a_pace(pace: float) -> None:
    assert remaining_seconds(0, 100, pace) is None
    assert remaining_seconds(0, None, 1.0) is None


def test_the_median_of_runs_alike_then_of_the_family() -> None:
    history = RunHistory()
    assert history.expected_seconds("a8", "a", 8) is None
    for card_seconds in (80, 800, 160):
        history.finished("a8", "a", card_seconds)
    history.finished("a4", "a", 40)
    assert history.expected_seconds("a8", "a", 8) == 20
    assert history.expected_seconds("a2", "a", 2) == 60
    assert history.expected_seconds("b1", "b", 1) is None


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "WORKLOADS_MAX", 4)
    history = RunHistory()
    for index in range(10):
        history.finished(f"w{index}", f"f{index}", 1)
    assert history.expected_seconds("w0", "f0", 1) is None
    assert history.expected_seconds("w9", "f9", 1) == 1
    for _ in range(100):
        history.finished("w9", "f9", 5)
    assert history.expected_seconds("w9", "f9", 1) == 5
