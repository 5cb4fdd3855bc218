"""What a process reports, and that the last report fits into a termination message."""

from typing import cast

import pytest

from gpujob_api.report import TERMINATION_MESSAGE_BYTES_MAX, Reply, Report, WorkerPhase
from gpujob_api.serving import (
    CANDIDATES_MAX,
    BackendName,
    BatchingPolicy,
    BatchTime,
    Candidate,
    Choice,
    RequestLatency,
    ServingReport,
)
from gpujob_api.settings import Precision
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.lifecycle import Lifecycle, Stage
from gpujob_worker.serving.metrics import metrics_text
from gpujob_worker.serving.reports import ServingState
from gpujob_worker.serving.statistics import BatcherStatistics

KNOWN = BatcherStatistics(
    answered=12_345_678,
    failed=2,
    refused=3,
    queued=4,
    recent_requests=40,
    recent_failed=20,
    recent_error="ValueError: no",
    requests_per_second=5.5,
    samples_per_second=6.5,
    within_objective_percent=99.5,
    latency=RequestLatency(1.0, 2.0, 3.0),
    needed_percent=91.5,
    busy_percent=7.0,
    batch_samples=8.0,
    time=BatchTime(1.5, 0.25),
    policy=BatchingPolicy.DEADLINE,
    can_park=True,
    parked_seconds=12.5,
)


class KnownBatcher:
    shared = False

    def __init__(self) -> None:
        self.parks: list[bool | None] = []

    def park(self, parks: bool | None) -> None:
        self.parks.append(parks)

    def statistics(self) -> BatcherStatistics:
        return KNOWN


def test_a_report_from_loading_to_the_end() -> None:
    state = ServingState(Lifecycle())
    assert state.report() == ServingReport()
    state.share(True)
    batcher = KnownBatcher()
    state.serves(cast("Batcher", batcher), "Compile", Precision.BFLOAT16)
    assert batcher.shared, "a reply before the model was loaded counts"
    state.share(False)
    assert not batcher.shared
    state.counts_refusals(lambda: 10)
    assert not state.report().ready
    assert not state.report().can_park, "it answers nothing yet"
    state.lifecycle.enter(Stage.SERVING)
    assert state.report() == ServingReport(
        ready=True,
        can_park=True,
        parked_seconds=12.5,
        answered=12_345_678,
        failed=2,
        refused=13,
        queued=4,
        recent_requests=40,
        recent_failed=20,
        recent_error="ValueError: no",
        requests_per_second=5.5,
        samples_per_second=6.5,
        within_objective_percent=99.5,
        latency=RequestLatency(1.0, 2.0, 3.0),
        needed_percent=91.5,
        busy_percent=7.0,
        batch_samples=8.0,
        time=BatchTime(1.5, 0.25),
        policy=BatchingPolicy.DEADLINE,
        backend="Compile",
        precision=Precision.BFLOAT16,
    )
    state.lifecycle.enter(Stage.DRAINING)
    assert not state.report().ready
    assert not state.report().can_park


def test_replies_park_and_wake_what_answers_and_nothing_else() -> None:
    state, batcher = ServingState(Lifecycle()), KnownBatcher()
    session = Session(Environment())
    session.serves(state.report, state.share, state.park)
    reply = session.reporter._on_reply
    reply(Reply(park=True))
    state.serves(cast("Batcher", batcher), "Eager", Precision.FLOAT32)
    reply(Reply(park=True))
    assert batcher.parks == [], "it is loading"
    state.lifecycle.enter(Stage.SERVING)
    for park in (None, True, None, False):
        reply(Reply(park=park))
    assert batcher.parks == [None, True, None, False]
    state.lifecycle.enter(Stage.DRAINING)
    reply(Reply(park=True))
    assert batcher.parks == [None, True, None, False], "its requests are accepted until the end"


def test_stages_only_move_forward() -> None:
    lifecycle = Lifecycle()
    for stage in (Stage.DRAINING, Stage.SERVING, Stage.LOADING):
        lifecycle.enter(stage)
        assert lifecycle.stage is Stage.DRAINING
    assert lifecycle.ends
    assert not lifecycle.refuses


def test_every_metric_has_its_type_and_exact_counts() -> None:
    report = ServingReport(ready=True, latency=KNOWN.latency, within_objective_percent=99.5)
    text = metrics_text(report, {200: 12_345_678, 503: 1}, 7)
    lines = text.splitlines()
    assert "gpujob_serving_parked 0" in lines
    assert "gpujob_serving_parked 1\n" in metrics_text(ServingReport(parked_seconds=0.0), {}, 0)
    assert 'gpujob_serving_responses_total{code="200"} 12345678' in lines
    assert 'gpujob_serving_latency_seconds{quantile="0.99"} 0.003' in lines
    assert "gpujob_serving_requests_in_progress 7" in lines
    series = {line.split(" ")[0].split("{")[0] for line in lines if not line.startswith("#")}
    typed = {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}
    assert series == typed
    assert "gpujob_serving_batch_samples" not in typed, "it is not known without a batch"


@pytest.mark.parametrize("characters", [0, 20, 256])
def test_a_long_choice_leaves_the_message_valid(characters: int) -> None:
    one = Candidate("AOTInductor", Precision.BFLOAT16, accepted=False, reason="x" * characters)
    choice = Choice(
        BackendName.COMPILE,
        Precision.FLOAT32,
        reason="y" * 4 * characters,
        candidates=(one,) * CANDIDATES_MAX,
    )
    report = Report(1, WorkerPhase.FINISHED, serving=ServingReport(choice=choice))
    message = report.termination_message()
    assert len(message.encode()) <= TERMINATION_MESSAGE_BYTES_MAX
    found = Report.from_text(message).serving
    assert found is not None
    assert found.choice is not None
    assert found.choice.backend is BackendName.COMPILE
    assert found.choice.candidates


@pytest.mark.parametrize("sign", ["x", "\N{CJK RADICAL REPEAT}", "\0"])
def test_a_long_error_leaves_the_message_valid(sign: str) -> None:
    serving = ServingReport(recent_failed=3, recent_error=256 * sign)
    report = Report(1, WorkerPhase.FINISHED, serving=serving, explain=(512 * sign,) * 8)
    message = report.termination_message()
    assert len(message.encode()) <= TERMINATION_MESSAGE_BYTES_MAX
    found = Report.from_text(message).serving
    assert found is not None
    assert found.recent_failed == 3
    assert found.recent_error
