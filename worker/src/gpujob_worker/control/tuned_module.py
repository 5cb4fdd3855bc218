"""One module that the script calls from outside all others, with its settings.

A model in training is a list of such modules (`trained_model`). The first one is measured, and its
settings are reported. Each further one (a head, the second tower, a critic) takes over what is
close on its own call. Under a memory limit each has its own memory model. A module without trained
parameters (`FrozenRoot`: a teacher, an encoder) only has its precision lowered.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings, setting_called
from gpujob_worker.tune.tuner import Tuner

NAMED_MAX = 4
# Maximum number of further modules that are tuned. The others run unmodified.
FURTHER_MAX = 8


@dataclass(slots=True, eq=False)
class TunedModule:
    """The module's root, the choices for it, and the log of its decisions."""

    root: Root
    log: DecisionLog
    # The module's class. A number follows if the model met the class before.
    name: str = ""
    # None until settings are chosen for the module.
    tuner: Tuner | None = None
    # The settings of the module's calls.
    applied: Applied = field(default_factory=Applied)
    # None without a memory limit, or if nothing may be measured.
    fit: MemoryFit | None = None
    # Why the module must not be run for a measurement or, with other processes, not by one process
    # alone.
    refusal: str | None = None
    # The memory of the module's first step is known.
    refined: bool = False

    @property
    def choices(self) -> Tuner:
        """The tuner. The caller has checked that there is one."""
        assert self.tuner is not None
        return self.tuner

    def use(self, tuner: Tuner) -> Tuner:
        """Sets the tuner whose choices are applied, and returns it."""
        self.tuner = tuner
        return tuner

    def refuse(self, reason: str | None) -> None:
        """Sets why the module must not be run for a measurement, or None if it may be."""
        self.refusal = reason

    def keep_limit_by(self, fit: MemoryFit) -> None:
        self.fit = fit

    def refine(self, *, stepped: bool) -> bool:
        """Returns True once, at the first check of its memory after its first step."""
        refines, self.refined = stepped and not self.refined, stepped
        return refines

    def run_with(self, plan: RootPlan) -> None:
        """Makes the next call run with the plan."""
        self.applied.plan = plan
        self.put()

    @property
    def is_lowered(self) -> bool:
        """True if the module's calls differ from the script's."""
        return self.applied.plan != RootPlan()

    def apply(self) -> None:
        """Applies the choices from the next call on, unless they are only recommended."""
        if self.tuner is not None and not self.tuner.recommends:
            self.applied = self.tuner.applied
        self.put()

    def put(self) -> None:
        """Makes the next call run with the applied settings."""
        apply_settings(self.root, None, self.applied)

    def take_over(
        self, recorded: RecordedCall, tuned: TunedSettings, scale: LossScale | None
    ) -> None:
        """Chooses those of the first module's settings for speed that are close on this module's
        call.

        The call may be run. Compiled code is compiled anew for this module. `scale` is the first
        module's loss scale, which is shared from now on.
        """
        self.choices.adopt_speed(self.root, recorded, tuned)
        plan = self.choices.applied.plan
        if plan.loss_scale is None:
            return
        if scale is None:
            setting_called("precision").drop(self.choices.applied)
            return
        scale.scale = min(scale.scale, plan.loss_scale.scale)
        self.choices.applied.plan = replace(plan, loss_scale=scale)

    def correct(self, observed_bytes: int) -> bool:
        """Like `MemoryFit.correct`, on the call that was recorded last."""
        recorded = self.root.recorded
        if self.fit is None or recorded is None:
            return False
        settled = self.fit.correct(self.root, recorded, observed_bytes, ends=False)
        self.apply()
        return settled

    def drop(self, name: str, log: DecisionLog, why: str) -> None:
        """Ends one setting for the rest of the run, if it is applied. Call `put` afterwards."""
        setting = setting_called(name)
        if not setting.chosen(self.applied):
            return
        setting.drop(self.applied)
        for item in log.applied_items(setting.ITEM):
            log.skipped(item, why)

    def roll_back(self, *, limited: bool) -> None:
        """Returns to plain settings, except those that keep a memory limit. Call `put`
        afterwards.
        """
        present = self.applied
        self.applied = present.memory_only() if limited else present.without_settings()
        if self.tuner is not None:
            self.tuner.settle_for(self.applied)

    def release(self) -> None:
        """Drops all references to the script's objects."""
        self.root.release()
        self.tuner = self.fit = None


def module_name(root: Root, met: Counter[str]) -> str:
    """Returns the module's class, with a number if `met` has the class already, and counts it
    there.
    """
    name = type(root.module).__name__
    met[name] += 1
    return f"{name} {met[name]}" if met[name] > 1 else name


def names_of(roots: Sequence[Root]) -> str:
    """Returns the classes of the modules, for people."""
    names = [type(root.module).__name__ for root in roots]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def too_many(roots: Sequence[Root]) -> str:
    """Returns why something is skipped that is done for a single module only."""
    return f"{len(roots)} modules are trained from outside, one is needed: {names_of(roots)}"
