"""The shares of time that trainings yield to services, for the replies to their reports.

They are kept in memory only. After a start of the operator none is in force, because the workers'
own end by themselves without replies.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.snapshot import ReceivedReport, Yielding
from gpujob_operator.decide.model.yielding import Moment, next_yields

# Reports are looked through no more often than this.
PERIOD_SECONDS = 1.0


class Yields:
    """The newest shares. Workers report each `interval_seconds`. `now` and `monotonic` are
    clocks.
    """

    def __init__(
        self,
        reports: Callable[[], Iterable[ReceivedReport]],
        job_of: Callable[[str], GPUJob | None],
        *,
        interval_seconds: float,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._reports = reports
        self._job_of = job_of
        self._interval_seconds = interval_seconds
        self._now = now
        self._monotonic = monotonic
        self._has_replicas = False
        self._decided_at: float | None = None
        self._by_job: dict[str, Yielding] = {}

    def watch(self) -> None:
        """Called for the report of a replica. Until the first one there is nothing to decide."""
        self._has_replicas = True

    def current(self) -> tuple[Yielding, ...]:
        """Returns the trainings that yield."""
        self._decide()
        return tuple(self._by_job.values())

    def percent(self, job_uid: str) -> int:
        """Returns the share of the job's time, in percent."""
        self._decide()
        found = self._by_job.get(job_uid)
        return found.percent if found is not None else 0

    def _decide(self) -> None:
        now = self._monotonic()
        if not self._has_replicas:
            return
        if self._decided_at is not None and now - self._decided_at < PERIOD_SECONDS:
            return
        self._decided_at = now
        moment = Moment(self._now(), self._interval_seconds)
        found = next_yields(self._by_job.values(), self._reports(), self._job_of, moment)
        self._by_job = {one.job_uid: one for one in found}
