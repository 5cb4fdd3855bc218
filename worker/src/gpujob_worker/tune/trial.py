"""Decides whether a candidate replaces the present plan. It must be close, and faster beyond noise.

A candidate that was not requested is kept only if it is faster with 95 % confidence. Its outputs
and gradients must agree with those of the present plan on a real batch.
"""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gpujob_api.settings import OptimizeMode, Settings
from gpujob_worker.inject.process_flags import Tf32
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.compare import Closeness, Speedup, measure_speedup
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.failure import MemoryLimitError
from gpujob_worker.tune.probe import RootProbe

SPEEDUP_NEEDED = 1.02
AN_EARLIER_RUN = "an earlier run"
# A candidate this much slower on a few samples is not worth a measurement on all of them.
HOPELESS = 2.5
# A run on a GPU varies by 1 to 2 % alone, and by this much next to co-tenants. Unlike on a CPU, a
# few runs of a long step therefore prove a large gain.
GPU_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Maximum difference of outputs (relative 2-norm), and minimum cosine of the gradients."""

    output_error: float
    cosine: float

    def holds(self, outputs: Closeness, gradients: Closeness) -> bool:
        if outputs.answers:
            percent = outputs.agreement_percent
            agrees = percent is None or percent >= AGREEMENT_PERCENT
            return outputs.relative_error <= min(self.output_error, ANSWER_ERROR) and agrees
        return outputs.relative_error <= self.output_error and gradients.cosine >= self.cosine


# bfloat16 has 8 bits of mantissa. Outputs agree within a few percent, and gradients in direction.
BFLOAT16 = Tolerance(0.05, 0.98)
# float16 has 11 bits of mantissa.
FLOAT16 = Tolerance(0.01, 0.99)
# Answers are results, not steps of a training that corrects itself.
ANSWER_ERROR = 0.02
AGREEMENT_PERCENT = 99.5
# Allows another order of float32 operations.
SAME_TYPE = Tolerance(1e-3, 0.9999)


class AcceptanceRule:
    """The rule by which a measured candidate is kept, the time left, and the log."""

    def __init__(
        self,
        settings: Settings,
        log: DecisionLog,
        budget_seconds: float,
        processes: int = 1,
        *,
        limited: bool = False,
        source: str = AN_EARLIER_RUN,
    ) -> None:
        self._processes = processes
        self.limited = limited
        # Origin of settings that are adopted without being measured.
        self.source = f"from {source}"
        self._log = log
        self._recommend = settings.mode is OptimizeMode.RECOMMEND
        self.budget_seconds = budget_seconds
        self._ends = 0.0
        self._pending: set[str] = set()
        self.start()

    def start(self, budget_seconds: float | None = None) -> None:
        """Starts the time for measuring, by default with the same budget as before."""
        self.budget_seconds = self.budget_seconds if budget_seconds is None else budget_seconds
        self._ends = time.monotonic() + self.budget_seconds

    def expects(self, items: Iterable[str]) -> None:
        """Names settings that may be measured. Each is pending until a decision about it is
        logged.
        """
        self._pending.update(items)

    def measures(self, item: str, forced: bool) -> bool:
        """Returns whether a measurement may decide about the item; logs the reason if not."""
        if self._processes > 1 and not forced:
            self.skip(item, f"{self._processes} processes could measure and decide differently")
            return False
        if torch.are_deterministic_algorithms_enabled() and not forced:
            why = "a measurement could decide otherwise in the next run"
            self.skip(item, f"the script asks for deterministic algorithms; {why}")
            return False
        return True

    def in_time(self, item: str, forced: bool) -> bool:
        """Returns whether there is time to measure; logs if there is none."""
        if forced or time.monotonic() < self._ends:
            return True
        self.skip(item, f"not tried: the {self.budget_seconds:g} s for tuning are over")
        return False

    def share(self, item: str) -> Callable[[], bool]:
        """Returns whether time is left for one setting: an equal share of the rest among it and all
        pending ones.
        """
        now = time.monotonic()
        ends = now + max(0.0, self._ends - now) / len(self._pending | {item})
        return lambda: time.monotonic() < ends

    def grant(self, seconds: float) -> None:
        """Guarantees at least this many seconds from now on."""
        self._ends = max(self._ends, time.monotonic() + seconds)

    def seconds_left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def decide(
        self, item: str, found: Speedup, numbers: str, close: bool, forced: bool, of: str = ""
    ) -> bool:
        """Decides about a measured candidate and logs it. `of` names the measured part if it is
        less than forward and backward.
        """
        factor = self.factor(found) + (f" of {of}" if of else "")
        if not close:
            self.skip(item, f"numbers disagree: {numbers}")
            return False
        if found.low <= SPEEDUP_NEEDED and not forced:
            self.skip(item, f"not faster beyond noise: {factor}; {numbers}")
            return False
        text = factor
        if forced:
            text = f"asked for, {text}"
        elif self._recommend:
            text = f"faster beyond noise, {text}"
        self.accept(item, f"{text}; {numbers}")
        return True

    def factor(self, found: Speedup) -> str:
        """Returns the measurement as text. A run without applied settings has no speed-up."""
        return f"{found.pairs} pairs of runs" if self._recommend else str(found)

    def skip_slower(self, item: str, what: str, times: float, device: str) -> None:
        """Logs that a first look at a few samples found the candidate hopeless."""
        text = "far slower" if self._recommend else f"{times:.1f} times slower"
        self.skip(item, f"{what} is {text} on {device}")

    def accept(self, item: str, what: str) -> None:
        self._pending.discard(item)
        if self._recommend:
            self._log.recommended(item, what)
        else:
            self._log.applied(item, what)

    def skip(self, item: str, why: str) -> None:
        self._pending.discard(item)
        self._log.skipped(item, why)

    def settle(self, item: str, part: str) -> None:
        """Logs the accepted part as the choice for the whole setting."""
        self._log.settle(item, part)


class Trial:
    """Plans of one root, run on one recorded batch, without side effects."""

    def __init__(self, acceptance_rule: AcceptanceRule, root: Root, recorded: RecordedCall) -> None:
        self.acceptance_rule = acceptance_rule
        self.root = root
        self.recorded = recorded
        self._probe = RootProbe(root, recorded)

    def accepts(
        self,
        item: str,
        present: RootPlan,
        plan: RootPlan,
        *,
        what: str = "",
        tolerance: Tolerance = SAME_TYPE,
        forced: bool = False,
    ) -> bool:
        """Returns whether `plan` should replace `present`; logs the decision under the setting's
        name.
        """
        rule = self.acceptance_rule
        if not rule.measures(item, forced) or not rule.in_time(item, forced):
            return False
        lead = f"{what}, " if what else ""
        try:
            if self.recorded.answers and not self._answers(item, lead, plan, tolerance):
                return False
            slower = self._times_slower(present, plan)
            if slower > HOPELESS and not forced:
                device = self.root.device.type
                self.acceptance_rule.skip_slower(item, what or item, slower, device)
                return False
            with no_trace(self.root.module):
                outputs, gradients = self._probe.compare(present, plan)
                found = self.speedup(item, present, plan)
        except Exception as error:
            self.acceptance_rule.skip(item, f"{what} failed: {short(error)}".lstrip())
            return False
        numbers = f"{lead}{agreement(outputs, gradients)}"
        close = tolerance.holds(outputs, gradients)
        return self.acceptance_rule.decide(item, found, numbers, close, forced)

    def _answers(self, item: str, lead: str, plan: RootPlan, tolerance: Tolerance) -> bool:
        """Returns whether the plan gives the script's answers. A plan that does not is never
        timed.
        """
        with no_trace(self.root.module):
            outputs, gradients = self._probe.compare(RootPlan(), plan)
        if tolerance.holds(outputs, gradients):
            return True
        numbers = f"numbers disagree: {lead}{agreement(outputs, gradients)}"
        self.acceptance_rule.skip(item, numbers)
        return False

    def safe(self, item: str, present: RootPlan, plan: RootPlan, tolerance: Tolerance) -> bool:
        """Returns whether results are close on a few samples. Known settings are not
        timed again.
        """
        probe = RootProbe(self.root, few_rows(self.recorded, 4))
        try:
            with no_trace(self.root.module):
                outputs, gradients = probe.compare(present, plan)
        except Exception as error:
            self.acceptance_rule.skip(item, f"failed: {short(error)}")
            return False
        if not tolerance.holds(outputs, gradients):
            self.acceptance_rule.skip(item, f"numbers disagree: {agreement(outputs, gradients)}")
            return False
        return True

    def speedup(self, item: str, present: RootPlan, plan: RootPlan) -> Speedup:
        self._probe.seconds(plan)
        return measure_speedup(
            lambda: self._probe.seconds(present),
            lambda: self._probe.seconds(plan),
            self.acceptance_rule.share(item),
            needed=SPEEDUP_NEEDED,
            noise=run_noise(self.root.device),
        )

    def draws(self, plan: RootPlan) -> bool:
        with no_trace(self.root.module):
            return self._probe.draws(plan)

    def same_draws_closeness(
        self, present: RootPlan, plan: RootPlan
    ) -> tuple[Closeness, Closeness]:
        """Returns the closeness of two plans with the same dropout masks. `plan` runs first and
        compiles then.
        """
        reference = RootPlan() if self.recorded.answers else present
        with no_trace(self.root.module):
            result = self._probe.run(plan).kept()
            return self._probe.run(reference).compare(result)

    def speedup_of_compiled(
        self, item: str, present: RootPlan, plan: RootPlan, compiled: Callable[[], None]
    ) -> Speedup:
        """Like `speedup`, but calls `compiled` once the plan has run for the first time."""
        with no_trace(self.root.module):
            self._probe.run(plan)
            compiled()
            return self.speedup(item, present, plan)

    def _times_slower(self, present: RootPlan, plan: RootPlan) -> float:
        """Times a few samples first, so that a hopeless candidate costs no full step."""
        rows = self.recorded.inputs.rows or 1
        probe = RootProbe(self.root, few_rows(self.recorded, max(2, rows // 16)))
        with no_trace(self.root.module):
            plain, other = [probe.seconds(present)], list[float]()
            # The runs alternate. The candidate's first run does not count for the slower side,
            # because libraries initialize in it.
            for _ in range(2):
                other.append(probe.seconds(plan))
                plain.append(probe.seconds(present))
            return min(other) / max(min(plain), 1e-9)


def run_noise(device: torch.device) -> float | None:
    """Returns the relative deviation of a run, or None if it is not known."""
    return GPU_NOISE if device.type == "cuda" else None


def few_rows(recorded: RecordedCall, rows: int) -> RecordedCall:
    """Returns the first samples of a call with their gradients, or all samples if they cannot be
    separated.
    """
    if recorded.whole_only:
        return recorded
    total = recorded.inputs.rows or 1
    few = min(total, rows)
    gradients = [
        gradient.narrow(0, 0, few)
        if gradient is not None and gradient.dim() > 0 and gradient.shape[0] == total
        else gradient
        for gradient in recorded.output_gradients
    ]
    first = recorded.of(recorded.inputs.first(rows))
    first.output_gradients = gradients
    return first


def tolerance_of(plan: RootPlan, root: Root) -> Tolerance:
    """Returns the tolerance for a plan.

    Under autocast, including the script's own, another order of operations shows in every rounding.
    """
    autocast = plan.autocast is not None or root.user_autocast
    return BFLOAT16 if autocast or plan.setting(Tf32) is not None else SAME_TYPE


def agreement(outputs: Closeness, gradients: Closeness) -> str:
    """Returns the closeness of two runs as text."""
    if outputs.answers:
        percent = outputs.agreement_percent
        same = f", largest entries agree in {percent:.4g} %" if percent is not None else ""
        return f"outputs differ by {100 * outputs.relative_error:.2g} %{same}"
    cosine = f"gradients' cosine {gradients.cosine:.5f}"
    return f"outputs differ by {100 * outputs.relative_error:.2g} %, {cosine}"


@contextmanager
def measuring(item: str, log: DecisionLog) -> Generator[None]:
    """Logs errors of the worker's own measurement, because they are no failures of the script."""
    try:
        yield
    except MemoryLimitError:
        raise
    except Exception as error:
        log.skipped(item, f"measuring failed: {short(error)}")


def short(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {first}"[:160]
