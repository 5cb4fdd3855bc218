"""The objects in memory are those of the API server, whatever happens to a watch."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession

from gpujob_dashboard import api_server
from gpujob_dashboard.api_server import PAGES_MAX, APIServer, APIServerError
from gpujob_dashboard.history import GPUS_MAX, MINUTES, POINTS, History
from gpujob_dashboard.rights import NAMESPACES_MAX, REVIEW_SECONDS, Reviews, Rights
from gpujob_dashboard.watched import RETRY_SECONDS, RETRY_SECONDS_MAX, Watched, state_of
from gpujob_operator.client.kube import GPU_NODES, JOBS
from tests.harness.builders import after, make_gpu, make_gpu_node, make_job
from tests.harness.http_api import HttpApi
from tests.harness.manifests import gpu_node_manifest, job_manifest


class Pauses:
    """Sleeps that end at once, and what was slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.many = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) >= 8:
            self.many.set()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(api: HttpApi, pauses: Pauses | None = None) -> AsyncGenerator[Watched]:
    with api.running():
        async with ClientSession() as session:
            server = APIServer(session, api.url)
            watched = Watched(server, "team", now=lambda: after(60), sleep=pauses or Pauses())
            task = asyncio.create_task(watched.run())
            try:
                yield watched
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def until(watched: Watched, *names: str) -> None:
    """Waits until these are the jobs."""
    async with asyncio.timeout(20):
        while {name for _, name in watched.jobs.objects} != set(names):
            await watched.next_revision(watched.revision, 0.05)


async def test_changes_arrive_in_order() -> None:
    api = HttpApi()
    api.put(JOBS, job_manifest(make_job("first")))
    async with watching(api) as watched:
        await until(watched, "first")
        api.put(JOBS, job_manifest(make_job("second", uid="2")))
        await until(watched, "first", "second")
        api.remove(JOBS, "first", "team")
        await until(watched, "second")
        state = state_of(watched, after(60))
        assert [job.metadata.name for job in state.jobs] == ["second"]
        assert all(source.problem == "" for source in state.sources)


async def test_a_burst_of_changes_is_read_together_and_in_order() -> None:
    api = HttpApi()
    api.put(JOBS, job_manifest(make_job("first")))
    async with watching(api) as watched:
        await until(watched, "first")
        for step in range(400):
            api.put(
                JOBS, job_manifest(make_job(f"job-{step % 7}", uid=f"{step % 7}", priority=step))
            )
            if step % 100 == 99:
                await asyncio.sleep(0.05)
        api.remove(JOBS, "first", "team")
        await until(watched, *(f"job-{number}" for number in range(7)))
        found = [job.spec.priority for job in watched.jobs.objects.values()]
        assert sorted(found) == list(range(393, 400))


async def test_an_event_in_parts_is_one_event_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = HttpApi()
    async with watching(api) as watched:
        api.put(JOBS, large_job("large"))
        await until(watched, "large")
        monkeypatch.setattr(api_server, "LINE_BYTES_MAX", 100_000)
        api.put(JOBS, large_job("larger"))
        await until_problem(watched, "an event has more than 100000 bytes")


def large_job(name: str) -> dict[str, Any]:
    job = job_manifest(make_job(name, uid=name))
    job["metadata"]["annotations"] = {"large": "x" * 500_000}
    return job


async def until_problem(watched: Watched, words: str) -> None:
    async with asyncio.timeout(20):
        while words not in watched.jobs.problem:
            await watched.next_revision(watched.revision, 0.05)


async def test_a_watch_that_ends_goes_on_and_one_that_is_too_old_begins_again() -> None:
    api = HttpApi()
    api.put(JOBS, job_manifest(make_job("first")))
    async with watching(api) as watched:
        await until(watched, "first")
        api.end_watches(JOBS)
        api.put(JOBS, job_manifest(make_job("second", uid="2")))
        await until(watched, "first", "second")
        with api._lock:  # pyright: ignore[reportPrivateUsage] - no event may come between
            api.remove(JOBS, "first", "team")
            api.end_watches(JOBS, compact=True)
        await until(watched, "second")


async def test_a_watch_that_is_always_too_old_pauses_before_each_list() -> None:
    lists, enough = [0], asyncio.Event()

    class TooOld(APIServer):
        async def list(self, path: str, **query: str) -> tuple[list[Mapping[str, Any]], str]:
            await asyncio.sleep(0)
            lists[0] += 1
            if lists[0] >= 30:
                enough.set()
            return [], "1"

        async def watch(self, path: str, version: str) -> AsyncIterator[Mapping[str, Any]]:
            yield {"type": "ERROR", "object": {"code": 410, "message": "too old"}}

    pauses = Pauses()
    async with ClientSession() as session:
        watched = Watched(TooOld(session, "http://nowhere"), "team", sleep=pauses)
        task = asyncio.create_task(watched.run())
        try:
            async with asyncio.timeout(20):
                await enough.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert set(pauses.seconds) == {RETRY_SECONDS}
    # A list of each kind, and another one after each pause.
    assert lists[0] <= len(watched.kinds) + len(pauses.seconds)
    assert all(kind.problem == "" for kind in watched.kinds)


async def test_an_api_server_that_fails_is_named_and_asked_again_ever_later() -> None:
    api, pauses = HttpApi(), Pauses()
    api.put(JOBS, job_manifest(make_job("first")))
    api.fail(JOBS, status=500, body={"message": "etcd is away"}, methods=("GET",))
    async with watching(api, pauses) as watched:
        async with asyncio.timeout(20):
            await pauses.many.wait()
        assert "etcd is away" in watched.jobs.problem
        assert pauses.seconds[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, RETRY_SECONDS_MAX]
        api.heal()
        await until(watched, "first")
        assert watched.jobs.problem == ""


async def test_who_may_not_list_all_jobs_gets_those_of_their_namespace() -> None:
    api = HttpApi()
    api.put(JOBS, job_manifest(make_job("mine")))
    api.put(JOBS, job_manifest(make_job("theirs", namespace="other", uid="t")))
    everywhere = "/apis/gpujob.dev/v1alpha1/gpujobs"
    api.forbid = lambda path: path == everywhere
    async with watching(api) as watched:
        await until(watched, "mine")
        api.put(JOBS, job_manifest(make_job("new", uid="n")))
        await until(watched, "mine", "new")


async def test_an_unreadable_object_hides_no_other() -> None:
    api = HttpApi()
    broken = job_manifest(make_job("broken", uid="b"))
    broken["spec"]["workers"] = "many"
    api.put(JOBS, broken)
    api.put(JOBS, job_manifest(make_job("fine")))
    async with watching(api) as watched:
        await until(watched, "fine")
        assert watched.jobs.unreadable == {("team", "broken")}
        api.put(JOBS, job_manifest(make_job("broken", uid="b")))
        await until(watched, "fine", "broken")
        assert watched.jobs.unreadable == set()


async def test_a_wait_for_a_revision_ends_with_time_or_with_a_change() -> None:
    api = HttpApi()
    async with watching(api) as watched:
        async with asyncio.timeout(20):
            while watched.revision < len(watched.kinds):
                await watched.next_revision(watched.revision, 1)
        seen = watched.revision
        assert await watched.next_revision(seen, 0.01) == seen
        waits = asyncio.create_task(watched.next_revision(seen, 20))
        await asyncio.sleep(0)
        api.put(GPU_NODES, gpu_node_manifest("n1"))
        async with asyncio.timeout(10):
            assert await waits > seen
        assert await watched.next_revision(seen, 20) > seen


async def test_a_list_without_an_end_is_an_error() -> None:
    class Endless(APIServer):
        async def get(self, path: str, **query: str) -> dict[str, object]:
            return {"items": [], "metadata": {"continue": "more"}}

    async with ClientSession() as session:
        with pytest.raises(APIServerError, match=f"more than {PAGES_MAX * 500} objects"):
            await Endless(session, "http://nowhere").list("/path")


# -- rights


def reviewing(api: HttpApi, session: ClientSession, clock: list[float]) -> Reviews:
    return Reviews(APIServer(session, api.url), lambda: clock[0])


async def test_rights_are_those_that_the_api_server_confirms() -> None:
    api = HttpApi()
    api.review = lambda token: {
        "authenticated": token == "good",
        "user": {"username": "ann", "uid": "7", "groups": ["g"], "extra": {"scope": ["x"]}},
    }
    asked: list[dict[str, object]] = []

    def may(spec: dict[str, object]) -> bool:
        asked.append(spec)
        attributes = spec["resourceAttributes"]
        assert isinstance(attributes, dict)
        return attributes.get("namespace") == "a" or attributes["resource"] == "gpuqueues"

    api.may = may
    clock = [0.0]
    with api.running():
        async with ClientSession() as session:
            reviews = reviewing(api, session, clock)
            assert await reviews.rights("bad", ["a"]) is None
            found = await reviews.rights("good", ["a", "b"], ["a", "c"])
            assert found is not None
            own = frozenset({"a"})
            assert found[1] == Rights(own, nodes=False, queues=True, services=own)
            subject = {"user": "ann", "uid": "7", "groups": ["g"], "extra": {"scope": ["x"]}}
            assert all(subject.items() <= spec.items() for spec in asked)
            before = len(asked)
            await reviews.rights("good", ["a", "b"])
            assert len(asked) == before
            clock[0] += REVIEW_SECONDS
            await reviews.rights("good", ["a", "b"])
            assert len(asked) > before


async def test_the_number_of_reviews_is_bounded() -> None:
    api = HttpApi()
    api.review = lambda token: {"authenticated": True, "user": {"username": "ann"}}
    counts = [0]

    def may(spec: dict[str, object]) -> bool:
        counts[0] += 1
        return False

    api.may = may
    with api.running():
        async with ClientSession() as session:
            names = [f"n{number:05}" for number in range(NAMESPACES_MAX + 50)]
            await reviewing(api, session, [0.0]).rights("any", names)
    assert counts[0] == NAMESPACES_MAX + 4


# -- history


def test_the_history_keeps_a_day_of_readings() -> None:
    history = History()
    for minute in range(MINUTES + 10):
        node = make_gpu_node("n0", make_gpu("GPU-0", unmanaged=minute), at=60.0 * minute)
        history.note([node])
        history.note([node])
    [memory, utilization] = history.lines("GPU-0")
    assert memory.minutes == MINUTES
    assert len(memory.points.split()) == POINTS
    assert (memory.name, utilization.name) == ("memory", "utilization")


def test_a_reading_that_is_not_new_is_not_noted() -> None:
    history = History()
    history.note([make_gpu_node("n0", make_gpu("GPU-0"))])
    history.note([make_gpu_node("n0", make_gpu("GPU-0"))])
    assert history.lines("GPU-0") == []
    assert history.lines("unknown") == []


def test_the_history_of_very_many_gpus_is_bounded() -> None:
    history = History()
    kept = {f"GPU-{number}": array("f", [0.0]) for number in range(GPUS_MAX)}
    history._memory.update(kept)  # pyright: ignore[reportPrivateUsage] - a second each otherwise
    for minute in range(2):
        history.note([make_gpu_node("n0", make_gpu("GPU-new"), at=60.0 * minute)])
    assert history.lines("GPU-new") == []
