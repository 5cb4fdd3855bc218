"""The shares of time that trainings yield, from the reports of services to the replies."""

from collections.abc import Callable
from dataclasses import replace

from gpujob_api.gpujob import GPUJob
from gpujob_api.report import WorkerPhase
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.model.snapshot import ReceivedReport
from gpujob_operator.decide.model.yielding import FRESH_SECONDS, STEP_SECONDS
from gpujob_operator.port.yields import PERIOD_SECONDS, Yields
from tests.harness.builders import make_job, make_report, running
from tests.harness.clocks import FakeClock

SERVICE = running(make_job("digits-0"))
TRAINING = running(make_job("train"))


class Port:
    """The newest reports, as the report port keeps them."""

    def __init__(self, interval_seconds: float = 2.0) -> None:
        self.interval_seconds = interval_seconds
        self.clock = FakeClock()
        self.jobs = {job.metadata.uid: job for job in (SERVICE, TRAINING)}
        self.newest: dict[str, ReceivedReport] = {}
        self.reads = 0
        self.yields = self.restarted()

    def restarted(self) -> Yields:
        def reports() -> tuple[ReceivedReport, ...]:
            self.reads += 1
            return tuple(self.newest.values())

        clock = self.clock
        job_of: Callable[[str], GPUJob | None] = self.jobs.get
        return Yields(
            reports,
            job_of,
            interval_seconds=self.interval_seconds,
            now=clock.now,
            monotonic=clock.monotonic,
        )

    def report(self, needed_percent: float) -> None:
        """The replica reports."""
        serving = ServingReport(ready=True, needed_percent=needed_percent)
        report = make_report(phase=WorkerPhase.SERVING, serving=serving)
        uid = SERVICE.metadata.uid
        self.newest[uid] = ReceivedReport(uid, 0, self.clock.now(), report)
        self.yields.watch()

    def percent(self, seconds: float = PERIOD_SECONDS) -> int:
        """Returns the share in the reply to the training's report after this time."""
        self.clock.advance(seconds)
        uid = TRAINING.metadata.uid
        report = make_report(yielded_seconds=0.0)
        self.newest[uid] = ReceivedReport(uid, 0, self.clock.now(), report)
        return self.yields.percent(uid)


def test_without_a_service_no_report_is_looked_at() -> None:
    port = Port()
    assert [port.percent() for _ in range(10)] == [0] * 10
    assert (port.yields.current(), port.reads) == ((), 0)


def test_reports_are_looked_through_once_a_second() -> None:
    port = Port()
    port.report(95)
    assert [port.percent(0.1) for _ in range(20)][-1] == 10
    assert port.reads == 2


def test_a_service_in_need_gets_time_and_gives_it_back() -> None:
    port = Port()
    shares: list[int] = []
    for needed in (95, 95, 95, 80, 60, 60, 60):
        port.report(needed)
        shares.append(port.percent(STEP_SECONDS))
    assert shares == [10, 20, 30, 30, 20, 10, 0]


def test_with_rare_reports_each_step_still_shows_its_effect_before_the_next_one() -> None:
    port = Port(interval_seconds=30)
    shares: list[int] = []
    for _ in range(7):
        port.report(95)
        shares.append(port.percent(29))
        port.clock.advance(1)
    assert shares == [10, 10, 10, 20, 20, 20, 30]


def test_a_replica_that_no_longer_reports_or_is_gone_gets_none() -> None:
    port = Port()
    port.report(95)
    assert port.percent() == 10
    assert port.percent(FRESH_SECONDS) == 0, "its last report is too old"
    port.report(95)
    assert port.percent() == 10
    del port.jobs[SERVICE.metadata.uid]
    assert port.percent() == 0
    assert port.yields.current() == ()


def test_a_new_operator_begins_at_the_first_step() -> None:
    port = Port()
    for _ in range(3):
        port.report(95)
        assert port.percent(STEP_SECONDS) > 0
    port.yields = port.restarted()
    assert port.percent() == 0, "no replica has reported to it"
    port.report(95)
    assert port.percent() == 10


def test_a_training_that_ended_yields_no_more() -> None:
    port = Port()
    port.report(95)
    assert port.percent() == 10
    port.jobs[TRAINING.metadata.uid] = replace(
        TRAINING, status=replace(TRAINING.status, placement=None)
    )
    assert port.percent() == 0
