"""Sends reports to the operator from a background thread. Training waits only for the answer to the
first one, and not for long.

Only the newest report is kept, because an older one is useless then. The token is read again for
every report, because the kubelet renews it.
"""

import contextlib
import json
import os
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpujob_api.codec import FieldError
from gpujob_api.report import Reply, Report

REQUEST_SECONDS_MAX = 5.0
INTERVAL_SECONDS_RANGE = (0.2, 60.0)
# Without an operator the pauses grow up to the smaller one of both. A parked replica has a short
# interval, because it wakes by a reply.
RETRY_SECONDS_MAX = 30.0
RETRY_INTERVALS_MAX = 5.0
# Seconds between two requests whether the attempt may begin.
ASK_PAUSE_SECONDS = 0.5
REPLY_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Destination:
    """The address of the reports, and the file with the bearer token that identifies the pod."""

    url: str
    token_file: Path | None = None


class Reporter:
    """Posts `snapshot()` at every interval, and at once when woken, and passes replies to
    `on_reply`.

    If the snapshot is None, there is nothing more to report.
    """

    def __init__(
        self,
        destination: Destination | None,
        snapshot: Callable[[], Report | None],
        on_reply: Callable[[Reply], None],
    ) -> None:
        self._destination = destination
        self._snapshot = snapshot
        self._on_reply = on_reply
        self._interval_seconds = 2.0
        self._failures = 0
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        # Jitter. The script's own generator is not touched.
        self._random = random.Random(os.getpid())  # noqa: S311

    def start(self) -> None:
        if self._destination is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="gpujob-report", daemon=True)
        self._thread.start()

    def ask(self, seconds: float) -> bool:
        """Sends reports until one is answered, for at most `seconds`.

        Returns True once one is answered, or if there is no operator. Call it before `start`.
        """
        if self._destination is None:
            return True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            report = self._snapshot()
            if report is None:
                return True
            if not name_is_known(self._destination.url, left):
                continue
            left = max(ASK_PAUSE_SECONDS, deadline - time.monotonic())
            if self._send(report, min(left, REQUEST_SECONDS_MAX)):
                return True
            time.sleep(min(ASK_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))
        return False

    def wake(self) -> None:
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Sends the last report, and returns after at most `seconds`."""
        thread = self._thread
        if thread is None or os.getpid() != self._process:
            return
        self._closing = True
        self._wake.set()
        thread.join(seconds)

    def _run(self) -> None:
        while True:
            closing = self._closing
            report = self._snapshot()
            if report is None:
                return
            self._send(report)
            if closing:
                return
            if not self._closing:
                self._wake.wait(self._pause_seconds())
            self._wake.clear()

    def _pause_seconds(self) -> float:
        if not self._failures:
            return self._interval_seconds
        intervals = min(RETRY_INTERVALS_MAX, 2.0 ** min(self._failures, 6))
        backoff = min(RETRY_SECONDS_MAX, self._interval_seconds * intervals)
        return backoff * self._random.uniform(0.5, 1.0)

    def _send(self, report: Report, seconds: float | None = None) -> bool:
        """Returns whether the report was answered."""
        assert self._destination is not None
        try:
            reply = post(self._destination, report, seconds)
        except (OSError, ValueError, urllib.error.URLError):
            self._failures += 1
            return False
        self._failures = 0
        low, high = INTERVAL_SECONDS_RANGE
        self._interval_seconds = min(max(reply.interval_seconds, low), high)
        self._on_reply(reply)
        return True


# A proxy from the environment of the image or the job would get the token, and rarely reaches a
# Service.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def name_is_known(url: str, seconds: float) -> bool:
    """Returns whether the lookup of a host's address ended within this many seconds, even without a
    result.

    The system takes no timeout, and tries each domain of its search list if no name server answers.
    """
    ended = threading.Event()

    def search() -> None:
        with contextlib.suppress(OSError):
            socket.getaddrinfo(urlsplit(url).hostname, None)
        ended.set()

    threading.Thread(target=search, name="gpujob-name", daemon=True).start()
    return ended.wait(seconds)


def post(destination: Destination, report: Report, seconds: float | None = None) -> Reply:
    """Makes one POST, given up after `seconds`. Raises `OSError` if it does not arrive, and
    `ValueError` for an invalid reply.
    """
    headers = {"Content-Type": "application/json"}
    if destination.token_file is not None:
        token = destination.token_file.read_text().strip()
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked when it was read
        destination.url, data=report.to_text().encode(), headers=headers, method="POST"
    )
    try:
        with _DIRECT.open(request, timeout=seconds or REQUEST_SECONDS_MAX) as answer:
            text = answer.read(REPLY_BYTES_MAX).decode()
    except urllib.error.HTTPError as error:
        # The error is also the connection. Python 3.14 warns if it is not closed.
        error.close()
        raise
    try:
        return Reply.from_text(text) if text.strip() else Reply()
    except (json.JSONDecodeError, FieldError, UnicodeDecodeError) as error:
        raise ValueError(f"the reply cannot be read: {error}") from None


def write_termination_message(path: Path | None, report: Report, *, ours: bool = False) -> None:
    """Writes the last report where the kubelet reads it. An error here is not the job's failure.

    With `ours`, a failure that is already there was written by this process.
    """
    if path is None or (not ours and _another_failed(path, report)):
        return
    with contextlib.suppress(OSError):
        path.write_text(report.termination_message())


def _another_failed(path: Path, report: Report) -> bool:
    """Returns whether another process has already reported a failure.

    If one process fails, the others do too, and the first one's reason must not be overwritten.
    """
    try:
        written = Report.from_text(path.read_text())
    except (OSError, ValueError, FieldError):
        return False
    return written.attempt == report.attempt and written.failure is not None
