"""One run of a script: its state, its reports and its end."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from gpujob_api.quantities import format_ratio
from gpujob_api.report import (
    STOP_ATTEMPT_OVER,
    YIELD_INTERVALS,
    Efficiency,
    Reply,
    Report,
    WorkerPhase,
)
from gpujob_api.serving import ServingReport
from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.run.call_listener import CallListener
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.failure import end_of
from gpujob_worker.run.features import Features
from gpujob_worker.run.graceful_stop import (
    EXIT_MARGIN_SECONDS,
    Interrupted,
    Stop,
    leave_unsaved,
)
from gpujob_worker.run.life_sign import LifeSign
from gpujob_worker.run.lineage import Claim, Lineage, written
from gpujob_worker.run.meter import Meter, efficiency
from gpujob_worker.run.profiling import StepProfiler
from gpujob_worker.run.reporter import (
    INTERVAL_SECONDS_RANGE,
    Destination,
    Reporter,
    write_termination_message,
)
from gpujob_worker.run.run_report import Facts, leave
from gpujob_worker.run.run_state import RunState
from gpujob_worker.run.safety_net import attempted
from gpujob_worker.run.yielding import Yielding

LAST_REPORT_SECONDS = 3.0
# Seconds that the first step waits for the operator to confirm that the attempt is not over.
FENCE_SECONDS_MAX = 30.0
# How long a run may be tuned: a small part of it, and enough to measure long steps more than once.
TUNING_FRACTION = 0.02
TUNING_SECONDS_MIN, TUNING_SECONDS_MAX = 12.0, 120.0
# A run without a number of steps is assumed to have this many.
STEPS_ASSUMED = 1000
_BATCH_SIZE = "batch size"


class Session:
    """One run in one process: its state, and the services that measure, log, report and stop it."""

    def __init__(
        self,
        environment: Environment,
        features: Features | None = None,
        log: DecisionLog | None = None,
        tuning_seconds: float | None = None,
        *,
        report_directory: Path | None = None,
        profiler: StepProfiler | None = None,
        is_first: bool = True,
        is_hooked: bool = False,
        parent: "Session | None" = None,
    ) -> None:
        """With `is_hooked`, the end of the process makes the last report. `parent` is the session
        of the process that forked this one.
        """
        self.environment = environment
        self.features = features or Features()
        self.log = log or DecisionLog()
        self._tuning_seconds_asked = tuning_seconds
        self.meter = Meter(CpuMemory())
        self.yielding = Yielding(self.meter)
        self.life_sign = LifeSign()
        known = environment.settings.tuned
        self.state = RunState(self.meter, tuned=known, known_tuned=known)
        self.profiler = profiler
        self._release: Callable[[], None] = lambda: None
        self._ending: Callable[[], None] = lambda: None
        self._before_report: Callable[[], None] = lambda: None
        self._on_end: Callable[[bool], None] = lambda _: None
        # The script ended without completing the run, so its exit code is not the run's.
        self.is_unfinished = False
        # A stop ended the script with an error, so that exit code is not the run's either.
        self.broke_off = False
        self._report_directory = report_directory
        # Whether a stop of the pod reaches this very process.
        self.is_first = is_first
        # Whether the process trains. Otherwise nothing of it is started, handled or reported.
        self.started = False
        # Why nothing is injected at all, and why nothing is tuned.
        self.inert: str | None = None
        self.why_only_measures: str | None = None
        # Among the processes that train together, according to torch's process group.
        self.rank, self.world_size = environment.rank, environment.world_size
        # The process only starts those that train.
        self.launches = False
        self._on_start: Callable[[], None] = lambda: None
        self.is_hooked = is_hooked
        self._on_serving: Callable[[], None] = lambda: None
        self._serving: Callable[[], ServingReport | None] = lambda: None
        self._on_shared: Callable[[bool], None] = lambda _: None
        self._on_park: Callable[[bool | None], None] = lambda _: None
        # Called when a forked child trains; makes its own session there.
        self.begin_in_child: Callable[[], None] = lambda: None
        self._claim = Claim(environment.termination_file)
        forked_from = parent._lineage if parent is not None else None
        self._lineage = Lineage(environment.termination_file, forked_from)
        self._speaks_for_pod = self._failure_is_ours = False
        self._owns_safe_points = True
        self.calls = CallListener()
        self.stop = Stop(environment.grace_seconds, self._final_report)
        self.stop.interrupt_at_once = self._nothing_to_save
        self._sequence = 0
        self._lock = threading.Lock()
        self._process = os.getpid()
        url = environment.report_url
        destination = Destination(url, environment.token_file) if url else None
        self.reporter = Reporter(destination, self._report_to_send, self._on_reply)

    @property
    def _speaks(self) -> bool:
        """Whether this process reports for its pod: the first of those that train, or one that
        failed.

        A process that does not train reports if no other has, and only if it has something to
        report or was stopped. It does not know its exit code after `raise SystemExit`. A kubelet
        takes the log's last lines if there is no message.
        """
        if self.is_of_parent or self._is_beside_parent:
            return False
        if not self.started:
            says = self.state.failure is not None or bool(self.log.lines)
            says = says or self.stop.requested
            return says and written(self.environment.termination_file) is None
        return self._speaks_for_pod or self.state.failure is not None

    @property
    def _is_beside_parent(self) -> bool:
        """Whether it descends from a process that trains by itself, and not together with it."""
        return self.world_size == 1 and self._lineage.ancestor_trains

    @property
    def is_beside_training(self) -> bool:
        """Whether another process of the pod trains, or has trained in this attempt. A process that
        only answers must not replace its report.
        """
        self._lineage.meet()
        before = written(self.environment.termination_file)
        if before is None or before.attempt != self.environment.attempt:
            trained = False
        else:
            trained = before.task is None and before.step > 0
        return trained or self._is_beside_parent

    @property
    def is_of_parent(self) -> bool:
        """Whether this is a child that was forked since."""
        return os.getpid() != self._process

    @property
    def optimizes(self) -> bool:
        """Whether anything is injected into the script."""
        return self.listens_to_stops and not (self.inert or self.why_only_measures)

    @property
    def listens_to_stops(self) -> bool:
        return self.environment.settings.mode is not OptimizeMode.OFF

    def inert_because(self, reason: str) -> None:
        """Stops injecting, measuring and handling signals."""
        self.inert = reason
        self.stop.leave_to_system()

    def measures_only(self, reason: str | None) -> None:
        """Turns tuning off if there is a reason."""
        self.why_only_measures = reason

    def switch_off(self, names: Iterable[str]) -> None:
        """Stops injecting these settings."""
        self.features = self.features.less(names)

    def joins(self, rank: int, world_size: int) -> None:
        """Sets the process group in which it trains."""
        self.rank, self.world_size = rank, world_size

    def takes_samples(self, samples: int | None) -> None:
        """Sets the samples of this process's step, or None if they cannot be counted."""
        self.state.takes_samples(samples)
        declared = self.environment.settings.batch_total
        compare_with_declared(declared, samples, self.world_size, self.log)

    @property
    def tuning_budget_seconds(self) -> float:
        """The requested budget in seconds. Without one, it is a part of the run if its length is
        known.
        """
        if self._tuning_seconds_asked is not None:
            return self._tuning_seconds_asked
        state = self.state
        step_seconds = state.baseline.step_seconds if state.baseline is not None else None
        return tuning_budget_seconds(step_seconds, state.steps_total)

    def report(self) -> Report:
        """Returns the newest report. It is also written as the termination message, in case it is
        the last.
        """
        self._before_report()
        with self._lock:
            self._sequence += 1
            report = self._build()
            if self._speaks:
                self._lineage.speaks()
                over_child = self.started and self._lineage.child_speaks and not report.failure
                path, ours = self.environment.termination_file, self._failure_is_ours
                write_termination_message(path, report, ours=ours or over_child)
                self._failure_is_ours = report.failure is not None
            return report

    def _report_to_send(self) -> Report | None:
        return None if self._is_beside_parent else self.report()

    def _build(self) -> Report:
        window = self.meter.window
        return Report(
            attempt=self.environment.attempt,
            phase=self.state.phase,
            rank=self.environment.rank,
            sequence=self._sequence,
            task=self.state.task,
            step=self.state.step,
            steps_total=self.state.steps_total or self.state.calls_expected,
            loss=self.state.loss,
            baseline=self.state.as_written,
            current=self.state.current,
            serving=self._serving(),
            peaks=window.peaks,
            efficiency=self._efficiency(),
            data_wait_percent=window.data_wait_percent,
            tuned=self.state.tuned,
            tuning_seconds=self.state.tuning_seconds,
            speedup=self.state.speedup,
            skipped_steps=self.state.skipped_steps,
            yielded_seconds=self.yielding.seconds,
            idle_seconds=self.life_sign.idle_seconds,
            resumed_from_step=self.state.resumed_from_step,
            checkpoint=self.state.checkpoint,
            protection=self.state.protection,
            protection_reason=self.state.protection_reason,
            resume_refused=self.state.resume_refused,
            failure=self.state.failure,
            device=self.state.device,
            torch_version=self.state.torch_version,
            explain=self.log.lines,
        )

    def settings_are(self, tuned: TunedSettings) -> None:
        """Sets the applied settings, and logs their measured gain."""
        before = self.state.speedup
        self.state.settings_are(tuned)
        gain = self.state.speedup
        if gain is not None:
            ratio, low, high = map(format_ratio, (gain.ratio, gain.low, gain.high))
            text = f"{ratio}x (95 % {low} to {high}, {gain.pairs} pairs)"
            beside = " but for the memory limit" if self.environment.memory_limit_bytes else ""
            self.log.note("speed-up", f"{text}, in turns with as written{beside}")
        elif before is not None:
            self.log.skipped("speed-up", "not measured with the settings now in force")

    def _efficiency(self) -> Efficiency | None:
        tuned = self.state.tuned or TunedSettings()
        return efficiency(self.meter, self.state.step_flop, self.state.device, tuned.precision)

    def serves(
        self,
        report: Callable[[], ServingReport | None],
        on_shared: Callable[[bool], None],
        on_park: Callable[[bool | None], None] = lambda _: None,
    ) -> None:
        """Marks that steps are batches of requests. `report` is a part of every report from now
        on. `on_shared` is called with whether other jobs hold a part of the GPU, and `on_park` with
        whether the process has to be parked, or None if it stays as it is.
        """
        self.state.serves()
        self._serving, self._on_shared, self._on_park = report, on_shared, on_park
        self._on_serving()

    def when_serving(self, call: Callable[[], None]) -> None:
        """Sets a callback for a process that turns out to answer requests."""
        self._on_serving = call

    def _on_reply(self, reply: Reply) -> None:
        if reply.shared is not None:
            self._on_shared(reply.shared)
        self._on_park(reply.park)
        interval_seconds = min(reply.interval_seconds, INTERVAL_SECONDS_RANGE[1])
        self.yielding.ask(reply.yield_percent, YIELD_INTERVALS * interval_seconds)
        if reply.stop is not None:
            self.stop.watch()
            seconds = reply.stop.deadline_seconds
            self.stop.request(reply.stop.reason, seconds, by_operator=True)

    def stop_with_others(self, reason: str, seconds: float) -> None:
        """Stops this process because another process of the group was stopped."""
        if not self.stop.requested:
            self.stop.watch()
            self.stop.request(reason, seconds)

    def listen_for_stop(self) -> None:
        """Starts handling stops, in all processes at their first step, which may run in the main
        thread.

        The first process starts when torch is imported. If a handler of the script replaced ours,
        that is logged.
        """
        late = self.meter.steps > 0 and not self.stop.watches
        refusal = self.stop.listen()
        if refusal is not None:
            self.log.skipped("graceful stop", refusal)
        elif late and self.is_first:
            self.log.applied("graceful stop", "from the first step on")

    def leaves_stops_to_script(self, *, leaves: bool = True) -> None:
        """Leaves stops to a checkpointer, which leaves at its own safe points with a checkpoint."""
        self._owns_safe_points = not leaves

    @property
    def script_owns_safe_points(self) -> bool:
        return not self._owns_safe_points

    def listen_to_calls(self, listener: CallListener) -> None:
        """Sets the listener to the calls of a model that only answers."""
        self.calls = listener

    def at_end(self, ending: Callable[[], None], release: Callable[[], None]) -> None:
        """Sets `ending`, which may add to the last report, and `release`, which drops references to
        the script's objects.
        """
        self._ending, self._release = ending, release

    def before_report(self, call: Callable[[], None]) -> None:
        """Sets `call`, which may add to each report."""
        self._before_report = call

    def on_end(self, call: Callable[[bool], None]) -> None:
        """Sets a callback for the end of a script that was not stopped. Its argument is whether the
        script ended well.
        """
        self._on_end = call

    def leaves_unfinished(self) -> None:
        """Marks that the script ended well but has to run again."""
        self.is_unfinished = True

    def _nothing_to_save(self) -> bool:
        return self._owns_safe_points and self.meter.steps == 0

    def safe_point(self) -> None:
        """Leaves without a checkpoint after a stop request, for scripts without a `Job`."""
        if self.stop.requested and self._owns_safe_points:
            self.state.enter(WorkerPhase.DRAINING)
            leave_unsaved()

    def _final_report(self, why: str) -> None:
        self.state.enter(WorkerPhase.DRAINING)
        self.log.note("stop", why)
        with contextlib.suppress(Exception):
            self.report()

    def finish(
        self, error: BaseException | None, *, launches: bool = False, stopped: bool | None = None
    ) -> None:
        """Makes the last report: the phase for a clean end, the failure's class for any other.

        `stopped` is whether a stop was requested when the error appeared. None means as it is now.
        """
        if self.is_of_parent:
            return
        if error is None and self.stop.requested:
            error = Interrupted.latest
        self.stop.end()
        self._lineage.meet()
        self.launches = launches
        stopped = self.stop.requested if stopped is None else stopped
        held, needed = self.meter.window.peak_memory_bytes or None, self.state.needed_bytes
        end = end_of(error, stopped=stopped, used_bytes=held, predicted_bytes=needed)
        self.broke_off = end.broke_off
        if not (end.interrupted or (end.clean and self._asked_early)):
            attempted("resume", lambda: self._on_end(end.clean), self.log)
        if end.note:
            self.log.note("stop", end.note)
        if end.failure is not None:
            self.state.failed(end.failure)
        else:
            drains = end.interrupted or self._left_early
            self.state.enter(WorkerPhase.DRAINING if drains else WorkerPhase.FINISHED)
        last = {"step time": self.meter.read_steps, "memory": self.meter.read_memory}
        last |= {"profile": self._close_profile, "summary": self._ending}
        for what, call in {**last, "explanation": self.log.end}.items():
            attempted(what, call, self.log)
        # Written here too, because the reporting thread may wait for a network that is gone.
        report = self.report()
        if self._speaks:
            facts = Facts(self.state.as_written_wait_percent, self.state.plain_float32)
            leave(self._report_directory, report, facts)
        remaining = min(LAST_REPORT_SECONDS, self.stop.remaining_seconds() - EXIT_MARGIN_SECONDS)
        self.reporter.close(max(0.1, remaining))
        self.state.saw_loss(None)
        self._release()

    @property
    def leaves_run_unfinished(self) -> bool:
        """Whether the run must end with this process.

        A signal is not enough. The sender may have sent it to `gpujob-run`, and a script may end
        one process of several.
        """
        left = self.stop.by_operator and self.state.phase is WorkerPhase.DRAINING
        return self.started and (left or self.is_unfinished)

    @property
    def _left_early(self) -> bool:
        """Whether the script ended well but is not known to have made the last step."""
        return self._asked_early or self.is_unfinished

    @property
    def _asked_early(self) -> bool:
        """Whether the process was stopped before the last step. The script's own handler may end
        with 0 then.
        """
        total = self.state.steps_total
        asked = self.stop.requested or self.stop.signaled
        return asked and (total is None or self.state.step < total)

    def _close_profile(self) -> None:
        said = self.profiler.close() if self.profiler is not None else None
        if said is not None:
            self.log.note("profile", f"the run ended first; {said}")

    def when_started(self, call: Callable[[], None]) -> None:
        self._on_start = call

    def start(self) -> None:
        """Marks that the process trains. From now on it reports, if it is the one that reports for
        the pod.
        """
        if self.started:
            return
        self._on_start()
        self._lineage.meet()
        self._lineage.trains()
        speaks = self._local_rank == 0 and not self._is_beside_parent
        # Processes that it forked or started release the claim and report nothing from now on.
        speaks = speaks and (self._claim.take() or self._lineage.child_speaks)
        # Both are set at once, because a stop may end this method anywhere and has to be reported.
        self.started, self._speaks_for_pod = True, speaks
        if not self._speaks_for_pod:
            return
        self._lineage.speaks()
        before = written(self.environment.termination_file)
        if before is not None and before.attempt == self.environment.attempt:
            # Reports differ by their number, even those of one process after another.
            self._sequence = before.sequence
        self._pass_fence()
        self.reporter.start()

    def _pass_fence(self) -> None:
        """Waits before the first step, because an attempt that was given up meanwhile must not
        begin.

        Without an operator the run starts anyway, because the checkpoint store has its own fence.
        """
        if not self.reporter.ask(FENCE_SECONDS_MAX):
            text = f"the operator did not answer within {FENCE_SECONDS_MAX:.0f} s; not waited for"
            self.log.note("start", text)
        if self.stop.requested and self.stop.reason == STOP_ATTEMPT_OVER:
            raise Interrupted(saved=False)

    @property
    def _local_rank(self) -> int:
        """The number that a launcher set. Without one, it is the group's rank if the pod is the
        whole job, else 0.
        """
        environment = self.environment
        if environment.local_rank is not None:
            return environment.local_rank
        return self.rank if environment.world_size == 1 else 0


def tuning_budget_seconds(step_seconds: float | None, steps_total: int | None) -> float:
    """Returns about 2 % of the run's expected time, at least 12 s and at most 120 s."""
    run_seconds = (step_seconds or 0.0) * (steps_total or STEPS_ASSUMED)
    return min(TUNING_SECONDS_MAX, max(TUNING_SECONDS_MIN, TUNING_FRACTION * run_seconds))


def compare_with_declared(
    declared: int | None, samples: int | None, processes: int, log: DecisionLog
) -> None:
    """Logs whether the processes together take the declared number of samples.

    It does so once, for the first step whose samples are known. The script's own number applies
    either way.
    """
    if declared is None or samples is None or log.decision(_BATCH_SIZE) is not None:
        return
    taken = samples * processes
    if taken == declared:
        log.note(_BATCH_SIZE, f"{taken} samples in a step, as declared")
        return
    each = f"{processes} processes with {samples} each" if processes > 1 else "the script"
    log.note(
        _BATCH_SIZE,
        f"differs: a step takes {taken} samples ({each}), and "
        f"spec.optimize.batchSize.total declares {declared}; nothing is changed",
    )
