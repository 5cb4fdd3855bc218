"""Jobs that come, end and are deleted without a pause: does the operator's memory grow?

    python -m bench.throughput.churn [--minutes 30] [--arrive 20] [--nodes 100] [--gpus 8]

The processes are those of `bench.throughput`. Jobs come at a steady rate in several namespaces, end
as soon as they are bound, and are deleted by their `ttlSecondsAfterFinished`. Where more than
`GOING_MAX` have not ended, the next one waits: `held_back_seconds` says how long in all.

Memory is what is resident. `growth_mib` is the median of the last quarter of all samples less that
of the second quarter; the first one fills caches. The same is given for 10,000 jobs that ended.
`connections` are those of the operator to the API server, which take memory for as long as it runs.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bench.machine import print_result
from bench.table import format_table
from bench.throughput.__main__ import NAMESPACES, positive, rate
from bench.throughput.load import GPUJOBS, RETRY_SECONDS, gpujob_manifest
from bench.throughput.products import OperatorAndAgents
from bench.throughput.progress import say, wait_until
from bench.throughput.stack import Stack, start_cluster
from gpujob_operator.client.api_errors import AlreadyExists, Throttled, Unavailable
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import Kube, Manifest

GOING_MAX = 500
# A namespace's writes are limited, and a cluster has several.
TENANTS = 8
TTL_SECONDS = 10
# Until the last jobs are deleted.
END_SECONDS_MAX = 120.0
# Quarters need a few samples each.
SAMPLES_MIN = 8
COLUMNS = (
    *("minute", "submitted", "succeeded", "present", "connections", "operator_mib"),
    *("kube-apiserver_mib", "etcd_mib", "operator_percent", "kube-apiserver_percent"),
)


@dataclass(slots=True)
class Counts:
    """Jobs so far. Of those that are gone no name is kept, so the benchmark does not grow."""

    submitted: int = 0
    succeeded: int = 0
    deleted: int = 0
    held_back_seconds: float = 0.0
    _going: set[str] = field(default_factory=set[str])

    @property
    def present(self) -> int:
        return self.submitted - self.deleted

    @property
    def going(self) -> int:
        """Submitted and not ended."""
        return len(self._going)

    def submit(self, name: str) -> None:
        self.submitted += 1
        self._going.add(name)

    def came(self, kind: str, manifest: Manifest) -> None:
        """An event of a watch."""
        name = manifest["metadata"]["name"]
        if kind == "DELETED":
            self.deleted += 1
        if name in self._going and (kind == "DELETED" or GPUJOBS.succeeded(manifest)):
            self._going.discard(name)
            self.succeeded += GPUJOBS.succeeded(manifest)


@dataclass(frozen=True, slots=True)
class Sample:
    """What there is at one moment. CPU is in percent of a core since the sample before."""

    minute: float
    submitted: int
    succeeded: int
    present: int
    resident_mib: dict[str, float]
    cpu_percent: dict[str, float]
    # Of the operator to the API server. It keeps as many as it ever needed at once.
    connections: int

    def row(self) -> dict[str, Any]:
        return {
            "minute": self.minute,
            "submitted": self.submitted,
            "succeeded": self.succeeded,
            "present": self.present,
            "connections": self.connections,
            **{f"{name}_mib": mib for name, mib in self.resident_mib.items()},
            **{f"{name}_percent": percent for name, percent in self.cpu_percent.items()},
        }


def growth(samples: Sequence[Sample], process: str) -> dict[str, Any]:
    """How much more is resident at the end than after the caches are full.

    Raises `ValueError` for fewer than eight samples.
    """
    if len(samples) < SAMPLES_MIN:
        raise ValueError(f"{len(samples)} samples; {SAMPLES_MIN} are needed")
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    before, after = (
        statistics.median(one.resident_mib[process] for one in part) for part in (second, last)
    )
    ended = statistics.median(one.succeeded for one in last) - statistics.median(
        one.succeeded for one in second
    )
    return {
        "process": process,
        "second_quarter_mib": before,
        "last_quarter_mib": after,
        "growth_mib": after - before,
        "growth_mib_per_10000_jobs": 10_000 * (after - before) / ended if ended else None,
        "most_mib": max(one.resident_mib[process] for one in samples),
    }


@dataclass(slots=True)
class Churn:
    """A steady stream of jobs, and what the processes take meanwhile."""

    stack: Stack
    kube: Kube
    counts: Counts = field(default_factory=Counts)
    samples: list[Sample] = field(default_factory=list[Sample])
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, minutes: float, per_second: float, sample_seconds: float) -> None:
        version = (await self.kube.list(GPUJOBS.resource)).resource_version
        async with asyncio.TaskGroup() as group:
            follow = group.create_task(self._follow(version))
            sample = group.create_task(self._sample(time.monotonic(), sample_seconds))
            await self._submit(60 * minutes, per_second)
            sample.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS_MAX):
                    await self._until(lambda: not self.counts.present)
            follow.cancel()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    async def _follow(self, version: str) -> None:
        """An event that is missed would be missed in the counts, so `Gone` ends the benchmark."""
        while True:
            try:
                async for event in self.kube.watch(GPUJOBS.resource, version):
                    manifest: Any = event["object"]
                    version = manifest["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self.counts.came(str(event["type"]), manifest)
                        self._progress.set()
            except Unavailable as error:
                say(f"watch of jobs: {error}")
                await asyncio.sleep(RETRY_SECONDS)

    async def _submit(self, seconds: float, per_second: float) -> None:
        start, counts = time.monotonic(), self.counts
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic() - start) < seconds:
                due = (counts.submitted / per_second) + counts.held_back_seconds
                await asyncio.sleep(max(0.0, due - now))
                asked = time.monotonic()
                await self._until(lambda: counts.going < GOING_MAX)
                counts.held_back_seconds += time.monotonic() - asked
                name = f"job-{counts.submitted:06d}"
                counts.submit(name)
                group.create_task(self._create(name, tenant(counts.submitted)))

    async def _create(self, name: str, namespace: str) -> None:
        manifest = gpujob_manifest(name, 1)
        manifest["spec"]["ttlSecondsAfterFinished"] = TTL_SECONDS
        with suppress(AlreadyExists):
            while True:
                try:
                    await self.kube.create(GPUJOBS.resource, manifest, namespace)
                except (Throttled, Unavailable):
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    return

    async def _sample(self, start: float, seconds: float) -> None:
        then, before = time.monotonic(), self.stack.processes()
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.stack.check)
            now, after = time.monotonic(), self.stack.processes()
            used = {
                name: 100 * (one.cpu_seconds - before[name].cpu_seconds) / (now - then)
                for name, one in after.items()
            }
            counts = self.counts
            sample = Sample(
                (now - start) / 60,
                *(counts.submitted, counts.succeeded, counts.present),
                self.stack.resident_mib(),
                used,
                self.stack.operator_connections(),
            )
            self.samples.append(sample)
            say(
                f"{sample.minute:.1f} minutes: {counts.succeeded} of {counts.submitted} succeeded, "
                f"{counts.present} there, operator {sample.resident_mib['operator']:.1f} MiB, "
                f"{sample.connections} connections"
            )
            then, before = now, after


def tenant(number: int) -> str:
    return f"churn-{number % TENANTS}"


async def run(stack: Stack, options: argparse.Namespace) -> Churn:
    kube = Kube(await load_configuration(str(stack.cluster.kubeconfig)))
    try:
        await asyncio.to_thread(stack.start_nodes)
        await wait_until(lambda: stack.ready_nodes() >= stack.nodes, "ready nodes", stack)
        await OperatorAndAgents(stack).start()
        for number in range(TENANTS):
            head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant(number)}}
            await asyncio.to_thread(stack.client.create, NAMESPACES, head)
        churn = Churn(stack, kube)
        await churn.run(options.minutes, options.arrive, options.sample_seconds)
        return churn
    finally:
        await kube.close()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.throughput.churn", description=text)
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="jobs come for so long (%(default)s)")
    add("--arrive", type=rate, default=20.0, help="jobs a second, as 20 or 20/s (%(default)s)")
    add("--nodes", type=positive, default=100, help="played nodes (%(default)s)")
    add("--gpus", type=positive, default=8, help="GPUs of a node (%(default)s)")
    add("--sample-seconds", type=float, default=30.0, help="between two samples (%(default)s)")
    options = parser.parse_args(arguments)
    if options.minutes * 60 < SAMPLES_MIN * options.sample_seconds:
        parser.error(f"--minutes: {SAMPLES_MIN} samples are needed; got {options.minutes:g}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with start_cluster(say) as cluster:
        churn = asyncio.run(run(Stack(cluster, options.nodes, options.gpus), options))
    rows = [sample.row() for sample in churn.samples]
    grown = [growth(churn.samples, name) for name in ("operator", "kube-apiserver", "etcd")]
    print("Jobs that come and go; kubelets are played by kwok, agents by one process")
    print(format_table(rows, COLUMNS))
    print("\nResident memory")
    print(format_table(grown, list(grown[0])))
    counts = churn.counts
    print_result(
        grown,
        options=vars(options),
        samples=rows,
        submitted=counts.submitted,
        succeeded=counts.succeeded,
        left=counts.present,
        held_back_seconds=counts.held_back_seconds,
    )
    if counts.succeeded == counts.submitted and not counts.present:
        return 0
    print(
        f"NOT COMPLETE: of {counts.submitted} jobs {counts.succeeded} succeeded, and "
        f"{counts.present} were there {END_SECONDS_MAX:.0f} s after the last one came",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
