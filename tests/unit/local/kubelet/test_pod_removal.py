"""A process node asks until the object of a pod that has ended is gone."""

from pathlib import Path
from typing import Any, cast

import pytest

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelet import pod_runner
from gpujob_local.kubelet.container_runner import NodeSettings
from gpujob_local.kubelet.node_api import NodeApi
from gpujob_local.kubelet.pod_runner import PodRunner
from tests.harness.waiting import eventually

Json = dict[str, Any]
ENDED: Json = {
    "metadata": {
        "name": "job-1-0",
        "namespace": "team",
        "uid": "uid-pod",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
    },
    "spec": {"containers": [{"name": "worker", "image": "worker"}]},
    "status": {"phase": "Failed"},
}


class _Api:
    """Refuses as many requests; then takes them."""

    def __init__(self, refusals: list[ApiError]) -> None:
        self.refusals = refusals
        self.asked: list[tuple[str, str, Json]] = []

    async def request(self, method: str, path: str, body: Json) -> Json:
        self.asked.append((method, path, body))
        if self.refusals:
            raise self.refusals.pop(0)
        return {}


def runner(api: _Api, folder: Path) -> PodRunner:
    settings = NodeSettings("n0", folder, folder / "shared", {}, (), {})
    return PodRunner(ENDED, cast("NodeApi", api), settings, "127.1.0.1")


@pytest.mark.parametrize(
    "refusals",
    [[], [ApiError(404, "NotFound", "nothing here yet")] * 2, [ApiError(409, "Conflict", "wait")]],
    ids=["none", "not found", "conflict"],
)
async def test_the_object_is_asked_to_go_until_it_is_gone(
    refusals: list[ApiError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that has just started does not know everything."""
    monkeypatch.setattr(pod_runner, "DELETE_AGAIN_SECONDS", 0.01)
    api, count = _Api(list(refusals)), len(refusals)
    pod = runner(api, tmp_path)
    pod.start()
    assert pod.task is not None
    await eventually(lambda: len(api.asked) > count)
    assert not pod.task.done()
    assert api.asked[-1] == (
        "DELETE",
        "/api/v1/namespaces/team/pods/job-1-0",
        {"gracePeriodSeconds": 0, "preconditions": {"uid": "uid-pod"}},
    )
    pod.object_gone()
    await pod.task
