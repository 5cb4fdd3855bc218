"""Checks that nobody is stopped again and again for a job whose pods do not start.

It counts by what jobs and pods show, and not by what the operator remembers: stops that name a job
of the same namespace, and whether that job ran in between.
"""

import re
from collections.abc import Callable

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.client.api_errors import NotFound
from gpujob_operator.decide.model.stop_reasons import MIGRATED, PREEMPTED, RECLAIMED, rule_of
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Revision

_FOR = re.compile(r"^stopped for ([^ ]+/[^ ]+) ")
# Others may be stopped for it again after so long.
PAUSE_SECONDS = 3500.0


class PreemptionUse:
    def __init__(self, api: ApiServer, fail: Callable[[str, str], None]) -> None:
        self._api = api
        self._fail = fail
        # By the beneficiary: when others were last stopped for it, and after which attempt.
        self._stopped: dict[str, tuple[float, int]] = {}
        api.recorders.append(self.observe)
        api.restored.append(self._stopped.clear)

    def observe(self, revision: Revision) -> None:
        if revision.kind is not Kind.JOB or revision.before is None:
            return
        if revision.type == "DELETED":
            # A job that is created again under the name is another job.
            self._stopped.pop(self._api.job(revision.before).metadata.key, None)
            return
        job, before = self._api.job(revision.object), self._api.job(revision.before)
        self._forget(job, before)
        stop = job.status.stop
        if stop is None or stop == before.status.stop:
            return
        found = _FOR.match(stop.message)
        if stop.reason in (PREEMPTED, RECLAIMED, MIGRATED) and found is not None:
            self._check(found[1], revision.at)

    def _forget(self, job: GPUJob, before: GPUJob) -> None:
        """It runs, its spec was edited, or something else than a refusal ended its attempt."""
        status, key = job.status, job.metadata.key
        runs = status.phase is JobPhase.RUNNING
        edited = job.metadata.generation != before.metadata.generation
        gave_up = status.placement is None and before.status.placement is not None
        refused = status.start_refusals != before.status.start_refusals
        refused |= rule_of(before.status.stop).is_refusal
        if runs or edited or (gave_up and not refused):
            self._stopped.pop(key, None)

    def _check(self, key: str, at: float) -> None:
        namespace, name = key.split("/")
        try:
            status = self._api.job(self._api.get(Kind.JOB, namespace, name)).status
        except NotFound:
            # It was deleted while this request was under way.
            return
        attempt = status.attempt
        if status.placement is not None:
            # It was placed while this request was under way, and has not failed to use its GPUs.
            return
        last_at, last_attempt = self._stopped.setdefault(key, (at, attempt))
        if attempt > last_attempt and at - last_at < PAUSE_SECONDS:
            text = f"others are stopped for {key} {at - last_at:.0f} s after it did not use that"
            self._fail("I15", text)
        if attempt > last_attempt:
            self._stopped[key] = at, attempt
