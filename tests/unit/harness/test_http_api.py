"""The API server of our tests behaves as the real client expects one to."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from gpujob_operator.client.api_errors import AlreadyExists, ApiError, Conflict, Gone, Unavailable
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import JOBS, LEASES, PODS, TOKEN_REVIEWS, Kube, Manifest
from tests.harness.http_api import HttpApi


@pytest.fixture
def api() -> Generator[HttpApi]:
    with HttpApi().running() as running:
        yield running


async def _client(api: HttpApi, folder: Path) -> Kube:
    path = await asyncio.to_thread(api.write_kubeconfig, folder / "kubeconfig")
    return Kube(await load_configuration(str(path)))


def _pod(name: str, namespace: str = "team", **spec: object) -> Manifest:
    labels = {"app": name}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


async def test_lists_come_in_pages_as_of_one_version(api: HttpApi, tmp_path: Path) -> None:
    kube = await _client(api, tmp_path)
    for number in range(5):
        api.put(PODS, _pod(f"p{number}", f"team-{number % 2}"))
    api.page_objects_max = 2
    listing = await kube.list(PODS)
    assert [one["metadata"]["name"] for one in listing.items] == ["p0", "p2", "p4", "p1", "p3"]
    assert listing.resource_version == "105"
    assert api.counts["GET", "pods"] == 3
    assert len((await kube.list(PODS, "team-1")).items) == 2
    assert len((await kube.list(PODS, field_selector="metadata.name=p3")).items) == 1
    await kube.close()


async def test_preconditions_hold_and_nothing_changed_is_no_change(
    api: HttpApi, tmp_path: Path
) -> None:
    kube = await _client(api, tmp_path)
    lease = await kube.create(LEASES, {"metadata": {"name": "one"}, "spec": {"n": 1}}, "team")
    with pytest.raises(AlreadyExists):
        await kube.create(LEASES, {"metadata": {"name": "one"}}, "team")
    version = lease["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "spec": {"n": 1}}
    same = await kube.patch(LEASES, "one", body, "team")
    assert same["metadata"]["resourceVersion"] == version
    newer = await kube.replace(LEASES, "one", lease | {"spec": {"n": 2}}, "team")
    assert newer["metadata"]["generation"] == 2
    with pytest.raises(Conflict):
        await kube.patch(LEASES, "one", body, "team")
    with pytest.raises(Conflict):
        await kube.delete(LEASES, "one", "team", uid="another")
    await kube.delete(LEASES, "one", "team", uid=lease["metadata"]["uid"])
    assert api.objects(LEASES) == []
    await kube.close()


async def test_a_status_is_written_apart_from_the_rest(api: HttpApi, tmp_path: Path) -> None:
    kube = await _client(api, tmp_path)
    api.put(JOBS, _pod("job") | {"status": {"phase": "Pending"}})
    both = {"spec": {"a": 1}, "status": {"phase": "Running"}}
    assert (await kube.patch(JOBS, "job", both, "team"))["status"] == {"phase": "Pending"}
    written = await kube.patch(JOBS, "job", both | {"spec": {"a": 2}}, "team", subresource="status")
    assert (written["spec"], written["status"]) == ({"a": 1}, {"phase": "Running"})
    await kube.close()


async def test_a_watch_goes_on_from_a_version_until_that_is_gone(
    api: HttpApi, tmp_path: Path
) -> None:
    kube = await _client(api, tmp_path)
    first = api.put(PODS, _pod("one"))["metadata"]["resourceVersion"]
    api.put(PODS, _pod("one", nodeName="node"))
    stream = kube.watch(PODS, first)
    assert (await anext(stream))["type"] == "MODIFIED"
    api.remove(PODS, "one", "team")
    assert (await anext(stream))["type"] == "DELETED"
    api.bookmark(PODS)
    assert (await anext(stream))["type"] == "BOOKMARK"
    api.end_watches(PODS, compact=True)
    assert [event async for event in stream] == []
    with pytest.raises(Gone):
        await anext(kube.watch(PODS, first))
    await kube.close()


async def test_a_pod_on_a_node_ends_with_its_grace(api: HttpApi, tmp_path: Path) -> None:
    kube = await _client(api, tmp_path)
    uid = api.put(PODS, _pod("bound", nodeName="node"))["metadata"]["uid"]
    await kube.delete(PODS, "bound", "team", uid=uid, grace_seconds=7)
    assert api.stored(PODS, "bound", "team")["metadata"]["deletionGracePeriodSeconds"] == 7
    await kube.delete(PODS, "bound", "team", uid=uid, grace_seconds=0)
    assert api.objects(PODS) == []
    await kube.close()


async def test_failures_are_of_one_namespace_and_before_or_after_the_effect(
    api: HttpApi, tmp_path: Path
) -> None:
    kube = await _client(api, tmp_path)
    api.fail(PODS, "broken", 500, {"message": "webhook"}, times=1)
    api.fail(PODS, "lost", 0, after_effect=True)
    with pytest.raises(Unavailable, match="webhook"):
        await kube.create(PODS, _pod("one", "broken"), "broken")
    await kube.create(PODS, _pod("one", "broken"), "broken")
    await kube.create(PODS, _pod("one", "well"), "well")
    with pytest.raises(ApiError) as lost:
        await kube.create(PODS, _pod("one", "lost"), "lost")
    assert lost.value.status == 0
    assert len(api.objects(PODS)) == 3
    await kube.close()


async def test_tokens_are_reviewed_as_the_test_says(api: HttpApi, tmp_path: Path) -> None:
    kube = await _client(api, tmp_path)
    api.review = lambda token: {"authenticated": token == "good"}
    answers = [
        await kube.create(TOKEN_REVIEWS, {"spec": {"token": token}}) for token in ("good", "bad")
    ]
    assert [one["status"]["authenticated"] for one in answers] == [True, False]
    await kube.close()
