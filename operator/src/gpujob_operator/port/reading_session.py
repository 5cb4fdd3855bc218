"""One agent's connection: the order of its readings, when each was taken, and which GPUs are known.

Node clocks are not trusted. A reading contains how long after the operator's last reply it was
taken, on a clock of the agent that only runs forward. The operator knows when that reply was sent.
The sum is never later than the true time, and earlier only by the reply's transit time. A reading
that waited in a buffer, or for a frozen operator, is therefore not taken for a fresh one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import GPU, GPUS_MAX, GPUNodeStatus
from gpujob_api.reading import ReadingMessage, ReadingReply, read_reading
from gpujob_operator.port.requests import PER_SECOND_MAX, client_limit
from gpujob_operator.rate_limit import RateLimit
from gpujob_operator.read.nouns import Dropped, read_gpus, read_status

# A quiet agent sends every 10 s, or at each of its readings if those are less frequent.
SILENT_SECONDS_MIN = 15.0
SILENT_INTERVALS = 2.0


@dataclass(frozen=True, slots=True)
class TakenReading:
    """A reading. `taken_at` is on the operator's monotonic clock.

    The agent's own time in `status` only distinguishes one reading from another.
    """

    status: GPUNodeStatus
    taken_at: float


class ReadingSession:
    """The session of one connection, in which messages cannot overtake each other."""

    def __init__(
        self, node: str, owner: str, monotonic: Callable[[], float], limit: RateLimit | None = None
    ) -> None:
        """`owner` is the agent's pod, or "" if its token is not bound to a pod. `limit` is the
        node's from earlier connections.
        """
        self.node = node
        self.owner = owner
        self._monotonic = monotonic
        self._limit = limit or client_limit(monotonic())
        self._sequence = 0
        self._replied_at = monotonic()
        # None for a GPU whose implausible reading was left out.
        self._gpus: dict[str, GPU | None] = {}
        self._interval_seconds = 0.0

    @property
    def silent_seconds_max(self) -> float:
        """A connection without a reading for this many seconds is useless."""
        return max(SILENT_SECONDS_MIN, SILENT_INTERVALS * self._interval_seconds)

    def greeting(self) -> ReadingReply:
        self._replied_at = self._monotonic()
        return ReadingReply(0, full=True)

    def take(self, text: str, dropped: Dropped) -> tuple[ReadingReply, TakenReading | None]:
        """Returns the reply, and the reading unless the reply asks for a full one.

        Raises `FieldError` for input that no agent sends. The connection is useless after that.
        """
        now = self._monotonic()
        if not self._limit.take(now):
            raise FieldError("reading", f"more than {PER_SECOND_MAX:g} a second")
        message = read_reading(text)
        expected = self._sequence + 1
        if message.head.sequence != expected:
            problem = f"must be {expected}; got {message.head.sequence}"
            raise FieldError("reading.sequence", problem)
        self._sequence = expected
        taken_at = min(self._replied_at + message.head.since_reply_seconds, now)
        self._replied_at = now
        if any(uuid not in self._gpus for uuid in message.unchanged):
            self._gpus = {}
            return ReadingReply(expected, full=True), None
        status = self._merged(message, dropped)
        self._interval_seconds = status.sample_interval_seconds
        return ReadingReply(expected), TakenReading(status, taken_at)

    def _merged(self, message: ReadingMessage, dropped: Dropped) -> GPUNodeStatus:
        gpus = {uuid: self._gpus[uuid] for uuid in message.unchanged}
        gpus |= read_gpus(message.status.get("gpus"), dropped)
        status = read_status({**message.status, "gpus": []})
        if len(gpus) > GPUS_MAX:
            raise FieldError("reading.status.gpus", f"{len(gpus)} GPUs, at most {GPUS_MAX}")
        self._gpus = gpus
        known = sorted((gpu for gpu in gpus.values() if gpu is not None), key=lambda one: one.index)
        return replace(status, gpus=tuple(known))
