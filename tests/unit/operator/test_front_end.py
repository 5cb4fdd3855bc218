"""kopf is a front end: it hands over events and leaves no trace."""

from itertools import islice
from typing import Any

import kopf
import pytest
from kubernetes.aio import client

from gpujob_api.manifest import GPUQUEUE
from gpujob_operator.client.kube import QUEUES
from gpujob_operator.handlers.front import (
    FRONT_KINDS,
    EndlessBackoffs,
    FrontEnd,
    NothingStored,
    kopf_settings,
)
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.http_api import HttpApi
from tests.harness.waiting import eventually

Delivered = list[tuple[str, str | None, Any]]


def _front(delivered: Delivered, **configuration: Any) -> FrontEnd:
    def deliver(kind: str, event_type: str | None, manifest: Any) -> None:
        delivered.append((kind, event_type, manifest))

    return FrontEnd(client.Configuration(**configuration), deliver, Metrics())


def test_kopf_writes_nothing() -> None:
    settings = kopf_settings()
    assert not settings.posting.enabled
    assert not settings.posting.loggers
    assert settings.peering.standalone
    assert settings.scanning.disabled, "no permission on CustomResourceDefinitions is needed"
    assert isinstance(settings.persistence.diffbase_storage, NothingStored)
    assert isinstance(settings.persistence.progress_storage, NothingStored)
    assert settings.watching.inactivity_timeout == 70


def test_each_of_its_kinds_has_one_low_level_handler_and_nothing_else() -> None:
    registry = _front([]).registry()
    handlers = registry._watching.get_all_handlers()
    names = [handler.selector.any_name for handler in handlers if handler.selector is not None]
    assert names == [resource.plural for resource in FRONT_KINDS]
    assert list(registry._changing.get_all_handlers()) == []
    assert list(registry._spawning.get_all_handlers()) == []


async def test_a_handler_hands_the_event_over() -> None:
    delivered: Delivered = []
    handler = _front(delivered)._handler(GPUQUEUE.kind)
    await handler(event={"type": "MODIFIED", "object": {"a": 1}}, logger=None, name="x")
    assert delivered == [("GPUQueue", "MODIFIED", {"a": 1})]


async def test_the_connection_is_our_own() -> None:
    front = _front([], host="https://server:6443")
    front._configuration.api_key = {"authorization": "Bearer abc"}
    front._configuration.ssl_ca_cert = "/ca"
    information = await front._connection()
    assert isinstance(information, kopf.ConnectionInfo)
    assert (information.server, information.ca_path) == ("https://server:6443", "/ca")
    assert (information.scheme, information.token) == ("Bearer", "abc")


async def test_a_server_that_refuses_for_a_while_costs_no_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that has just started, and has not read its roles yet."""
    monkeypatch.setattr("gpujob_operator.handlers.front.ERROR_SECONDS", 0.002)
    monkeypatch.setattr("gpujob_operator.handlers.front.ERROR_SECONDS_MAX", 0.01)
    refusals = 40
    delivered: Delivered = []
    with HttpApi().running() as api:
        api.put(QUEUES, {"metadata": {"name": "queue"}, "spec": {}})
        api.fail(QUEUES, status=403, body={"reason": "Forbidden"}, methods=["GET"], times=refusals)
        front = _front(delivered, host=api.url)
        front.start()
        try:
            await eventually(lambda: [one[0] for one in delivered] == ["GPUQueue"])
            asked = [one for one in api.requests if one.place.plural == QUEUES.plural]
        finally:
            front.stop()
    assert len(asked) > refusals


def test_the_pauses_between_tries_grow_and_never_end() -> None:
    pauses = list(islice(EndlessBackoffs(), 1000))
    assert all(0.25 <= one <= 0.5 for one in pauses[:1])
    assert max(pauses) <= 10.0
    assert min(pauses[10:]) >= 5.0


async def test_it_starts_again_when_kopf_ends_and_stops_when_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []

    async def operator(**_: Any) -> None:
        runs.append(1)
        raise RuntimeError("a watch ended for good")

    monkeypatch.setattr("gpujob_operator.handlers.front.kopf.operator", operator)
    monkeypatch.setattr("gpujob_operator.handlers.front.RESTART_SECONDS", 0.001)
    front = _front([])
    front.start()
    await eventually(lambda: len(runs) >= 3)
    front.stop()
    assert not front._thread.is_alive()
    count = len(runs)
    assert count < 20
