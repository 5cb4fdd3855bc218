"""What is known of a run, for reports: its phase, its timings, its settings, how it goes.

Others read it. What changes it is a method, so that each fact has one place where it is written.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpujob_api.report import CheckpointReport, Failure, Speedup, Timing, WorkerPhase
from gpujob_api.settings import TunedSettings
from gpujob_worker.run.meter import Meter


@dataclass(slots=True)
class RunState:
    """One run's. None: not known, or not yet."""

    meter: Meter
    # Settings in force.
    tuned: TunedSettings | None = None
    # Settings to start with: of an earlier run, or of the checkpoint that is resumed.
    known_tuned: TunedSettings | None = None
    baseline: Timing | None = None
    baseline_wait_percent: float | None = None
    tuning_seconds: float | None = None
    samples_per_step: int | None = None
    steps_total: int | None = None
    first_step: int = 0
    resumed_from_step: int | None = None
    checkpoint: CheckpointReport | None = None
    failure: Failure | None = None
    # The limit that the job needs at least, where it was found not to keep its own.
    needed_bytes: int | None = None
    device: str = ""
    torch_version: str = ""
    loss_tensor: Any = None
    skipped_steps: int | None = None
    # The loss scale in force, and the one of the checkpoint that is resumed.
    loss_scale: Any = None
    known_scale: Any = None
    step_flop: float | None = None
    plain_float32: bool = False
    _phase: WorkerPhase = WorkerPhase.STARTING
    # What was gained, and by which settings.
    _gain: tuple[TunedSettings, Speedup] | None = None
    # What steps took of the models before; `current` while the present one's tell nothing.
    _before: Timing | None = None
    _alike: bool = field(default=True)

    @property
    def phase(self) -> WorkerPhase:
        return self._phase

    def enter(self, phase: WorkerPhase) -> None:
        self._phase = phase

    @contextmanager
    def during(self, phase: WorkerPhase) -> Generator[None]:
        """For as long as something lasts; afterwards as before, unless a phase was entered."""
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
    def baseline_peak_bytes(self) -> int:
        """The peak of the steps as first run; 0 while they are not over."""
        return self.baseline.peak_memory_bytes if self.baseline is not None else 0

    @property
    def speedup(self) -> Speedup | None:
        """What was measured of the settings in force; None of any others."""
        if self._gain is None or self.tuned is None:
            return None
        settings, gain = self._gain
        return gain if settings == _without_loader(self.tuned) else None

    @property
    def current(self) -> Timing | None:
        """What steps take now."""
        now = self.meter.window.timing(self.samples_per_step)
        if self._before is None or (self._alike and now is not None):
            return now
        peak = max(self._before.peak_memory_bytes, self.meter.window.peak_memory_bytes)
        return replace(self._before, peak_memory_bytes=peak)

    @property
    def loss(self) -> float | None:
        """The loss last seen by `backward`; None before the first, or when it is not finite."""
        if self.loss_tensor is None:
            return None
        try:
            value = float(self.loss_tensor)
        except (RuntimeError, ValueError):
            return None
        return value if abs(value) < 1e300 else None

    def runs_on(self, device: str, torch_version: str | None = None) -> None:
        self.device = device
        self.torch_version = self.torch_version if torch_version is None else torch_version

    def saw_loss(self, loss: Any) -> None:
        """None: forgets the last one, with the graph that it may hold."""
        self.loss_tensor = loss

    def takes_samples(self, samples: int | None) -> None:
        """In each step."""
        self.samples_per_step = samples

    def expect_steps(self, total: int | None) -> None:
        self.steps_total = total

    def measured_first(self, timing: Timing | None, wait_percent: float | None) -> None:
        """What steps took as the script has them."""
        self.baseline, self.baseline_wait_percent = timing, wait_percent

    def tuning_took(self, seconds: float) -> None:
        self.tuning_seconds = seconds

    def counted(self, step_flop: float | None) -> None:
        self.step_flop = step_flop

    def computes_in_float32(self, plain: bool) -> None:
        """Whether the script's products run in plain float32."""
        self.plain_float32 = plain

    def gained(self, settings: TunedSettings, gain: Speedup | None) -> None:
        """So much faster `settings` were measured to be; said once they are in force."""
        self._gain = None if gain is None else (_without_loader(settings), gain)

    def settings_are(self, tuned: TunedSettings) -> None:
        """The settings that are in force from now on."""
        self.tuned = tuned

    def start_with(self, tuned: TunedSettings | None) -> None:
        """Settings that are known before a model's first step."""
        self.known_tuned = tuned

    def scale_losses(self, scale: Any) -> None:
        self.loss_scale = scale

    def start_with_scale(self, scale: Any) -> None:
        self.known_scale = scale

    def skipped(self, steps: int) -> None:
        """So many in all."""
        self.skipped_steps = steps

    def needs(self, limit_bytes: int | None) -> None:
        self.needed_bytes = limit_bytes

    def committed(self, checkpoint: CheckpointReport) -> None:
        self.checkpoint = checkpoint

    def resumes(self, step: int) -> None:
        """From the checkpoint of this step."""
        self.first_step = step - self.meter.steps
        self.resumed_from_step = step
        self.checkpoint = CheckpointReport(step)

    def failed(self, failure: Failure) -> None:
        self.failure = failure

    def begin_model(self, *, alike: bool) -> None:
        """Another model trains from now on; its steps are compared with the first's if alike."""
        if self._alike:
            self._before = self.meter.window.timing(self.samples_per_step) or self._before
        self._alike = alike
        self.meter.new_window()


def _without_loader(tuned: TunedSettings) -> TunedSettings:
    """Workers of a data loader are in no measured run."""
    return replace(tuned, data_loader_workers=None)
