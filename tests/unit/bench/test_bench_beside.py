"""Jobs of a second namespace come during a burst, and their waits are told apart."""

import argparse
import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bench.throughput import __main__ as throughput
from bench.throughput.figures import (
    Beside,
    JobTimes,
    Outcome,
    Process,
    Series,
    beside_of,
    figure_rows,
)
from bench.throughput.load import GPUJOBS, Load, Run, coming_beside
from gpujob_operator.client.kube import JOBS, PODS, Manifest, ResourceType
from tests.harness.fake_kube import FakeKube
from tests.harness.waiting import eventually

BURST, OTHER = "burst", "beside-burst"


class PlayingKube(FakeKube):
    """Jobs are bound and have succeeded as soon as they come, but for those of a namespace that is
    held."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.held = set(held)
        self.waiting: list[tuple[str, str]] = []
        self.came: list[tuple[str, str]] = []

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        answer = await super().create(kind, body, namespace)
        name = body["metadata"]["name"]
        self.came.append((namespace, name))
        if namespace in self.held:
            self.waiting.append((namespace, name))
        else:
            self.play(namespace, name)
        return answer

    def play(self, namespace: str, name: str) -> None:
        labels = {GPUJOBS.pod_label: name}
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": labels}
        self.put(PODS, {"metadata": metadata, "spec": {"nodeName": "node"}})
        job = self.stored(JOBS, name, namespace)
        self.put(JOBS, {**job, "status": {"phase": "Succeeded"}})

    def release(self, namespace: str) -> None:
        self.held.discard(namespace)
        for where, name in list(self.waiting):
            if where == namespace:
                self.waiting.remove((where, name))
                self.play(where, name)

    def jobs_of(self, namespace: str) -> list[str]:
        return [name for where, name in self.came if where == namespace]


def runs(kube: FakeKube, jobs: int = 50, per_second: float = 500.0) -> tuple[Run, Run]:
    """The burst, and what comes beside it."""
    load = Load(jobs, limit_seconds=30.0)
    beside = Run(kube, GPUJOBS, replace(load, per_second=per_second), OTHER)
    return Run(kube, GPUJOBS, replace(load, jobs=3), BURST), beside


async def test_jobs_come_one_by_one_until_the_burst_is_bound() -> None:
    kube = PlayingKube(BURST)
    burst, beside = runs(kube, jobs=10_000)
    async with coming_beside(beside, burst):
        running = asyncio.create_task(burst.run(lambda _: None))
        await eventually(lambda: beside.bound >= 3)
        assert not running.done()
        kube.release(BURST)
        assert await running == ""
    came = kube.jobs_of(OTHER)
    assert 3 <= len(came) == len(set(came)) == beside.bound < 10_000
    assert set(kube.jobs_of(BURST)) == burst.times.keys()


async def test_the_pods_of_the_burst_are_not_those_beside() -> None:
    """Jobs of the two have the same names."""
    kube = PlayingKube(OTHER)
    burst, beside = runs(kube)
    coming = asyncio.create_task(beside.come_beside(burst))
    await eventually(lambda: len(beside.times) >= 1)
    assert await burst.run(lambda _: None) == ""
    assert beside.times.keys() & burst.times.keys()
    assert (burst.bound, beside.bound) == (3, 0)
    assert not coming.done()
    kube.release(OTHER)
    async with asyncio.timeout(10):
        await coming
    assert beside.bound == len(beside.times)


async def test_no_more_come_than_the_burst_has() -> None:
    kube = PlayingKube(BURST)
    burst, beside = runs(kube, jobs=2)
    async with asyncio.timeout(10):
        await beside.come_beside(burst)
    assert len(beside.times) == 2


async def test_who_is_never_bound_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.throughput.load.BESIDE_SECONDS_MAX", 0.01)
    kube = PlayingKube(OTHER)
    burst, beside = runs(kube)
    async with coming_beside(beside, burst):
        await eventually(lambda: len(beside.times) >= 1)
        await burst.run(lambda _: None)
    assert beside.bound == 0 < len(beside.times)


async def test_a_fault_of_the_burst_ends_what_comes_beside() -> None:
    kube = PlayingKube(BURST)
    burst, beside = runs(kube, jobs=10_000)

    async def fail() -> None:
        async with coming_beside(beside, burst):
            await eventually(lambda: len(kube.came) >= 1)
            raise RuntimeError("operator ended")

    with pytest.raises(RuntimeError, match="operator ended"):
        await fail()
    came = len(kube.came)
    await asyncio.sleep(0.01)
    assert len(kube.came) == came


def test_their_waits() -> None:
    times = [
        JobTimes(
            *(10.0, 10.0 + wait),
            created=10.0 + wait / 2,
            answered=10.0 + wait / 4,
            seen=10.0 + wait / 5,
        )
        for wait in (0.1, 0.3, 2.0)
    ]
    found = beside_of([*times, JobTimes(11.0), JobTimes(11.0, created=15.0)])
    assert (found.beside_jobs, found.beside_bound) == (5, 3)
    assert found.beside_answered_seconds_median == pytest.approx(0.075)
    assert found.beside_answered_seconds_p99 == pytest.approx(0.5)
    assert found.beside_seen_seconds_median == pytest.approx(0.06)
    assert found.beside_seen_seconds_p99 == pytest.approx(0.4)
    assert found.beside_created_seconds_median == pytest.approx(0.15)
    assert found.beside_created_seconds_p99 == pytest.approx(4.0)
    assert found.beside_bound_seconds_median == pytest.approx(0.3)
    assert found.beside_bound_seconds_p99 == pytest.approx(2.0)
    assert beside_of([]) == Beside(0, 0, *[None] * 8)


def test_they_are_figures_only_where_they_came() -> None:
    jobs = {"a": JobTimes(0.0, 1.0, 2.0)}
    alone = Outcome("jobs", jobs, {}, {})
    beside = Beside(4, 4, 0.01, 0.05, 0.02, 0.06, 0.1, 0.5, 0.3, 2.0)
    both = replace(alone, kind="gpujobs", beside=beside)
    rows = [both.row(frozenset()), alone.row(frozenset())]
    shown = {row["figure"]: row for row in figure_rows(rows)}
    assert shown["beside_bound_seconds_median"]["gpujobs"] == 0.3
    assert shown["beside_bound_seconds_p99"]["gpujobs"] == 2.0
    assert shown["beside_created_seconds_p99"]["gpujobs"] == 0.5
    assert shown["beside_jobs"]["jobs"] is None
    assert rows[0]["jobs"] == 1
    assert not any("beside" in row["figure"] for row in figure_rows(rows[1:]))


class FakeStack:
    """Nothing is taken, and nothing was counted."""

    def __init__(self) -> None:
        self.namespaces: list[str] = []

    @property
    def client(self) -> "FakeStack":
        return self

    def create(self, path: str, body: Manifest) -> Manifest:
        assert path == "/api/v1/namespaces"
        self.namespaces.append(body["metadata"]["name"])
        return body

    def forget_peaks(self) -> None: ...

    def processes(self) -> dict[str, Process]:
        return {}

    def requests(self) -> Series:
        return {}

    def operator_series(self) -> Series:
        return {}

    def check(self) -> None: ...


async def measured(kube: PlayingKube, per_second: float) -> tuple[Outcome, list[str]]:
    stack: Any = FakeStack()
    load = Load(3, limit_seconds=30.0)
    outcome = await throughput.measure(
        stack, kube, GPUJOBS, load, BURST, beside_per_second=per_second
    )
    return outcome, stack.namespaces


async def test_a_run_with_jobs_beside() -> None:
    outcome, namespaces = await measured(PlayingKube(), 100.0)
    assert namespaces == [BURST, OTHER]
    assert outcome.complete
    assert outcome.beside is not None
    assert outcome.beside.beside_bound == outcome.beside.beside_jobs >= 1
    assert len(outcome.jobs) == 3, "the others are not among them"


async def test_what_is_prepared_is_there_before_a_job_of_either_namespace_comes() -> None:
    stack: Any = FakeStack()
    prepared: list[str] = []
    kube = PlayingKube()

    async def prepare(namespace: str) -> None:
        assert namespace in stack.namespaces
        assert not kube.calls
        prepared.append(namespace)

    load = Load(3, limit_seconds=30.0)
    await throughput.measure(
        stack, kube, GPUJOBS, load, BURST, prepare=prepare, beside_per_second=100.0
    )
    assert prepared == [BURST, OTHER]


async def test_a_run_without_jobs_beside() -> None:
    outcome, namespaces = await measured(PlayingKube(), 0.0)
    assert namespaces == [BURST]
    assert outcome.complete
    assert outcome.beside is None


async def test_jobs_beside_that_are_not_bound_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.throughput.load.BESIDE_SECONDS_MAX", 0.01)
    outcome, _ = await measured(PlayingKube(OTHER), 100.0)
    assert not outcome.complete
    assert outcome.problem.startswith("beside: ")
    assert "0 bound" in outcome.problem


def test_the_option() -> None:
    assert throughput.parse([]).beside == 0.0
    options: argparse.Namespace = throughput.parse(["--beside", "2/s"])
    assert options.beside == 2.0


def test_a_bad_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        throughput.parse(["--beside", "0"])
    assert "--beside" in capsys.readouterr().err
