"""What one namespace or one object suffers at the API server, while all others are served well."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpujob_operator.act import kube
from gpujob_operator.act.kube import ApiError
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import AnyKind
from tests.simulation.clock import Clock

NO_WEBHOOK = (
    'Internal error occurred: failed calling webhook "inject.mesh.example": failed to call webhook:'
    ' Post "https://inject.mesh.svc:443/inject": no endpoints available for service "inject"'
)
OVER_QUOTA = "pods is forbidden: exceeded quota: compute, requested: pods=1, limited: pods=9"
TOO_LARGE = "etcdserver: request is too large"
DOUBTFUL = "Internal error occurred: rpc error: code = Unknown desc = something went wrong"


class TroubleKind(Enum):
    """`QUOTA`, `WEBHOOK` and `TOO_LARGE` are certain: nothing was written. `DOUBTFUL` is not."""

    QUOTA = "quota"
    WEBHOOK = "webhook"
    TOO_LARGE = "too-large"
    DOUBTFUL = "doubtful"
    DOUBTFUL_WRITTEN = "doubtful-written"
    SLOW = "slow"


# Status, reason and message of the answer.
_REFUSALS = {
    TroubleKind.QUOTA: (403, "Forbidden", OVER_QUOTA),
    TroubleKind.WEBHOOK: (500, "InternalError", NO_WEBHOOK),
    TroubleKind.TOO_LARGE: (500, "", TOO_LARGE),
    TroubleKind.DOUBTFUL: (500, "InternalError", DOUBTFUL),
}


@dataclass(frozen=True, slots=True)
class Request:
    verb: str
    kind: AnyKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """From `start` to `end`, for the writes of a namespace; of one job and its pods with `job`."""

    kind: TroubleKind
    namespace: str
    start: float
    end: float
    job: str = ""
    seconds: float = 0.0

    def meets(self, request: Request, now: float) -> bool:
        if not self.start <= now < self.end or request.namespace != self.namespace:
            return False
        if self.job and request.name != self.job and not request.name.startswith(f"{self.job}-"):
            return False
        creates = request.verb == "create" and request.kind is Kind.POD
        if self.kind in (TroubleKind.QUOTA, TroubleKind.WEBHOOK, TroubleKind.SLOW):
            return creates
        if self.kind is TroubleKind.TOO_LARGE:
            return request.verb == "replace" and request.kind is Kind.JOB
        return creates or (request.verb == "replace" and request.kind is Kind.JOB)


class Troubles:
    """All troubles of a seed. `refused` counts the refusals of each object's writes."""

    def __init__(self, clock: Clock, troubles: Sequence[Trouble]) -> None:
        self._clock = clock
        self._troubles = tuple(troubles)
        self.refused: Counter[str] = Counter()

    def delay_seconds(self, request: Request) -> float:
        return sum(one.seconds for one in self._now(request) if one.kind is TroubleKind.SLOW)

    def check(self, request: Request) -> None:
        """Raises the server's answer when it refuses."""
        for one in self._now(request):
            if one.kind in _REFUSALS:
                self.refused[f"{request.verb} {request.kind.value} {request.name}"] += 1
                raise server_error(*_REFUSALS[one.kind])

    def after_effect(self, request: Request) -> ApiError | None:
        """The write was made, and the answer says that something went wrong."""
        doubtful = any(one.kind is TroubleKind.DOUBTFUL_WRITTEN for one in self._now(request))
        return server_error(500, "InternalError", DOUBTFUL) if doubtful else None

    def _now(self, request: Request) -> list[Trouble]:
        return [one for one in self._troubles if one.meets(request, self._clock.now)]


def server_error(status: int, reason: str, message: str) -> ApiError:
    """As the operator's own client reads such an answer."""
    return kube._status_error(status, {"reason": reason, "message": message}, None)
