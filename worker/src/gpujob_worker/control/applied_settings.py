"""The settings that are applied in this process: applied, reported and rolled back as a whole."""

from dataclasses import dataclass, field, replace

import torch

from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_worker.control.consensus import (
    COMPILED,
    MEASURED,
    UNNUMBERED,
    Choices,
    Consensus,
    known_round,
)
from gpujob_worker.control.frozen_roots import FrozenRoots
from gpujob_worker.control.secondary_modules import SecondaryModule, secondary_module
from gpujob_worker.control.tuned_optimizers import TunedOptimizers
from gpujob_worker.inject.compiled_parts import has_compiled_part
from gpujob_worker.inject.ddp import number_of
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.offload import OptimizerOffload
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings, keep_only, setting_called, tuned
from gpujob_worker.tune.trial import AN_EARLIER_RUN
from gpujob_worker.tune.tuner import Tuner

# Modules of one step whose calls are kept to be tried.
RECORDED_MAX = 16


@dataclass(slots=True)
class AppliedSettings:
    """The settings of the roots and the optimizers of the model in training.

    Other modules read it. Only its own methods change it.
    """

    session: Session
    facts: ScriptFacts
    roots: list[Root] = field(default_factory=list[Root])
    applied: Applied = field(default_factory=Applied)
    tuner: Tuner | None = None
    fit: MemoryFit | None = None
    # Roots other than the first, if a memory limit is checked for them.
    beside: list[SecondaryModule] = field(default_factory=list[SecondaryModule])
    # Modules of which nothing learns.
    frozen: FrozenRoots = field(init=False)
    rolled_back: bool = False
    optimizer_offload: OptimizerOffload | None = None
    # The other processes, if they decide together.
    agreement: Consensus | None = None
    # Why the module may not be run for a measurement; with other processes, not by one process
    # alone.
    run_refusal: str | None = None
    # Whether the model in training has the shape of the first model, whose settings are reported.
    first_shape: bool = True
    # The name of a later model in messages, such as " in model 2 (Net)".
    whose: str = ""
    # Decisions for the model in training; the run's own log keeps those of the first model.
    explanation: DecisionLog = field(default_factory=DecisionLog)
    # How the split was made that was applied to the first model or one like it.
    keeps_chunk: bool = True
    optimizers: TunedOptimizers = field(default_factory=TunedOptimizers)

    def __post_init__(self) -> None:
        self.explanation = self.session.explanation
        self.frozen = FrozenRoots(self.session, lambda: any(root.inside for root in self.roots))

    @property
    def script_compiles(self) -> bool:
        """True if the script compiles its model or a part of it, or functions around all models."""
        known = self.facts.compiles or (self.facts.compiles_functions and not self.roots)
        return known or any(has_compiled_part(root.module) for root in self.roots)

    @property
    def first_number(self) -> int:
        """The number of the first root's wrapper in all processes that decide together."""
        first = self._first_root
        if first is None:
            return UNNUMBERED
        return first.number or number_of(first.module) or UNNUMBERED

    @property
    def shared_scale(self) -> LossScale | None:
        """The scale of losses for all modules. Where several processes decide together it is the
        first one's alone, in whose exchanged gradients all look for an overflow.
        """
        return self.applied.plan.loss_scale if self.agreement is None else None

    @property
    def fits(self) -> list[MemoryFit]:
        """The objects that keep the memory limit, for every root that has one."""
        found = [self.fit, *(other.fit for other in self.beside)]
        return [fit for fit in found if fit is not None]

    @property
    def all_applied(self) -> list[Applied]:
        """What is applied to the first module, and to each of the others."""
        return [self.applied, *(other.applied for other in self.beside)]

    @property
    def known(self) -> TunedSettings | None:
        """Settings known beforehand: from an earlier run, or found for the model in training."""
        session = self.session
        found = session.state.tuned if session.state.tuning_seconds is not None else None
        return session.state.known_tuned or (found if self.first_shape else None)

    @property
    def source(self) -> str:
        """Origin of the known settings."""
        return "an earlier model" if self.whose else AN_EARLIER_RUN

    def met_frozen(self, module: torch.nn.Module) -> FrozenRoot | None:
        """A module of which nothing learns is called beside the others; None where settings are
        known, and nothing will be tried with it.
        """
        tuned_before = self.known is not None or self.session.state.tuning_seconds is not None
        return None if tuned_before else self.frozen.met(module)

    def use(self, tuner: Tuner) -> Tuner:
        """Selects the tuner whose choices `apply` applies."""
        self.tuner = tuner
        return tuner

    def keep_limit_by(self, fit: MemoryFit) -> None:
        """Sets what keeps the memory limit for the first root."""
        self.fit = fit

    def refuse_runs(self, reason: str | None) -> None:
        """True if the module of the model in training must not be run for a measurement."""
        self.run_refusal = reason

    def decide_together(self, agreement: Consensus) -> None:
        """From now on, no decision is made by this process alone."""
        self.agreement = agreement
        self.facts.processes = 1

    def begin_model(self, whose: str, *, alike: bool) -> None:
        """Starts a later model. `alike`: the first model's settings are for it too."""
        self.first_shape = alike
        self.whose = whose
        self.explanation = DecisionLog()

    def release(self) -> None:
        """Drops all references to the script's objects."""
        for root in self.roots:
            root.remove()
            root.recorded = root.wrapper = None
        self.frozen.release()
        self.roots.clear()
        self.beside.clear()
        self.facts.stepped.clear()
        self.tuner = self.fit = self.agreement = None

    def drop(self, root: Root) -> None:
        """Drops this module after the script is done with it, so that its memory can be freed."""
        was_first = root is self.roots[0]
        apply_settings(root, None, Applied())
        root.remove()
        self.roots.remove(root)
        self.beside = [other for other in self.beside if other.root is not root]
        if not self.roots:
            plan = self.applied.plan
            if self.first_shape and plan.rows_per_step is not None:
                self.keeps_chunk = plan.keeps_chunk
            self.applied = self.applied.without_settings()
            self.tuner = self.fit = None
        elif was_first:
            self._promote(self.roots[0])

    def _promote(self, root: Root) -> None:
        """After the first root is gone: what keeps the limit for this root stays applied."""
        found = next((other for other in self.beside if other.root is root), None)
        if self.agreement is not None:
            unseen = "it was not looked at by all processes"
            self.refuse_runs(unseen if found is None else found.run_refusal)
        if found is None:
            return
        self.beside.remove(found)
        self.tuner, self.fit = found.tuner, found.fit
        self.tuner.applied.loader_workers = self.applied.loader_workers
        if not found.tuner.recommends:
            self.applied = found.tuner.applied
        if self.agreement is not None and self.session.state.tuning_seconds is None:
            # Nothing was decided yet: it is measured by the tuner that all share.
            self.tuner = None

    def renew(self) -> None:
        """Starts over for another model."""
        for root in reversed(list(self.roots)):
            self.drop(root)
        self.applied = self.applied.without_settings()
        self.tuner = self.fit = self.optimizer_offload = self.run_refusal = None
        self.optimizers = TunedOptimizers()
        self.rolled_back = False
        self.session.state.scale_losses(None)

    def report(self) -> None:
        """Reports the applied settings as the run's, if this is the first model or one like it."""
        if self.tuner is not None and self.first_shape:
            self.session.settings_are(self.with_others(self.tuner.tuned()))

    def with_others(self, of_first: TunedSettings) -> TunedSettings:
        """The first module's settings, and whether another one is compiled."""
        beside = any(other.tuner.applied.plan.compiles for other in self.beside)
        return replace(of_first, compile_beside=beside)

    def record(self) -> None:
        """Calls are kept from now on: of the first modules, for a loop may call a hundred; under
        a memory limit of modules that have a memory model.
        """
        modelled = [other.root for other in self.beside if other.fit is not None]
        self.frozen.record()
        for index, root in enumerate(self.roots[:RECORDED_MAX]):
            alone = index == 0 and (len(self.roots) == 1 or self.fit is not None)
            limited = self.session.environment.memory_limit_bytes is not None
            root.recording = alone or not limited or any(root is known for known in modelled)

    def lead(self, root: Root) -> None:
        """Makes this root the first one, whose settings are reported."""
        self.roots.remove(root)
        self.roots.insert(0, root)

    def find_beside(self, root: Root) -> SecondaryModule:
        """What is chosen for a root other than the first; nothing yet when first asked."""
        found = next((other for other in self.beside if other.root is root), None)
        if found is None:
            before = self.roots[: self.roots.index(root)]
            found = secondary_module(root, before, self.session, self.facts, self.whose)
            self.beside.append(found)
        return found

    def drop_uncalled(self) -> None:
        for root in [root for root in self.roots if not root.called]:
            self.drop(root)

    def settle(self) -> None:
        """Keeps of what was measured what every process chose, module by module. Call it before it
        is applied.
        """
        if self.agreement is None or self.tuner is None:
            return
        first, mine = self.first_number, self.tuner.tuned()
        if self.agreement.leads:
            self.agreement.propose(first, mine)
        numbered = {other.root.number: other for other in self.beside}
        others = {number: other for number, other in numbered.items() if number is not None}
        chosen = {number: other.tuner.tuned() for number, other in others.items()}
        agreed = self.agreement.settle(MEASURED, Choices(first, {**chosen, first: mine}))
        self._keep_of_first(mine, agreed[first])
        for number, other in others.items():
            self._keep_beside(other, agreed[number])

    def settle_compiled(self) -> None:
        """Keeps code that was compiled later where every process found it close. What else is in
        force was decided before, and stays.
        """
        assert self.agreement is not None
        first = self.first_number
        mine = self.tuner.tuned() if self.tuner is not None else TunedSettings()
        if self.agreement.leads:
            self.agreement.propose(first, mine, COMPILED)
        agreed = self.agreement.settle(COMPILED, Choices(first, {first: mine}))[first]
        if self.tuner is not None:
            setting_called("compile").keep_only(self.tuner.applied, agreed)
        if mine.compile and not agreed.compile:
            for item in self.explanation.applied_items("compile"):
                self.explanation.skipped(item, "not close, or not compiled, in all processes")

    def settle_known(self) -> None:
        """Keeps of known settings what every process found safe for the first root."""
        if self.agreement is not None and self.tuner is not None:
            mine = self.tuner.tuned()
            self._keep_of_first(mine, self._agreed_on_known(self.first_number, mine))

    def settle_known_beside(self, other: SecondaryModule) -> None:
        """As `settle_known`, for a module that every process calls."""
        number = other.root.number
        if self.agreement is not None and number is not None:
            self._keep_beside(other, self._agreed_on_known(number, other.tuner.tuned()))

    def _agreed_on_known(self, number: int, mine: TunedSettings) -> TunedSettings:
        assert self.agreement is not None
        choices = Choices(number, {number: mine})
        return self.agreement.settle(known_round(number), choices)[number]

    def _keep_of_first(self, mine: TunedSettings, agreed: TunedSettings) -> None:
        assert self.agreement is not None
        assert self.tuner is not None
        keep_only(self.tuner.applied, agreed)
        kept = "the same in all" if agreed == mine else "less in some, and now in all"
        text = f"{self.agreement.size} processes decided together; {kept}"
        self.session.explanation.note("processes", text)

    def _keep_beside(self, other: SecondaryModule, agreed: TunedSettings) -> None:
        mine = other.tuner.tuned()
        keep_only(other.tuner.applied, agreed)
        if agreed != mine:
            other.explanation.skipped("settings for speed", "not safe in all processes")
            # What was measured is not what is applied.
            self.session.state.gained(agreed, None)

    def apply(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Applies the tuner's choices from the next step on, unless it only recommends."""
        assert self.tuner is not None
        if self.session.environment.settings.mode is OptimizeMode.RECOMMEND:
            return
        self.applied = self.tuner.applied
        self.session.state.scale_losses(self.applied.plan.loss_scale)
        if optimizer is not None:
            self.optimizers.lead(optimizer)
        optimizer = self.optimizers.first
        self._put()
        for other in self.beside:
            other.put()
        if self.applied.optimizer_offload and optimizer is not None:
            self.optimizer_offload = self.optimizer_offload or OptimizerOffload(optimizer)

    def _put(self) -> None:
        """Makes the next step of the first root and the optimizers run with what is applied."""
        apply_settings(self._first_root, None, self.applied)
        for optimizer in self.optimizers.fused:
            apply_settings(None, optimizer, self.applied)

    def take_off(self, root: Root) -> None:
        """Returns to the script's own settings, also of all optimizers, and forgets the root."""
        for optimizer in (None, *self.optimizers.fused):
            apply_settings(root, optimizer, Applied())
        root.remove()

    @property
    def _first_root(self) -> Root | None:
        return self.roots[0] if self.roots else None

    def step_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Runs just before the script's optimizer steps, with its gradients in place."""
        if self.applied.fused:
            self.applied.fused = self.optimizers.stay_fused(optimizer)
        scale, offload = self.applied.plan.loss_scale, self.optimizer_offload
        if scale is not None:
            scale.step_starts(optimizer)
        if offload is not None and offload.optimizer is optimizer:
            offload.step_starts()

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        offload = self.optimizer_offload
        if offload is not None and offload.optimizer is optimizer:
            offload.step_ends()

    def roll_back_setting(self, name: str, why: str) -> None:
        """Ends one setting for the rest of the run, and compiled code, which was made with it."""
        logs = [(self.applied, self.session.explanation)]
        logs += [(other.tuner.applied, other.explanation) for other in self.beside]
        for setting in (setting_called(name), setting_called("compile")):
            for applied, said in logs:
                if setting.chosen(applied):
                    setting.drop(applied)
                    for item in said.applied_items(setting.ITEM):
                        said.skipped(item, f"rolled back{self.whose}: {why}")
        if name == "precision":
            self.frozen.roll_back(f"{self.whose}: {why}")
        self.session.state.scale_losses(self.applied.plan.loss_scale)
        self._put()
        for other in self.beside:
            other.put()
        if self.first_shape:
            self.session.settings_are(self.with_others(tuned(self.applied)))
        self.session.meter.new_window()

    def roll_back(self, why: str) -> None:
        """Returns to plain settings for the rest of the run. Nothing is tried again.

        What keeps a memory limit stays applied, because the next step would exceed the limit
        without it.
        """
        limited = self.session.environment.memory_limit_bytes is not None
        if self.optimizer_offload is not None and not limited:
            self.optimizer_offload.undo()
            self.optimizer_offload = None
        present = self.applied
        self.applied = present.memory_only() if limited else present.without_settings()
        self.session.state.scale_losses(None)
        self.rolled_back = True
        if self.tuner is not None:
            self.tuner.settle_for(self.applied)
        self._put()
        for other in self.beside:
            other.roll_back(limited=limited)
        self.frozen.roll_back(f"{self.whose}: {why}")
        self.session.explanation.note("roll-back", f"to plain settings{self.whose}: {why}")
        if self.first_shape:
            self.session.settings_are(self.with_others(tuned(self.applied)))
        self.session.meter.new_window()
