import pytest

from gpujob_operator.decide.measurement import runtime
from gpujob_operator.decide.measurement.runtime import Run, RunHistory, remaining_seconds


def test_units_left_times_measured_pace() -> None:
    assert remaining_seconds(30, 100, 0.5) == 35
    assert remaining_seconds(120, 100, 0.5) == 0


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_no_estimate_without_a_pace(pace: float) -> None:
    assert remaining_seconds(0, 100, pace) is None
    assert remaining_seconds(0, None, 1.0) is None


def test_the_median_of_the_newest_runs_whatever_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "RUNS_MAX", 3)
    history = RunHistory()
    assert history.expected_seconds("a", 8) is None
    runs = [Run(at, f"uid-{at}", 80 * at) for at in (1.0, 2.0, 3.0, 10.0)]
    for run in reversed(runs):
        history.add("a", run)
    assert history.expected_seconds("a", 8) == 30
    assert history.expected_seconds("a", 4) == 60
    assert history.expected_seconds("b", 8) is None
    history.remove("a", runs[-1])
    assert history.expected_seconds("a", 8) == 20


def test_a_history_of_which_all_was_taken_out_is_empty() -> None:
    history = RunHistory()
    run = Run(1.0, "uid", 5.0)
    history.add("a", run)
    history.remove("a", run)
    assert history == RunHistory()
