"""Exponential back-off: the wait doubles with each consecutive failure, up to a limit."""

# Keeps the doubled wait finite.
DOUBLINGS_MAX = 16


def backoff_seconds(first_seconds: float, failures: int, seconds_max: float) -> float:
    """Returns the wait after this many failures in a row beyond the first one.

    0 failures: `first_seconds`; 1: twice that; and so on up to `seconds_max`.
    """
    return min(first_seconds * 2 ** min(failures, DOUBLINGS_MAX), seconds_max)
