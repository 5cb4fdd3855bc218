"""Requests at a Poisson rate, by which a choice is proved, and what they show.

The loop is open: a request is sent at its moment, whether earlier ones are answered or not.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Protocol

from gpujob_api.bounds import Range
from gpujob_api.codec import check
from gpujob_api.serving import Objective
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.batcher import Overloaded

REQUESTS_MAX, SECONDS_MAX = 2000, 10.0
# A backend that keeps the objective is disproved by chance in 1 % of the proofs.
CHANCE = 0.01
# For an objective of all requests: one late request of 2,000 must not disprove a backend.
LATE_SHARE_MIN = 1e-4
ANSWER_SECONDS = 10.0
# A sender that is slower than the rate ends after this many times the planned seconds.
_OVERTIME = 2.0

_Number = Annotated[int, Range(0, 10**6)]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one sample a second, and how many or how long at most."""

    rate: Annotated[float, Range(0, 10**9)]
    requests_max: Annotated[int, Range(1, 10**5)] = REQUESTS_MAX
    seconds_max: Annotated[float, Range(0, 600)] = SECONDS_MAX

    @property
    def rate_text(self) -> str:
        return f"{self.rate:,.0f}" if self.rate >= 10 else f"{self.rate:.3g}"

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the requests. `within` were answered within the objective. Those neither
    refused nor failed nor within were late.
    """

    sent: _Number = 0
    within: _Number = 0
    refused: _Number = 0
    failed: _Number = 0


class Server(Protocol):
    """The batcher. Raises `Overloaded` for a request that would be answered too late."""

    def submit(self, inputs: Tensors, samples: int) -> Future[Tensors]: ...


def moments(load: Load, seed: int = 0) -> list[float]:
    """Returns the seconds of the arrivals, ascending. Empty without a rate."""
    rng = random.Random(seed)  # noqa: S311 - arrivals are no secrets
    found: list[float] = []
    now = 0.0
    while load.rate > 0 and len(found) < load.requests_max:
        now += rng.expovariate(load.rate)
        if now > load.seconds_max:
            break
        found.append(now)
    return found


def send(
    server: Server,
    inputs: Sequence[Tensors],
    arrivals: Sequence[float],
    objective_seconds: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    answer_seconds: float = ANSWER_SECONDS,
) -> Seen:
    """Sends a request at each moment, and waits for the answers. `inputs` have one sample each.

    Latencies begin with the call of `submit`. Answers that come more than `answer_seconds` after
    the last request and the objective count as late.
    """
    counted = _Counted(objective_seconds)
    sent = refused = 0
    start = now()
    last = start + _OVERTIME * (arrivals[-1] if arrivals else 0.0)
    for number, moment in enumerate(arrivals):
        left = start + moment - now()
        if left > 0:
            sleep(left)
        begun = now()
        if begun > last:
            break
        sent += 1
        try:
            future = server.submit(inputs[number % len(inputs)], 1)
        except Overloaded:
            refused += 1
            continue
        future.add_done_callback(lambda ended, begun=begun: counted.add(ended, now() - begun))
    within, failed = counted.figures(sent - refused, objective_seconds + answer_seconds)
    return Seen(sent, within, refused, failed)


class _Counted:
    """Counts answers, which come from another thread."""

    def __init__(self, objective_seconds: float) -> None:
        self._objective_seconds = objective_seconds
        self._changed = threading.Condition()
        self._ended = self._within = self._failed = 0

    def add(self, future: Future[Tensors], seconds: float) -> None:
        failed = future.cancelled() or future.exception() is not None
        with self._changed:
            self._ended += 1
            self._failed += failed
            self._within += not failed and seconds <= self._objective_seconds
            self._changed.notify()

    def figures(self, expected: int, seconds: float) -> tuple[int, int]:
        """Returns the answers within the objective and the failed ones, once all have come or the
        seconds are over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= expected, seconds)
            return self._within, self._failed


def problem(seen: Seen, load: Load, objective: Objective) -> str | None:
    """Returns why the requests disprove a backend, or None.

    They do if a backend that keeps the objective would answer so few of them in time with a
    probability of less than 1 %: the tail of the binomial distribution.
    """
    late_share = max(1 - objective.percentile / 100, LATE_SHARE_MIN)
    if tail(seen.sent, seen.sent - seen.within, late_share) >= CHANCE:
        return None
    beside = "".join(
        f", {count:,} {what}"
        for count, what in ((seen.refused, "refused"), (seen.failed, "failed"))
        if count
    )
    return f"{text(seen, load, objective)}, {objective.percentile:g} % are needed{beside}"


def text(seen: Seen, load: Load, objective: Objective) -> str:
    """Returns the share in words. Call it with at least one request."""
    percent = 100 * seen.within / max(1, seen.sent)
    latency = f"{objective.latency_milliseconds:g} ms"
    return (
        f"{percent:.1f} % of {seen.sent:,} requests at {load.rate_text} a second"
        f" were answered within {latency}"
    )


def tail(count: int, late: int, late_share: float) -> float:
    """Returns P(X >= late) for X of the binomial distribution of `count` and `late_share`."""
    if late <= 0:
        return 1.0
    log_late, log_within = math.log(late_share), math.log1p(-late_share)
    terms = (
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(one + 1)
            - math.lgamma(count - one + 1)
            + one * log_late
            + (count - one) * log_within
        )
        for one in range(late)
    )
    return max(0.0, 1.0 - math.fsum(terms))
