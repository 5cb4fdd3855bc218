"""The churn benchmark: what it counts, and what it calls growth."""

import asyncio
import itertools
import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from bench.throughput import churn
from bench.throughput.churn import GOING_MAX, Counts, Sample, growth
from bench.throughput.stack import connections_to, resident_bytes


def manifest(name: str, phase: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "churn-1"}, "status": {"phase": phase}}


def sample(number: int, mib: float) -> Sample:
    jobs = 600 * number
    return Sample(number / 2, jobs, jobs, 300, {"operator": mib}, {"operator": 9.0}, 20)


def test_a_job_ends_once_and_is_there_until_it_is_deleted() -> None:
    counts = Counts()
    for name in ("a", "b"):
        counts.submit(name)
    for phase in ("", "Running", "Succeeded", "Succeeded"):
        counts.came("MODIFIED", manifest("a", phase))
    assert (counts.succeeded, counts.going, counts.present) == (1, 1, 2)
    counts.came("DELETED", manifest("a", "Succeeded"))
    assert (counts.succeeded, counts.going, counts.present) == (1, 1, 1)


def test_a_job_whose_end_was_not_seen_counts_by_what_its_deletion_says() -> None:
    counts = Counts()
    for name in ("a", "b"):
        counts.submit(name)
    counts.came("DELETED", manifest("a", "Succeeded"))
    counts.came("DELETED", manifest("b", "Running"))
    assert (counts.succeeded, counts.going, counts.present) == (1, 0, 0)


def test_growth_leaves_out_the_first_quarter() -> None:
    rising = [sample(n, mib) for n, mib in enumerate([10, 90, 100, 100, 101, 103, 104, 106])]
    found = growth(rising, "operator")
    assert (found["second_quarter_mib"], found["last_quarter_mib"]) == (100, 105)
    assert (found["growth_mib"], found["most_mib"]) == (5, 106)
    # 600 jobs a sample, four samples apart.
    assert found["growth_mib_per_10000_jobs"] == pytest.approx(5 * 10_000 / 2400)


def test_one_peak_is_no_growth() -> None:
    flat = [sample(n, 500.0 if n == 14 else 100.0) for n in range(16)]
    assert growth(flat, "operator")["growth_mib"] == 0.0


def test_too_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="7 samples; 8 are needed"):
        growth([sample(n, 1.0) for n in range(7)], "operator")


def test_too_short_a_run_is_refused_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        churn.parse(["--minutes", "1"])
    assert "--minutes: 8 samples are needed; got 1" in capsys.readouterr().err
    assert churn.parse(["--minutes", "1", "--sample-seconds", "5"]).arrive == 20.0


def test_what_is_resident_is_read_from_the_kernel() -> None:
    resident = resident_bytes(1)
    assert resident > 0


def test_connections_to_one_port_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        port, pid = server.getsockname()[1], os.getpid()
        assert connections_to(port, pid) == 0
        for count in (1, 2):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stack.enter_context(server.accept()[0])
            assert connections_to(port, pid) == count


class Jobs:
    """An API server whose first jobs end together, and each later one as it comes."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.created: dict[str, str] = {}

    async def create(self, _kind: object, body: dict[str, Any], namespace: str) -> None:
        name = body["metadata"]["name"]
        self.created[name] = namespace
        if len(self.created) == GOING_MAX:
            asyncio.get_running_loop().call_later(0.05, self.end, list(self.created))
        elif len(self.created) > GOING_MAX:
            self.end([name])

    def end(self, names: list[str]) -> None:
        for name, kind in itertools.product(names, ("MODIFIED", "DELETED")):
            done = manifest(name, "Succeeded")
            done["metadata"]["resourceVersion"] = "2"
            self.events.put_nowait({"type": kind, "object": done})

    async def list(self, _kind: object) -> Any:
        return type("Listing", (), {"resource_version": "1"})

    async def watch(self, _kind: object, _version: str) -> Any:
        while True:
            yield await self.events.get()


class NoProcesses:
    def processes(self) -> dict[str, Any]:
        return {}


async def test_jobs_wait_while_too_many_have_not_ended() -> None:
    jobs = Jobs()
    stream: Any = churn.Churn(NoProcesses(), jobs)  # type: ignore[arg-type]
    await stream.run(minutes=0.5 / 60, per_second=1e6, sample_seconds=60.0)
    counts = stream.counts
    assert counts.held_back_seconds > 0.03
    assert len(jobs.created) == counts.submitted == counts.succeeded > GOING_MAX
    assert counts.present == 0
    assert set(jobs.created.values()) == {churn.tenant(n) for n in range(churn.TENANTS)}
