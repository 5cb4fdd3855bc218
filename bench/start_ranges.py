"""How many start ranges hold in simulated weeks of a cluster.

    python -m bench.start_ranges [--seeds 1,2,3] [--days 7] [--nodes 6] [--load 0.9]
    python -m bench.start_ranges --memory 2000,10000 --nodes 250

The planner of the operator runs in virtual time on nodes with 4 GPUs. Jobs arrive in three queues,
more by day than by night. Their lengths are lognormal within programs of different length; some do
not report their number of steps, and some fail early. Ranges are computed as the operator does,
one calculation at a time, and the first range of a job is compared with its first placement.

`--memory` gives numbers of waiting jobs. For each one, the operator's child process computes the
ranges of a full cluster. The table has its largest memory: resident, and the data that its limit
counts.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import cos, exp, log, pi
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.machine import print_result
from bench.table import format_table
from gpujob_api.gpujob import GPUJob, GPUJobSpec, GPURequest, Retry, Sharing, SharingMode
from gpujob_api.gpunode import GPU, GPUNode, GPUNodeStatus
from gpujob_api.gpuqueue import GPUQueue, GPUQueueSpec, Quota
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB, Memory
from gpujob_api.report import Report, Timing, WorkerPhase
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import (
    GPUUsage,
    NodeView,
    PodPhase,
    ReceivedReport,
    Snapshot,
)
from gpujob_operator.decide.model.starts import Interval, may_start
from gpujob_operator.decide.planner import Planner
from gpujob_operator.decide.simulation.simulated_cluster import SimulatedCluster
from gpujob_operator.decide.simulation.start_ranges import Method, start_ranges
from gpujob_operator.forecast.child import COMMAND, SECONDS_MAX
from gpujob_operator.forecast.wire import Question, parts_of

START = datetime(2026, 1, 5, tzinfo=UTC)
GPUS_PER_NODE = 4
GPU_BYTES = 80 * GIB
QUEUES = ("research", "product", "teaching")
QUEUE_WEIGHTS = (0.5, 0.3, 0.2)
STEP_SECONDS = 1.0
REPORT_SECONDS = 300.0
IDLE_SECONDS = 300.0
# About as many as the operator has time for.
DRAWS = 12
COLUMNS = (
    "seed", "jobs", "waited", "asked", "ranges", "held_percent", "early", "late", "open_ends",
    "wait_minutes", "width_minutes", "seconds_a_calculation", "calculations", "draws",
)  # fmt: skip

MEMORY_COLUMNS = (
    "gpus", "running", "waiting", "resident_mib", "data_mib", "draws", "ranges", "seconds",
)  # fmt: skip
# Enough submissions for the largest backlog.
BACKLOG_DAYS = 30.0
BACKLOG_AGE = timedelta(minutes=30)
POLL_SECONDS = 0.02
_MEMORY = re.compile(r"^(VmHWM|VmData):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Truth:
    """The facts of a job that the planner does not have."""

    seconds: float
    steps: int | None
    fails: bool


@dataclass(frozen=True, slots=True)
class Week:
    """What is played."""

    seed: int
    days: float = 7.0
    nodes: int = 6
    load: float = 0.9
    # The part of the submissions that get a calculation.
    sample: float = 0.05


@dataclass(slots=True)
class World(SimulatedCluster):
    """A cluster whose jobs run as long as the truth has it, report steps, and may fail."""

    truths: dict[str, Truth] = field(default_factory=dict[str, Truth])
    begun: dict[str, datetime] = field(default_factory=dict[str, datetime])

    def snapshot(self) -> Snapshot:
        snapshot = SimulatedCluster.snapshot(self)
        usage = {
            (uid, self.jobs[uid].status.attempt): GPUUsage(8 * GIB, 90.0, 100) for uid in self.paces
        }
        return replace(snapshot, usage=usage)

    def seconds(self, job: GPUJob, now: datetime) -> float | None:
        uid = job.metadata.uid
        self.begun[uid] = now
        return self.truths[uid].seconds

    def _renew_reports(self) -> None:
        for uid in self.paces:
            known, truth = self.reports.get(uid), self.truths[uid]
            age = (self.now - known.received_at).total_seconds() if known else REPORT_SECONDS
            job = self.jobs[uid]
            if age < REPORT_SECONDS and known and known.report.attempt == job.status.attempt:
                continue
            step = int((self.now - self.begun[uid]).total_seconds() / STEP_SECONDS)
            report = Report(
                job.status.attempt,
                WorkerPhase.TRAINING,
                step=step,
                steps_total=truth.steps,
                current=Timing(STEP_SECONDS, 8 * GIB),
            )
            self.reports[uid] = ReceivedReport(uid, 0, self.now, report)

    def _complete(self, job_uid: str) -> None:
        SimulatedCluster._complete(self, job_uid)
        if not self.truths[job_uid].fails:
            return
        for pod in list(self.pods.values()):
            if pod.job_uid == job_uid and pod.phase is PodPhase.SUCCEEDED:
                self.pods[pod.uid] = replace(
                    pod, phase=PodPhase.FAILED, exit_code=1, termination=None
                )


def arrivals(week: Week) -> Iterator[tuple[GPUJob, Truth]]:
    random = Random(week.seed)
    gpus = week.nodes * GPUS_PER_NODE
    # Programs of each queue: the median of their seconds, and GPUs.
    programs = {
        queue: [
            (exp(random.gauss(log(7200), 0.8)), random.choice((1, 1, 1, 2, 4))) for _ in range(6)
        ]
        for queue in QUEUES
    }
    mean = sum(
        weight * sum(seconds * exp(0.5 * 0.6**2) * count for seconds, count in programs[queue]) / 6
        for queue, weight in zip(QUEUES, QUEUE_WEIGHTS, strict=True)
    )
    rate = week.load * gpus / mean
    at, number = 0.0, 0
    while at < week.days * 86_400:
        # Thinning: most at 14:00, fewest at 2:00.
        at += random.expovariate(1.8 * rate)
        if random.random() * 1.8 > 1 + 0.8 * cos(2 * pi * (at / 86_400 - 14 / 24)):
            continue
        queue = random.choices(QUEUES, QUEUE_WEIGHTS)[0]
        program = random.randrange(6)
        seconds, count = programs[queue][program]
        number += 1
        yield _job(number, at, queue, program, count, random), _truth(seconds, random)


def _truth(median_seconds: float, random: Random) -> Truth:
    seconds = median_seconds * exp(random.gauss(0.0, 0.6))
    counts = random.random() < 0.6
    steps = max(int(seconds / STEP_SECONDS), 1) if counts else None
    fails = random.random() < 0.1
    if fails:
        # The number of steps is reported all the same.
        seconds *= random.random() ** 2
    return Truth(max(seconds * random.uniform(0.97, 1.05), 20.0), steps, fails)


def _job(number: int, at: float, queue: str, program: int, gpus: int, random: Random) -> GPUJob:
    command = ["python", f"{queue}-{program}.py", "--lr", str(random.random())]
    worker = {"name": "worker", "image": "image:1", "command": command}
    spec = GPUJobSpec(
        template={"spec": {"containers": [worker]}},
        queue=queue,
        gpus_per_worker=gpus,
        gpu=GPURequest(Memory(20 * GIB)),
        sharing=Sharing(SharingMode.EXCLUSIVE),
        retry=Retry(0, 600),
        priority=random.choice((0, 0, 0, 0, 10)),
    )
    metadata = Metadata(
        name=f"job-{number}",
        namespace=queue,
        uid=f"uid-{number}",
        resource_version="1",
        generation=1,
        creation_timestamp=START + timedelta(seconds=at),
    )
    return GPUJob(metadata, spec)


def world_of(week: Week) -> World:
    nodes = [f"n{number}" for number in range(week.nodes)]
    views = [
        NodeView(
            name=name,
            cpu_milli_allocatable=64_000,
            cpu_milli_free=64_000,
            memory_bytes_allocatable=512 * GIB,
            memory_bytes_free=512 * GIB,
        )
        for name in nodes
    ]
    gpu_nodes = [
        GPUNode(
            Metadata(name, uid=f"gpunode-{name}"),
            status=GPUNodeStatus(
                observed_at=START,
                gpus=tuple(
                    GPU(
                        uuid=f"GPU-{name}-{index}",
                        index=index,
                        model="NVIDIA A100",
                        memory_total_bytes=GPU_BYTES,
                        memory_used_bytes=0,
                    )
                    for index in range(GPUS_PER_NODE)
                ),
            ),
        )
        for name in nodes
    ]
    total = week.nodes * GPUS_PER_NODE
    queues = [
        GPUQueue(
            Metadata(name, uid=f"queue-{name}", generation=1),
            GPUQueueSpec(nominal=Quota(gpus=max(round(weight * total), 4)), sharing_group="all"),
        )
        for name, weight in zip(QUEUES, QUEUE_WEIGHTS, strict=True)
    ]
    base = Snapshot(nodes=tuple(views), gpu_nodes=tuple(gpu_nodes), queues=tuple(queues))
    return _world(base, list(arrivals(week)))


def _world(base: Snapshot, played: Sequence[tuple[GPUJob, Truth]]) -> World:
    world = World.of(base, START)
    assert isinstance(world, World)
    world.lengths = world
    world.truths = {job.metadata.uid: truth for job, truth in played}
    world.arrivals = [job for job, _ in reversed(played)]
    return world


def backlog(nodes: int, waiting: int) -> World:
    """A full cluster half an hour after all jobs were submitted at once."""
    week = Week(1, BACKLOG_DAYS, nodes)
    many = islice(arrivals(week), waiting + nodes * GPUS_PER_NODE)
    played = [
        (replace(job, metadata=replace(job.metadata, creation_timestamp=START)), truth)
        for job, truth in many
    ]
    world = _world(world_of(replace(week, days=0.0)).base, played)
    planner = Planner()
    world.pass_until(START)
    while (plan := planner(world.snapshot(), world.now)).items:
        world.carry_out(plan)
        world.pass_until(world.now + timedelta(seconds=1))
    world.pass_until(world.now + BACKLOG_AGE)
    extra = [job.metadata.uid for job in _waiting(world)][waiting:]
    for uid in extra:
        del world.jobs[uid]
    return world


def memory_row(nodes: int, waiting: int) -> dict[str, Any]:
    """Returns the memory and the answer of one calculation in the operator's child process."""
    world = backlog(nodes, waiting)
    snapshot = world.snapshot()
    with tempfile.TemporaryFile() as question:
        question.writelines(parts_of(Question(snapshot, world.now, SECONDS_MAX)))
        question.seek(0)
        child = subprocess.Popen(COMMAND, stdin=question, stdout=subprocess.PIPE)
    peaks = {"VmHWM": 0, "VmData": 0}
    while child.poll() is None:
        for name, kibibytes in _MEMORY.findall(Path(f"/proc/{child.pid}/status").read_text()):
            peaks[name] = max(peaks[name], int(kibibytes) * 1024)
        time.sleep(POLL_SECONDS)
    text, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the process ended with {child.returncode}: {peaks}")
    answer: dict[str, Any] = json.loads(text)
    return {
        "gpus": nodes * GPUS_PER_NODE,
        "running": len(world.paces),
        "waiting": len(_waiting(world)),
        "resident_mib": round(peaks["VmHWM"] / 2**20),
        "data_mib": round(peaks["VmData"] / 2**20),
        "draws": answer["draws"],
        "ranges": len(answer["intervals"]),
        "seconds": round(answer["seconds"], 1),
    }


@dataclass(slots=True)
class Score:
    first: dict[str, tuple[datetime, Interval]] = field(
        default_factory=dict[str, tuple[datetime, Interval]]
    )
    placed_at: dict[str, datetime] = field(default_factory=dict[str, datetime])
    waited: set[str] = field(default_factory=set[str])
    # Jobs that waited when a calculation was made for them.
    asked: int = 0
    calculations: int = 0
    draws: int = 0
    seconds: float = 0.0


def play(week: Week, method: Method) -> Score:
    """Plays the week. A part of the submissions after which a job waits gets a calculation."""
    world, planner, score = world_of(week), Planner(), Score()
    end = START + timedelta(days=week.days)
    random = Random(week.seed)
    while world.now < end:
        plan = planner(world.snapshot(), world.now)
        _note(plan, score)
        world.carry_out(plan)
        _forget_old(world)
        if not plan.items:
            new = [job.metadata.uid for job in _waiting(world) if _is_new(job, score)]
            score.waited.update(new)
            if new and random.random() < week.sample:
                _calculate(world, method, new, score)
                print(f"{world.now:%a %H:%M} {row(week, score)}", file=sys.stderr, flush=True)
        world.pass_until(_next_moment(world, plan))
    return score


def _waiting(world: World) -> list[GPUJob]:
    return [job for job in world.jobs.values() if may_start(job, job.status)]


def _is_new(job: GPUJob, score: Score) -> bool:
    never_ran = job.status.attempt == 0 and bool(job.status.conditions)
    return never_ran and job.metadata.uid not in score.waited


def _calculate(world: World, method: Method, new: list[str], score: Score) -> None:
    """Takes the first range of the new jobs."""
    began = time.process_time()
    found = start_ranges(world.snapshot(), world.now, method)
    score.seconds += time.process_time() - began
    score.calculations += 1
    score.draws += found.draws
    score.asked += len(new)
    for uid in new:
        if uid in found.intervals:
            score.first[uid] = (world.now, found.intervals[uid])


def _next_moment(world: World, plan: Plan) -> datetime:
    """Returns the next event, but no later than the plan's deadline."""
    idle_seconds = 1.0 if plan.items else IDLE_SECONDS
    if plan.next_seconds is not None:
        idle_seconds = min(idle_seconds, max(plan.next_seconds, 1.0))
    after = world.now + timedelta(seconds=idle_seconds)
    event = world.next_event()
    if event is None:
        return after
    return max(min(after, event), world.now + timedelta(seconds=0.5))


def _note(plan: Plan, score: Score) -> None:
    for item in plan.items:
        if isinstance(item, WriteStatus) and item.status.attempt_started_at is not None:
            score.placed_at.setdefault(item.job.metadata.uid, item.status.attempt_started_at)


def _forget_old(world: World) -> None:
    """Deletes jobs that finished a day ago, as a time to live of a day does."""
    for uid, job in list(world.jobs.items()):
        at = job.status.finished_at
        if job.finished and at is not None and world.now - at > timedelta(days=1):
            del world.jobs[uid]
            for pod in [one.uid for one in world.pods.values() if one.job_uid == uid]:
                del world.pods[pod]


def row(week: Week, score: Score) -> dict[str, Any]:
    judged = [
        (computed, interval, score.placed_at[uid])
        for uid, (computed, interval) in score.first.items()
        if uid in score.placed_at
    ]
    closed = [one for one in judged if one[1].latest is not None]
    held = [interval.has(at) for _, interval, at in closed]
    widths = sorted(
        (one.latest - one.earliest).total_seconds() / 60 for _, one, _ in closed if one.latest
    )
    waits = sorted((at - computed).total_seconds() / 60 for computed, _, at in closed)
    return {
        "seed": week.seed,
        "jobs": len(score.placed_at),
        "waited": len(score.waited),
        "ranges": len(closed),
        "held_percent": round(100 * sum(held) / len(held), 1) if held else None,
        "asked": score.asked,
        "open_ends": len(judged) - len(closed),
        "early": sum(at < one.earliest for _, one, at in closed),
        "late": sum(at > one.earliest and not one.has(at) for _, one, at in closed),
        "wait_minutes": round(median(waits), 1) if waits else None,
        "width_minutes": round(median(widths), 1) if widths else None,
        "seconds_a_calculation": round(score.seconds / max(score.calculations, 1), 3),
        "calculations": score.calculations,
        "draws": round(score.draws / max(score.calculations, 1), 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.start_ranges", description=__doc__)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--no-later-jobs", action="store_true")
    parser.add_argument("--sample", type=float, default=0.05, help="part of the submissions")
    parser.add_argument("--memory", help="numbers of waiting jobs")
    options = parser.parse_args(arguments)
    if options.memory is not None:
        measured = [memory_row(options.nodes, int(one)) for one in options.memory.split(",")]
        print(format_table(measured, MEMORY_COLUMNS))
        print_result(measured, bench="start_ranges_memory")
        return 0
    method = Method(draws=options.draws, expects_later_jobs=not options.no_later_jobs)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds.split(","):
        week = Week(int(seed), options.days, options.nodes, options.load, options.sample)
        score = play(week, method)
        rows.append(row(week, score))
        print(f"seed {seed}: {rows[-1]}", file=sys.stderr)
    print(format_table(rows, COLUMNS))
    print_result(rows, bench="start_ranges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
