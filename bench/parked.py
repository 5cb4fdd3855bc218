"""Parking and waking of one serving process, beside its cold start: the part `parked` of
`bench.services`.

A process loads a model from a file in the page cache, and an imitated operator answers its reports.
In each turn the process starts, parks, wakes and ends:

- `cold_seconds`: from the start of the process to its first answer;
- `park_seconds`: from the first reply that asks for it to the report that it is parked;
- `wake_seconds`: from the first reply that asks for it to the first answer.

Its memory is that of the GPU. Without CUDA it is that of its own process (RssAnon and RssShmem), as
a CPU card counts it, and both copies are from host memory to host memory.
"""

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from gpujob_api.report import Reply
from gpujob_api.serving import BackendName, Objective, ServingSettings

COLUMNS = (
    "turn", "cold_seconds", "park_seconds", "wake_seconds", "cold_to_wake", "awake_mib",
    "parked_mib",
)  # fmt: skip
LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.005
WIDTH = 1024
LAYER_MEBIBYTES = 4 * WIDTH * WIDTH / 2**20
HOST = "127.0.0.1"
SCRIPT = f"""
import sys
import torch
from torch import nn
import gpujob_worker
weights = torch.load(sys.argv[1], mmap=True)
model = nn.Sequential(*(
    nn.utils.skip_init(nn.Linear, {WIDTH}, {WIDTH}, bias=False) for _ in weights
))
model.load_state_dict(weights)
model.to("cuda" if torch.cuda.is_available() else "cpu")
gpujob_worker.serve(model, torch.zeros(8, {WIDTH}), name="m")
"""
_MEMORY = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+)", re.MULTILINE)


class Operator:
    """Answers all reports with one reply, and keeps the newest report."""

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}
        self._reply, self._since = Reply(0.2), 0.0
        operator = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                operator.newest = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = operator.reply().to_text().encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                del format, args

        self.server = ThreadingHTTPServer((HOST, 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{HOST}:{self.server.server_port}/report"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reply(self) -> Reply:
        self._since = self._since or time.monotonic()
        return self._reply

    def asks(self, park: bool | None) -> None:
        """Sets the reply from now on."""
        self._reply, self._since = Reply(0.2, park=park), 0.0

    def asked_at(self) -> float:
        """Returns when the first such reply was sent."""
        until(lambda: self._since > 0)
        return self._since

    @property
    def is_parked(self) -> bool:
        return self.newest["serving"].get("parkedSeconds") is not None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {LIMIT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


@contextmanager
def serving(weights: Path, port: int, operator: Operator) -> Generator[subprocess.Popen[bytes]]:
    settings = ServingSettings(
        # Nothing is refused for its latency.
        Objective(3_600_000),
        backend=BackendName.EAGER,
        port=port,
        drain_delay_seconds=0.0,
    )
    variables = {
        "GPUJOB_SERVING": settings.to_text(),
        "GPUJOB_SERVING_HOST": HOST,
        "GPUJOB_REPORT_URL": operator.url,
    }
    command = [sys.executable, "-c", SCRIPT, str(weights)]
    process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)


def answers(port: int) -> bool:
    """Sends one request. Returns whether it was answered."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_SECONDS)
    try:
        connection.request("POST", "/v2/models/m/infer", json.dumps({"inputs": [tensor]}))
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def memory_mebibytes(process: int) -> int:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return round((total - free) / 2**20)
    text = Path(f"/proc/{process}/status").read_text()
    return round(sum(map(int, _MEMORY.findall(text))) / 1024)


def play_parked(mebibytes: int, turns: int) -> list[dict[str, Any]]:
    """Returns a row for each turn."""
    operator = Operator()
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        layers = max(1, round(mebibytes / LAYER_MEBIBYTES))
        torch.save({f"{n}.weight": torch.randn(WIDTH, WIDTH) / 32 for n in range(layers)}, weights)
        rows = [_turn(turn, weights, operator) for turn in range(1, turns + 1)]
    operator.server.shutdown()
    operator.server.server_close()
    return rows


def _turn(turn: int, weights: Path, operator: Operator) -> dict[str, Any]:
    with ThreadingHTTPServer((HOST, 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    operator.asks(None)
    began = time.monotonic()
    with serving(weights, port, operator) as process:
        until(lambda: answers(port))
        cold_seconds = time.monotonic() - began
        awake = memory_mebibytes(process.pid)
        operator.asks(park=True)
        asked_at = operator.asked_at()
        until(lambda: operator.is_parked)
        park_seconds = time.monotonic() - asked_at
        parked = memory_mebibytes(process.pid)
        operator.asks(park=False)
        asked_at = operator.asked_at()
        until(lambda: answers(port))
        wake_seconds = time.monotonic() - asked_at
    return {
        "turn": turn,
        "cold_seconds": round(cold_seconds, 3),
        "park_seconds": round(park_seconds, 3),
        "wake_seconds": round(wake_seconds, 3),
        "cold_to_wake": round(cold_seconds / wake_seconds, 1),
        "awake_mib": awake,
        "parked_mib": parked,
    }


def summary(rows: list[dict[str, Any]], mebibytes: int) -> str:
    medians = {name: statistics.median(row[name] for row in rows) for name in COLUMNS[1:]}
    copies = "GPU" if torch.cuda.is_available() else "CPU, copies from host to host"
    return (
        f"{mebibytes} MiB of weights ({copies}): parked in {medians['park_seconds']:.2f} s, first "
        f"answer {medians['wake_seconds']:.2f} s after the reply, {medians['cold_to_wake']:.0f} "
        f"times sooner than a cold start ({medians['cold_seconds']:.1f} s), median of {len(rows)}"
    )
