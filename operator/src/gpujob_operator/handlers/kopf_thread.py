"""Runs kopf in a thread: starts it, restarts it when it ends, and stops it.

kopf cancels every task of its event loop when it ends, and handles the signals of the process if it
runs in the main thread. It therefore has its own loop and thread. kopf is given an identity,
because it would otherwise look up the process's user name, and a container's user has none.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import kopf

from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.handlers.memo import Memo
from gpujob_operator.handlers.objects import REGISTRY
from gpujob_operator.jitter import jittered
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

IDENTITY = "gpujob-operator"
RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 30.0
# kopf has recovered once it has run without errors for this long.
STEADY_SECONDS = 60.0


class KopfThread:
    """One thread, in which kopf runs again and again until `stop`."""

    def __init__(self, memo: Memo, metrics: Metrics) -> None:
        self._memo = memo
        self._metrics = metrics
        self._stop = threading.Event()
        self._stop_kopf: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Returns when the thread has ended, or after the given time."""
        self._stop.set()
        self._stop_kopf()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def restart(self) -> None:
        """Restarts kopf with fresh lists, after a watch went silent."""
        self._metrics.watch_restarts.labels("kopf", "silent").inc()
        self._stop_kopf()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                asyncio.run(self._operate())
            except (Exception, asyncio.CancelledError) as error:
                report = log.error if failures else log.warning
                report("part failed", part="kopf", problem=f"{type(error).__name__}: {error}"[:300])
            if self._stop.is_set():
                return
            failures = 0 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            self._metrics.watch_restarts.labels("kopf", "ended").inc()
            self._metrics.part_restarts.labels("kopf").inc()
            pause = backoff_seconds(RESTART_SECONDS, failures, RESTART_SECONDS_MAX)
            self._stop.wait(jittered(pause))

    async def _operate(self) -> None:
        loop, flag = asyncio.get_running_loop(), asyncio.Event()

        def stop_kopf() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has already ended.
                loop.call_soon_threadsafe(flag.set)

        self._stop_kopf = stop_kopf
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=REGISTRY,
            memo=self._memo,
            # kopf exports the argument but not its type.
            identity=cast("Any", IDENTITY),
            standalone=True,
            clusterwide=True,
            stop_flag=flag,
        )
