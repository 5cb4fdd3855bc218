"""How long a run may be tuned: a small part of it, and enough to measure long steps more
than once.
"""

RUN_FRACTION = 0.02
SECONDS_MIN, SECONDS_MAX = 12.0, 120.0
# A run without a number of steps is assumed to have this many.
STEPS_ASSUMED = 1000


def tuning_budget_seconds(step_seconds: float | None, steps_total: int | None) -> float:
    """Returns about 2 % of the run's expected time, at least 12 s and at most 120 s."""
    run_seconds = (step_seconds or 0.0) * (steps_total or STEPS_ASSUMED)
    return min(SECONDS_MAX, max(SECONDS_MIN, RUN_FRACTION * run_seconds))
