"""Carries one write of a plan to its end: retries it, confirms it, backs off, and counts the
result.

A failure affects only its own object. A refused write is tried again after the object's own
back-off. A write without an answer may have taken effect, so the object is read by name until the
API server answers. Only the caller waits for that.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_operator.act.backoff import Backoff, Target
from gpujob_operator.act.own_attempts import OwnAttempts, places_attempt
from gpujob_operator.act.quota_figures import with_quota_figures
from gpujob_operator.act.slots import Deferral, WithdrawnError, WriteSlots
from gpujob_operator.act.targets import namespace_of, only_tells, service_target, target_of
from gpujob_operator.act.trials import Answer, Refusals, Trials, UnfitClaim
from gpujob_operator.act.writer import (
    NotLeader,
    Writer,
    WriteResult,
)
from gpujob_operator.client.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    Throttled,
    Unavailable,
)
from gpujob_operator.client.retry import Retry
from gpujob_operator.decide.model.plan import CreatePod, PlanItem, TryTemplate, WriteStatus
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.protection import RESUME_REFUSED
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

# A write without an answer may still take effect for this long after a read found nothing.
LATE_SECONDS = 5.0
DOUBT_PAUSE_SECONDS_MAX = 10.0
# The API server's message if a webhook has side effects, so that a dry run cannot ask it.
NO_DRY_RUN = "does not support dry run"


class Placements(Protocol):
    """Placements of jobs by UID. See `observe.placement_records`."""

    def place(self, job: GPUJob, status: GPUJobStatus) -> None:
        """Records that the pod with this status of the job is about to be created."""
        ...

    def is_placed(self, uid: str) -> bool:
        """Returns whether the record still counts. It does not after this process lost the lead."""
        ...

    def withdraw(self, uid: str, *, in_doubt: bool) -> None:
        """Removes the record, because no status was written and no pod was created.

        `in_doubt` means that a pod may have been created.
        """
        ...


@dataclass(slots=True)
class Sending:
    """An item on its way. A newer item may replace it until its first request is sent."""

    item: PlanItem
    sent: bool = False
    # A request had no answer and may take effect at any time.
    unanswered: bool = False
    _deferral: Deferral | None = None
    _awaited: bool = False

    def deferral(self) -> Deferral | None:
        """Returns the deferral of the next request, or None if the item is urgent."""
        urgent = self._awaited or not only_tells(self.item)
        self._deferral = None if urgent else Deferral()
        return self._deferral

    def take_the_place(self, item: WriteStatus) -> None:
        """Sends this item instead, without delay if something waits for it."""
        self.item = item
        if not only_tells(item):
            self.hurry()

    def hurry(self) -> None:
        """Sends the item as soon as there is a slot, because something waits for it."""
        self._awaited = True
        if self._deferral is not None:
            self._deferral.hurry()

    def withdraw(self) -> bool:
        """Withdraws the item. Returns False if it is too late for that, or too early."""
        return not self.sent and self._deferral is not None and self._deferral.withdraw()


class ItemRunner:
    """Runs items. A failure of one item never raises."""

    def __init__(
        self,
        writer: Writer,
        metrics: Metrics,
        *,
        monotonic: Callable[[], float],
        retry: Retry,
        backoff: Backoff | None = None,
        slots: WriteSlots | None = None,
        trials: Trials | None = None,
        placements: Placements | None = None,
        requests_of_jobs: Callable[[str], Iterable[PodRequests]] = lambda namespace: (),
    ) -> None:
        """`requests_of_jobs` returns the requests of the jobs' pods in a namespace."""
        self._writer = writer
        self._metrics = metrics
        self._monotonic = monotonic
        self._retry = retry
        self._backoff = Backoff(monotonic) if backoff is None else backoff
        self._slots = WriteSlots(monotonic) if slots is None else slots
        self.refusals = Refusals()
        self._attempts = OwnAttempts()
        # None: every placement is written before a pod is created.
        self._placements = placements
        # None: templates are not tried.
        self._trials = trials
        self._requests_of_jobs = requests_of_jobs
        # Results since the last `take_results`.
        self.results: Counter[WriteResult] = Counter()

    def pinned(self, item: PlanItem) -> PlanItem:
        """Returns the item with the state of the cluster for which it was decided.

        Call it before anything else is decided.
        """
        if isinstance(item, WriteStatus) and item.pod is not None and self._placements is None:
            return replace(item, pod=None)
        return self._writer.pinned(item)

    def seconds_left(self, item: PlanItem) -> float:
        """Returns the seconds for which the item's object still backs off. 0 if it may be tried
        now.
        """
        seconds = self._backoff.seconds_left(target_of(item))
        if isinstance(item, CreatePod) and needs_service(item):
            return max(seconds, self._backoff.seconds_left(service_target(item.job)))
        return seconds

    def tell(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with refused pods and templates, and with pods that may have been
        created.
        """
        snapshot = self._attempts.tell(self.refusals.tell(snapshot))
        return snapshot if self._trials is None else self._trials.tell(snapshot)

    async def run(self, sending: Sending) -> WriteResult:
        item = sending.item
        if isinstance(item, TryTemplate):
            if self._trials is not None:
                await self._trials.try_again(item.job, self._try)
            return WriteResult.DONE
        if await self._is_of_refused_template(item):
            self.results[WriteResult.REFUSED] += 1
            return WriteResult.REFUSED
        target, kind = target_of(item), type(item).__name__
        if isinstance(item, WriteStatus):
            self._attempts.placing(item)
        result = await self._run(sending, target, kind, lambda: self._writer.write(sending.item))
        item = sending.item
        if isinstance(item, WriteStatus) and result is WriteResult.CONFLICT:
            self._attempts.conflicted(item)
        elif isinstance(item, WriteStatus) and result is not WriteResult.DONE:
            self._attempts.not_placed(item)
        elif isinstance(item, WriteStatus):
            self._metrics.placements.inc(places_attempt(item))
            refused = any(note.reason == RESUME_REFUSED for note in item.events)
            self._metrics.resumes_refused.inc(refused)
        if isinstance(item, CreatePod) and result is WriteResult.DONE:
            # Only here, because the Service of a gang is also created for its first pod (see
            # `run_service`).
            self.refusals.created(item)
            self._attempts.created(item)
        self.results[result] += 1
        return result

    def placing(self, item: WriteStatus) -> None:
        """Records a placement with a pod. Call it at its submission, before anything else is
        decided.
        """
        self._attempts.placing(item)
        if self._placements is not None:
            self._placements.place(item.job, item.status)

    async def place(self, sending: Sending, item: WriteStatus, pod: CreatePod) -> WriteResult:
        """Creates the pod that records the placement.

        If it cannot be created, the status is written at once. From then on the attempt is like any
        other.
        """
        result = of_pod = WriteResult.REFUSED
        of_creation = Sending(pod)
        if await self._is_of_refused_template(item):
            self.results[result] += 1
        else:
            result = of_pod = await self.run(of_creation)
            if of_pod is WriteResult.DONE:
                self._metrics.placements.inc()
                if self._is_placed(item):
                    self._writer.note_events(item)
                return of_pod
            if of_pod is not WriteResult.NOT_LEADER and self._is_placed(item):
                sending.item = replace(item, pod=None)
                result = await self.run(sending)
        if result is not WriteResult.DONE:
            self._attempts.not_placed(item)
            refused = of_pod is WriteResult.REFUSED and not of_creation.unanswered
            self._withdraw(item, in_doubt=not refused)
        return result

    def _is_placed(self, item: WriteStatus) -> bool:
        uid = item.job.metadata.uid
        return self._placements is not None and self._placements.is_placed(uid)

    def _withdraw(self, item: WriteStatus, *, in_doubt: bool) -> None:
        if self._placements is not None:
            self._placements.withdraw(item.job.metadata.uid, in_doubt=in_doubt)

    def stop_deferring(self) -> None:
        """Sends informative writes as soon as there is a slot."""
        self._slots.stop_deferring()

    async def _is_of_refused_template(self, item: PlanItem) -> bool:
        """Returns True for a placement whose pods the API server would refuse. It is not
        written.
        """
        if self._trials is None or not isinstance(item, WriteStatus):
            return False
        if item.job.status.placement is not None or item.status.placement is None:
            return False
        placed = replace(item.job, status=item.status)
        return bool(await self._trials.refusal(placed, self._try))

    async def _try(self, job: GPUJob) -> Answer | None:
        """Returns the API server's answer to the job's pod, or None without an answer."""
        try:
            async with self._slots.held(job.metadata.namespace):
                if not self._writer.may_act():
                    return None
                await self._writer.try_pod(job)
        except (Conflict, AlreadyExists):
            # The name is taken, which the creation will report.
            return Answer()
        except UnfitClaim as error:
            return Answer(error.message, error.why)
        except (NotFound, Throttled, Unavailable) as error:
            log.info("trial not answered", job=job.metadata.key, error=str(error))
            return None
        except ApiError as error:
            if NO_DRY_RUN in error.message:
                return Answer()
            log.warning("template refused", job=job.metadata.key, error=str(error))
            return Answer(self._words(error.message or str(error), job))
        except Exception as error:
            # A defect in rendering one job must not stop the other jobs.
            log.error(
                "template not rendered",
                job=job.metadata.key,
                error=str(error),
                with_traceback=True,
            )
            return Answer(f"no pod can be made of spec.template: {error}")
        return Answer()

    async def run_service(self, item: CreatePod) -> WriteResult:
        """Creates the Service of the pod's gang."""
        job: GPUJob = item.job
        target = service_target(job)
        return await self._run(
            Sending(item), target, "CreateService", lambda: self._writer.create_service(job)
        )

    async def _run(
        self,
        sending: Sending,
        target: Target,
        kind: str,
        call: Callable[[], Awaitable[None]],
    ) -> WriteResult:
        started = self._monotonic()
        result = WriteResult.FAILED
        try:
            result = await self._result(sending, call)
        except Exception as error:
            # A defect in rendering one job must not stop the other jobs.
            log.error(
                "write failed unexpectedly",
                object=_name(target),
                error=str(error),
                with_traceback=True,
            )
            self._refused(sending.item, f"no pod can be made of spec.template: {error}")
        finally:
            self._metrics.write_seconds.labels(kind).observe(self._monotonic() - started)
            self._metrics.writes.labels(kind, result.value).inc()
            self._back_off(target, sending.item, result)
        return result

    async def _result(self, sending: Sending, call: Callable[[], Awaitable[None]]) -> WriteResult:
        """Writes the item and returns the result. No answer of the API server raises."""
        name = _name(target_of(sending.item))
        try:
            await self._retry.run(lambda: self._request(sending, call))
        except (Conflict, AlreadyExists) as error:
            log.info("stale write dropped", object=name, error=str(error))
            return WriteResult.CONFLICT
        except NotFound:
            self._writer.forget(sending.item)
            return WriteResult.GONE
        except NotLeader:
            return WriteResult.NOT_LEADER
        except WithdrawnError:
            return WriteResult.OVERTAKEN
        except Throttled as error:
            log.warning("write postponed", object=name, error=str(error))
            return WriteResult.FAILED
        except Unavailable as error:
            log.warning("write not answered", object=name, error=str(error))
            return await self._ask_what_happened(sending.item)
        except ApiError as error:
            if sending.unanswered:
                # An earlier request may have taken effect. A pod counts against the quota then.
                result = await self._ask_what_happened(sending.item)
                if result is not WriteResult.FAILED:
                    return result
            log.warning("write refused", object=name, error=str(error))
            self._refused(sending.item, error.message or str(error))
            return WriteResult.REFUSED
        return WriteResult.DONE

    def _refused(self, item: PlanItem, message: str) -> None:
        if isinstance(item, CreatePod):
            self.refusals.refused(item, self._words(message, item.job))
            if self._trials is not None:
                self._trials.forget(item.job)

    def _words(self, message: str, job: GPUJob) -> str:
        """Returns a refusal, with the jobs' use of the quota that it names."""
        return with_quota_figures(message, self._requests_of_jobs(job.metadata.namespace))

    async def _request(self, sending: Sending, call: Callable[[], Awaitable[object]]) -> None:
        async with self._slots.held(namespace_of(sending.item), deferral=sending.deferral()):
            sending.sent = True
            try:
                await call()
            except Unavailable:
                sending.unanswered = True
                if isinstance(sending.item, WriteStatus):
                    self._attempts.unanswered(sending.item)
                raise

    async def _ask_what_happened(self, item: PlanItem) -> WriteResult:
        """Reads the object by name until the API server answers, or leadership is lost."""
        self._metrics.writes_in_doubt.inc()
        try:
            return await self._what_happened(item)
        finally:
            self._metrics.writes_in_doubt.dec()

    async def _what_happened(self, item: PlanItem) -> WriteResult:
        failures, late = 0, _counts_once_sent(item)
        while self._writer.may_act():
            try:
                result = await self._confirm(item)
            except (Throttled, Unavailable) as error:
                failures += 1
                await self._retry.pause(failures, error, seconds_max=DOUBT_PAUSE_SECONDS_MAX)
                continue
            except ApiError as error:
                log.warning("unreadable", object=_name(target_of(item)), error=str(error))
                return WriteResult.FAILED
            if result is WriteResult.FAILED and late:
                # The object does not exist, but a request may stay in flight after its caller gave
                # up.
                late = False
                await self._retry.sleep(LATE_SECONDS)
                continue
            return result
        return WriteResult.NOT_LEADER

    async def _confirm(self, item: PlanItem) -> WriteResult:
        found: list[WriteResult] = []

        async def ask() -> None:
            found.append(await self._writer.confirm(item))

        await self._request(Sending(item), ask)
        return found[0]

    def _back_off(self, target: Target, item: PlanItem, result: WriteResult) -> None:
        """Starts the back-off after a refusal.

        A conflict needs none, because the next cycle decides on the new state. A pod name that is
        taken does need one, because it stays taken for a while.
        """
        taken = isinstance(item, CreatePod) and result in (WriteResult.CONFLICT, WriteResult.GONE)
        if taken or result in (WriteResult.REFUSED, WriteResult.FAILED):
            self._backoff.failed(target)
        elif result is WriteResult.DONE:
            self._backoff.succeeded(target)
        self._metrics.write_backoffs.set(len(self._backoff))


def _counts_once_sent(item: PlanItem) -> bool:
    """Returns True for an item that must not take effect after it was given up."""
    records = isinstance(item, CreatePod) and item.record is not None
    return records or isinstance(item, WriteStatus)


def needs_service(item: CreatePod) -> bool:
    """Returns True for rank 0 of a gang, whose Service is created before its pods."""
    return item.rank == 0 and item.job.spec.workers > 1


def _name(target: Target) -> str:
    verb, plural, namespace, name = target
    return f"{verb} {plural} {namespace}/{name}" if namespace else f"{verb} {plural} {name}"
