"""How many start ranges held: the newest outcomes, also of jobs that are deleted meanwhile."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.starts import Outcomes, Result, newest, outcomes_among, results_of
from gpujob_operator.telemetry.metrics import Metrics


@dataclass(slots=True)
class Score:
    """The outcomes that one leader has seen. The first look restores those of earlier leaders."""

    metrics: Metrics
    _results: dict[str, Result] | None = field(default=None)

    def look(self, jobs: Iterable[GPUJob]) -> Outcomes:
        """Adds the outcomes of these jobs. Returns all that count."""
        before = self._results
        self._results = newest({**(before or {}), **results_of(jobs)})
        if before is not None:
            for uid in self._results.keys() - before.keys():
                held = "true" if self._results[uid].held else "false"
                self.metrics.start_ranges.labels(held).inc()
        return outcomes_among(self._results)
