"""What one namespace or one object suffers at the API server, while all others are served well."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpujob_operator.act.item_runner import NO_DRY_RUN
from gpujob_operator.client.api_errors import ApiError, error_of_status
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
    """`QUOTA`, both `WEBHOOK`s and `TOO_LARGE` are certain: nothing was written. `DOUBTFUL` is not.
    A webhook with side effects is not asked by a dry run, which says so.
    """

    QUOTA = "quota"
    WEBHOOK = "webhook"
    WEBHOOK_WITH_EFFECTS = "webhook-with-effects"
    TOO_LARGE = "too-large"
    DOUBTFUL = "doubtful"
    DOUBTFUL_WRITTEN = "doubtful-written"
    SLOW = "slow"


# Status, reason and message of the answer.
_REFUSALS = {
    TroubleKind.QUOTA: (403, "Forbidden", OVER_QUOTA),
    TroubleKind.WEBHOOK: (500, "InternalError", NO_WEBHOOK),
    TroubleKind.WEBHOOK_WITH_EFFECTS: (500, "InternalError", NO_WEBHOOK),
    TroubleKind.TOO_LARGE: (500, "", TOO_LARGE),
    TroubleKind.DOUBTFUL: (500, "InternalError", DOUBTFUL),
}
_NOT_ASKED = (400, "BadRequest", f'admission webhook "inject.mesh.example" {NO_DRY_RUN}')
_OF_PODS = frozenset(
    {
        TroubleKind.QUOTA,
        TroubleKind.WEBHOOK,
        TroubleKind.WEBHOOK_WITH_EFFECTS,
        TroubleKind.SLOW,
    }
)


@dataclass(frozen=True, slots=True)
class Request:
    """`verb` is "try" for a creation by dry run, and else as in RBAC; a status's has "replace"."""

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
        creates = asks_admission(request)
        if self.kind in _OF_PODS:
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
                unasked = request.verb == "try" and one.kind is TroubleKind.WEBHOOK_WITH_EFFECTS
                raise server_error(*(_NOT_ASKED if unasked else _REFUSALS[one.kind]))

    def after_effect(self, request: Request) -> ApiError | None:
        """The write was made, and the answer says that something went wrong."""
        doubtful = any(one.kind is TroubleKind.DOUBTFUL_WRITTEN for one in self._now(request))
        return server_error(500, "InternalError", DOUBTFUL) if doubtful else None

    def _now(self, request: Request) -> list[Trouble]:
        return [one for one in self._troubles if one.meets(request, self._clock.now)]


def asks_admission(request: Request) -> bool:
    """True where quotas and webhooks judge a pod, be it by a dry run."""
    return request.verb in ("create", "try") and request.kind is Kind.POD


def server_error(status: int, reason: str, message: str) -> ApiError:
    """As the operator's own client reads such an answer."""
    return error_of_status(status, {"reason": reason, "message": message}, None)
