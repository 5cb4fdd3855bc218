"""The benchmark of a large cluster: what it prints is what was taken."""

import asyncio
from typing import Any

import pytest

from bench.throughput import size
from bench.throughput.figures import Process
from bench.throughput.kwok import stages
from bench.throughput.size import Quiet, Restart, Size, figure_rows

MIB = 1024**2


def found() -> Size:
    processes = {
        "operator": Process(3.0, 250.0),
        "kube-apiserver": Process(12.0, 2000.0),
        "etcd": Process(1.5, 100.0),
    }
    quiet = Quiet(60.0, processes, {"leases": 600, "gpunodes/status": 60})
    peaks = {name: one.peak_mib for name, one in processes.items()}
    restarts = [Restart(6.0, 8.0), Restart(9.0, 9.5), Restart(5.0, 12.0)]
    return Size(10_000, 8000, 170.0, quiet, restarts, peaks)


def test_percents_are_of_one_core_and_memory_is_in_megabytes() -> None:
    figures = found().figures()
    assert figures["quiet_operator_percent"] == pytest.approx(5.0)
    assert figures["quiet_kube-apiserver_percent"] == pytest.approx(20.0)
    assert figures["quiet_writes_per_second"] == pytest.approx(11.0)
    assert (figures["first_snapshot_seconds"], figures["first_cycle_seconds"]) == (6.0, 9.5)
    assert figures["operator_mb"] == pytest.approx(250 * MIB / 1e6)


def test_goals_stand_beside_their_figures() -> None:
    rows = {row["figure"]: row["at_most"] for row in figure_rows(found().figures())}
    assert {name for name, goal in rows.items() if goal is not None} == set(size.GOALS)


def test_pods_that_do_not_end_have_no_stage_for_it() -> None:
    names = {stage["metadata"]["name"] for stage in stages()}
    assert names - {stage["metadata"]["name"] for stage in stages(pods_end=False)} == {
        "pod-succeeds"
    }


class Writing:
    """A stack whose operator writes for a while."""

    def __init__(self, counts: list[float]) -> None:
        self.counts = counts

    def operator_series(self) -> dict[Any, float]:
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        return {("gpujob_writes_total", (("kind", "WriteStatus"),)): count, ("other", ()): 1.0}

    def check(self) -> None:
        return None


async def test_it_settles_once_nothing_is_written_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack: Any = Writing([1.0, 2.0, 3.0])
    monkeypatch.setattr(size, "SETTLED_SECONDS", 0.05)
    await asyncio.wait_for(size.settle(stack), 30)
    assert stack.counts == [3.0]


async def test_what_never_settles_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "SETTLE_SECONDS_MAX", 0.0)
    stack: Any = Writing([1.0, 2.0])
    with pytest.raises(RuntimeError, match="without a write of the operator"):
        await size.settle(stack)


class Restarting(Writing):
    """A stack whose agents find the first operator a little later."""

    nodes = 2

    def __init__(self) -> None:
        super().__init__([1.0])
        self.agents = 0
        self.found = [1]
        self.connected_before: list[int] = []

    def connected_agents(self) -> int:
        self.agents = self.found.pop() if self.found else self.nodes
        return self.agents

    def stop_operator(self) -> None:
        self.connected_before.append(self.agents)
        self.agents = 0

    def spawn_operator(self) -> None:
        return None

    def operator_is_ready(self) -> bool:
        return True

    has_decided = operator_is_ready

    def cycle_seconds(self) -> float:
        return 1.5


async def test_each_restart_waits_for_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    stack: Any = Restarting()
    monkeypatch.setattr(size, "SETTLED_SECONDS", 0.0)
    found = await asyncio.wait_for(size.restarts(stack, 3), 30)
    assert len(found) == 3
    assert stack.connected_before == [2, 2, 2]
    lengths = [one.first_cycle_seconds - one.first_snapshot_seconds for one in found]
    assert lengths == pytest.approx([1.5] * 3)


def test_options() -> None:
    options = size.parse([])
    assert (options.jobs, options.nodes, options.gpus) == (10_000, 1_000, 8)
    assert options.restarts == 3
