"""Worker reports: an HTTP endpoint at which a worker can report only for itself.

The bearer token names the pod, and the pod names the job, the attempt and the rank. The token must
claim to be a known worker before the API server reviews it (TokenReview). The newest report of each
worker goes into the next snapshot.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol

from aiohttp import web
from cachetools import LRUCache, TTLCache

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.report import STOP_ATTEMPT_OVER, Reply, Report, StopRequest, WorkerPhase
from gpujob_operator.decide.model.placement_record import came_late
from gpujob_operator.decide.model.snapshot import PodView, ReceivedReport, Yielding
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.port.parking import ParkingRequests
from gpujob_operator.port.pod_requests import TokenChecker, answered, claim, prove, read_body
from gpujob_operator.port.pod_tokens import PodIdentity
from gpujob_operator.port.requests import (
    PER_SECOND_MAX,
    Refused,
    client_limit,
    sender,
)
from gpujob_operator.port.yields import Yields
from gpujob_operator.rate_limit import RateLimit
from gpujob_operator.telemetry.metrics import Metrics

REPORT_PATH = "/report"
BODY_BYTES_MAX = 64 * 1024
REPORTS_KEPT_MAX = 20_000
# How long a pod's requests are counted. After that it may send a burst again.
LIMITED_SECONDS = 300.0
# A parked replica is told to wake in the reply to a report.
PARKED_INTERVAL_SECONDS = 1.0
# For how long a count of the jobs on each GPU is used.
COUNTED_SECONDS = 2.0


class Workers(Protocol):
    """The part of the cache that identifies workers."""

    def pod(self, uid: str) -> PodView | None: ...

    def job(self, uid: str) -> GPUJob | None: ...

    def job_of(self, pod: PodView) -> GPUJob | None:
        """Returns the job whose worker the pod is, or None."""
        ...

    def held_gpus(self) -> Iterable[str]:
        """Yields the UUIDs of the GPUs that each job holds. A shared one comes several times."""
        ...


class ReportReceiver:
    """Authenticates, checks, stores and answers reports. Times come from the given clocks."""

    def __init__(
        self,
        workers: Workers,
        tokens: TokenChecker,
        dirty: Dirty,
        metrics: Metrics,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        interval_seconds: float,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        self._workers = workers
        self._tokens = tokens
        self._dirty = dirty
        self._metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._interval_seconds = interval_seconds
        self._is_leader = is_leader
        self._newest: LRUCache[tuple[str, int], ReceivedReport] = LRUCache(REPORTS_KEPT_MAX)
        self.parking = ParkingRequests(dirty.mark)
        self._yields = Yields(
            lambda: tuple(self._newest.values()),
            workers.job,
            interval_seconds=interval_seconds,
            now=clock,
            monotonic=monotonic,
        )
        self._holders: Counter[str] = Counter()
        self._counted_at: float | None = None
        self._limits: TTLCache[str, RateLimit] = TTLCache(
            REPORTS_KEPT_MAX, LIMITED_SECONDS, timer=monotonic
        )

    def application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_post(REPORT_PATH, self._post)
        return application

    def newest(self) -> tuple[ReceivedReport, ...]:
        """Returns the newest report of every worker whose job still exists."""
        for key in [key for key in self._newest if self._workers.job(key[0]) is None]:
            del self._newest[key]
        return tuple(self._newest.values())

    def yields(self) -> tuple[Yielding, ...]:
        """Returns the trainings that are asked to yield to a service."""
        return self._yields.current()

    async def _post(self, request: web.Request) -> web.Response:
        return await answered(request, self._receive, self._metrics)

    async def _receive(self, request: web.Request) -> Reply:
        token, claimed = claim(request, self._clock, is_leader=self._is_leader())
        pod, job = self._worker(claimed)
        source = sender(request)
        await prove(self._tokens, token, claimed, source, from_its_pod=source in pod.addresses)
        self._limit(pod.uid)
        report = _read_report(await read_body(request, BODY_BYTES_MAX), pod)
        self._keep(job.metadata.uid, pod, report)
        return self._reply(job, pod, report)

    def _worker(self, claimed: PodIdentity) -> tuple[PodView, GPUJob]:
        """Returns the worker that the token claims to be, and its job. Raises `Refused`
        if unknown.
        """
        pod = self._workers.pod(claimed.pod_uid)
        if pod is None:
            # This process's watch may lag behind a pod that has just started.
            raise Refused(503, "no_pod", f"pod {claimed.pod_name} is not a known worker")
        if (pod.namespace, pod.name) != (claimed.namespace, claimed.pod_name):
            raise Refused(403, "wrong_pod", "the token names another pod")
        job = self._workers.job_of(pod)
        if job is None:
            raise Refused(403, "no_job", f"pod {pod.name} belongs to no GPUJob")
        return pod, job

    def _limit(self, pod_uid: str) -> None:
        now = self._monotonic()
        limit = self._limits.setdefault(pod_uid, client_limit(now))
        if not limit.take(now):
            text = f"more than {PER_SECOND_MAX:g} reports a second"
            raise Refused(429, "rate_limited", text)

    def _keep(self, job_uid: str, pod: PodView, report: Report) -> None:
        key = (job_uid, pod.rank)
        before = self._newest.get(key)
        if before is not None and _order(before.report) > _order(report):
            return
        self._newest[key] = ReceivedReport(job_uid, pod.rank, self._clock(), report)
        self._dirty.mark(urgent=before is None or _is_urgent(before.report, report))

    def _reply(self, job: GPUJob, pod: PodView, report: Report) -> Reply:
        stop = job.status.stop
        if is_given_up(job, pod) or (_begins(report) and is_unknown(job, pod)):
            request: StopRequest | None = StopRequest(STOP_ATTEMPT_OVER, 0.0)
        elif stop is not None and pod.attempt == job.status.attempt:
            left = (stop.deadline - self._clock()).total_seconds()
            request = StopRequest(stop.reason, max(0.0, round(left, 1)))
        elif pod.deletion_at is not None:
            left = (pod.deletion_at - self._clock()).total_seconds()
            request = StopRequest("PodDeleted", max(0.0, round(left, 1)))
        else:
            request = None
        interval_seconds, shared, park = self._interval_seconds, None, None
        if report.serving is not None:
            shared = self._is_shared(pod)
            self._yields.watch()
            park = self.parking.answer(job)
            if report.serving.parked_seconds is not None:
                interval_seconds = min(interval_seconds, PARKED_INTERVAL_SECONDS)
        return Reply(
            interval_seconds=interval_seconds,
            stop=request,
            shared=shared,
            yield_percent=self._yields.percent(job.metadata.uid),
            park=park,
        )

    def takes_requests(self, job: GPUJob) -> bool | None:
        """Returns whether gates may send requests to a replica that is ready. None: it has not
        reported.
        """
        uid = job.metadata.uid
        if self.parking.rests(uid):
            return False
        received = self._newest.get((uid, 0))
        serving = received.report.serving if received is not None else None
        return None if serving is None else serving.parked_seconds is None

    def _is_shared(self, pod: PodView) -> bool:
        """Returns whether another job holds a part of one of the worker's GPUs."""
        now = self._monotonic()
        if self._counted_at is None or now - self._counted_at >= COUNTED_SECONDS:
            self._holders, self._counted_at = Counter(self._workers.held_gpus()), now
        return any(self._holders[uuid] > 1 for uuid in pod.gpus)


def is_given_up(job: GPUJob, pod: PodView) -> bool:
    """Returns whether the worker's attempt is over, so that the worker must not begin.

    A leader that was frozen between its decision and the request created the pod nevertheless,
    while its successor continued.
    """
    status = job.status
    if came_late(job, pod):
        return True
    if status.finished or pod.attempt < status.attempt:
        return True
    return pod.attempt == status.attempt and status.placement is None


def is_unknown(job: GPUJob, pod: PodView) -> bool:
    """Returns whether no record shows that the worker's attempt was placed.

    The status with the placement was lost when the API server's data was restored, and the request
    for the pod arrived after that. An outdated view of the job looks the same, so a worker that has
    begun continues.
    """
    return pod.attempt > job.status.attempt


def _begins(report: Report) -> bool:
    """Returns whether the worker asks for permission to begin, perhaps where an earlier attempt
    ended.
    """
    return report.phase is WorkerPhase.STARTING and report.step == (report.resumed_from_step or 0)


def _read_report(body: bytes, pod: PodView) -> Report:
    try:
        report = Report.from_text(body.decode())
    except UnicodeDecodeError as error:
        raise Refused(400, "bad_report", f"report: is not JSON: {error}") from None
    except FieldError as error:
        raise Refused(400, "bad_report", str(error)) from None
    if (report.attempt, report.rank) != (pod.attempt, pod.rank):
        raise Refused(
            403,
            "wrong_worker",
            f"report.attempt, report.rank: got {report.attempt}, {report.rank} from the worker of "
            f"attempt {pod.attempt}, rank {pod.rank}",
        )
    return report


def _order(report: Report) -> tuple[int, int]:
    return report.attempt, report.sequence


def _is_urgent(before: Report, now: Report) -> bool:
    """Returns True for a new phase, checkpoint, setting or failure, and for a replica that parked
    or woke, which are worth a cycle.

    Steps alone are not.
    """
    return _notable(before) != _notable(now)


def _notable(report: Report) -> tuple[object, ...]:
    is_parked = report.serving is not None and report.serving.parked_seconds is not None
    return (
        report.attempt,
        report.phase,
        report.checkpoint,
        report.tuned,
        report.failure,
        is_parked,
    )
