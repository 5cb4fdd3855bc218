"""Asks the API server whether a job's pods can be created, before GPUs are reserved for them.

- `Trials`: one dry run for each template in a namespace. An accepted template is remembered. A
  refused one is tried again after a pause that doubles. A trial without an answer delays no job.
- `look_for_claims`: the claims that the pods mount, which no dry run checks. A pod whose claim does
  not exist would hold its GPUs while it waits. So would all workers but one if their claim is for
  one pod. Claims may be deleted later, so templates with claims are tried again after a while.
- `Refusals`: pods that were refused when they were created. Refusals are not stored. A process that
  starts receives them again with its next attempt.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from gpujob_api.gpujob import GPUJob
from gpujob_api.visible import visible
from gpujob_operator.client.api_errors import ApiError, Forbidden, NotFound
from gpujob_operator.client.kube import CLAIMS, Kube
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.decide.model.checkpoint_claim import AccessMode, names_a_place
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.pod_template import claims
from gpujob_operator.decide.model.snapshot import RefusedPod, RefusedTemplate, Snapshot
from gpujob_operator.read.claims import claim_problem
from gpujob_operator.read.shapes import mapping, mappings
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

VERDICTS_MAX = 10_000
JOBS_MAX = 10_000
# The shortest time between two trials, if the first one was not answered.
UNANSWERED_SECONDS = 5.0
# A claim may be created at any moment, and its job waits for nothing else.
CLAIM_SECONDS_MAX = 30.0

# Reasons that `look_for_claims` finds.
CLAIM_REASONS = (PendingReason.CLAIM_NOT_FOUND, PendingReason.SPEC_REJECTED)
ONE_POD = AccessMode.READ_WRITE_ONCE_POD.value

CLAIMS_MAX = 16
REFUSALS_MAX = 10_000
MESSAGE_CHARACTERS_MAX = 512

Key = tuple[str, str]


class UnfitClaim(ApiError):  # noqa: N818 - a state of affairs, not a fault
    """A claim that a job's pods mount does not exist, or cannot be mounted by all of them."""

    def __init__(self, status: int, reason: PendingReason, message: str) -> None:
        super().__init__(status, reason.value, message)
        self.why = reason


async def look_for_claims(kube: Kube, job: GPUJob) -> None:
    """Raises `UnfitClaim` for the first claim that is missing or that several workers cannot mount.

    Also raises `ApiError`. Claims that the operator creates are skipped. All claims are skipped if
    the operator may not read any.
    """
    namespace = job.metadata.namespace
    for name in claims(job)[:CLAIMS_MAX]:
        try:
            claim = await kube.get(CLAIMS, name, namespace)
        except Forbidden as error:
            log.info("claims are not looked for", job=job.metadata.key, error=str(error))
            return
        except NotFound:
            claim = None
        text = claim_problem(name, namespace, claim)
        if claim is None or text:
            raise UnfitClaim(404, PendingReason.CLAIM_NOT_FOUND, text)
        if job.spec.workers > 1 and _is_for_one_pod(claim):
            text = (
                f'persistentvolumeclaim "{name}" has the access mode {ONE_POD}, and every worker'
                " of the job mounts it: create the job again with a claim of the access mode"
                " ReadWriteMany, or with spec.workers: 1"
            )
            raise UnfitClaim(422, PendingReason.SPEC_REJECTED, text)


def _is_for_one_pod(claim: Mapping[str, Any]) -> bool:
    """Returns whether the claim is for one pod. Kubernetes allows no other access mode with this
    one.
    """
    return ONE_POD in (mapping(claim.get("spec")).get("accessModes") or ())


class Refusals:
    """The newest refusal of each worker of a job. Bounded."""

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[str, int], RefusedPod] = OrderedDict()

    def refused(self, item: CreatePod, message: str) -> None:
        job, key = item.job, (item.job.metadata.uid, item.rank)
        self._refused.pop(key, None)
        text = visible(message[:MESSAGE_CHARACTERS_MAX])
        self._refused[key] = RefusedPod(job.metadata.uid, job.status.attempt, item.rank, text)
        if len(self._refused) > REFUSALS_MAX:
            self._refused.popitem(last=False)

    def created(self, item: CreatePod) -> None:
        self._refused.pop((item.job.metadata.uid, item.rank), None)

    def tell(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with the refusals of its attempts. Drops the others."""
        if not self._refused:
            return snapshot
        attempts = {job.metadata.uid: job.status.attempt for job in snapshot.jobs}
        for key, one in list(self._refused.items()):
            if attempts.get(one.job_uid) != one.attempt:
                del self._refused[key]
        return replace(snapshot, refused_pods=tuple(self._refused.values()))


@dataclass(frozen=True, slots=True)
class Answer:
    """Why the job's pod is refused. `message` is "" if it is accepted."""

    message: str = ""
    reason: PendingReason = PendingReason.POD_REJECTED


# Returns None without an answer.
Try = Callable[[GPUJob], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A verdict. `message` is "" for a template that may be used. None as `until` means until a pod
    is refused.
    """

    message: str = ""
    failures: int = 0
    until: datetime | None = None
    # When a refusal was received.
    at: datetime | None = None
    reason: PendingReason = PendingReason.POD_REJECTED


class Trials:
    """The verdicts on templates. Bounded.

    `clock` must be the clock of planning. With any other clock, planning would place a job again
    and again whose verdict still holds, or wait for a verdict that has ended, because there is no
    back-off except the verdict.
    """

    def __init__(self, configuration: Configuration, clock: Callable[[], datetime]) -> None:
        self._pause_seconds = configuration.retry_backoff_seconds
        self._pause_seconds_max = configuration.retry_backoff_max_seconds
        self._clock = clock
        self._verdicts: OrderedDict[Key, _Verdict] = OrderedDict()
        # Jobs whose templates were refused, as they were placed then.
        self._jobs: OrderedDict[str, tuple[Key, GPUJob]] = OrderedDict()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def refusal(self, job: GPUJob, attempt: Try) -> str:
        """Returns why the API server refuses the job's pods, or "".

        At most one request per template is in flight. Other jobs of the template wait for its
        answer.
        """
        key = key_of(job)
        verdict = self._known(key, job)
        if verdict is None:
            lock = self._locks.setdefault(key, asyncio.Lock())
            async with lock:
                verdict = self._known(key, job)
                if verdict is None:
                    answer = await attempt(job)
                    verdict = self._learn(key, answer, has_claims=bool(claims(job)))
        if verdict.message:
            self._jobs[job.metadata.uid] = key, job
            if len(self._jobs) > JOBS_MAX:
                self._jobs.popitem(last=False)
        return verdict.message

    async def try_again(self, job: GPUJob, attempt: Try) -> None:
        """Tries the template of a refused job again, with the placement of the last trial.

        Does nothing while its verdict holds.
        """
        _, tried = self._jobs.get(job.metadata.uid, (None, None))
        if tried is not None and key_of(tried) == key_of(job):
            await self.refusal(replace(job, status=tried.status), attempt)

    def forget(self, job: GPUJob) -> None:
        """Forgets an accepted template after the API server refused one of its pods.

        The next job tries it again.
        """
        verdict = self._verdicts.get(key_of(job))
        if verdict is not None and not verdict.message:
            del self._verdicts[key_of(job)]

    def tell(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with the pending jobs whose templates were refused."""
        if not self._jobs:
            return snapshot
        pending = {job.metadata.uid for job in snapshot.jobs if job.status.placement is None}
        refused: list[RefusedTemplate] = []
        for uid, (key, _) in list(self._jobs.items()):
            verdict = self._verdicts.get(key)
            if uid in pending and verdict is not None and verdict.until and verdict.message:
                refused.append(RefusedTemplate(uid, verdict.message, verdict.until, verdict.reason))
            else:
                del self._jobs[uid]
        return replace(snapshot, refused_templates=tuple(refused))

    def _known(self, key: Key, job: GPUJob) -> _Verdict | None:
        """Returns the verdict that still holds for the job, or None.

        A new job does not wait for the long pause of its template, because its user may have
        removed the cause before creating it.
        """
        verdict, now = self._verdicts.get(key), self._clock()
        if verdict is None or (verdict.until is not None and verdict.until <= now):
            return None
        if verdict.at is None or job.metadata.uid in self._jobs:
            return verdict
        return None if now - verdict.at >= timedelta(seconds=self._pause_seconds) else verdict

    def _learn(self, key: Key, answer: Answer | None, *, has_claims: bool) -> _Verdict:
        before = self._verdicts.pop(key, _Verdict())
        verdict = _Verdict()
        if has_claims:
            verdict = _Verdict(until=self._clock() + timedelta(seconds=CLAIM_SECONDS_MAX))
        if answer is None:
            until = self._clock() + timedelta(seconds=UNANSWERED_SECONDS)
            # A template that was refused before does not become accepted.
            verdict = replace(before, until=until)
        elif answer.message:
            failures = before.failures + 1
            longest = self._pause_seconds_max
            if answer.reason in CLAIM_REASONS:
                longest = min(longest, CLAIM_SECONDS_MAX)
            pause = backoff_seconds(self._pause_seconds, failures - 1, longest)
            until = self._clock() + timedelta(seconds=pause)
            message = visible(answer.message[:MESSAGE_CHARACTERS_MAX])
            verdict = _Verdict(message, failures, until, self._clock(), answer.reason)
        self._verdicts[key] = verdict
        if len(self._verdicts) > VERDICTS_MAX:
            self._verdicts.popitem(last=False)
        return verdict


def key_of(job: GPUJob) -> Key:
    """Returns a key that is equal for jobs whose pods the API server judges alike.

    It covers the namespace, the template without what a sweep varies (commands, arguments, values
    of variables), and what the operator adds for the spec. Gangs of all sizes share a key, so a
    message must not contain the number of workers.
    """
    # A job that names no place for checkpoints may get its own claim.
    claim = job.spec.checkpoint.volume_claim_name
    added = (job.spec.workers > 1, claim, names_a_place(job))
    text = json.dumps([_constant(job.spec.template), added], sort_keys=True, default=str)
    return job.metadata.namespace, hashlib.sha256(text.encode()).hexdigest()


def _constant(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = mapping(template.get("spec"))
    lists = {name: mappings(spec.get(name)) for name in ("containers", "initContainers")}
    containers = {name: [_container(one) for one in found] for name, found in lists.items()}
    return {**template, "spec": {**spec, **containers}}


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in container.items() if name not in ("command", "args")}
    names = [
        {key: value for key, value in entry.items() if key != "value"}
        for entry in mappings(container.get("env"))
    ]
    return {**kept, "env": names}
