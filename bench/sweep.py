"""A sweep of 50 learning rates in virtual time: one job is measured, and 49 start packed.

    python -m bench.sweep [--jobs 50] [--gpus 1,8]

The operator's own code decides, in the simulated cluster of `tests/simulation`, which also checks
its promises at every write. The 50 jobs are submitted at once. Each takes 3 GiB and 15 % of a GPU
of 24 GiB; jobs on one GPU slow each other by the published law. The gain of tuning is an assumption
(`--tuned-speed`), and so is its length; real ones are those of `bench.worker` and `bench.gpu`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.machine import print_result
from bench.table import format_table
from gpujob_api import settings as names
from gpujob_api.gpujob import ReservationSource
from gpujob_api.quantities import GIB, format_count
from gpujob_api.report import Failure, Report, Timing, WorkerPhase
from gpujob_api.settings import OptimizeMode, Settings, TunedSettings
from gpujob_operator.decide.capacity.slowdown_law import BANDS_PERCENT, PUBLISHED_SLOWDOWNS
from tests.simulation.api_server import Manifest
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.machines import Machine
from tests.simulation.simulation import Simulation
from tests.simulation.worker import Disk, Worker
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload

JOBS, GPUS = 50, "1,8"
STEPS = 600
STEP_SECONDS = 0.5
TUNED_SPEED = 1.5
TUNING_SECONDS = 45.0
MEMORY_BYTES, UTILIZATION_PERCENT = 3 * GIB, 15.0
END_SECONDS = 72 * 3600.0
SAMPLE_SECONDS = 5.0
TUNED = TunedSettings(compile=True)
WHOLE, APART, ONE = "a GPU each", "a workload each", "one workload"
WAYS = (WHOLE, APART, ONE)
COLUMNS = (
    *("way", "gpus", "measured_alone", "packed_at_once", "tuned_anew"),
    *("hours", "gpu_hours", "jobs_per_gpu_mean", "mean_hours_to_end"),
)


@dataclass(slots=True)
class Counts:
    """What the workers of a sweep started with, and how many GPUs they kept busy."""

    measured_alone: int = 0
    packed_at_once: int = 0
    tuned_anew: int = 0
    gpu_seconds: float = 0.0
    job_seconds: float = 0.0


class SweepWorker(Worker):
    """A worker that tunes first where its settings do not come from an earlier run, and is slowed
    by those beside it."""

    settings: Settings
    tunes_until: float
    tuned_speed: float

    @property
    def _is_tuning(self) -> bool:
        return self._clock.now < self.tunes_until

    @property
    def _alone_seconds(self) -> float:
        tuned = self.settings.mode is not OptimizeMode.OFF and not self._is_tuning
        return self._workload.step_seconds / (self.tuned_speed if tuned else 1.0)

    @property
    def _step_seconds(self) -> float:
        summed = sum(
            other.utilization
            for other in self.machine.workers.values()
            if not other.ended and set(other.gpus) & set(self.gpus)
        )
        band = next(n for n, bound in enumerate(BANDS_PERCENT) if summed < bound)
        slowdown = 1.0 if summed <= self.utilization else 1 + PUBLISHED_SLOWDOWNS[band] / 100
        return self._alone_seconds * max(slowdown, summed / 100)

    def _advance(self) -> None:
        workload = self._workload
        self._workload = replace(workload, step_seconds=self._step_seconds)
        super()._advance()
        self._workload = workload

    def _report(self, phase: WorkerPhase) -> None:
        super()._report(WorkerPhase.TUNING if self._is_tuning else phase)

    def report_now(self, phase: WorkerPhase, failure: Failure | None = None) -> Report:
        report = super().report_now(phase, failure)
        applied = self.settings.mode is not OptimizeMode.OFF and not self._is_tuning
        current = report.current and Timing(self._step_seconds, report.current.peak_memory_bytes)
        return replace(report, tuned=TUNED if applied else None, current=current, baseline=None)


class Sweep(Simulation):
    """The simulation with workers that tune, and counts of what they started with."""

    def __init__(self, scenario: Scenario, tuned_speed: float) -> None:
        super().__init__(
            1,
            scenario=scenario,
            faults=Faults(),
            incidents=[],
            operators=1,
            end_seconds=END_SECONDS,
        )
        self.counts = Counts()
        self._tuned_speed = tuned_speed
        self.clock.every(SAMPLE_SECONDS, self._sample)

    def _start_worker(self, cluster: Cluster, machine: Machine, pod: Manifest) -> Worker:
        disk = self.disks.setdefault(pod["metadata"]["labels"]["gpujob.dev/job-uid"], Disk())
        workload = self._workload_of(pod)
        worker = SweepWorker(
            cluster, machine, pod, workload, disk, self._peers_run, self._tell, self.processes
        )
        environment = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
        worker.settings = Settings.from_text(environment[names.ENV_SETTINGS])
        tunes = worker.settings.tuned is None and worker.settings.mode is OptimizeMode.AUTO
        worker.tunes_until = self.clock.now + TUNING_SECONDS if tunes else 0.0
        worker.tuned_speed = self._tuned_speed
        self._note(worker, tunes)
        return worker

    def _note(self, worker: Worker, tunes: bool) -> None:
        job = self.recorder.job_now(worker.job_uid)
        assert job is not None, "a worker has a job"
        held = job.status.reservation
        packed = held is not None and held.source is ReservationSource.PROFILE
        self.counts.packed_at_once += packed
        self.counts.measured_alone += not packed
        self.counts.tuned_anew += tunes

    def _sample(self) -> bool:
        workers = [w for m in self.cluster.machines.values() for w in m.workers.values()]
        live = [worker for worker in workers if not worker.ended]
        self.counts.job_seconds += SAMPLE_SECONDS * len(live)
        used = {uuid for worker in live for uuid in worker.gpus}
        self.counts.gpu_seconds += SAMPLE_SECONDS * len(used)
        return True


def scenario(way: str, jobs: int, gpus: int) -> Scenario:
    workload = Workload(
        MEMORY_BYTES, UTILIZATION_PERCENT, STEP_SECONDS, STEPS, checkpoint_steps=200
    )
    submissions = (
        Submission(f"lr-{number:02}", 0.0, _spec(way, number), workload) for number in range(jobs)
    )
    return Scenario((NodePlan("n0", gpus, cpu=4 * jobs),), tuple(submissions))


def _spec(way: str, number: int) -> dict[str, Any]:
    """As a user writes it; only the learning rate differs."""
    worker = {
        "name": "worker",
        "image": "train:1",
        "command": ["python", "train.py", "--lr", f"{10 ** (-4 + number / 16):.2g}"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    spec: dict[str, Any] = {
        "template": {"spec": {"containers": [worker]}},
        "checkpoint": {"volumeClaimName": "checkpoints"},
    }
    if way == WHOLE:
        return {**spec, "sharing": {"mode": "Exclusive"}, "optimize": {"mode": "Off"}}
    return {**spec, "workload": f"lr-{number}"} if way == APART else spec


def sweep(way: str, jobs: int, gpus: int, tuned_speed: float) -> dict[str, Any]:
    """One row of the table. Raises where a promise of the operator was broken."""
    simulation = Sweep(scenario(way, jobs, gpus), tuned_speed)
    result = simulation.run()
    if result.violations:
        raise RuntimeError(f"{way} on {gpus} GPUs: {result.violations[0]}")
    ends = [
        (job.status.finished_at - job.metadata.creation_timestamp).total_seconds()
        for job in simulation.jobs()
        if job.status.finished_at is not None and job.metadata.creation_timestamp is not None
    ]
    counts = simulation.counts
    return {
        "way": way,
        "gpus": gpus,
        "measured_alone": counts.measured_alone,
        "packed_at_once": counts.packed_at_once,
        "tuned_anew": counts.tuned_anew,
        "hours": round(max(ends) / 3600, 2),
        "gpu_hours": round(counts.gpu_seconds / 3600, 2),
        "jobs_per_gpu_mean": round(counts.job_seconds / counts.gpu_seconds, 2),
        "mean_hours_to_end": round(sum(ends) / len(ends) / 3600, 2),
        "succeeded": len(ends),
    }


def claims(rows: Sequence[dict[str, Any]], jobs: int) -> list[tuple[str, bool]]:
    """What the rows are to show, and whether they do."""
    found: list[tuple[str, bool]] = []
    for gpus in sorted({row["gpus"] for row in rows}):
        by_way = {row["way"]: row for row in rows if row["gpus"] == gpus}
        one, whole = by_way[ONE], by_way[WHOLE]
        counts = f"{one['measured_alone']} measured, {one['packed_at_once']} packed at once"
        text = f"{format_count(gpus, 'GPU')}: {counts}, {one['tuned_anew']} tuned"
        found.append((text, one["measured_alone"] == one["tuned_anew"] == min(gpus, jobs)))
        share = one["gpu_hours"] / whole["gpu_hours"]
        found.append(
            (
                f"{format_count(gpus, 'GPU')}: {share:.2f} of the GPU hours of a GPU each",
                share <= 0.5,
            )
        )
    return found


def _told(way: str, gpus: int, options: argparse.Namespace) -> dict[str, Any]:
    """The row, and a line on stderr: a way takes a minute."""
    begin = time.monotonic()
    row = sweep(way, options.jobs, gpus, options.tuned_speed)
    seconds = time.monotonic() - begin
    print(f"{way}, {format_count(gpus, 'GPU')}: done in {seconds:.0f} s", file=sys.stderr)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.sweep", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="number of learning rates")
    parser.add_argument("--gpus", default=GPUS, help="comma list of numbers of GPUs")
    parser.add_argument(
        "--tuned-speed", type=float, default=TUNED_SPEED, help="assumed gain of tuned settings"
    )
    options = parser.parse_args(arguments)
    numbers = [int(text) for text in options.gpus.split(",")]
    rows = [_told(way, gpus, options) for gpus in numbers for way in WAYS]
    print(format_table(rows, COLUMNS))
    held = claims(rows, options.jobs)
    print("\n".join(f"{'ok  ' if holds else 'NOT '} {text}" for text, holds in held))
    print_result(rows, jobs=options.jobs, tuned_speed=options.tuned_speed)
    return 0 if all(holds for _, holds in held) else 1


if __name__ == "__main__":
    sys.exit(main())
