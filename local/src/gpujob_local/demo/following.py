"""Follows the jobs of the demo: prints their events and keeps every state they went through."""

import threading
from collections.abc import Callable
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.manifest import gpujob_from_manifest, gpuprofile_from_manifest
from gpujob_local.control_plane.api_client import ApiClient, ApiError
from gpujob_local.demo.telling import Teller

POLL_SECONDS = 0.3
_JOBS = "/apis/gpujob.dev/v1alpha1/gpujobs"
_PROFILES = "/apis/gpujob.dev/v1alpha1/gpuprofiles"
_EVENTS = "/api/v1/events"


class StoryError(Exception):
    """An expected event of the demo did not happen. The message has the observations."""


class Follower:
    """Polls the API server in a thread. `history` holds the distinct states of each job."""

    def __init__(self, client: Callable[[], ApiClient], teller: Teller) -> None:
        self._client = client
        self._teller = teller
        self._told: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self.history: dict[str, list[GPUJob]] = {}
        self.profiles: dict[str, GPUProfile] = {}

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=10)

    def job(self, name: str) -> GPUJob | None:
        states = self.history.get(name)
        return states[-1] if states else None

    def wait(
        self, name: str, what: str, condition: Callable[[GPUJob], bool], limit_seconds: float
    ) -> GPUJob:
        """Returns the first state of the job that meets the condition, even if it has already
        passed.
        """
        seen = 0

        def met() -> GPUJob | None:
            nonlocal seen
            states = self.history.get(name, [])
            found = next((job for job in states[seen:] if condition(job)), None)
            seen = len(states)
            return found

        found: GPUJob | None = None

        def ready() -> bool:
            nonlocal found
            found = met()
            return found is not None or self._failed(name)

        with self._changed:
            self._changed.wait_for(ready, timeout=limit_seconds)
        if found is None:
            raise StoryError(
                f"{name}: {what} was not seen in {limit_seconds:.0f} s: {self.last(name)}"
            )
        return found

    def last(self, name: str) -> str:
        job = self.job(name)
        if job is None:
            return "the job was never seen"
        return f"{job.status.phase.value}, {job.status.summary.reason}"

    def _failed(self, name: str) -> bool:
        job = self.job(name)
        return job is not None and job.status.phase is JobPhase.FAILED

    def _run(self) -> None:
        client = self._client()
        while not self._stopping.is_set():
            try:
                self._look(client)
            except (ApiError, OSError) as error:
                self._teller.say("follower", f"the API server did not answer: {error}")
            self._stopping.wait(POLL_SECONDS)

    def _look(self, client: ApiClient) -> None:
        for item in client.get(_EVENTS)["items"]:
            self._tell(item)
        jobs = [_job(item) for item in client.get(_JOBS)["items"]]
        profiles = [gpuprofile_from_manifest(item) for item in client.get(_PROFILES)["items"]]
        with self._changed:
            for job in jobs:
                states = self.history.setdefault(job.metadata.name, [])
                if (
                    not states
                    or states[-1].metadata.resource_version != job.metadata.resource_version
                ):
                    states.append(job)
            self.profiles = {profile.metadata.name: profile for profile in profiles}
            self._changed.notify_all()

    def _tell(self, event: dict[str, Any]) -> None:
        uid = event["metadata"]["uid"]
        about = event["involvedObject"]
        if uid in self._told or about.get("kind") != "GPUJob":
            return
        self._told.add(uid)
        self._teller.say(about["name"], f"{event['reason']}: {event['message']}")


def _job(item: dict[str, Any]) -> GPUJob:
    try:
        return gpujob_from_manifest(item)
    except FieldError as error:
        raise StoryError(f"{item['metadata']['name']}: {error}") from None
