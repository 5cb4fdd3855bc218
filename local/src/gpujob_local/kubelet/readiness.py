"""Readiness probes by HTTP and TCP, as a kubelet makes them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from gpujob_local.kubelet.pod_environment import PROBE_ACTIONS, Json

# The kubelet's defaults.
PERIOD_SECONDS = 10.0
TIMEOUT_SECONDS = 1.0
SUCCESS_THRESHOLD = 1
FAILURE_THRESHOLD = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """What a container's readinessProbe asks for."""

    port: int
    # None for a TCP probe.
    path: str | None
    host: str
    initial_delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    success_threshold: int
    failure_threshold: int

    async def succeeds(self) -> bool:
        """Makes one probe."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                if self.path is None:
                    _, writer = await asyncio.open_connection(self.host, self.port)
                    writer.close()
                    await writer.wait_closed()
                    return True
                url = f"http://{self.host}:{self.port}{self.path}"
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return 200 <= answer.status < 400
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False


def probe_of(container: Json, pod_ip: str) -> Probe | None:
    """Returns the container's readiness probe, or None. Other actions were refused before."""
    asked = container.get("readinessProbe")
    if not asked:
        return None
    action: Json = next(asked[name] for name in PROBE_ACTIONS if name in asked)
    return Probe(
        port=_port(container, action["port"]),
        path=action.get("path", "/") if "httpGet" in asked else None,
        host=action.get("host") or pod_ip,
        initial_delay_seconds=float(asked.get("initialDelaySeconds") or 0),
        period_seconds=float(asked.get("periodSeconds") or PERIOD_SECONDS),
        timeout_seconds=float(asked.get("timeoutSeconds") or TIMEOUT_SECONDS),
        success_threshold=int(asked.get("successThreshold") or SUCCESS_THRESHOLD),
        failure_threshold=int(asked.get("failureThreshold") or FAILURE_THRESHOLD),
    )


def _port(container: Json, port: int | str) -> int:
    """Returns a port by its number or name."""
    if isinstance(port, int):
        return port
    listed = container.get("ports") or ()
    named = (one["containerPort"] for one in listed if one.get("name") == port)
    return int(next(named, port))


async def keep_probing(probe: Probe, changed: Callable[[bool], None]) -> None:
    """Probes until cancelled. Calls `changed` when the container becomes ready or unready."""
    ready, successes, failures = False, 0, 0
    await asyncio.sleep(probe.initial_delay_seconds)
    while True:
        if await probe.succeeds():
            successes, failures = successes + 1, 0
        else:
            successes, failures = 0, failures + 1
        before = ready
        if successes >= probe.success_threshold:
            ready = True
        elif failures >= probe.failure_threshold:
            ready = False
        if ready != before:
            changed(ready)
        await asyncio.sleep(probe.period_seconds)
