"""What a serving process reports about itself."""

from collections.abc import Callable
from dataclasses import dataclass

from gpujob_api.serving import BackendName, Choice, ServingReport
from gpujob_api.settings import Precision
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.lifecycle import Lifecycle


@dataclass(slots=True)
class ServingState:
    """The parts of a serving process, as they come into being."""

    lifecycle: Lifecycle
    batcher: Batcher | None = None
    backend: str = BackendName.EAGER.value
    precision: Precision = Precision.FLOAT32
    choice: Choice | None = None
    # Returns how many requests were refused before they reached the batcher.
    refused: Callable[[], int] = lambda: 0
    # The last reply of the operator about it.
    shared: bool = False

    def serves(self, batcher: Batcher, backend: str, precision: Precision) -> None:
        self.batcher, self.backend, self.precision = batcher, backend, precision
        batcher.shared = self.shared

    def chose(self, choice: Choice) -> None:
        """Sets the result of a measurement."""
        self.choice = choice

    def counts_refusals(self, count: Callable[[], int]) -> None:
        """Sets what counts the requests that are refused before they reach the batcher."""
        self.refused = count

    def share(self, shared: bool) -> None:
        """Sets whether other jobs hold a part of the GPU."""
        self.shared = shared
        if self.batcher is not None:
            self.batcher.shared = shared

    def park(self, parks: bool | None) -> None:
        """Parks or wakes, once the batcher can. A process that loads or ends does neither."""
        if self.batcher is not None and self.lifecycle.is_ready:
            self.batcher.park(parks)

    def report(self) -> ServingReport:
        if self.batcher is None:
            return ServingReport(backend=self.backend, precision=self.precision, choice=self.choice)
        known = self.batcher.statistics()
        return ServingReport(
            ready=self.lifecycle.is_ready,
            can_park=known.can_park and self.lifecycle.is_ready,
            parked_seconds=known.parked_seconds,
            answered=known.answered,
            failed=known.failed,
            refused=known.refused + self.refused(),
            queued=known.queued,
            recent_requests=known.recent_requests,
            recent_failed=known.recent_failed,
            recent_error=known.recent_error,
            requests_per_second=known.requests_per_second,
            samples_per_second=known.samples_per_second,
            within_objective_percent=known.within_objective_percent,
            latency=known.latency,
            needed_percent=known.needed_percent,
            busy_percent=known.busy_percent,
            batch_samples=known.batch_samples,
            time=known.time,
            policy=known.policy,
            backend=self.backend,
            precision=self.precision,
            choice=self.choice,
        )
