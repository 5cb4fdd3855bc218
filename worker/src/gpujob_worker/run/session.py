"""One run of a script: what is known about it, what is reported of it, and how it ends."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.report import (
    CheckpointReport,
    Efficiency,
    Failure,
    FailureClass,
    Reply,
    Report,
    Speedup,
    Timing,
    WorkerPhase,
)
from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.run.decision_log import Explanation
from gpujob_worker.run.efficiency import efficiency
from gpujob_worker.run.environment import Environment, read_environment
from gpujob_worker.run.failure import classify
from gpujob_worker.run.features import Switches
from gpujob_worker.run.graceful_stop import EXIT_MARGIN_SECONDS, Interrupted, Stop
from gpujob_worker.run.meter import Meter
from gpujob_worker.run.profiling import StepProfiler
from gpujob_worker.run.reporter import Destination, Reporter, write_termination_message
from gpujob_worker.run.run_report import Facts, write
from gpujob_worker.run.tuning_budget import tuning_budget_seconds

LAST_REPORT_SECONDS = 3.0

_current: "Session | None" = None


class Session:
    """The state shared by injection, measuring, reporting and checkpointing of one process."""

    def __init__(
        self,
        environment: Environment,
        switches: Switches | None = None,
        explanation: Explanation | None = None,
        tuning_seconds: float | None = None,
    ) -> None:
        self.environment = environment
        self.switches = switches or Switches()
        self.explanation = explanation or Explanation()
        self._tuning_seconds_asked = tuning_seconds
        self.meter = Meter(CpuMemory())
        self.phase = WorkerPhase.STARTING
        self.baseline: Timing | None = None
        self.baseline_wait_percent: float | None = None
        self.tuned: TunedSettings | None = environment.settings.tuned
        # What was gained, and by which settings.
        self._gain: tuple[TunedSettings, Speedup] | None = None
        # Settings to start with: of an earlier run, or of the checkpoint that is resumed.
        self.known_tuned: TunedSettings | None = environment.settings.tuned
        self.tuning_seconds: float | None = None
        # What steps took of the models before; `current` while the present one's tell nothing.
        self._before: Timing | None = None
        self._alike = True
        self.samples_per_step: int | None = None
        self.steps_total: int | None = None
        self.first_step = 0
        self.resumed_from_step: int | None = None
        self.checkpoint: CheckpointReport | None = None
        self.failure: Failure | None = None
        # The limit that the job needs at least, where it was found not to keep its own.
        self.needed_bytes: int | None = None
        self.device = ""
        self.torch_version = ""
        self.loss_tensor: Any = None
        self.skipped_steps: int | None = None
        # The loss scale in force, and the one of the checkpoint that is resumed.
        self.loss_scale: Any = None
        self.known_scale: Any = None
        self.step_flop: float | None = None
        self.plain_float32 = False
        self.profiler: StepProfiler | None = None
        self.release: Callable[[], None] = lambda: None
        # May add to what the last report says.
        self.ending: Callable[[], None] = lambda: None
        self.report_directory: Path | None = None
        self.owns_safe_points = True
        self.stop = Stop(environment.grace_seconds, self._last_words)
        self.stop.interrupt_at_once = self._nothing_to_save
        self._sequence = 0
        self._lock = threading.Lock()
        self._process = os.getpid()
        url = environment.report_url
        speaks = url and environment.local_rank == 0
        destination = Destination(url, environment.token_file) if url and speaks else None
        self.reporter = Reporter(destination, self.report, self._on_reply)

    @property
    def _speaks(self) -> bool:
        """One process speaks for a pod: the first that a launcher started, or one that failed."""
        own = os.getpid() == self._process
        return own and (self.environment.local_rank == 0 or self.failure is not None)

    @property
    def optimizes(self) -> bool:
        return self.environment.settings.mode is not OptimizeMode.OFF

    @property
    def tuning_budget_seconds(self) -> float:
        """What was asked for, else a part of the run as far as its length is known."""
        if self._tuning_seconds_asked is not None:
            return self._tuning_seconds_asked
        step_seconds = self.baseline.step_seconds if self.baseline is not None else None
        return tuning_budget_seconds(step_seconds, self.steps_total)

    @property
    def baseline_peak_bytes(self) -> int:
        """The peak of the steps as first run; 0 while they are not over."""
        return self.baseline.peak_memory_bytes if self.baseline is not None else 0

    @property
    def step(self) -> int:
        return self.first_step + self.meter.steps

    def report(self) -> Report:
        """The newest report; also written as the termination message, should this be the last."""
        with self._lock:
            self._sequence += 1
            report = self._build()
            if self._speaks:
                write_termination_message(self.environment.termination_file, report)
            return report

    def _build(self) -> Report:
        window = self.meter.window
        return Report(
            attempt=self.environment.attempt,
            phase=self.phase,
            rank=self.environment.rank,
            sequence=self._sequence,
            step=self.step,
            steps_total=self.steps_total,
            loss=self.loss(),
            baseline=self.baseline,
            current=self._current(),
            peaks=window.peaks,
            efficiency=self._efficiency(),
            data_wait_percent=window.data_wait_percent,
            tuned=self.tuned,
            tuning_seconds=self.tuning_seconds,
            speedup=self.speedup,
            skipped_steps=self.skipped_steps,
            resumed_from_step=self.resumed_from_step,
            checkpoint=self.checkpoint,
            failure=self.failure,
            device=self.device,
            torch_version=self.torch_version,
            explain=self.explanation.lines,
        )

    @property
    def speedup(self) -> Speedup | None:
        """What was measured of the settings in force; None of any others."""
        if self._gain is None or self.tuned is None:
            return None
        settings, gain = self._gain
        return gain if settings == _without_loader(self.tuned) else None

    def gained(self, settings: TunedSettings, gain: Speedup | None) -> None:
        """So much faster `settings` were measured to be; said once they are in force."""
        self._gain = None if gain is None else (_without_loader(settings), gain)

    def settings_are(self, tuned: TunedSettings) -> None:
        """The settings that are in force from now on, for reports."""
        before, self.tuned = self.speedup, tuned
        gain = self.speedup
        if gain is not None:
            text = f"{gain.ratio:.2f}x (95 % {gain.low:.2f} to {gain.high:.2f}, {gain.pairs} pairs)"
            beside = " but for the memory limit" if self.environment.memory_limit_bytes else ""
            self.explanation.note("speed-up", f"{text}, in turns with as written{beside}")
        elif before is not None:
            self.explanation.refused("speed-up", "not measured with the settings now in force")

    def begin_model(self, *, alike: bool) -> None:
        """Another model trains from now on; its steps are compared with the first's if alike."""
        if self._alike:
            self._before = self.meter.window.timing(self.samples_per_step) or self._before
        self._alike = alike
        self.meter.new_window()

    def _current(self) -> Timing | None:
        now = self.meter.window.timing(self.samples_per_step)
        if self._before is None or (self._alike and now is not None):
            return now
        peak = max(self._before.peak_memory_bytes, self.meter.window.peak_memory_bytes)
        return replace(self._before, peak_memory_bytes=peak)

    def _efficiency(self) -> Efficiency | None:
        tuned = self.tuned or TunedSettings()
        return efficiency(self.meter, self.step_flop, self.device, tuned.precision)

    def loss(self) -> float | None:
        """The loss last seen by `backward`; None before the first, or when it is not finite."""
        tensor = self.loss_tensor
        if tensor is None:
            return None
        try:
            value = float(tensor)
        except (RuntimeError, ValueError):
            return None
        return value if abs(value) < 1e300 else None

    def _on_reply(self, reply: Reply) -> None:
        if reply.stop is not None:
            self.stop.watch()
            self.stop.request(reply.stop.reason, reply.stop.deadline_seconds)

    def listen_for_stop(self) -> None:
        """Once torch is imported; again at the first step, which the main thread may well make."""
        late, refusal = self.meter.steps > 0, self.stop.listen()
        if refusal is not None:
            self.explanation.refused("graceful stop", refusal)
        elif late:
            self.explanation.applied("graceful stop", "from the first step on")

    def _nothing_to_save(self) -> bool:
        return self.owns_safe_points and self.meter.steps == 0

    def safe_point(self) -> None:
        """Leaves without a checkpoint when a stop was requested; start-up injection's way out."""
        if self.stop.requested and self.owns_safe_points:
            self.phase = WorkerPhase.DRAINING
            raise Interrupted(saved=False)

    def _last_words(self) -> None:
        self.phase = WorkerPhase.DRAINING
        self.explanation.note("stop", f"no safe point before the deadline ({self.stop.reason})")
        with contextlib.suppress(Exception):
            self.report()

    def finish(self, error: BaseException | None) -> None:
        """The last report: the phase for a clean end, the failure's class for any other."""
        if os.getpid() != self._process:
            return
        self.stop.end()
        if isinstance(error, Interrupted):
            self.phase = WorkerPhase.DRAINING
        elif error is None or (isinstance(error, SystemExit) and not error.code):
            self.phase = WorkerPhase.FINISHED
        elif isinstance(error, SystemExit):
            text = f"the script ended with exit code {error.code}"
            self.failure = Failure(FailureClass.USER_ERROR, text[:1000])
        else:
            held = self.meter.window.peak_memory_bytes or None
            self.failure = classify(error, held, self.needed_bytes)
        with contextlib.suppress(Exception):
            self.meter.read_steps()
            self.meter.read_memory()
        self._close_profile()
        self.ending()
        self.explanation.end()
        # Written here too: the reporting thread may be waiting for a network that is gone.
        self._write_summary(self.report())
        remaining = min(LAST_REPORT_SECONDS, self.stop.remaining_seconds() - EXIT_MARGIN_SECONDS)
        self.reporter.close(max(0.1, remaining))
        self.loss_tensor = None
        self.release()

    def _close_profile(self) -> None:
        said = self.profiler.close() if self.profiler is not None else None
        if said is not None:
            self.explanation.note("profile", f"the run ended first; {said}")

    def _write_summary(self, report: Report) -> None:
        """The script's own end is not to suffer from a page that cannot be written."""
        if self.report_directory is None or not self._speaks:
            return
        facts = Facts(self.baseline_wait_percent, self.plain_float32)
        try:
            write(self.report_directory, report, facts)
        except OSError as error:
            sys.stderr.write(f"gpujob-run: --report-directory: {error}\n")

    def start(self) -> None:
        global _current
        _current = self
        self.reporter.start()


def _without_loader(tuned: TunedSettings) -> TunedSettings:
    """Workers of a data loader are in no measured run."""
    return replace(tuned, data_loader_workers=None)


def ensure_session() -> Session:
    """The session of `gpujob-run`, or one from the environment for a script that runs without."""
    if _current is not None:
        return _current
    try:
        environment = read_environment(os.environ)
    except FieldError as error:
        sys.stderr.write(f"gpujob: {error}\n")
        raise SystemExit(2) from None
    session = Session(environment)
    session.start()
    return session
