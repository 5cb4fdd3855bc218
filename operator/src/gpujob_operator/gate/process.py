"""The process of a gate, from its start to its end.

At SIGTERM:

1. Its readiness probe fails. Requests are accepted for another `delay_seconds`, because nodes learn
   of the end one after the other.
2. New requests are refused with 503. Those that wait for a replica do so for `hold_seconds` more,
   and those at a replica are answered.
3. The process ends with 0 once there is no request, or when the grace is over.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gpujob_api.gate import GATE_GRACE_SECONDS
from gpujob_operator.gate.proxy import Proxy, client_session
from gpujob_operator.gate.replicas import READ_AHEAD_BYTES, HoldLimits, Replicas
from gpujob_operator.gate.reporter import Destination, Reporter
from gpujob_operator.gate.traffic import Traffic
from gpujob_operator.port.listener import ConnectionLimits, listening
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# All clients may come by way of one load balancer.
_CONNECTIONS = ConnectionLimits(
    connections_max=4096, connections_per_address_max=4096, read_ahead_bytes=READ_AHEAD_BYTES
)


@dataclass(frozen=True, slots=True)
class GateOptions:
    host: str
    port: int
    destination: Destination
    limits: HoldLimits | None = None
    # How a gate ends. See the module.
    delay_seconds: float = 3.0
    hold_seconds: float = 20.0
    # The kubelet's SIGKILL follows at the end of the grace.
    grace_seconds: float = GATE_GRACE_SECONDS - 5.0


async def run_until_signal(options: GateOptions) -> None:
    """Runs until SIGTERM or SIGINT, and until the requests of that moment are answered."""
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    await run_gate(options, ends)


async def run_gate(
    options: GateOptions, ends: asyncio.Event, started: Callable[[str], None] = lambda url: None
) -> None:
    """Runs until `ends` is set, and until the requests of that moment are answered. Calls `started`
    with the address once requests are accepted.
    """
    # The wall clock in milliseconds grows faster than reports are sent, so that a process that is
    # started again continues the sequence.
    sequence = int(time.time() * 1000)
    traffic = Traffic(time.monotonic, sequence, lambda: reporter.wake())
    replicas = Replicas(traffic, time.monotonic, options.limits)
    async with client_session() as session:
        reporter = Reporter(options.destination, session, traffic, replicas)
        proxy = Proxy(traffic, replicas, session, time.monotonic)
        reporting = asyncio.create_task(reporter.run())
        try:
            await _serve(options, proxy, traffic, replicas, ends, started)
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting


async def _serve(
    options: GateOptions,
    proxy: Proxy,
    traffic: Traffic,
    replicas: Replicas,
    ends: asyncio.Event,
    started: Callable[[str], None],
) -> None:
    async with listening(
        proxy.application(), options.host, options.port, _CONNECTIONS, cancels=True
    ) as url:
        log.info("gate started", address=url)
        started(url)
        await ends.wait()
        ended_at = time.monotonic()
        log.info("gate ends", requests=traffic.requests, held=traffic.held)
        proxy.ends = True
        replicas.hold_until(ended_at + options.delay_seconds + options.hold_seconds)
        await asyncio.sleep(options.delay_seconds)
        proxy.refuses = True
        with suppress(TimeoutError):
            async with asyncio.timeout(ended_at + options.grace_seconds - time.monotonic()):
                await traffic.none.wait()
