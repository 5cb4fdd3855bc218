"""Other writers of what the operator writes, all the while and at the same time."""

import itertools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from gpujob_local.control_plane.api_client import ApiError
from tests.harness.profiles import add_unused_profile
from tests.harness.stage import OURS, Stage

# Time for the operator to write what follows, and for a pod to come or to go.
CALLS_A_SUSPENSION = 20
# One change follows the other more closely than the operator's write what it saw.
OTHER_WRITERS = 3
BETWEEN_SECONDS = 0.01


@contextmanager
def again_and_again(change: Callable[[], None]) -> Generator[None]:
    """Changes something all the while, so that it is never as the operator decided upon it."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(BETWEEN_SECONDS):
            # A pod or a profile goes, or the API server has no time.
            with suppress(ApiError, OSError):
                change()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(OTHER_WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


class Writers:
    """Of the job, its queue, its pods and an unused profile."""

    def __init__(self, stage: Stage, job: str) -> None:
        self._stage = stage
        self._client = stage.client
        self._pods: list[str] = []
        self._job = f"{stage.jobs_path}/{job}"
        self._profiles = f"{OURS}/namespaces/{stage.namespace}/gpuprofiles"
        self._numbers = itertools.count()
        self._calls = itertools.count()

    def suspend_and_resume(self) -> bool:
        """The operator has something to write of the job and its queue each time, and deletes the
        pod of the job that is suspended, as the pod was then."""
        client, pods = self._client, self._stage.pods()
        self._pods = [f"{self._stage.pods_path}/{pod['metadata']['name']}" for pod in pods]
        if next(self._calls) % CALLS_A_SUSPENSION == 0:
            client.merge(self._job, {"spec": {"suspend": bool(pods)}})
        for pod, path in zip(pods, self._pods, strict=True):
            if "deletionTimestamp" in pod["metadata"]:
                # As the kubelet does at the end.
                with suppress(ApiError):
                    client.delete(f"{path}?gracePeriodSeconds=0")
        return True

    def annotate(self, path: str) -> None:
        number = str(next(self._numbers))
        self._client.merge(path, {"metadata": {"annotations": {"number": number}}})

    def annotate_pods(self) -> None:
        for path in self._pods:
            self.annotate(path)

    def annotate_unused_profile(self) -> None:
        """The operator deletes it as it was decided, and not as it has become meanwhile."""
        try:
            self.annotate(f"{self._profiles}/unused")
        except ApiError:
            add_unused_profile(self._client, self._profiles)
