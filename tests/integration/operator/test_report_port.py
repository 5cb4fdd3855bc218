"""A flood at the report port costs neither the API server nor the Lease; workers are heard.

The API server is `tests.harness.http_api`; a TokenReview takes three seconds there, as behind
priority and fairness. The flood comes from other addresses than the honest workers. One of them was
proven before it, another one reports for the first time while it is on.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpujob_operator.client.kube import PODS, TOKEN_REVIEWS
from tests.harness.builders import make_report
from tests.harness.http_world import HttpWorld, operator_world
from tests.harness.operator_process import Process
from tests.harness.pod_tokens import pod_token, reviewed
from tests.harness.waiting import eventually

REVIEW_SECONDS = 3.0
FLOOD_SECONDS = 20.0
REVIEWS_PER_SECOND_MAX = 5.0
HONEST_SECONDS_MAX = 2.0
# A token that was not proven before needs a review.
NEW_SECONDS_MAX = REVIEW_SECONDS + 2.0
NEW_ADDRESS = "127.0.0.50"
PAUSE_SECONDS = 0.2


async def _report(session: aiohttp.ClientSession, url: str, token: str, step: int) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    body = make_report(step=step, sequence=step).to_text()
    async with session.post(url, data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


def _pod(world: HttpWorld, name: str) -> dict[str, Any]:
    return next(one for one in world.api.objects(PODS) if one["metadata"]["name"] == name)


async def _new_worker(world: HttpWorld, url: str) -> float:
    """The seconds until the first report of `second-1-0` is taken; it asks once."""
    token = pod_token("healthy", "second-1-0", _pod(world, "second-1-0")["metadata"]["uid"])
    connector = aiohttp.TCPConnector(local_addr=(NEW_ADDRESS, 0))
    started = time.monotonic()
    async with aiohttp.ClientSession(connector=connector) as session:
        await _report(session, url, token, 1)
    return time.monotonic() - started


def _reviews(world: HttpWorld) -> int:
    return world.api.counts["POST", TOKEN_REVIEWS.plural]


def _lost_leads(world: HttpWorld) -> list[dict[str, Any]]:
    return [
        line
        for line in world.operator.lines()
        if line["message"] == "leadership changed" and not line["leads"]
    ]


@pytest.mark.slow
async def test_a_flood_costs_no_lease_few_reviews_and_no_honest_report(tmp_path: Path) -> None:
    # The world is entered in a thread: it waits for the process without an event loop.
    scope = operator_world(tmp_path)
    world = await asyncio.to_thread(scope.__enter__)
    try:
        await _beside_a_flood(world, tmp_path)
    finally:
        await asyncio.to_thread(scope.__exit__, None, None, None)


async def _beside_a_flood(world: HttpWorld, folder: Path) -> None:
    world.api.review = reviewed
    url = world.operator.wait_for("started")["reports"]
    uid = _pod(world, "first-1-0")["metadata"]["uid"]
    honest = pod_token("healthy", "first-1-0", uid)
    world.submit("healthy", "second")
    await eventually(lambda: "second-1-0" in world.pods("healthy"), seconds=60)
    status = {"phase": "Running", "podIPs": [{"ip": NEW_ADDRESS}]}
    world.api.put(PODS, {**_pod(world, "second-1-0"), "status": status})
    async with aiohttp.ClientSession() as session:
        await _report(session, url, honest, 1)
        world.api.delay(TOKEN_REVIEWS, seconds=REVIEW_SECONDS, methods=["POST"])
        before, started = _reviews(world), time.monotonic()
        waits: list[float] = []
        flood = Process("flood", folder, "tests.harness.report_flood", url, uid)
        try:
            await eventually(lambda: _reviews(world) > before, what="the flood is on")
            new = asyncio.create_task(_new_worker(world, url))
            while (elapsed := time.monotonic() - started) < FLOOD_SECONDS:
                await _report(session, url, honest, 2 + int(elapsed * 100))
                waits.append(time.monotonic() - started - elapsed)
                await eventually(lambda: time.monotonic() > started + elapsed + PAUSE_SECONDS)
            assert new.done(), "the new worker still waits"
            new_seconds = await new
        finally:
            flood.kill()
        seconds = time.monotonic() - started
        reviews = _reviews(world) - before
        print(
            f"{reviews} reviews in {seconds:.0f} s; {len(waits)} reports, "
            f"worst {max(waits):.2f} s; a new worker's {new_seconds:.2f} s"
        )
        assert reviews / seconds < REVIEWS_PER_SECOND_MAX
        assert max(waits) < HONEST_SECONDS_MAX
        assert new_seconds < NEW_SECONDS_MAX
        assert _lost_leads(world) == []
