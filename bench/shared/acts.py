"""The acts of the play: each submits jobs, watches them, and returns its claims and figures.

What is claimed holds on one device: where the operator would migrate a job to another one, the
jobs keep running, and are kept apart as soon as one of them has to start again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.shared import figures
from bench.shared.figures import Alone, Energy, Row, Together
from bench.shared.stage import NODE, Job, Pace, Stage, Window
from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource
from gpujob_api.meta import ConditionStatus
from gpujob_api.quantities import MIB, format_memory
from gpujob_local.demo.following import StoryError
from gpujob_local.demo.telling import Claim
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.stop_reasons import MEMORY_CAP_EXCEEDED

# Of the pace alone, once a neighbour has gone.
RECOVERED = 0.8
DECLARED_FRACTION = 0.45
JOBS_MIN = 3
# A cap above what the job needs, and what it takes although it has that cap: more than contexts
# may have.
SPARE_BYTES = 512 * MIB
GREEDY_BYTES = 1700 * MIB
IDLE_SECONDS = 3.0
# A job's utilization on a CPU card is measured by then, unless other programs have the core.
CARD_WAIT_SECONDS = 30.0
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is played: kinds of light jobs, seconds of each window, steps of the exact jobs."""

    size: str
    kinds: tuple[str, ...]
    window_seconds: float
    exact_steps: int
    stop_at_step: int
    pace: Pace
    # The part of the time for which a light job computes, and the one that a busy neighbour slows,
    # with the slowdown that this one allows: beside a light job the law still expects less.
    light: float
    steady: float
    steady_slowdown_percent: int
    # Of the jobs that are packed.
    max_slowdown_percent: int = 10


# A card's readings are new every 0.2 s, a GPU's every second. Packed jobs may share a busier card.
_CARD = Pace(agent_seconds=0.25, samples_min=20, limit_seconds=90.0)
_GPU = Pace(agent_seconds=2.0, samples_min=4, limit_seconds=90.0)
# Of intervals of the agent: two published readings after the start-up, of which the first one
# covers its end.
STEADY_INTERVALS = 11
KINDS = ("gpt2", "bert", "vit")
SCALES = {
    ("cpu", True): Scale("tiny", KINDS[:2], 4.0, 400, 100, _CARD, 0.12, 0.5, 10, 100),
    ("cpu", False): Scale("tiny", KINDS, 10.0, 1200, 300, _CARD, 0.12, 0.5, 10, 100),
    ("cuda", True): Scale("small", KINDS[:2], 4.0, 400, 100, _GPU, 0.15, 0.48, 10),
    ("cuda", False): Scale("full", KINDS, 8.0, 150, 50, _GPU, 0.15, 0.48, 10),
}


@dataclass(slots=True)
class Found:
    """What one act found."""

    claims: list[Claim] = field(default_factory=list[Claim])
    rows: list[Row] = field(default_factory=list[Row])
    more: Row = field(default_factory=Row)

    def result(self) -> Row:
        return {
            "claims": [figures.claim_row(claim) for claim in self.claims],
            "rows": self.rows,
            **self.more,
        }


@dataclass(slots=True)
class Acts:
    """All acts on one stage. Later ones use what `alone` measured."""

    stage: Stage
    scale: Scale
    idle_watts: float | None = None
    alone: dict[str, Alone] = field(default_factory=dict[str, Alone])

    def measure_alone(self) -> Found:
        """Each kind of light job by itself."""
        stage = self.stage
        start = time.monotonic()
        time.sleep(IDLE_SECONDS)
        self.idle_watts = stage.meter.span(start, time.monotonic()).watts
        for kind in self.scale.kinds:
            name = f"{kind}-alone"
            stage.submit(self._light(name, kind))
            job = stage.until(name, "a measured reservation", _measured)
            # Its tuning, in which it makes no steps, is over.
            stage.trained(name, len(stage.steps(name)) + 5)
            time.sleep(STEADY_INTERVALS * self.scale.pace.agent_seconds)
            window = stage.window([name], self.scale.window_seconds)
            held = stage.follower.job(name) or job
            self.alone[kind] = Alone(
                kind,
                window.paces[name],
                window.span.utilization_percent,
                window.span.watts,
                stage.memory_peak_bytes(held, window.span),
                _reserved(held),
            )
            stage.end(name)
        found = list(self.alone.values())
        claim = figures.measured_alone(found, stage.device.memory_bytes)
        return Found([claim], [one.row() for one in found], {"idle_watts": self.idle_watts})

    def pack(self) -> Found:
        """All light jobs at once, each declaring almost half of the device."""
        stage = self.stage
        declared = round(DECLARED_FRACTION * stage.device.memory_bytes)
        kinds = self.scale.kinds
        # At least three jobs, so that what is declared cannot fit.
        while len(kinds) < JOBS_MIN:
            kinds += kinds[: JOBS_MIN - len(kinds)]
        limit = self.scale.max_slowdown_percent
        jobs = [
            self._light(f"{kind}-packed-{number}", kind, declared, limit)
            for number, kind in enumerate(kinds, 1)
        ]
        names = [job.name for job in jobs]
        stage.submit(*jobs)
        for name in names:
            stage.until(name, "to run", _running)
            stage.trained(name, 5)
        window = stage.window(names, 2 * self.scale.window_seconds)
        together = [self._together(job, declared, window) for job in jobs]
        stage.end(*names)
        sequence = sum(one.alone.utilization_percent for one in together) / len(together)
        device_bytes = stage.device.memory_bytes
        claims = [
            figures.packed(together, device_bytes),
            figures.memory_covered(together),
            figures.more_work(together, sequence, window.span.utilization_percent),
            figures.little_slower(together),
        ]
        energy = figures.energy_of(
            together, self.idle_watts, window.span.seconds, window.span.joules
        )
        more = _packed_figures(together, sequence, window.span.utilization_percent, energy)
        return Found(claims, [one.row() for one in together], more)

    def interfere(self) -> Found:
        """A busy job has a light neighbour, which begins to compute all the time."""
        stage, kind, other = self.stage, self.scale.kinds[0], self.scale.kinds[-1]
        stage.submit(self._steady(kind))
        stage.until("steady", "a measured reservation", _measured)
        before = stage.window(["steady"], self.scale.window_seconds).paces["steady"]
        stage.submit(self._light("rising", other))
        stage.until("rising", "to run", _running)
        stage.trained("rising", 5)
        (stage.folder / "rising.heavy").touch()
        slowed = stage.until("steady", "the condition Slowed", _slowed)
        beside = stage.window(["steady"], self.scale.window_seconds).paces["steady"]
        steady, rising = self._seen("steady"), self._seen("rising")
        message = _message(slowed, conditions.SLOWED)
        paces = f"steady makes {beside:.1f} steps/s beside it, {before:.1f} alone"
        claims = [
            Claim(
                "A pair that interferes is measured: both figures are in the job's condition",
                "%" in message and beside < before,
                (f"steady: {message}", paces),
            ),
            Claim(
                "Without a second device nothing is migrated, and nothing is lost",
                steady.status.attempt == rising.status.attempt == 1
                and _running(steady)
                and _running(rising),
                (f"attempts {steady.status.attempt} and {rising.status.attempt}, both run",),
            ),
        ]
        apart, note = self._apart(before)
        row = {"pair": f"{kind} + {other}", "beside": beside, "alone": before}
        return Found([*claims, *apart], [row], {"note": note} if note else {})

    def _apart(self, before: float) -> tuple[list[Claim], str]:
        """The neighbour is stopped and comes again: it is placed beside nobody whom it slows."""
        stage = self.stage
        try:
            too_busy = _too_busy_beside(self._seen("steady"))
            limit = stage.limit_seconds if stage.device.is_gpu else CARD_WAIT_SECONDS
            rising = stage.until("rising", "its measured utilization", too_busy, limit)
            used = _utilization(rising)
        except StoryError as error:
            if stage.device.is_gpu:
                raise
            # Other programs had the core, so together they did not use it.
            stage.end("steady", "rising")
            return [], f"that the pair is kept apart was not shown on this CPU card: {error}"
        stage.suspend("rising")
        stage.until("rising", "its stop", _pending)
        stage.until("steady", "the end of Slowed", lambda job: not _slowed(job))
        alone = stage.window(["steady"], self.scale.window_seconds).paces["steady"]
        stage.suspend("rising", suspended=False)
        waits = stage.until("rising", "to wait for a place", _refused("would slow a job"))
        stage.end("steady")
        again = stage.until("rising", "to run again", _running)
        stage.end("rising")
        claim = Claim(
            "Interference is bounded: the pair is not put together again",
            alone >= RECOVERED * before and again.status.attempt == 2,
            (
                f"rising was measured at {used:.0f} %",
                f"rising waited: {_message(waits, conditions.SCHEDULED)}",
                f"steady alone again: {alone:.1f} steps/s, before {before:.1f}",
                f"rising ran again once steady had ended, attempt {again.status.attempt}",
            ),
        )
        return [claim], ""

    def overreach(self) -> Found:
        """A job without our worker takes more than the cap that it shares the device with."""
        stage, kind = self.stage, self.scale.kinds[0]
        stage.submit(self._light("neighbour", kind, max_slowdown_percent=100))
        stage.until("neighbour", "to run", _running)
        stage.trained("neighbour", 5)
        cap = self.alone[kind].peak_bytes + SPARE_BYTES
        greedy = Job(
            "greedy",
            kind,
            ("--grow-bytes", str(GREEDY_BYTES), "--busy", str(self.scale.light)),
            memory_bytes=cap,
            mode="Shared",
            max_slowdown_percent=100,
            family="greedy",
            environment={"GPUJOB_INJECT": "0"},
        )
        stage.submit(greedy)
        stage.until("greedy", "to run", lambda job: job.status.attempt > 0)
        started = time.monotonic()
        ended = self._failed("greedy")
        seconds = time.monotonic() - started
        window = stage.window(["neighbour"], self.scale.window_seconds)
        neighbour = self._seen("neighbour")
        stage.end("neighbour")
        failure = ended.status.failure
        message = failure.message if failure is not None else "-"
        stopped = MEMORY_CAP_EXCEEDED in (ended.status.summary.reason, message) or "cap" in message
        claim = Claim(
            "A job that takes more than its part is stopped; its neighbour trains on",
            stopped and neighbour.status.attempt == 1 and window.paces["neighbour"] > 0,
            (
                f"greedy may use {format_memory(cap)} and then takes "
                f"{format_memory(GREEDY_BYTES)} more: {message}",
                f"it had run for {seconds:.0f} s; neighbour, attempt {neighbour.status.attempt}, "
                f"makes {window.paces['neighbour']:.1f} steps/s",
            ),
        )
        return Found([claim])

    def respect(self) -> Found:
        """An unmanaged process holds memory that a job would need."""
        stage, kind = self.stage, self.scale.kinds[0]
        (card,) = stage.cluster.cards(NODE)
        held = round(0.7 * stage.device.memory_bytes)
        process = stage.cluster.start_unmanaged_process(card, held)
        self._counted(held)
        wanted = round(0.5 * stage.device.memory_bytes)
        stage.submit(self._light("guest", kind, memory_bytes=wanted, family="guest"))
        waits = stage.until("guest", "to wait for the process", _refused("unmanaged process"))
        message = _message(waits, conditions.SCHEDULED)
        stage.cluster.stop_unmanaged_process(process)
        placed = stage.until("guest", "to run", _running)
        stage.end("guest")
        claim = Claim(
            "An unmanaged process is respected: nothing is placed on memory that it holds",
            waits.status.placement is None and placed.status.attempt == 1,
            (
                f"it holds {format_memory(held)} of {format_memory(stage.device.memory_bytes)}",
                f"guest waited: {message}",
                "guest was placed once the process had gone",
            ),
        )
        return Found([claim])

    def resume(self) -> Found:
        """Two equal jobs, one of which is stopped and goes on."""
        stage, scale = self.stage, self.scale
        arguments = ("--exact", "--steps", str(scale.exact_steps))
        jobs = [
            Job(
                name,
                scale.kinds[0],
                arguments,
                max_slowdown_percent=100,
                environment=EXACT,
                optimize="Recommend",
            )
            for name in ("whole", "stopped")
        ]
        for job in jobs:
            stage.submit(job)
        stage.trained("stopped", scale.stop_at_step)
        stage.suspend("stopped")
        stage.until("stopped", "its stop", _pending)
        saved = self._seen("stopped").status.checkpoint
        stage.suspend("stopped", suspended=False)
        ended = [stage.until(job.name, "success", lambda job: job.status.finished) for job in jobs]
        whole, stopped = (stage.result(job.name) for job in jobs)
        losses = [{s.number: s.loss for s in stage.steps(job.name)} for job in jobs]
        apart = sum(losses[0].get(step) != loss for step, loss in losses[1].items())
        step = saved.step if saved is not None else None
        resumed = ended[1].status.resumed_from_step
        equal = whole["weights"] == stopped["weights"]
        claim = Claim(
            "Stopped and resumed on the device: the same weights as a job that was not stopped",
            equal and apart == 0 and ended[1].status.attempt == 2 and resumed == step,
            (
                f"saved step {step} of {scale.exact_steps}, resumed after step {resumed}",
                f"{len(losses[1])} losses, {apart} differ",
                f"weights {whole['weights'][:16]}... and {stopped['weights'][:16]}...",
            ),
        )
        return Found([claim])

    def _light(
        self,
        name: str,
        kind: str,
        memory_bytes: int | None = None,
        max_slowdown_percent: int = 10,
        family: str = "",
    ) -> Job:
        arguments = ("--busy", str(self.scale.light))
        limit = max_slowdown_percent
        return Job(name, kind, arguments, memory_bytes, max_slowdown_percent=limit, family=family)

    def _steady(self, kind: str) -> Job:
        arguments, limit = ("--busy", str(self.scale.steady)), self.scale.steady_slowdown_percent
        return Job("steady", kind, arguments, max_slowdown_percent=limit, family="steady")

    def _together(self, job: Job, declared: int, window: Window) -> Together:
        seen = self._seen(job.name)
        peak, pace = self.stage.memory_peak_bytes(seen, window.span), window.paces[job.name]
        return Together(job.name, self.alone[job.kind], pace, peak, _reserved(seen), declared)

    def _seen(self, name: str) -> GPUJob:
        job = self.stage.follower.job(name)
        if job is None:
            raise StoryError(f"{name}: the job was never seen")
        return job

    def _failed(self, name: str) -> GPUJob:
        """The job once it has failed. `until` would call that a surprise."""
        end = time.monotonic() + self.stage.limit_seconds
        while time.monotonic() < end:
            job = self._seen(name)
            if job.status.finished:
                return job
            time.sleep(0.1)
        raise StoryError(f"{name} was not stopped: {self.stage.follower.last(name)}")

    def _counted(self, amount: int) -> None:
        """Waits until the agent's readings have all of the unmanaged process's memory."""
        end = time.monotonic() + self.stage.limit_seconds
        path = f"/apis/gpujob.dev/v1alpha1/gpunodes/{NODE}"
        while time.monotonic() < end:
            gpus = self.stage.cluster.client().get(path).get("status", {}).get("gpus", [])
            if gpus and int(gpus[0].get("memoryUsedBytes", 0)) >= amount:
                return
            time.sleep(0.1)
        raise StoryError(f"the agent does not count {amount} bytes of the unmanaged process")


def _packed_figures(
    jobs: Sequence[Together], alone_percent: float, shared_percent: float, energy: Energy
) -> Row:
    return {
        "jobs": len(jobs),
        "work_against_one_after_the_other": round(sum(job.relative_speed for job in jobs), 3),
        "worst_slowdown_percent": round(max(job.slowdown_percent for job in jobs), 1),
        "utilization_percent": round(shared_percent, 1),
        "utilization_one_after_the_other_percent": round(alone_percent, 1),
        "energy": energy.row(),
    }


def _measured(job: GPUJob) -> bool:
    held = job.status.reservation
    return held is not None and held.source is ReservationSource.MEASURED


def _running(job: GPUJob) -> bool:
    return job.status.phase is JobPhase.RUNNING


def _pending(job: GPUJob) -> bool:
    return job.status.phase is JobPhase.PENDING


def _too_busy_beside(other: GPUJob) -> Callable[[GPUJob], bool]:
    """Whether the law would not put the job beside the other one again."""
    limit = summed_utilization_limit_percent(other.spec.sharing.max_slowdown_percent)

    def met(job: GPUJob) -> bool:
        return _utilization(job) + _utilization(other) > limit

    return met


def _utilization(job: GPUJob) -> float:
    held = job.status.reservation
    return held.utilization_percent if held is not None else 0.0


def _reserved(job: GPUJob) -> int:
    return job.status.reservation.memory_bytes if job.status.reservation is not None else 0


def _slowed(job: GPUJob) -> bool:
    found = conditions.find(job.status, conditions.SLOWED)
    return found is not None and found.status is ConditionStatus.TRUE


def _refused(words: str) -> Callable[[GPUJob], bool]:
    def met(job: GPUJob) -> bool:
        return words in _message(job, conditions.SCHEDULED)

    return met


def _message(job: GPUJob, kind: str) -> str:
    found = conditions.find(job.status, kind)
    return found.message if found is not None else ""
