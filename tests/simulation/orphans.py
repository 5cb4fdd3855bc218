"""I7 on every revision: a pod whose job is gone, is being deleted or is over is asked to go."""

from collections.abc import Callable, Iterable

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest, Revision
from tests.simulation.pods import attempt_of, is_live

# From the moment that a pod has no live owner until it is asked to go.
ORPHAN_SECONDS_MAX = 90.0


class Orphans:
    """Looks at the pods after each revision that `api` commits; call `check` where time passes
    without one. `pods` are those that operators created.

    Faults that could hold an operator up are over at `calm_from`, in seconds of the clock.
    """

    def __init__(
        self,
        api: ApiServer,
        pods: Callable[[], Iterable[Manifest]],
        fail: Callable[[str, str], None],
        calm_from: float = 0.0,
    ) -> None:
        self._api = api
        self._pods = pods
        self._fail = fail
        self._calm_from = calm_from
        # Since when each of them has no live owner, by the pod's UID.
        self._since: dict[str, float] = {}
        api.recorders.append(self.observe)

    def observe(self, revision: Revision) -> None:
        if revision.kind in (Kind.JOB, Kind.POD):
            self.check()

    def check(self) -> None:
        now = self._api.now
        orphans = {pod["metadata"]["uid"]: pod for pod in self._pods() if self._is_orphan(pod)}
        self._since = {uid: self._since.get(uid, now) for uid in orphans}
        for uid, since in self._since.items():
            if now - max(since, self._calm_from) > ORPHAN_SECONDS_MAX:
                name = orphans[uid]["metadata"]["name"]
                self._fail("I7", f"{name} runs on, it has no live owner since {since:.0f} s")

    def _is_orphan(self, pod: Manifest) -> bool:
        """Pods that lost the reference to their owner are let go."""
        metadata = pod["metadata"]
        if not is_live(pod) or "deletionTimestamp" in metadata:
            return False
        return bool(metadata.get("ownerReferences")) and not self._has_live_owner(pod)

    def _has_live_owner(self, pod: Manifest) -> bool:
        job_uid, attempt = attempt_of(pod)
        manifest = self._api.find(Kind.JOB, job_uid)
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            return False
        job = self._api.job(manifest)
        return not job.finished and job.status.attempt == attempt
