"""The operator's Prometheus metrics, in a separate registry without global state."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The series of one operator process, except those of its snapshot (`telemetry.gauges`).

    Labels come from small closed sets.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._add_timings(registry)
        self._add_counters(registry)
        self._add_gauges(registry)
        self._add_write_gauges(registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _add_timings(self, registry: CollectorRegistry) -> None:
        self.cycle_seconds = Histogram(
            "gpujob_cycle_seconds",
            "One scheduling cycle: snapshot, plan, and the start of its writes.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.plan_seconds = Histogram(
            "gpujob_plan_seconds",
            "The plan of one cycle, without snapshot and writes.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.write_seconds = Histogram(
            "gpujob_write_seconds",
            "One write to the API, retries included.",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )

    def _add_counters(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "gpujob_writes",
            "Writes by plan item and result (done, conflict, gone, refused, failed, not_leader,"
            " overtaken).",
            ["kind", "result"],
            registry=registry,
        )
        self.write_retries = Counter(
            "gpujob_write_retries",
            "Retries of writes after 429, 5xx or a lost connection.",
            registry=registry,
        )
        self.watch_events = Counter(
            "gpujob_watch_events", "Watch events by kind.", ["kind"], registry=registry
        )
        self.watch_restarts = Counter(
            "gpujob_watch_restarts",
            "Restarts of watches, by stream and reason.",
            ["stream", "reason"],
            registry=registry,
        )
        self.cycle_errors = Counter(
            "gpujob_cycle_errors", "Cycles that raised an exception.", registry=registry
        )
        self.unreadable = Counter(
            "gpujob_unreadable_objects",
            "Objects and events that were ignored because they are unreadable.",
            ["kind", "reason"],
            registry=registry,
        )
        self.part_restarts = Counter(
            "gpujob_part_restarts",
            "Restarts of parts of the process that failed or ended.",
            ["part"],
            registry=registry,
        )
        self.readings_dropped = Counter(
            "gpujob_readings_dropped",
            "Implausible readings of GPUs or processes that were ignored.",
            ["reason"],
            registry=registry,
        )
        self.events_lost = Counter(
            "gpujob_events_lost",
            "Kubernetes events that were not posted.",
            ["reason"],
            registry=registry,
        )
        self.reports = Counter(
            "gpujob_reports",
            "Worker reports by result.",
            ["result"],
            registry=registry,
        )
        self.readings = Counter(
            "gpujob_readings",
            "Readings that agents sent directly, and refused connections, by result.",
            ["result"],
            registry=registry,
        )

    def _add_write_gauges(self, registry: CollectorRegistry) -> None:
        self.placements = Counter(
            "gpujob_placements",
            "Attempts of jobs whose placement took effect.",
            registry=registry,
        )
        self.resumes_refused = Counter(
            "gpujob_resumes_refused",
            "Attempts that found that their checkpoint did not bring the run back exactly.",
            registry=registry,
        )
        self.start_ranges = Counter(
            "gpujob_start_ranges",
            "Jobs that started, by whether the first range of their expected start held.",
            ["held"],
            registry=registry,
        )
        self.start_range_draws = Gauge(
            "gpujob_start_range_draws",
            "Simulated futures of the last calculation of start ranges.",
            registry=registry,
        )
        self.overtaken_writes = Counter(
            "gpujob_overtaken_writes",
            "Statuses that were not sent, because a newer one was there before their turn.",
            registry=registry,
        )
        self.write_lanes = Gauge(
            "gpujob_write_lanes",
            "Jobs, queues and profiles with writes under way.",
            registry=registry,
        )
        self.write_backoffs = Gauge(
            "gpujob_write_backoffs",
            "Objects whose last write was refused and is in back-off.",
            registry=registry,
        )
        self.writes_in_doubt = Gauge(
            "gpujob_writes_in_doubt",
            "Writes without an answer that are being confirmed.",
            registry=registry,
        )

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        self.agent_connections = Gauge(
            "gpujob_agent_connections",
            "Agents that send their readings directly.",
            registry=registry,
        )
        self.leader = Gauge(
            "gpujob_leader", "1 while this process is the leader.", registry=registry
        )
        self.last_cycle = Gauge(
            "gpujob_last_cycle_timestamp_seconds",
            "Unix time of the last completed cycle.",
            registry=registry,
        )
