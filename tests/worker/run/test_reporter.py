"""Reports reach the operator with the token, and never hold up or fail the training."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.report import (
    STOP_ATTEMPT_OVER,
    TERMINATION_MESSAGE_BYTES_MAX,
    Reply,
    Report,
    StopRequest,
    WorkerPhase,
)
from gpujob_api.settings import EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.run import reporter
from gpujob_worker.run import session as session_module
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.reporter import Destination, Reporter, post, write_termination_message
from gpujob_worker.run.session import Session
from tests.harness.report_receiver import Operator

pytestmark = pytest.mark.any_torch


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_the_token_is_read_again_for_every_report(operator: Operator, tmp_path: Path) -> None:
    token = tmp_path / "token"
    destination = Destination(operator.url, token)
    for text in ("first\n", "second"):
        token.write_text(text)
        post(destination, Report(attempt=2, phase=WorkerPhase.TRAINING, step=5))
    assert [got[0] for got in operator.received] == ["Bearer first", "Bearer second"]
    assert operator.received[0][1]["step"] == 5
    assert operator.received[0][1]["phase"] == "training"


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_no_proxy_sees_the_token(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nobody listens at this one."""
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    post(Destination(operator.url, None), Report(attempt=1, phase=WorkerPhase.TRAINING))
    assert len(operator.received) == 1


def test_a_session_reports_and_obeys_a_stop(operator: Operator, tmp_path: Path) -> None:
    reply = Reply(interval_seconds=0.2, stop=StopRequest("Reclaimed", 30.0))
    operator.answers = [
        (200, Reply(interval_seconds=0.2).to_text().encode()),
        (200, reply.to_text().encode()),
    ]
    environment = Environment(report_url=operator.url, termination_file=tmp_path / "message")
    session = Session(environment)
    session.start()
    wait_for(lambda: session.stop.requested)
    assert session.stop.reason == "Reclaimed"
    assert 20 < session.stop.remaining_seconds() <= 30
    session.finish(None)
    assert operator.received[-1][1]["phase"] == "draining", "told to stop, it did not finish"
    sequences = [got[1]["sequence"] for got in operator.received]
    assert sequences == sorted(set(sequences))
    assert json.loads((tmp_path / "message").read_text())["phase"] == "draining"


def test_errors_and_nonsense_are_survived_with_pauses(operator: Operator) -> None:
    operator.answers = [
        (500, b""),
        (200, b"[1]"),
        (200, b"\xff"),
        (200, b'{"stop":{}}'),
        (200, b'{"unknown":1,"intervalSeconds":0.2}'),
    ]
    replies: list[Reply] = []
    reporter = Reporter(
        Destination(operator.url), lambda: Report(1, WorkerPhase.TRAINING), replies.append
    )
    reporter.start()
    for _ in range(5):
        reporter.wake()
        count = len(operator.received)
        wait_for(lambda count=count: len(operator.received) > count or bool(replies))
    wait_for(lambda: bool(replies))
    assert replies[0] == Reply(interval_seconds=0.2)
    reporter.close(5.0)


def test_an_operator_that_never_answers_costs_the_training_a_bounded_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Far more than a crowded machine adds: who waited for the answer would be seen.
    monkeypatch.setattr(reporter, "REQUEST_SECONDS_MAX", 90.0)
    monkeypatch.setattr(session_module, "FENCE_SECONDS_MAX", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        session = Session(Environment(report_url=f"http://127.0.0.1:{silent.getsockname()[1]}/"))
        start = time.monotonic()
        session.start()
        for _ in range(100):
            session.reporter.wake()
        session.finish(RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB"))
        assert time.monotonic() - start < 60.0
        assert session.state.failure is not None
        assert session.state.failure.failure_class.value == "OutOfMemory"
        assert any("did not answer within" in line for line in session.log.lines)


def test_a_search_for_a_name_that_does_not_end_costs_the_training_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where packets to name servers are dropped: the system's search takes no limit."""
    over = threading.Event()

    def search(*_arguments: Any, **_options: Any) -> list[Any]:
        over.wait(40.0)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")

    monkeypatch.setattr(socket, "getaddrinfo", search)
    session = Session(Environment(report_url="http://gpujob-reports.gpujob-system.svc:8080/report"))
    monkeypatch.setattr(session_module, "FENCE_SECONDS_MAX", 0.5)
    start = time.monotonic()
    session.start()
    assert time.monotonic() - start < 20.0
    assert any("did not answer within" in line for line in session.log.lines)
    over.set()
    session.finish(None)


@pytest.mark.promise("I3")
def test_an_attempt_that_was_given_up_never_begins(operator: Operator, tmp_path: Path) -> None:
    """I3: its pod came to life after another leader had gone on without it."""
    over = Reply(stop=StopRequest(STOP_ATTEMPT_OVER, 0.0)).to_text()
    script = tmp_path / "script.py"
    script.write_text(
        "from gpujob_worker.run.environment import Environment\n"
        "from gpujob_worker.run.session import Session\n"
        f"Session(Environment(report_url={operator.url!r})).start()\n"
        f"open({str(tmp_path / 'trained')!r}, 'w').close()\n"
    )
    operator.answers = [(503, b"{}"), (200, over.encode())]
    ended = subprocess.run([sys.executable, str(script)], check=False, timeout=60)
    assert ended.returncode == EXIT_INTERRUPTED_UNSAVED
    assert not (tmp_path / "trained").exists()
    assert len(operator.received) >= 2, "a refusal is no answer"
    operator.answers = []
    ended = subprocess.run([sys.executable, str(script)], check=False, timeout=60)
    assert ended.returncode == 0
    assert (tmp_path / "trained").exists()


def test_a_missing_token_is_no_failure(operator: Operator, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        post(Destination(operator.url, tmp_path / "none"), Report(1, WorkerPhase.TRAINING))
    assert operator.received == []


def test_the_termination_message_fits(tmp_path: Path) -> None:
    path = tmp_path / "message"
    explain = tuple(f"item {n} applied: {'x' * 250}" for n in range(64))
    write_termination_message(path, Report(1, WorkerPhase.FINISHED, explain=explain, step=9))
    assert path.stat().st_size <= TERMINATION_MESSAGE_BYTES_MAX
    assert json.loads(path.read_text())["step"] == 9
    write_termination_message(tmp_path / "no" / "folder", Report(1, WorkerPhase.FINISHED))
    write_termination_message(None, Report(1, WorkerPhase.FINISHED))


@pytest.mark.parametrize(
    ("interval_seconds", "most_seconds"), [(0.2, 1), (1, 5), (2, 10), (60, 30)]
)
def test_without_an_operator_the_pauses_grow_to_a_few_intervals(
    interval_seconds: float, most_seconds: float
) -> None:
    """A parked replica wakes by the reply to its next report."""
    reporter = Reporter(None, lambda: None, lambda _: None)
    reporter._interval_seconds = interval_seconds
    assert reporter._pause_seconds() == interval_seconds
    pauses: list[float] = []
    for failures in range(1, 100):
        reporter._failures = failures
        pauses.append(reporter._pause_seconds())
    assert pauses[0] <= min(2 * interval_seconds, most_seconds)
    assert most_seconds / 2 <= max(pauses) <= most_seconds
