"""The agent as a process on a node with an imitated driver: what it publishes, and when it ends."""

import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.gpunode import GPUNode
from gpujob_api.manifest import gpunode_from_manifest
from gpujob_operator.client.kube import GPU_NODES, NODES
from tests.harness.http_api import HttpApi
from tests.harness.http_api_objects import Refusal
from tests.harness.imitated_nvml import (
    DRIVER_NOT_LOADED,
    NO_PERMISSION,
    UNKNOWN,
    VERSION_MISMATCH,
    ImitatedDriver,
    ImitatedGPU,
)
from tests.harness.operator_process import Process, start_agent
from tests.harness.waiting import wait_until

EXIT_RESTART = 3


@dataclass(slots=True)
class Stage:
    """A node's agent may be started more than once."""

    api: HttpApi
    driver: ImitatedDriver
    folder: Path
    processes: list[Process] = field(default_factory=list[Process])

    def start(self, *options: str, **environment: str) -> Process:
        kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
        options = ("--node=n0", "--interval-seconds=0.1", *options)
        variables = {**self.driver.environment(), **environment}
        agent = start_agent(kubeconfig, self.folder, *options, env=variables)
        self.processes.append(agent)
        return agent

    def node(self) -> GPUNode | None:
        try:
            manifest = self.api.stored(GPU_NODES, "n0")
        except Refusal:
            return None
        return gpunode_from_manifest({**manifest, "kind": "GPUNode"})

    def condition(self) -> tuple[str, str]:
        """Reason and message."""
        node = self.node()
        found = node.status.conditions if node is not None else ()
        return (found[0].reason, found[0].message) if found else ("", "")

    def wait_for(self, reason: str) -> str:
        """The condition's message once it has the reason."""
        wait_until(lambda: self.condition()[0] == reason, what=f"{reason}: {self.condition()}")
        return self.condition()[1]


@pytest.fixture
def stage(library: Path, tmp_path: Path) -> Generator[Stage]:
    driver = ImitatedDriver(tmp_path, library, [ImitatedGPU()])
    driver.write()
    with HttpApi().running() as api:
        api.put(NODES, {"metadata": {"name": "n0"}})
        stage = Stage(api, driver, tmp_path)
        yield stage
        for process in stage.processes:
            process.kill()


def test_it_publishes_what_the_driver_tells(stage: Stage) -> None:
    agent = stage.start()
    assert stage.wait_for("Measuring") == "the agent reads all GPUs"
    node = stage.node()
    assert node is not None
    assert node.status.driver_version == "580.82.07"
    assert [gpu.model for gpu in node.status.gpus] == ["NVIDIA H100 80GB HBM3"]
    assert agent.stop() == 0
    assert stage.condition()[0] == "AgentStopped"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (DRIVER_NOT_LOADED, "the node runs no NVIDIA driver"),
        (NO_PERMISSION, "agent.runtimeClassName"),
    ],
)
def test_without_a_driver_it_says_what_to_do(stage: Stage, code: int, words: str) -> None:
    stage.driver.answers = {"nvmlInitWithFlags": code}
    stage.driver.write()
    stage.start()
    assert words in stage.wait_for("NVMLFailed")
    stage.driver.answers = {}
    stage.driver.write()
    stage.wait_for("Measuring")


def test_without_the_library_it_says_what_to_do(stage: Stage) -> None:
    agent = stage.start(LD_LIBRARY_PATH=str(stage.folder))
    message = stage.wait_for("NVMLFailed")
    assert "the agent's container has no libnvidia-ml.so.1" in message
    assert "agent.runtimeClassName" in message
    assert agent.alive


def test_a_gpu_that_it_never_read_is_named(stage: Stage) -> None:
    stage.driver.gpus.append(ImitatedGPU("GPU-1", answers={"*": NO_PERMISSION}))
    stage.driver.write()
    stage.start()
    assert stage.wait_for("Measuring") == "not read: GPU 1: Insufficient Permissions"


def test_where_no_gpu_can_be_read_it_is_not_ready(stage: Stage) -> None:
    stage.driver.gpus[0].answers = {"*": UNKNOWN}
    stage.driver.write()
    stage.start()
    assert stage.wait_for("NothingReadable") == "not read: GPU 0: Unknown Error"


@pytest.mark.promise("I14")
@pytest.mark.parametrize(
    "hang",
    [{"nvmlInitWithFlags"}, {"nvmlDeviceGetUtilizationRates"}, {"nvmlEventSetWait_v2"}],
    ids=["at the start", "at a figure", "at the events"],
)
def test_a_driver_that_hangs_ends_the_agent_which_says_so(stage: Stage, hang: set[str]) -> None:
    """The kubelet starts a new one. Its GPUs are as they were, fit for nothing new."""
    agent = stage.start("--hang-seconds=1")
    stage.wait_for("Measuring")
    stage.driver.hangs = hang
    if "nvmlInitWithFlags" in hang:
        agent.stop()
        stage.driver.write()
        agent = stage.start("--hang-seconds=1")
    stage.driver.write()
    assert agent.wait() == EXIT_RESTART
    reason, message = stage.condition()
    assert reason == "NVMLHung"
    assert message.startswith("the driver has not answered for 1 s; the agent ends")
    assert "the driver has not answered for 1 s" in agent.log_path.read_text()
    node = stage.node()
    assert node is not None
    assert [(gpu.uuid, gpu.healthy) for gpu in node.status.gpus] == [("GPU-0", False)]
    stage.driver.hangs = set()
    stage.driver.write()
    stage.start()
    stage.wait_for("Measuring")


def test_a_driver_that_was_replaced_ends_the_agent(stage: Stage) -> None:
    """The library in its container is the old driver's, until the container is made anew."""
    agent = stage.start()
    stage.wait_for("Measuring")
    stage.driver.answers = {"nvmlInitWithFlags": VERSION_MISMATCH}
    stage.driver.loaded += 1
    stage.driver.write()
    assert agent.wait() == EXIT_RESTART
    reason, message = stage.condition()
    assert reason == "DriverReplaced"
    assert "its next container gets the node's library" in message


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_liveness_probe_knows_an_agent_that_is_stuck(stage: Stage) -> None:
    """Where even the end of the process waits for the driver. Here the API server is what it waits
    for, for a step that does not end looks the same from outside."""
    agent = stage.start("--hang-seconds=1", "--health-listen=127.0.0.1:0")
    health: Callable[[], Any] = lambda: _status(f"{url}/healthz")  # noqa: E731
    url = agent.wait_for("serving health")["url"]
    stage.wait_for("Measuring")
    assert health() == 200
    stage.api.delay(GPU_NODES, seconds=30)
    wait_until(lambda: health() == 503, what="the probe fails")
