"""Compiles the whole root or its repeated blocks, optionally with CUDA graphs. Each way is compared
like any other setting.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from gpujob_api.settings import Toggle, TunedSettings
from gpujob_worker.inject.blocks import repeated_blocks
from gpujob_worker.inject.compilations import Compilations
from gpujob_worker.inject.compiling import CompiledBlocks, compile_module, graphs_refusal
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.tune.registry import setting_called
from gpujob_worker.tune.setting import Context
from gpujob_worker.tune.trial import Trial, agreement, short, tolerance_of

COMPARE_COMPILED_SECONDS = 3.0
# From this many blocks on, compiling the whole model takes minutes, so the blocks are tried first.
MANY_BLOCKS = 16
WHOLE, BLOCKS, GRAPHS = "compile", "compile blocks", "CUDA graphs"


class CompileItems:
    """Tries ways to compile one root until one is kept."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._acceptance_rule = context.acceptance_rule
        self._applied = context.applied
        self._root = context.root
        self._recorded = context.recorded
        self._forced = context.settings.compile is Toggle.ON
        # One compilation serves batches of all sizes.
        self._any_size = False

    def choose(self) -> None:
        reason = self._refusal()
        if self._context.settings.compile is Toggle.OFF:
            reason = "not asked for (compile: Off)"
        if reason is not None:
            self._acceptance_rule.skip(WHOLE, reason)
            return
        if not self._acceptance_rule.measures(WHOLE, self._forced):
            return
        self._any_size = self._root.shapes.vary(self._recorded.inputs)
        if len(repeated_blocks(self._root.module)) >= MANY_BLOCKS:
            kept = (
                self._blocks(if_faster=True) or self._whole() or (self._forced and self._blocks())
            )
        else:
            kept = self._whole() or self._blocks()
        if kept:
            self._graphs()

    def _refusal(self) -> str | None:
        return setting_called("compile").refusal(self._context)

    def _whole(self) -> bool:
        return self._try(WHOLE, self._plan_with_whole, forced=self._forced)

    def _plan_with_whole(self, same_draws: bool) -> RootPlan:
        noting = Compilations()
        compiled = compile_module(
            self._root.module, same_draws=same_draws, any_size=self._any_size, noting=noting
        )
        plan = replace(self._applied.plan, compiled=compiled, compilations=noting)
        return self._with_signature(plan)

    def _blocks(self, *, if_faster: bool = False) -> bool:
        """Tries to compile the blocks; with `if_faster`, another way is left to do what was
        requested.
        """
        reason = self._blocks_refusal()
        if reason is not None:
            self._acceptance_rule.skip(BLOCKS, reason)
            return False
        return self._try(BLOCKS, self._plan_with_blocks, forced=self._forced, if_faster=if_faster)

    def _plan_with_blocks(self, same_draws: bool) -> RootPlan:
        noting = Compilations()
        blocks = CompiledBlocks(
            self._root.module, same_draws=same_draws, any_size=self._any_size, noting=noting
        )
        plan = replace(self._applied.plan, compiled_blocks=blocks, compilations=noting)
        return self._with_signature(plan)

    def _blocks_refusal(self) -> str | None:
        return setting_called("regional_compile").refusal(self._context)

    def _graphs(self) -> None:
        """Tries CUDA graphs, only if requested, because replayed steps have not been measured on a
        GPU yet.
        """
        if not self._context.features.cuda_graphs:
            self._acceptance_rule.skip(GRAPHS, "not asked for (--cuda-graphs)")
            return
        reason = self._graphs_refusal()
        if reason is not None:
            self._acceptance_rule.skip(GRAPHS, reason)
            return
        # Compiled code draws the same random numbers with graphs and without.
        graphs = self._graphs_plan()
        self._try(GRAPHS, lambda _: graphs, forced=False)

    def _graphs_refusal(self) -> str | None:
        plan = self._applied.plan
        if plan.compiled is None:
            return "the model is not compiled as a whole"
        limited, device = self._acceptance_rule.limited, self._root.device
        return graphs_refusal(device, plan.rows_per_step, limited, any_size=plan.any_size)

    def _graphs_plan(self) -> RootPlan:
        compiled = compile_module(self._root.module, graphs=True)
        plan = replace(self._applied.plan, compiled=compiled, cuda_graphs=True)
        return self._with_signature(plan)

    def _with_signature(self, plan: RootPlan) -> RootPlan:
        inputs, rows = self._recorded.inputs, plan.rows_per_step
        if rows is not None and inputs.rows is not None and rows < inputs.rows:
            inputs = inputs.first(rows)
        return replace(plan, compiled_signature=inputs.signature, any_size=self._any_size)

    def _try(
        self,
        item: str,
        plan_with: Callable[[bool], RootPlan],
        *,
        forced: bool,
        if_faster: bool = False,
    ) -> bool:
        """Tries one way to compile, and returns whether it is kept.

        `plan_with(same_draws)` makes the plan, either for use or for a comparison with eager code.
        With `if_faster`, even a forced plan is dropped if it is clearly slower.
        """
        present, start = self._applied.plan, time.monotonic()
        took: list[float] = []

        def compiled() -> None:
            took.append(time.monotonic() - start)
            self._acceptance_rule.grant(COMPARE_COMPILED_SECONDS)

        try:
            trial = self._context.trial()
            plan, numbers = self._compared(item, trial, plan_with)
            if plan is None:
                return False
            found = trial.speedup_of_compiled(item, present, plan, compiled)
        except Exception as error:
            self._acceptance_rule.skip(item, f"failed: {short(error)}")
            return False
        numbers = f"after {took[0]:.1f} s, {'for any size, ' * plan.any_size}{numbers}"
        forced = forced and not (if_faster and found.high < 1.0)
        kept = self._acceptance_rule.decide(item, found, numbers, True, forced)
        if kept:
            self._applied.plan = plan
        return kept

    def _compared(
        self, item: str, trial: Trial, plan_with: Callable[[bool], RootPlan]
    ) -> tuple[RootPlan | None, str]:
        """Returns the plan, or None if its numbers disagree, and its closeness as text.

        Raises any error of the compilation or of a run of the plan.
        """
        present = self._applied.plan
        # Compiled code draws its own dropout masks. That is correct, but it would make a comparison
        # meaningless.
        draws = not present.compiles and trial.draws(present)
        plan = plan_with(False)
        alike = plan_with(True) if draws else plan
        outputs, gradients = trial.same_draws_closeness(present, alike)
        numbers = agreement(outputs, gradients)
        if not tolerance_of(plan, self._context.root).holds(outputs, gradients):
            self._acceptance_rule.skip(item, f"numbers disagree: {numbers}")
            return None, numbers
        reason = self._smaller_refusal(alike) if plan.any_size else None
        if reason is not None:
            self._acceptance_rule.skip(item, reason)
            return None, numbers
        return plan, numbers

    def _smaller_refusal(self, alike: RootPlan) -> str | None:
        """Returns the reason against compiled code for any size, which is also compared on a
        smaller batch.
        """
        present, root = self._applied.plan, self._root
        smaller = root.shapes.smaller(self._recorded.inputs)
        if smaller is None:
            return None
        trial = Trial(self._acceptance_rule, root, self._recorded.of(smaller))
        try:
            outputs, gradients = trial.same_draws_closeness(present, alike)
        except Exception as error:
            return f"batches differ in size, and a smaller one failed: {short(error)}"
        if tolerance_of(alike, root).holds(outputs, gradients):
            return None
        return f"numbers disagree on a smaller batch: {agreement(outputs, gradients)}"

    def adopt(self, tuned: TunedSettings, *, compares: bool = False) -> None:
        """Adopts the compilation of an earlier run. The first step compiles it or loads it from
        disk.

        With `compares`, the earlier run may have compiled another module, so the plan is compiled
        and compared here.
        """
        if not (tuned.compile or (compares and tuned.compile_beside)):
            return
        item = BLOCKS if tuned.regional_compile else WHOLE
        reason = self._refusal()
        if reason is None and tuned.regional_compile:
            reason = self._blocks_refusal()
        if reason is not None:
            self._acceptance_rule.skip(item, reason)
            return
        self._any_size = tuned.dynamic_shapes
        plan_with = self._plan_with_blocks if tuned.regional_compile else self._plan_with_whole
        plan = self._close(item, plan_with) if compares else plan_with(False)
        if plan is None:
            return
        self._applied.plan = plan
        self._acceptance_rule.accept(item, self._acceptance_rule.source)
        if tuned.cuda_graphs and self._graphs_refusal() is None:
            self._applied.plan = self._graphs_plan()
            self._acceptance_rule.accept(GRAPHS, self._acceptance_rule.source)

    def _close(self, item: str, plan_with: Callable[[bool], RootPlan]) -> RootPlan | None:
        try:
            return self._compared(item, self._context.trial(), plan_with)[0]
        except Exception as error:
            self._acceptance_rule.skip(item, f"failed: {short(error)}")
            return None
