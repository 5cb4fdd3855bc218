"""Users of the simulated cluster: they submit jobs, delete, suspend and resume them."""

from contextlib import suppress
from typing import Any

from gpujob_api.meta import API_VERSION
from gpujob_operator.client.api_errors import AlreadyExists, NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer
from tests.simulation.clock import Clock
from tests.simulation.volumes import mounting, volume_of
from tests.simulation.workloads import Submission

# They look at their jobs within this time after the API server's data were restored.
LOOK_SECONDS_MAX = 30.0


class Users:
    """After a restore they do once more what was lost of theirs: nobody else knows of it."""

    def __init__(self, clock: Clock, api: ApiServer, submissions: tuple[Submission, ...]) -> None:
        self._clock = clock
        self._api = api
        self._submissions = submissions
        api.restored.append(self._restored)

    def begin(self) -> None:
        for submission in self._submissions:
            self._begin(submission)

    def _begin(self, submission: Submission) -> None:
        if (volume := volume_of(submission)) is not None:
            self._api.create(Kind.VOLUME, volume, "user")
        self._clock.after(submission.at, lambda: self._submit(submission))
        if submission.delete_at is not None:
            self._clock.after(submission.delete_at, lambda: self._recreate(submission))
        for at, suspend in ((submission.suspend_at, True), (submission.resume_at, False)):
            if at is not None:
                self._clock.after(at, lambda suspend=suspend: self._suspend(submission, suspend))

    def _submit(self, submission: Submission) -> None:
        metadata: dict[str, Any] = {"name": submission.name, "namespace": submission.namespace}
        if submission.finalizer:
            metadata["finalizers"] = [submission.finalizer]
        job = {
            "apiVersion": API_VERSION,
            "kind": "GPUJob",
            "metadata": metadata,
            "spec": mounting(submission),
        }
        with suppress(AlreadyExists):
            self._api.create(Kind.JOB, job, "user")

    def _recreate(self, submission: Submission) -> None:
        """The same name at once again: another job; where a finalizer keeps it, none."""
        with suppress(NotFound):
            self._api.delete(Kind.JOB, submission.namespace, submission.name, "user")
        self._submit(submission)

    def _suspend(self, submission: Submission, suspend: bool) -> None:
        patch = {"spec": {"suspend": suspend}}
        key = (submission.namespace, submission.name)
        with suppress(NotFound):
            self._api.patch(Kind.JOB, *key, patch, "user", spec=True)

    def _restored(self) -> None:
        seconds = self._clock.random.uniform(1.0, LOOK_SECONDS_MAX)
        self._clock.after(seconds, self._look)

    def _look(self) -> None:
        for submission in self._submissions:
            if submission.at <= self._clock.now:
                self._mend(submission)

    def _mend(self, submission: Submission) -> None:
        self._submit(submission)
        job = self._api.get(Kind.JOB, submission.namespace, submission.name)
        suspended = _has_come(submission.suspend_at, self._clock.now) and not _has_come(
            submission.resume_at, self._clock.now
        )
        if job["spec"].get("suspend", False) != suspended:
            self._suspend(submission, suspended)
        deleted = submission.deleted_for_good and _has_come(submission.delete_at, self._clock.now)
        if deleted and "deletionTimestamp" not in job["metadata"]:
            self._api.delete(Kind.JOB, submission.namespace, submission.name, "user")


def _has_come(at: float | None, now: float) -> bool:
    return at is not None and at <= now
