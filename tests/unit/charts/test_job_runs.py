"""The program of `helm test` that runs a GPUJob, against what answers as an API server does."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.harness.repository import ROOT

PROGRAM = ROOT / "charts" / "gpujob" / "files" / "job_runs.py"
JOB = {"metadata": {"name": "probe", "namespace": "system"}, "spec": {}}
NODE = {"metadata": {"name": "node-a"}, "status": {"gpus": [{"uuid": "GPU-1"}]}}


def status(phase: str, reason: str = "", **conditions: str) -> dict[str, Any]:
    """Conditions that are true, with their messages."""
    listed = [{"type": t, "status": "True", "message": m} for t, m in conditions.items()]
    return {"phase": phase, "summary": {"reason": reason}, "conditions": listed}


DONE = status("Succeeded", "Succeeded", Finished="", Succeeded="done")


@dataclass
class Server:
    """Answers reads of the job with these in turn, the last one again and again."""

    statuses: Sequence[dict[str, Any]] = (DONE,)
    nodes: Sequence[dict[str, Any]] = (NODE,)
    refuses: str = ""
    there: bool = False
    url: str = ""
    calls: list[str] = field(default_factory=list[str])

    def answer(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        name = path.rpartition("/")[2]
        self.calls.append(f"{method} {name}")
        if name == "gpunodes":
            return 200, {"items": list(self.nodes)}
        if method == "POST":
            self.there = not self.refuses
            return (403, {"message": self.refuses}) if self.refuses else (201, {})
        if not self.there:
            return 404, {}
        if method == "DELETE":
            self.there = False
            return 200, {}
        reads = sum(call == "GET probe" for call in self.calls)
        return 200, {"status": self.statuses[min(reads, len(self.statuses)) - 1]}


@contextmanager
def serving(server: Server) -> Generator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            assert self.headers["Authorization"] == "Bearer a-token"
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            code, found = server.answer(self.command, self.path)
            body = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the base's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Tests are quiet."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{running.server_port}"
    try:
        yield server
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def run(server: Server, folder: Path, seconds: str = "60") -> "subprocess.CompletedProcess[str]":
    (folder / "token").write_text("a-token")
    with serving(server):
        values = {
            "JOB": json.dumps(JOB),
            "API_SERVER": server.url,
            "ACCOUNT_DIRECTORY": str(folder),
            "SECONDS_MAX": seconds,
            "PAUSE_SECONDS": "0.01",
        }
        return subprocess.run(
            [sys.executable, "-I", str(PROGRAM)],
            env={**os.environ, **values},
            capture_output=True,
            text=True,
            timeout=60,
        )


def test_a_job_that_succeeds_is_told_of_and_removed(tmp_path: Path) -> None:
    server = Server(
        [status("Pending", "InsufficientCapacity: busy"), status("Running", "WorkersRunning"), DONE]
    )
    done = run(server, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = ["1 nodes with 1 GPUs", "Pending: InsufficientCapacity: busy", "Running: WorkersRunning"]
    assert done.stdout.splitlines() == [*told, "Succeeded: Succeeded", "the job succeeded"]
    assert not server.there


def test_a_job_of_an_earlier_test_is_removed_first(tmp_path: Path) -> None:
    server = Server(there=True)
    assert run(server, tmp_path).returncode == 0
    assert server.calls.index("DELETE probe") < server.calls.index("POST gpujobs")


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(nodes=[]), "no node has joined: kubectl label node"),
        (Server(nodes=[{"metadata": {"name": "node-a"}}]), "kubectl describe gpunode node-a"),
        (Server(refuses="no such right"), "creating the job: answered 403 no such right"),
        (
            Server([status("Failed", Finished="", Failed="exit code 1")]),
            "the job failed: exit code 1 (kubectl gpujob why probe --namespace system)",
        ),
    ],
    ids=["no node", "no GPU", "refused", "failed"],
)
def test_what_hinders_is_said(tmp_path: Path, server: Server, words: str) -> None:
    done = run(server, tmp_path)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_job_that_does_not_end_says_what_it_waits_for(tmp_path: Path) -> None:
    server = Server([status("Pending", "InsufficientCapacity: 1 GPU is busy")])
    done = run(server, tmp_path, seconds="0")
    assert done.returncode == 1
    assert "no end after 0 s; the job says: InsufficientCapacity: 1 GPU is busy" in done.stderr
    assert server.there, "so that it can be looked at"
