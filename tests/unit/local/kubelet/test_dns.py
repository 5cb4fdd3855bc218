"""Which texts name a pod behind a headless Service, and what a process node makes of them."""

from typing import cast

import pytest

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelet.dns import find_addresses
from gpujob_local.kubelet.node_api import NodeApi
from gpujob_local.kubelet.pod_environment import ContainerConfigError, Json

SERVICE: Json = {"spec": {"clusterIP": "None", "selector": {"app": "gang"}}}
SERVICE_PATH = "/api/v1/namespaces/team/services/gang"
PODS_PATH = "/api/v1/namespaces/team/pods?labelSelector=app%3Dgang"
NAME = "worker-0.gang.team.svc"


def pod(hostname: str = "worker-0", phase: str = "Pending", address: str = "127.9.0.2") -> Json:
    status = {"phase": phase, "podIP": address}
    return {"spec": {"hostname": hostname, "subdomain": "gang"}, "status": status}


class Answers:
    """The API as far as names ask it."""

    def __init__(self, service: Json | None = SERVICE, *pods: Json) -> None:
        self.objects: dict[str, Json] = {PODS_PATH: {"items": list(pods)}}
        if service is not None:
            self.objects[SERVICE_PATH] = service

    async def get(self, path: str) -> Json:
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return self.objects[path]


async def rewritten(text: str, answers: Answers) -> str:
    names = await find_addresses(cast("NodeApi", answers), [text])
    return names.rewrite(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (NAME, "127.9.0.2"),
        (f"{NAME}.cluster.local", "127.9.0.2"),
        (f"tcp://{NAME}:29500", "tcp://127.9.0.2:29500"),
        (f"{NAME},{NAME}", "127.9.0.2,127.9.0.2"),
    ],
)
async def test_a_name_becomes_the_address(text: str, wanted: str) -> None:
    assert await rewritten(text, Answers(SERVICE, pod("worker-1"), pod())) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "http://operator.gpujob-system.svc:8080/report",
        "worker-0.gang.team.svc.example.com",
        "a.worker-0.gang.team.svc",
        "worker-0.gang.team.svcs",
        "Worker_0.gang.team.svc",
    ],
)
async def test_what_is_no_pods_name_is_left_alone(text: str) -> None:
    assert await rewritten(text, Answers(None)) == text


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (Answers(None), 'service "gang" not found'),
        (Answers({"spec": {"clusterIP": "10.0.0.1", "selector": {"a": "b"}}}), "not headless"),
        (Answers({"spec": {"clusterIP": "None"}}), "not headless"),
        (Answers(), "no address yet"),
        (Answers(SERVICE, pod(address="")), "no address yet"),
        (Answers(SERVICE, pod(phase="Failed")), "no address yet"),
        (Answers(SERVICE, pod("worker-1")), "no address yet"),
    ],
)
async def test_why_a_name_has_no_address(answers: Answers, message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        await rewritten(NAME, answers)
