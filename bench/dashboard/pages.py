"""Pages: time to the first byte, and bytes."""

import gzip
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession

from bench.dashboard.cluster import Size
from gpujob_dashboard.history import History
from gpujob_dashboard.pages.contents import Page
from gpujob_dashboard.pages.gpus import gpus_page, node_page
from gpujob_dashboard.pages.health import health_page
from gpujob_dashboard.pages.job import job_page
from gpujob_dashboard.pages.now import now_page
from gpujob_dashboard.pages.queues import queue_page, queues_page
from gpujob_dashboard.rendering import sections_of
from gpujob_dashboard.rights import ALL
from gpujob_dashboard.watched import State

WARM_ROUNDS_A_COLD = 3
COLUMNS = (
    "page", "gpus", "jobs", "cold_p50_ms", "cold_max_ms", "warm_p50_ms", "warm_max_ms",
    "processor_ms", "bytes", "gzipped_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """An address, and the function that makes its page."""

    path: str
    page: Callable[[State], Page] | None = None


def pages(size: Size) -> Sequence[Measured]:
    found = [
        Measured("/", lambda state: now_page(state, ALL, {})),
        Measured("/?status=waiting", lambda state: now_page(state, ALL, {"status": "waiting"})),
        Measured("/gpus", lambda state: gpus_page(state, ALL, {})),
        Measured("/queues", lambda state: queues_page(state, ALL, {})),
        Measured("/queues/default", lambda state: queue_page(state, ALL, "default", {})),
        Measured("/health", lambda state: health_page(state, ALL, {})),
        # The form. The time of an answer is that of the simulation.
        Measured("/what-if"),
    ]
    if size.gpus:
        of_node = Measured(
            "/gpus/node-0000", lambda state: node_page(state, ALL, "node-0000", History())
        )
        found.append(of_node)
    if size.jobs:
        of_job = Measured(
            "/job/team-00/job-00000", lambda state: job_page(state, ALL, "team-00", "job-00000")
        )
        found.append(of_job)
    return found


async def measure(
    session: ClientSession, origin: str, one: Measured, state: State, size: Size, rounds: int
) -> Mapping[str, Any]:
    """Returns the row of a page. The first request of a cold round renders the page."""
    cold: list[float] = []
    warm: list[float] = []
    body = b""
    for number in range(rounds):
        # Another address is not in the cache of rendered pages.
        path = f"{one.path}{'&' if '?' in one.path else '?'}round={number}"
        seconds, body = await _fetch(session, origin + path)
        cold.append(seconds)
        for _ in range(WARM_ROUNDS_A_COLD):
            seconds, _ = await _fetch(session, origin + path)
            warm.append(seconds)
    return {
        "page": one.path,
        "gpus": size.gpus,
        "jobs": size.jobs,
        "cold_p50_ms": _milliseconds(statistics.median(cold)),
        "cold_max_ms": _milliseconds(max(cold)),
        "warm_p50_ms": _milliseconds(statistics.median(warm)),
        "warm_max_ms": _milliseconds(max(warm)),
        "processor_ms": _rendering(one, state, rounds),
        "bytes": len(gzip.decompress(body)),
        "gzipped_bytes": len(body),
    }


async def _fetch(session: ClientSession, url: str) -> tuple[float, bytes]:
    """Returns the seconds to the first byte of an answer, and its gzipped body."""
    start = time.perf_counter()
    async with session.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
        seconds = time.perf_counter() - start
        assert answer.status == 200, f"{url}: {answer.status}"
        assert answer.headers["Content-Encoding"] == "gzip"
        return seconds, await answer.read()


def _rendering(one: Measured, state: State, rounds: int) -> float | None:
    """Returns the processor time of a page and its HTML, from objects in memory."""
    if one.page is None:
        return None
    found: list[float] = []
    for _ in range(rounds):
        start = time.process_time()
        sections_of(one.page(state))
        found.append(time.process_time() - start)
    return _milliseconds(statistics.median(found))


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
