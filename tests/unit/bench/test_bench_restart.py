"""The throughput benchmark kills its operator, and deletes what it ran: figures and limits hold."""

import asyncio
import os
import time
import urllib.error
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.throughput import __main__ as throughput
from bench.throughput import progress
from bench.throughput import stack as stacks
from bench.throughput.figures import JobTimes, Process, Takeover, difference
from bench.throughput.load import GPUJOBS, Load, Run
from bench.throughput.stack import Stack
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_operator.client.kube import Kube

CYCLES = ("gpujob_cycle_seconds_count", ())


class FakeChild:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def alive(self) -> bool:
        return True


class FakeCluster:
    """Its operators have the pids 1, 2, ...; each has counted `cycles[pid]`."""

    def __init__(self) -> None:
        self.control_plane = SimpleNamespace(children={})
        self.children: dict[str, FakeChild] = {}
        self.cycles: dict[int, float] = {}
        self.not_ready_for = 0
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.pods = 0

    def spawn_operator(self, name: str, *arguments: str) -> None:
        self.children[name] = FakeChild(len(self.cycles) + 1)
        self.cycles[len(self.cycles) + 1] = 0.0

    def start_operator(self, *arguments: str) -> None:
        self.spawn_operator("operator", *arguments)

    def kill_operator(self) -> None:
        del self.children["operator"]

    def client(self) -> "FakeCluster":
        return self

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        self.asked.append((path, parameters))
        return {"items": [{}] * min(self.pods, int(parameters["limit"]))}

    def request(self, method: str, path: str, body: object) -> None:
        self.asked.append((f"{method} {path}", {}))

    def answer(self, path: str) -> str:
        pid = self.children["operator"].pid
        if path == "/metrics":
            return f"gpujob_cycle_seconds_count {self.cycles[pid]}\n"
        if self.not_ready_for:
            self.not_ready_for -= 1
            raise urllib.error.URLError("503")
        self.cycles[pid] += 1
        return ""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The operator with pid 1 took 10 s and 300 MiB, that with pid 2 took 20 s and 200 MiB."""
    fake = FakeCluster()
    seconds = {os.getpid(): 0.0, 1: 10.0, 2: 20.0}
    peaks = {os.getpid(): 0, 1: 300 * 2**20, 2: 200 * 2**20}

    def answer(stack: Stack, path: str) -> str:
        return fake.answer(path)

    def forget_peak(pid: int) -> None:
        peaks[pid] = 2**20

    monkeypatch.setattr(Stack, "_operator_get", answer)
    monkeypatch.setattr(stacks, "cpu_seconds", seconds.__getitem__)
    monkeypatch.setattr(stacks, "peak_bytes", peaks.__getitem__)
    monkeypatch.setattr(stacks, "forget_peak", forget_peak)
    return fake


def stack_of(cluster: FakeCluster) -> Stack:
    return Stack(cast(LocalCluster, cluster), 1, 8)


def test_cycles_of_the_killed_operator_and_of_the_next_are_added(cluster: FakeCluster) -> None:
    stack = stack_of(cluster)
    assert stack.operator_series() == {}
    stack.start_operator()
    cluster.cycles[1] = 100.0
    before = stack.operator_series()
    cluster.cycles[1] = 400.0
    at_least = time.monotonic()
    assert stack.kill_operator() >= at_least
    assert stack.operator_series() == {CYCLES: 400.0}
    stack.spawn_operator()
    cluster.cycles[2] = 500.0
    assert difference(stack.operator_series(), before) == {CYCLES: 800.0}


def test_the_mean_length_of_the_cycles_so_far(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, answers = stack_of(cluster), [""]

    def answer(_stack: Stack, _path: str) -> str:
        return answers[-1]

    monkeypatch.setattr(Stack, "_operator_get", answer)
    assert stack.cycle_seconds() == 0.0
    answers.append("gpujob_cycle_seconds_count 2\ngpujob_cycle_seconds_sum 3.0\n")
    assert stack.cycle_seconds() == 1.5


def test_both_operators_took_processor_time_and_the_higher_peak_counts(
    cluster: FakeCluster,
) -> None:
    stack = stack_of(cluster)
    stack.start_operator()
    stack.kill_operator()
    stack.spawn_operator()
    assert stack.processes()["operator"] == Process(30.0, 300.0)
    stack.forget_peaks()
    assert stack.processes()["operator"] == Process(30.0, 1.0)


async def test_the_takeover_is_timed_from_the_kill(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "TAKEOVER_POLL_SECONDS", 0.001)
    stack = stack_of(cluster)
    stack.start_operator()
    cluster.not_ready_for = 3
    run = Run(object.__new__(Kube), GPUJOBS, Load(3), "space")
    run.times["a"] = JobTimes(0.0, bound=1.0)
    takeover, started = Takeover(), time.monotonic()
    await throughput._restart(stack, run, takeover)
    passed = time.monotonic() - started
    assert cluster.children["operator"].pid == 2
    assert cluster.not_ready_for == 0
    assert takeover.takeover_seconds is not None
    assert takeover.first_cycle_seconds is not None
    assert 0.003 <= takeover.takeover_seconds <= takeover.first_cycle_seconds <= passed


def test_the_help_says_what_a_restart_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        throughput.parse(["--help"])
    printed = capsys.readouterr().out
    assert "takeover_seconds" in printed
    assert "first_cycle_seconds" in printed


def test_one_pod_is_asked_for_to_see_whether_any_is_left(cluster: FakeCluster) -> None:
    stack = stack_of(cluster)
    cluster.pods = 2000
    assert stack.has_pods("space")
    cluster.pods = 0
    assert not stack.has_pods("space")
    assert cluster.asked == [("/api/v1/namespaces/space/pods", {"limit": "1"})] * 2


async def no_pause(seconds: float) -> None:
    """In place of asyncio.sleep."""


class FakeTime:
    """Each look at the pods takes ten seconds."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def monotonic(self) -> float:
        return 10.0 * len(self._cluster.asked)


async def test_a_deletion_that_takes_too_long_is_asked_for_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server stops where its client has given up."""
    stack, answers = stack_of(cluster), [TimeoutError("timed out"), TimeoutError("timed out")]
    ask, asked = stack.client.request, 0

    def request(method: str, *arguments: Any) -> object:
        nonlocal asked
        asked += method == "DELETE"
        if method == "DELETE" and answers:
            raise answers.pop()
        return ask(method, *arguments)

    monkeypatch.setattr(stack.client, "request", request)
    monkeypatch.setattr(asyncio, "sleep", no_pause)
    await throughput.delete_all(stack, GPUJOBS, "space", Load(1))
    assert asked == 3


@pytest.mark.parametrize(("jobs", "waits"), [(20, False), (2000, True)])
async def test_more_jobs_may_take_longer_to_be_deleted(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, jobs: int, waits: bool
) -> None:
    """Pods of 300 s: too long for 20 jobs."""
    stack, has_pods = stack_of(cluster), Stack.has_pods
    cluster.pods = 1

    def deleted_after_thirty_looks(stack: Stack, namespace: str) -> bool:
        cluster.pods = int(len(cluster.asked) < 30)
        return has_pods(stack, namespace)

    monkeypatch.setattr(Stack, "has_pods", deleted_after_thirty_looks)
    monkeypatch.setattr(progress, "time", FakeTime(cluster))
    monkeypatch.setattr(asyncio, "sleep", no_pause)
    deleted = throughput.delete_all(stack, GPUJOBS, "space", Load(jobs))
    if waits:
        await deleted
        assert cluster.pods == 0
    else:
        with pytest.raises(RuntimeError, match="the end of all pods of space"):
            await deleted
    assert cluster.asked[0][0] == f"DELETE {GPUJOBS.resource.path('space')}"
