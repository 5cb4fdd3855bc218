"""The model in training: its modules, its optimizers, and the settings that are applied to them."""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_worker.control.consensus import UNNUMBERED, Consensus
from gpujob_worker.control.tuned_module import TunedModule, module_name
from gpujob_worker.control.tuned_optimizers import TunedOptimizers
from gpujob_worker.inject.activation_checkpointing import BlockCheckpoint
from gpujob_worker.inject.ddp import number_of
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.offload import OptimizerOffload
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root, absent_root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings, tuned
from gpujob_worker.tune.trial import AN_EARLIER_RUN
from gpujob_worker.tune.tuner import Tuner

# Modules of one step whose calls are recorded for trials.
RECORDED_MAX = 16
# Maximum number of modules without trained parameters that are handled. Others run unmodified.
FROZEN_MAX = 8
_PRECISION = "precision"


@dataclass(slots=True)
class TrainedModel:
    """The state of one model after another. Other modules read it, and only its own methods change
    it.
    """

    session: Session
    facts: ScriptFacts
    # The first one is measured. The others follow in the order of their first calls.
    modules: list[TunedModule] = field(default_factory=list[TunedModule])
    # Modules without trained parameters.
    frozen: list[TunedModule] = field(default_factory=list[TunedModule])
    optimizers: TunedOptimizers = field(default_factory=TunedOptimizers)
    optimizer_offload: OptimizerOffload | None = None
    rolled_back: bool = False
    # The other processes, if they decide together.
    consensus: Consensus | None = None
    # Whether the model has the shape of the first model, whose settings are reported.
    first_shape: bool = True
    # The name of a later model in messages, such as " in model 2 (Net)".
    whose: str = ""
    # Decisions about this model. The run's own log keeps those of the first model.
    log: DecisionLog = field(default_factory=DecisionLog)
    # How the split was made for the first model or one like it.
    keeps_chunk: bool = True
    # The run's steps before this model.
    steps_before: int = 0
    # Backward passes since this model began.
    backward_passes: int = 0
    # How often each class of module was met. Two modules never share a name, in whatever order they
    # are measured.
    _met: Counter[str] = field(default_factory=Counter[str], init=False)
    _met_frozen: Counter[str] = field(default_factory=Counter[str], init=False)
    # Stands in until a first module is called. It has the settings of the optimizers and the
    # process only.
    _without_module: TunedModule = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.session.log
        self._without_module = TunedModule(absent_root(), self.log)

    @property
    def steps(self) -> int:
        """Steps of this model."""
        return self.session.meter.steps - self.steps_before

    # The model's modules.

    @property
    def first(self) -> TunedModule:
        """The measured module. Its settings are reported with those of the optimizers."""
        return self.modules[0] if self.modules else self._without_module

    @property
    def further(self) -> list[TunedModule]:
        """The other modules for which settings were chosen or refused."""
        return [module for module in self.modules[1:] if module.tuner is not None]

    @property
    def roots(self) -> list[Root]:
        return [module.root for module in self.modules]

    @property
    def all_roots(self) -> list[Root]:
        """The roots of all modules, including frozen ones."""
        return [module.root for module in (*self.modules, *self.frozen)]

    @property
    def all_applied(self) -> list[Applied]:
        """The settings applied to the first module, and those applied to each of the others."""
        return [self.first.applied, *(module.applied for module in self.modules[1:])]

    @property
    def fits(self) -> list[MemoryFit]:
        """The objects that keep the memory limit, for every module that has one."""
        return [module.fit for module in self.modules if module.fit is not None]

    @property
    def has_lowered_frozen(self) -> bool:
        return any(module.is_lowered for module in self.frozen)

    def module_of(self, root: Root) -> TunedModule:
        return next(module for module in self.modules if module.root is root)

    def meet(self, root: Root) -> TunedModule:
        """Called when the script calls a module of the model for the first time."""
        name = module_name(root, self._met)
        if self.modules:
            module = TunedModule(root, self._log_of(name), name)
        else:
            module = replace(self._without_module, root=root, name=name)
        self.modules.append(module)
        return module

    def meet_frozen(self, module: torch.nn.Module) -> FrozenRoot | None:
        """Called when the script calls a module without trained parameters. Returns None if it runs
        unmodified.
        """
        tuned_before = self.known is not None or self.session.state.tuning_seconds is not None
        if tuned_before or len(self.frozen) >= FROZEN_MAX or _has_compiled_part(module):
            return None
        root = FrozenRoot(module, lambda: any(root.inside for root in self.roots))
        name = module_name(root, self._met_frozen)
        frozen = TunedModule(root, self.session.log.about(f"frozen {name}"))

        def failed(error: Exception) -> None:
            kind = type(error).__name__
            _raise_again(frozen, f": a call failed with it, {kind}")

        root.install(failed)
        root.let_go()
        self.frozen.append(frozen)
        return root

    def choose_for(self, root: Root) -> TunedModule:
        """Returns a further module that can be given settings from now on."""
        module = self.module_of(root)
        if module.tuner is None:
            tuner = Tuner(
                self.session.environment.settings,
                self.session.features,
                module.log,
                self.session.tuning_budget_seconds,
                self.facts,
                source=type(self.modules[0].root.module).__name__,
            )
            module.use(tuner)
        return module

    def lead(self, root: Root) -> None:
        """Makes this module the first one."""
        before, module = self.first, self.module_of(root)
        if module is before:
            return
        self.modules.remove(module)
        self.modules.insert(0, module)
        module.tuner, module.applied, module.log = before.tuner, before.applied, before.log
        before.tuner, before.applied = None, Applied()
        if type(module.root.module) is type(before.root.module):
            # The first module is the one without a number.
            module.name, before.name = before.name, module.name
        before.log = self._log_of(before.name)

    def drop(self, root: Root) -> None:
        """Drops this module once the script is done with it, so that its memory can be freed."""
        module = self.module_of(root)
        was_first = module is self.first
        apply_settings(root, None, Applied())
        root.remove()
        self.modules.remove(module)
        if not self.modules:
            plan = module.applied.plan
            if self.first_shape and plan.rows_per_step is not None:
                self.keeps_chunk = plan.keeps_chunk
            kept = module.applied.without_settings()
            self._without_module = TunedModule(absent_root(), self.log, applied=kept)
        elif was_first:
            self._promote(module)

    def _promote(self, gone: TunedModule) -> None:
        """Makes the next module the first one.

        Its settings for the memory limit stay applied, and so do those of the optimizers and the
        process.
        """
        module = self.first
        module.log = gone.log
        if self.consensus is not None and module.tuner is None:
            module.refusal = "it was not looked at by all processes"
        if module.tuner is None:
            module.applied = module.applied.with_process_of(gone.applied)
        else:
            module.tuner.settle_for(module.tuner.applied.with_process_of(gone.applied))
            if not module.tuner.recommends:
                module.applied = module.tuner.applied
        if self.consensus is not None and self.session.state.tuning_seconds is None:
            # Nothing was decided yet, so the shared tuner measures it.
            module.tuner = None

    def drop_uncalled(self) -> None:
        for root in self.roots:
            if not root.called:
                self.drop(root)

    def record(self) -> None:
        """Records calls from now on.

        Only the first modules are recorded, because a loop may call a hundred. Under a memory
        limit, only modules with a memory model are recorded.
        """
        limited = self.session.environment.memory_limit_bytes is not None
        for module in self.frozen:
            module.root.record()
        for module in self.modules[:RECORDED_MAX]:
            if not limited or module.fit is not None or len(self.modules) == 1:
                module.root.record()

    def _log_of(self, name: str) -> DecisionLog:
        return self.session.log.about(name + self.whose)

    # Facts about the model.

    @property
    def script_compiles(self) -> bool:
        """True if the script compiles its model, a part of it, or functions around all models."""
        known = self.facts.compiles or (self.facts.compiles_functions and not self.modules)
        return known or any(_has_compiled_part(root.module) for root in self.roots)

    @property
    def first_number(self) -> int:
        """The number of the first module's wrapper in all processes that decide together."""
        if not self.modules:
            return UNNUMBERED
        root = self.first.root
        return root.number or number_of(root.module) or UNNUMBERED

    @property
    def shared_scale(self) -> LossScale | None:
        """The loss scale of all modules.

        If several processes decide together, only the first module has one. All processes check its
        exchanged gradients for an overflow.
        """
        return self.first.applied.plan.loss_scale if self.consensus is None else None

    @property
    def known(self) -> TunedSettings | None:
        """Settings known beforehand, from an earlier run or from the model in training; None
        without any.
        """
        session = self.session
        found = session.state.tuned if session.state.tuning_seconds is not None else None
        return session.state.known_tuned or (found if self.first_shape else None)

    @property
    def source(self) -> str:
        """Origin of the known settings."""
        return "an earlier model" if self.whose else AN_EARLIER_RUN

    def decide_together(self, consensus: Consensus) -> None:
        """Ends decisions by this process alone."""
        self.consensus = consensus
        self.facts.processes = 1

    # One model after another.

    def begin(self, whose: str, *, alike: bool) -> None:
        """Starts a later model. With `alike`, the first model's settings are for it too."""
        self.first_shape = alike
        self.whose = whose
        self.log = self.first.log = DecisionLog()

    def renew(self) -> None:
        """Starts over for another model."""
        kept = self.first.applied.without_settings()
        for root in reversed(self.roots):
            self.drop(root)
        self._without_module = TunedModule(absent_root(), self.log, applied=kept)
        self._met.clear()
        self.optimizer_offload = None
        self.optimizers = TunedOptimizers()
        self.rolled_back = False
        self.steps_before, self.backward_passes = self.session.meter.steps, 0
        self.session.state.scale_losses(None)

    def release(self) -> None:
        """Drops all references to the script's objects."""
        for module in (*self.modules, *self.frozen, self._without_module):
            module.release()
        self.modules.clear()
        self.frozen.clear()
        self.facts.stepped.clear()
        self.consensus = None

    # The model's settings.

    def apply(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Applies the tuners' choices from the next step on, unless they are only recommended."""
        if self.session.environment.settings.mode is OptimizeMode.RECOMMEND:
            return
        self.first.applied = self.first.choices.applied
        self.session.state.scale_losses(self.first.applied.plan.loss_scale)
        if optimizer is not None:
            self.optimizers.lead(optimizer)
        optimizer = self.optimizers.first
        self._put()
        for module in self.further:
            module.apply()
        if self.first.applied.optimizer_offload and optimizer is not None:
            self.optimizer_offload = self.optimizer_offload or OptimizerOffload(optimizer)

    def _put(self) -> None:
        """Makes the next step of the first module and of the optimizers run with the applied
        settings.
        """
        self.first.put()
        for optimizer in self.optimizers.fused:
            apply_settings(None, optimizer, self.first.applied)

    def take_off(self, roots: Iterable[Root]) -> None:
        """Returns to the script's own settings, including those of all optimizers, and forgets the
        roots.
        """
        for root in roots:
            for optimizer in (None, *self.optimizers.fused):
                apply_settings(root, optimizer, Applied())
            root.remove()

    def report(self) -> None:
        """Reports the applied settings as the run's if this is the first model or one like it."""
        if self.first.tuner is not None and self.first_shape:
            self.session.settings_are(self.with_further(self.first.tuner.tuned()))

    def with_further(self, of_first: TunedSettings) -> TunedSettings:
        """Returns the first module's settings with the fact whether another module is compiled."""
        beside = any(module.choices.applied.plan.compiles for module in self.further)
        return replace(of_first, compile_beside=beside)

    def saw_backward(self) -> None:
        """Called when the script starts a backward pass."""
        self.backward_passes += 1

    def step_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Called just before the script's optimizer steps, with its gradients in place."""
        applied = self.first.applied
        if applied.fused:
            applied.fused = self.optimizers.stay_fused(optimizer)
        scale, offload = applied.plan.loss_scale, self.optimizer_offload
        if scale is not None:
            scale.step_starts(optimizer)
        if offload is not None and offload.optimizer is optimizer:
            offload.step_starts()

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        offload = self.optimizer_offload
        if offload is not None and offload.optimizer is optimizer:
            offload.step_ends()

    def roll_back_setting(self, name: str, why: str) -> None:
        """Ends one setting for the rest of the run, and compiled code that was made with it."""
        text = f"rolled back{self.whose}: {why}"
        for dropped in (name, "compile"):
            self.first.drop(dropped, self.session.log, text)
            for module in self.modules[1:]:
                module.drop(dropped, module.log, text)
        if name == _PRECISION:
            self._raise_frozen(why)
        self.session.state.scale_losses(self.first.applied.plan.loss_scale)
        self._put()
        for module in self.modules[1:]:
            module.put()
        self._rolled_back()

    def roll_back(self, why: str) -> None:
        """Returns to plain settings for the rest of the run. Nothing is tried again.

        Settings that keep a memory limit stay applied, because the next step would exceed the limit
        without them.
        """
        limited = self.session.environment.memory_limit_bytes is not None
        if self.optimizer_offload is not None and not limited:
            self.optimizer_offload.undo()
            self.optimizer_offload = None
        self.session.state.scale_losses(None)
        self.rolled_back = True
        self.first.roll_back(limited=limited)
        self._put()
        for module in self.further:
            module.roll_back(limited=limited)
            module.put()
        self._raise_frozen(why)
        self.session.log.note("roll-back", f"to plain settings{self.whose}: {why}")
        self._rolled_back()

    def _rolled_back(self) -> None:
        if self.first_shape:
            self.session.settings_are(self.with_further(tuned(self.first.applied)))
        self.session.meter.new_window()

    def _raise_frozen(self, why: str) -> None:
        for module in self.frozen:
            _raise_again(module, f"{self.whose}: {why}")


def _raise_again(frozen: TunedModule, why: str) -> None:
    """Makes a frozen module run in its own type again."""
    if frozen.is_lowered:
        frozen.drop(_PRECISION, frozen.log, f"rolled back{why}")
        frozen.put()


def _has_compiled_part(module: torch.nn.Module) -> bool:
    """Returns whether the script compiled the module or one inside it.

    Such code would be compiled again under another setting.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and any(
        isinstance(part, dynamo.OptimizedModule) or _is_compiled_in_place(part)
        for part in module.modules()
    )


def _is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Returns whether the script used the method `compile`.

    Our roots and recomputed blocks take over calls in the same way, and do not count.
    """
    call = vars(module).get("_compiled_call_impl")
    return call is not None and not isinstance(call, (Root, BlockCheckpoint))
