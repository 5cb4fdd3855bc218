"""kopf is the door: its handlers put events into the cache, and leave no trace on any object."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any

import kopf
import pytest
from kubernetes.aio import client

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE, GPUSERVICE
from gpujob_api.meta import GROUP, VERSION
from gpujob_operator.client.kube import JOBS, QUEUES, Manifest
from gpujob_operator.handlers import objects
from gpujob_operator.handlers.kopf_thread import KopfThread
from gpujob_operator.handlers.memo import KINDS, Memo
from gpujob_operator.handlers.session import kopf_session
from gpujob_operator.handlers.settings import EndlessBackoffs, NothingStored, configure
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.read.shapes import identity
from gpujob_operator.run import utc_now
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job
from tests.harness.http_api import HttpApi
from tests.harness.manifests import job_manifest
from tests.harness.waiting import eventually

OURS = (GPUJOB, GPUNODE, GPUQUEUE, GPUPROFILE, GPUSERVICE)
RESOURCES = {resource.plural: resource for resource in OURS}
WRITES = {"POST", "PUT", "PATCH", "DELETE"}


def manifest_of(name: str) -> Manifest:
    return job_manifest(make_job(name=name))


class World:
    """An API server, kopf in its thread, and the cache that it feeds."""

    def __init__(self, api: HttpApi) -> None:
        metrics = Metrics()
        self.api = api
        self.restores = 0
        self.cache = Cache(Dirty(), metrics, utc_now, restored=self._restored)
        self.memo = Memo(client.Configuration(host=api.url), self.cache, metrics)
        self.kopf = KopfThread(self.memo, metrics)

    def _restored(self) -> None:
        self.restores += 1

    def job_names(self) -> set[str]:
        return {job.metadata.name for job in self.cache.jobs.views if isinstance(job, GPUJob)}


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    with HttpApi().running() as api:
        world = World(api)
        yield world
        await asyncio.to_thread(world.kopf.stop)


def phases(cache: Cache) -> set[str]:
    return {job.status.phase.value for job in cache.jobs.views if isinstance(job, GPUJob)}


async def test_kopf_keeps_no_more_of_an_object_than_its_identity(world: World) -> None:
    """It holds the last event of each object for a while: in a burst, all of them."""
    whole = manifest_of("a")
    whole["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    event: Any = {"type": "ADDED", "object": {**whole, "metadata": dict(whole["metadata"])}}
    world.memo.put(Kind.JOB, event)
    kept = event["object"]
    assert set(kept) == {"apiVersion", "kind", "metadata"}
    assert "managedFields" not in kept["metadata"]
    assert kept["metadata"]["uid"] == whole["metadata"]["uid"]
    await asyncio.sleep(0)
    (job,) = world.cache.jobs.views
    assert isinstance(job, GPUJob)
    assert job.spec == make_job(name="a").spec, "the cache has all of it"


def test_kopf_writes_nothing() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    assert not settings.posting.enabled
    assert not settings.posting.loggers
    assert settings.peering.standalone
    assert settings.scanning.disabled, "no permission on CustomResourceDefinitions is needed"
    assert isinstance(settings.persistence.diffbase_storage, NothingStored)
    assert isinstance(settings.persistence.progress_storage, NothingStored)
    assert settings.watching.inactivity_timeout == 70


def test_each_kind_of_our_own_has_one_low_level_handler_and_nothing_else() -> None:
    handlers = objects.REGISTRY._watching.get_all_handlers()
    names = [handler.selector.any_name for handler in handlers if handler.selector is not None]
    assert names == list(RESOURCES) == list(KINDS)
    assert list(objects.REGISTRY._changing.get_all_handlers()) == []
    assert list(objects.REGISTRY._spawning.get_all_handlers()) == []


async def test_an_event_goes_through_kopf_into_the_cache(world: World) -> None:
    job = world.api.put(JOBS, manifest_of("a"))
    world.kopf.start()
    await eventually(lambda: world.job_names() == {"a"})
    world.api.put(JOBS, manifest_of("b"))
    await eventually(lambda: world.job_names() == {"a", "b"})
    world.api.put(JOBS, {**job, "status": {"phase": "Running"}})
    await eventually(lambda: "Running" in phases(world.cache))
    world.api.remove(JOBS, "a", "team")
    await eventually(lambda: world.job_names() == {"b"})
    assert [one for one in world.api.requests if one.method in WRITES] == []


async def test_every_kind_is_heard_and_listed(world: World) -> None:
    assert world.memo.unlisted() == sorted(kind.value for kind in KINDS.values())
    world.kopf.start()
    await eventually(lambda: world.memo.unlisted() == [])
    assert set(world.memo.silent_seconds()) == {kind.value for kind in KINDS.values()}
    assert max(world.memo.silent_seconds().values()) < 5


async def test_a_bookmark_is_a_sign_of_life(world: World) -> None:
    world.kopf.start()
    await eventually(lambda: world.api.watches(JOBS) == 1)
    world.memo._heard_at[Kind.JOB] -= 1000
    assert world.memo.silent_seconds()["GPUJob"] >= 1000
    world.api.bookmark(JOBS)
    await eventually(lambda: world.memo.silent_seconds()["GPUJob"] < 100)


async def test_what_a_page_lacks_may_be_on_the_next_one(world: World) -> None:
    for name in ("a", "b", "c"):
        world.cache.apply(Kind.JOB, "ADDED", world.api.put(JOBS, manifest_of(name)))
    world.api.page_objects_max = 1
    world.kopf.start()
    await eventually(lambda: world.memo.unlisted() == [])
    await eventually(lambda: world.api.watches(JOBS) == 1)
    assert world.job_names() == {"a", "b", "c"}


async def test_the_end_of_a_list_that_did_not_begin_here_removes_nothing(world: World) -> None:
    for name in ("a", "b"):
        world.cache.apply(Kind.JOB, "ADDED", world.api.put(JOBS, manifest_of(name)))
    async with kopf_session(await world.memo.connection(), world.memo) as session:
        url = f"{world.api.url}/apis/{GROUP}/{VERSION}/{GPUJOB.plural}"
        world.api.page_objects_max = 1
        async with session.get(url) as answer:
            token = (await answer.json())["metadata"]["continue"]
    async with (
        kopf_session(await world.memo.connection(), world.memo) as session,
        session.get(url, params={"continue": token}) as answer,
    ):
        assert await answer.json()
    await asyncio.sleep(0)
    assert world.job_names() == {"a", "b"}
    assert "GPUJob" in world.memo.unlisted()


async def test_what_vanished_while_no_watch_was_open_is_gone_after_the_next_list(
    world: World,
) -> None:
    """kopf reports no deletion that it did not see."""
    for name in ("stays", "goes"):
        world.api.put(JOBS, manifest_of(name))
    world.kopf.start()
    await eventually(lambda: world.job_names() == {"stays", "goes"})
    world.api.fail(JOBS, status=503, methods=["GET"])
    world.api.end_watches(JOBS)
    world.api.remove(JOBS, "goes", "team")
    world.api.put(JOBS, manifest_of("new"))
    world.api.end_watches(JOBS, compact=True)
    world.api.heal()
    await eventually(lambda: world.job_names() == {"stays", "new"})
    assert world.restores == 0


async def test_a_job_that_was_created_during_a_list_stays(world: World) -> None:
    world.api.put(JOBS, manifest_of("old"))
    mark = world.memo.mark(Kind.JOB)
    version = world.api.version
    world.cache.apply(Kind.JOB, "ADDED", world.api.put(JOBS, manifest_of("new")))
    world.memo.listed(Kind.JOB, [], str(version), mark)
    await asyncio.sleep(0)
    assert world.job_names() == {"new"}


async def test_a_list_of_restored_data_is_noticed(world: World) -> None:
    world.cache.apply(Kind.JOB, "ADDED", world.api.put(JOBS, manifest_of("a")))
    world.memo.listed(Kind.JOB, [], "1", world.memo.mark(Kind.JOB)._replace(version=100))
    await asyncio.sleep(0)
    assert world.restores == 1
    assert world.job_names() == set()


async def test_kopf_is_not_given_listed_objects_that_the_cache_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = world.api.put(JOBS, manifest_of("known"))
    world.cache.apply(Kind.JOB, "ADDED", known)
    world.api.put(JOBS, manifest_of("news"))
    given: list[str] = []
    put = Memo.put

    def counted(memo: Memo, kind: Kind, event: kopf.RawEvent) -> None:
        given.append(identity(event["object"]).name)
        put(memo, kind, event)

    monkeypatch.setattr(Memo, "put", counted)
    world.kopf.start()
    await eventually(lambda: world.job_names() == {"known", "news"})
    assert given == ["news"]


async def test_the_connection_is_our_own(world: World) -> None:
    configuration = client.Configuration(host="https://server:6443")
    configuration.api_key = {"authorization": "Bearer abc"}
    configuration.ssl_ca_cert = "/ca"
    information = await Memo(configuration, world.cache, Metrics()).connection()
    assert isinstance(information, kopf.ConnectionInfo)
    assert (information.server, information.ca_path) == ("https://server:6443", "/ca")
    assert (information.scheme, information.token) == ("Bearer", "abc")


async def test_a_server_that_refuses_for_a_while_costs_no_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has just started, and has not read its roles yet."""
    monkeypatch.setattr("gpujob_operator.handlers.settings.ERROR_SECONDS", 0.002)
    monkeypatch.setattr("gpujob_operator.handlers.settings.ERROR_SECONDS_MAX", 0.01)
    refusals = 40
    world.api.put(QUEUES, {"metadata": {"name": "queue"}, "spec": {}})
    world.api.fail(
        QUEUES, status=403, body={"reason": "Forbidden"}, methods=["GET"], times=refusals
    )
    world.kopf.start()
    await eventually(lambda: len(world.cache.queues.views) == 1)
    asked = [one for one in world.api.requests if one.place.plural == QUEUES.plural]
    assert len(asked) > refusals


def test_the_pauses_between_tries_grow_and_never_end() -> None:
    pauses = list(islice(EndlessBackoffs(), 1000))
    assert all(0.25 <= one <= 0.5 for one in pauses[:1])
    assert max(pauses) <= 10.0
    assert min(pauses[10:]) >= 5.0


async def test_it_starts_again_when_kopf_ends_and_stops_when_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    async def operator(**_: Any) -> None:
        runs.append(1)
        raise RuntimeError("a watch ended for good")

    monkeypatch.setattr("gpujob_operator.handlers.kopf_thread.kopf.operator", operator)
    monkeypatch.setattr("gpujob_operator.handlers.kopf_thread.RESTART_SECONDS", 0.001)
    world.kopf.start()
    await eventually(lambda: len(runs) >= 3)
    world.kopf.stop()
    assert not world.kopf._thread.is_alive()
    assert len(runs) < 20
