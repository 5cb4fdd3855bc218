"""The range of a pending job's expected start, as text. Times are in UTC."""

from collections.abc import Iterable
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import format_duration
from gpujob_operator.decide.model.starts import OUTCOMES_MIN, Interval, outcomes_of, shown_range


def start_text(job: GPUJob, jobs: Iterable[GPUJob], now: datetime) -> str:
    """Returns the range, and how many of the newest ones held among these jobs, or ""."""
    interval = shown_range(job, now)
    if interval is None:
        return ""
    outcomes = outcomes_of(jobs)
    held = f" ({outcomes.held} of the last {outcomes.of} such ranges held)"
    return _range(interval, now) + (held if outcomes.of >= OUTCOMES_MIN else "")


def _range(interval: Interval, now: datetime) -> str:
    start, end = max(interval.earliest, now), interval.latest
    if end is None:
        return f"after {_moment(start, now)}"
    if interval.earliest <= now:
        return f"before {_moment(end, now)}"
    return f"{_moment(start, now)} - {_moment(end, start)}"


def _moment(moment: datetime, near: datetime) -> str:
    """Returns the time of day, with the date if that is another one."""
    return f"{moment:%H:%M}" if moment.date() == near.date() else f"{moment:%Y-%m-%d %H:%M}"


def seconds_to_start(job: GPUJob, now: datetime) -> float | None:
    """Returns the seconds until the middle of the job's range, or None without its end."""
    interval = shown_range(job, now)
    if interval is None or interval.latest is None:
        return None
    middle = interval.earliest + (interval.latest - interval.earliest) / 2
    return max((middle - now).total_seconds(), 0.0)


def brief_start(job: GPUJob, now: datetime) -> str:
    """Returns ~4m for a start in about 4 minutes, >2h for one with an unknown end, or ""."""
    interval, seconds = shown_range(job, now), seconds_to_start(job, now)
    if interval is None:
        return ""
    if seconds is not None:
        return f"~{format_duration(max(round(seconds / 60), 1) * 60.0)}"
    least = (interval.earliest - now).total_seconds()
    return f">{format_duration(max(round(least / 60), 0) * 60.0)}"
