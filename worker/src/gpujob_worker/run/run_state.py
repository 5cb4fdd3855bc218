"""The known state of a run, for reports: its phase, timings, settings and progress.

Other modules read it. Every change goes through a method, so that each fact is written in one
place.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpujob_api.report import (
    CheckpointReport,
    Failure,
    Protection,
    ResumeRefused,
    Speedup,
    Timing,
    WorkerPhase,
)
from gpujob_api.settings import Task, TunedSettings
from gpujob_worker.run.meter import Meter

REASON_CHARACTERS_MAX = 500


@dataclass(slots=True)
class RunState:
    """The state of one run. None means unknown, or not known yet."""

    meter: Meter
    # Applied settings.
    tuned: TunedSettings | None = None
    # Settings known beforehand: from an earlier run, or from the checkpoint that is resumed.
    known_tuned: TunedSettings | None = None
    baseline: Timing | None = None
    baseline_wait_percent: float | None = None
    tuning_seconds: float | None = None
    samples_per_step: int | None = None
    steps_total: int | None = None
    # The number of calls at the end of the present pass over a loader. Others may follow, so it
    # decides nothing.
    calls_expected: int | None = None
    first_step: int = 0
    # `INFERENCE` if steps are calls of the model, `SERVING` if they are batches of requests.
    task: Task | None = None
    resumed_from_step: int | None = None
    checkpoint: CheckpointReport | None = None
    # What an interruption would preserve of the run, and why.
    protection: Protection | None = None
    protection_reason: str | None = None
    resume_refused: ResumeRefused | None = None
    failure: Failure | None = None
    # The minimum limit of the job, if it cannot keep its own.
    needed_bytes: int | None = None
    device: str = ""
    torch_version: str = ""
    loss_tensor: Any = None
    # The step during which the last backward pass began, and the number of passes.
    _loss_step: int = -1
    backward_passes: int = 0
    # The sum of the losses since an optimizer of the script made a step.
    since_step: Any = None
    skipped_steps: int | None = None
    # The current loss scale, and that of the checkpoint that is resumed.
    loss_scale: Any = None
    known_scale: Any = None
    # FLOP of one call of the model, and how many calls of that size a step makes.
    call_flop: float | None = None
    calls_per_step: float = 1.0
    plain_float32: bool = False
    _phase: WorkerPhase = WorkerPhase.STARTING
    # The measured gain, and its settings.
    _gain: tuple[TunedSettings, Speedup] | None = None
    # The timing of steps of earlier models. It replaces `current` while the present model's steps
    # are not comparable.
    _before: Timing | None = None
    _alike: bool = field(default=True)

    @property
    def phase(self) -> WorkerPhase:
        return self._phase

    def enter(self, phase: WorkerPhase) -> None:
        self._phase = phase

    @contextmanager
    def during(self, phase: WorkerPhase) -> Generator[None]:
        """Sets the phase while the block runs, then restores the previous one unless another was
        entered.
        """
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            if self._phase is phase:
                self._phase = before

    @property
    def step(self) -> int:
        return self.first_step + self.meter.steps

    @property
    def step_flop(self) -> float | None:
        return None if self.call_flop is None else self.call_flop * self.calls_per_step

    @property
    def baseline_peak_bytes(self) -> int:
        """The peak of the baseline steps, or 0 until they are over."""
        return self.baseline.peak_memory_bytes if self.baseline is not None else 0

    @property
    def leaves_steps(self) -> bool:
        """True if steps run as the script wrote them after the tuning."""
        nothing = TunedSettings()
        return self.tuned is not None and replace(self.tuned, expandable_segments=False) == nothing

    @property
    def as_written(self) -> Timing | None:
        """The timing of steps as written.

        It is that of all steps since the baseline if nothing changed them, otherwise the
        baseline's. The first steps also load kernels, and capture a script's own graphs.
        """
        return self.current or self.baseline if self.leaves_steps else self.baseline

    @property
    def as_written_wait_percent(self) -> float | None:
        wait = self.meter.window.data_wait_percent if self.leaves_steps else None
        return self.baseline_wait_percent if wait is None else wait

    @property
    def speedup(self) -> Speedup | None:
        """The measured speed-up of the applied settings, or None for any others."""
        if self._gain is None or self.tuned is None:
            return None
        settings, gain = self._gain
        return gain if settings == _of_a_step(self.tuned) else None

    @property
    def current(self) -> Timing | None:
        """The timing of the current steps."""
        now = self.meter.window.timing(self.samples_per_step)
        if self._before is None or (self._alike and now is not None):
            return now
        peak = max(self._before.peak_memory_bytes, self.meter.window.peak_memory_bytes)
        return replace(self._before, peak_memory_bytes=peak)

    @property
    def loss(self) -> float | None:
        """The last loss that `backward` got. None before the first, or if it is not finite."""
        if self.loss_tensor is None:
            return None
        try:
            value = float(self.loss_tensor)
        except (RuntimeError, ValueError):
            return None
        return value if abs(value) < 1e300 else None

    def answers(self, calls_before: int) -> None:
        """Marks that steps are calls of the model. `calls_before` were made before that was
        known.
        """
        self.task = Task.INFERENCE
        self.first_step += calls_before

    def serves(self) -> None:
        """Marks that steps are batches of requests."""
        self.task = Task.SERVING

    def trains_after_all(self) -> None:
        """Marks that steps are an optimizer's from now on. Their numbers go on from the calls'."""
        self.task = None
        self.first_step += self.meter.steps
        self.meter.restart()
        self.baseline = self.baseline_wait_percent = self.tuning_seconds = None
        self.tuned, self._gain = self.known_tuned, None

    def runs_on(self, device: str, torch_version: str | None = None) -> None:
        self.device = device
        self.torch_version = self.torch_version if torch_version is None else torch_version

    def saw_loss(self, loss: Any) -> None:
        """Stores the loss. None drops the last one, with the graph that it may reference."""
        self.loss_tensor = loss

    def saw_pass(self, loss: Any) -> None:
        """Adds the loss of a backward pass to that of the step, because each pass may be of a part
        of the batch.
        """
        self.backward_passes += 1
        self.since_step = loss if self.since_step is None else self.since_step + loss
        step, known = self.meter.steps, self.loss_tensor
        again = self._loss_step == step and known is not None and known.device == loss.device
        self._loss_step = step
        self.saw_loss(known + loss if again else loss)

    def takes_samples(self, samples: int | None) -> None:
        """Sets the number of samples in each step."""
        self.samples_per_step = samples

    def expect_steps(self, total: int | None) -> None:
        self.steps_total = total

    def expect_calls(self, total: int | None) -> None:
        self.calls_expected = total

    def measured_first(self, timing: Timing | None, wait_percent: float | None) -> None:
        """Sets the timing of the baseline steps."""
        self.baseline, self.baseline_wait_percent = timing, wait_percent

    def tuning_took(self, seconds: float) -> None:
        """Adds seconds in which training stood still. They are 0 if the settings are known."""
        self.tuning_seconds = (self.tuning_seconds or 0.0) + seconds

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Marks that training stands still for a trial between two of its steps."""
        start = time.monotonic()
        with self.during(WorkerPhase.TUNING):
            try:
                yield
            finally:
                self.tuning_took(time.monotonic() - start)

    def counted(self, call_flop: float | None) -> None:
        """Sets the FLOP of forward and backward of one call."""
        self.call_flop = call_flop

    def makes_calls(self, calls: float) -> None:
        """Sets how many calls a step makes, in calls as large as the one that is counted."""
        self.calls_per_step = calls

    def computes_in_float32(self, plain: bool) -> None:
        """Sets whether the script's products run in plain float32."""
        self.plain_float32 = plain

    def gained(self, settings: TunedSettings, gain: Speedup | None) -> None:
        """Sets the measured speed-up of `settings`, which is reported once they are applied."""
        self._gain = None if gain is None else (_of_a_step(settings), gain)

    def settings_are(self, tuned: TunedSettings) -> None:
        """Sets the applied settings."""
        self.tuned = tuned

    def start_with(self, tuned: TunedSettings | None) -> None:
        """Sets settings that are known before a model's first step."""
        self.known_tuned = tuned

    def scale_losses(self, scale: Any) -> None:
        self.loss_scale = scale

    def start_with_scale(self, scale: Any) -> None:
        self.known_scale = scale

    def skipped(self, steps: int) -> None:
        """Sets the total number of skipped steps."""
        self.skipped_steps = steps

    def needs(self, limit_bytes: int | None) -> None:
        self.needed_bytes = limit_bytes

    def committed(self, checkpoint: CheckpointReport) -> None:
        self.checkpoint = checkpoint

    def resumes(self, step: int) -> None:
        """Sets the step of the checkpoint from which the run resumes."""
        self.first_step = step - self.meter.steps
        self.resumed_from_step = step
        self.checkpoint = CheckpointReport(step)

    def optimizer_stepped(self) -> Any:
        """Returns the loss of the step that an optimizer of the script has just made, as
        a tensor.
        """
        loss, self.since_step = self.since_step, None
        return loss

    def goes_on_in_step(self, loss: Any) -> None:
        """Sets the loss so far of the current step, in which a run resumes, or None."""
        self.since_step = loss

    def stepped_beside(self) -> None:
        """Counts a step of a later model that is not the training's."""
        self.first_step += 1

    def protected(self, protection: Protection, reason: str | None) -> None:
        """Sets what an interruption would preserve of the run, and why."""
        self.protection = protection
        self.protection_reason = reason[:REASON_CHARACTERS_MAX] if reason else None

    def refused_resume(self, step: int, reason: str) -> None:
        """Records that the checkpoint of `step` did not restore the run."""
        self.resume_refused = ResumeRefused(step, reason[:REASON_CHARACTERS_MAX])

    def failed(self, failure: Failure) -> None:
        self.failure = failure

    def begin_model(self, *, alike: bool) -> None:
        """Starts another model. Its steps are compared to the first model's if both are alike."""
        if self._alike:
            self._before = self.meter.window.timing(self.samples_per_step) or self._before
        self._alike = alike
        self.meter.new_window()


def _of_a_step(tuned: TunedSettings) -> TunedSettings:
    """Returns the settings without data loader workers and the next process's allocator, which no
    measured run has.
    """
    return replace(tuned, data_loader_workers=None, expandable_segments=False)
