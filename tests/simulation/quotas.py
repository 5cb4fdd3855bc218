"""ResourceQuotas that count: a namespace has so many pods at most that have not ended.

As on a real API server, a pod is refused at its creation, in words that have the numbers, and room
comes back a moment after a pod has ended or gone, when the controller has counted again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest, Revision
from tests.simulation.clock import Clock
from tests.simulation.pods import FINAL
from tests.simulation.troubles import Request, asks_admission, server_error

RECOUNT_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class PodQuota:
    namespace: str
    pods: int


class PodQuotas:
    """`refused` is how often each namespace met its limit."""

    def __init__(self, clock: Clock, api: ApiServer, quotas: Sequence[PodQuota]) -> None:
        self._clock = clock
        self._api = api
        self._limits = {quota.namespace: quota.pods for quota in quotas}
        # Pods that are no more, and still count.
        self._late: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        if quotas:
            api.recorders.append(self._see)

    def check(self, request: Request) -> None:
        """Raises the server's answer where the namespace has its pods already. A dry run is
        answered as a creation is, and takes no room."""
        limit = self._limits.get(request.namespace)
        if limit is None or not asks_admission(request):
            return
        pods = [pod for pod in self._api.list(Kind.POD) if _counts(pod, request.namespace)]
        used = len(pods) + self._late[request.namespace]
        if used < limit:
            return
        self.refused[request.namespace] += 1
        raise server_error(
            403,
            "Forbidden",
            f'pods "{request.name}" is forbidden: exceeded quota: compute, '
            f"requested: pods=1, used: pods={used}, limited: pods={limit}",
        )

    def _see(self, revision: Revision) -> None:
        namespace = revision.object["metadata"].get("namespace", "")
        if revision.kind is not Kind.POD or revision.before is None:
            return
        ended = revision.type == "DELETED" or not _counts(revision.object, namespace)
        if ended and _counts(revision.before, namespace):
            self._late[namespace] += 1
            seconds = self._clock.random.uniform(0.0, RECOUNT_SECONDS_MAX)
            self._clock.after(seconds, lambda: self._late.subtract([namespace]))


def _counts(pod: Manifest, namespace: str) -> bool:
    return pod["metadata"].get("namespace") == namespace and pod["status"]["phase"] not in FINAL
