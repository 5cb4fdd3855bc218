"""The wait doubles with each failure, up to a limit."""

import math
from collections.abc import Callable

import pytest

from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.jitter import jittered


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 2.0), (1, 4.0), (2, 8.0), (4, 30.0), (10**6, 30.0)]
)
def test_the_wait_doubles_up_to_its_limit(failures: int, seconds: float) -> None:
    assert backoff_seconds(2.0, failures, 30.0) == seconds


def test_a_wait_without_a_limit_stays_finite() -> None:
    assert backoff_seconds(1.0, 10**6, math.inf) == 2.0**16


@pytest.mark.parametrize(("uniform", "seconds"), [(min, 5.0), (max, 10.0)])
def test_jitter_takes_off_half_at_most(
    uniform: Callable[[float, float], float], seconds: float
) -> None:
    assert jittered(10.0, uniform) == seconds
