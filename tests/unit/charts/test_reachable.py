"""The program of `helm test`, against servers that answer as an operator does."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.harness.repository import ROOT

PROGRAM = ROOT / "charts" / "gpujob" / "files" / "reachable.py"
METRICS = "# HELP gpujob_leader x\ngpujob_leader 1.0\n"


@contextmanager
def operator(
    metrics: str = METRICS, *, reports: tuple[int, ...], unready: str = ""
) -> Generator[str]:
    """Answers reports with these codes, the last one again and again."""
    codes = list(reports)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == unready:
                self._answer(503, '{"ready": false, "waitingFor": ["a list of GPUJob"]}')
            else:
                self._answer(200, metrics if self.path == "/metrics" else "{}")

        def do_POST(self) -> None:
            self._answer(codes.pop(0) if len(codes) > 1 else codes[0])

        def _answer(self, code: int, text: str = "") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(url: str, seconds: str = "60") -> "subprocess.CompletedProcess[str]":
    addresses = {"METRICS_URL": url, "REPORT_URL": f"{url}/report"}
    environment = {**os.environ, **addresses, "SECONDS_MAX": seconds}
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_an_operator_that_refuses_is_well() -> None:
    with operator(reports=(401,)) as url:
        done = run(url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "report without a token 401" in done.stdout


def test_a_replica_that_does_not_lead_is_not_the_last_word() -> None:
    with operator(reports=(503, 401)) as url:
        assert run(url).returncode == 0


@pytest.mark.parametrize("path", ["/readyz/events", "/readyz", "/healthz"])
def test_an_operator_that_hears_nothing_fails_and_says_of_what(path: str) -> None:
    with operator(reports=(401,), unready=path) as url:
        done = run(url, seconds="0")
    assert done.returncode == 1
    assert "answered 503" in done.stderr
    assert "a list of GPUJob" in done.stderr


def test_an_operator_that_takes_a_report_without_a_token_fails() -> None:
    with operator(reports=(200,)) as url:
        done = run(url)
    assert done.returncode == 1
    assert "answered 200" in done.stderr


def test_a_server_without_our_metrics_fails() -> None:
    with operator("up 1\n", reports=(401,)) as url:
        done = run(url)
    assert done.returncode == 1
    assert "no gpujob_ metric" in done.stderr
