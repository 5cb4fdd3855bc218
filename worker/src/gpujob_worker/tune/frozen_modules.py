"""Runs modules without trained parameters in bfloat16 if outputs are close and a call is faster."""

import time
from collections.abc import Callable

import torch

from gpujob_api.settings import OptimizeMode, Precision, Settings, TunedSettings
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.guards import without_dropout
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.probe.compare import closeness, measure_speedup
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.registry import setting_called
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.setting import Candidate, Context
from gpujob_worker.tune.trial import (
    BFLOAT16,
    SPEEDUP_NEEDED,
    AcceptanceRule,
    run_noise,
    short,
)

ITEM = "precision"
# Part of the tuning time that each module gets.
TIME_PART = 0.1


class FrozenModules:
    """Tries one module after the other."""

    def __init__(
        self, settings: Settings, features: Features, facts: ScriptFacts, budget_seconds: float
    ) -> None:
        self._settings = settings
        self._features = features
        self._facts = facts
        self._seconds = TIME_PART * budget_seconds

    def choose(self, root: FrozenRoot, log: DecisionLog) -> RootPlan:
        """Returns the plan of the module's calls, or the script's own plan if choices are only
        recommended.
        """
        recorded = root.recorded
        root.forget_call()
        if recorded is None:
            log.skipped(ITEM, "no call of it was seen")
            return RootPlan()
        rule = AcceptanceRule(self._settings, log, self._seconds, self._facts.processes)
        context = Context(
            self._settings, self._features, rule, Applied(), root, recorded, self._facts
        )
        try:
            plan = self._plan(context, root)
        except Exception as error:
            log.skipped(ITEM, f"failed: {short(error)}")
            return RootPlan()
        recommends = self._settings.mode is OptimizeMode.RECOMMEND
        return RootPlan() if plan is None or recommends else plan

    def _plan(self, context: Context, root: FrozenRoot) -> RootPlan | None:
        reason = self._refusal(context, root)
        if reason is not None:
            context.acceptance_rule.skip(ITEM, reason)
            return None
        if not context.acceptance_rule.measures(ITEM, forced=False):
            return None
        bfloat16 = TunedSettings(precision=Precision.BFLOAT16)
        found = setting_called("precision").known(context, bfloat16)
        if not isinstance(found, Candidate):
            context.acceptance_rule.skip(ITEM, found.why if found is not None else "nothing to try")
            return None
        return found.plan if self._is_better(context, found.plan) else None

    def _refusal(self, context: Context, root: FrozenRoot) -> str | None:
        reason = setting_called("precision").refusal(context)
        if reason is None and self._settings.precision not in (Precision.AUTO, Precision.BFLOAT16):
            reason = f"{self._settings.precision.value} was asked for"
        if reason is None and root.passes_gradients:
            reason = "gradients pass through it, which no trial compares"
        if reason is None and context.facts.memory_limited:
            reason = "copies of its weights would count against the memory limit"
        return reason or trace_refusal(root, context.recorded, whole=True)

    def _is_better(self, context: Context, plan: RootPlan) -> bool:
        root, rule, recorded = context.root, context.acceptance_rule, context.recorded
        probe = RootProbe(root, recorded)
        with no_trace(root.module):
            with without_dropout():
                close = closeness(_numbers(probe, RootPlan()), _numbers(probe, plan))
            found = measure_speedup(
                _seconds(probe, RootPlan(), root.device),
                _seconds(probe, plan, root.device),
                rule.share(ITEM),
                needed=SPEEDUP_NEEDED,
                noise=run_noise(root.device),
            )
        numbers = f"bfloat16 autocast, outputs differ by {100 * close.relative_error:.2g} %"
        is_close = close.relative_error <= BFLOAT16.output_error
        return rule.decide(ITEM, found, numbers, is_close, False)


def _numbers(probe: RootProbe, plan: RootPlan) -> list[torch.Tensor]:
    outputs = probe.outputs(plan)
    return [output for output in outputs if output.is_floating_point() or output.is_complex()]


def _seconds(probe: RootProbe, plan: RootPlan, device: torch.device) -> Callable[[], float]:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def run() -> float:
        wait()
        start = time.perf_counter()
        probe.outputs(plan)
        wait()
        return time.perf_counter() - start

    return run
