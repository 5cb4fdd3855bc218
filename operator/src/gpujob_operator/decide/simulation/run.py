"""The simulation loop: plan, record, apply and advance time, until no job is pending or the horizon
is reached.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.plan import CreatePod, DeletePod, Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner
from gpujob_operator.decide.simulation.simulated_cluster import Lengths, SimulatedCluster
from gpujob_operator.decide.simulation.timeline import Timeline, TimelineRecorder

PlanFunction = Callable[[Snapshot, datetime], Plan]

HORIZON_SECONDS = 24 * 3600.0
CYCLES_MAX = 2000
# Longest interval between cycles. The interval grows while nothing happens. Changes that time alone
# triggers (a nomination, a migration) come within minutes, and every event triggers a cycle.
LOOK_SECONDS = 30.0
LOOK_GROWTH = 1.5
LOOK_SECONDS_MAX = 3600.0
# Shortest interval between two cycles: absolute at first, later as a fraction of the elapsed time.
STEP_SECONDS = 0.1
STEP_FRACTION = 0.01


@dataclass(frozen=True, slots=True)
class Limits:
    horizon_seconds: float = HORIZON_SECONDS
    cycles: int = CYCLES_MAX
    step_seconds: float = STEP_SECONDS
    step_fraction: float = STEP_FRACTION
    # Writes of all plans together. None: no limit.
    writes: int | None = None


@dataclass(frozen=True, slots=True)
class Future:
    """One of the possible futures: run times, and jobs that are created later.

    The simulation ends once all `watched` jobs have started.
    """

    lengths: Lengths
    arrivals: tuple[GPUJob, ...] = ()
    watched: frozenset[str] = field(default_factory=frozenset[str])


def simulate(
    snapshot: Snapshot,
    now: datetime,
    limits: Limits,
    plan: PlanFunction | None = None,
    future: Future | None = None,
) -> Timeline:
    """Runs `plan` on the snapshot from now on, and records what follows.

    Without `future`, attempts run as long as the planner expects, and no job is created.
    """
    plan = plan if plan is not None else Planner()
    if future is None:
        cluster = SimulatedCluster.of(snapshot, now)
    else:
        cluster = SimulatedCluster.of(snapshot, now, future.lengths, future.arrivals)
    recorder = TimelineRecorder(now, cluster.jobs, cluster.configuration)
    end = now + timedelta(seconds=limits.horizon_seconds)
    calm, cycles, writes, ended = 0, 0, 0, "cycles"
    while cycles < limits.cycles and (limits.writes is None or writes < limits.writes):
        cycles += 1
        decided = plan(cluster.snapshot(), cluster.now)
        writes += len(decided.items)
        changed = recorder.note(decided, cluster.jobs, cluster.now)
        cluster.carry_out(decided)
        calm = 0 if changed else calm + 1
        if not changed and not _acts(decided) and _nobody_waits(cluster):
            ended = "no pending jobs"
            break
        if future is not None and _all_started(recorder, future.watched):
            ended = "watched jobs started"
            break
        if cluster.now >= end:
            ended = "horizon"
            break
        cluster.pass_until(min(_next_moment(cluster, decided, now, calm, limits), end))
    return Timeline(recorder.jobs, (cluster.now - now).total_seconds(), cycles, ended)


def _acts(decided: Plan) -> bool:
    return any(isinstance(item, CreatePod | DeletePod) for item in decided.items)


def _nobody_waits(cluster: SimulatedCluster) -> bool:
    """Returns whether no job waits for GPUs and no pod is starting or stopping.

    Finished and suspended jobs do not wait.
    """
    waits = any(
        not job.finished and job.status.placement is None and not job.spec.suspend
        for job in cluster.jobs.values()
    )
    return not waits and not cluster.starts and not cluster.ends


def _all_started(recorder: TimelineRecorder, watched: frozenset[str]) -> bool:
    return all(recorder.jobs[uid].starts_seconds is not None for uid in watched)


def _next_moment(
    cluster: SimulatedCluster, decided: Plan, start: datetime, calm: int, limits: Limits
) -> datetime:
    """Returns the time of the next cycle: an event, the plan's deadline, or the longest
    interval.
    """
    passed = (cluster.now - start).total_seconds()
    # A write is visible immediately.
    look = LOOK_SECONDS * LOOK_GROWTH ** min(calm - 1, 100) if calm else 0.0
    look = min(look, LOOK_SECONDS_MAX)
    if decided.next_seconds is not None:
        look = min(look, max(decided.next_seconds, 0.0))
    step = max(limits.step_seconds, passed * limits.step_fraction)
    moment = cluster.now + timedelta(seconds=max(look, step))
    event = cluster.next_event()
    if event is None or event >= moment:
        return moment
    return max(event, cluster.now + timedelta(seconds=step))
