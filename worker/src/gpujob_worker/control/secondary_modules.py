"""Modules that train beside the first one: a head, the second tower, a critic, a discriminator.

Under a memory limit each has a memory model of its own and is split or recomputed by it, like the
first module (`startup`); memory of other modules during its call counts as resident. Settings for
speed are measured on the first module; each other one takes over what is close on its own call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings, setting_called
from gpujob_worker.tune.tuner import Tuner

NAMED_MAX = 4
# More modules than these run as written.
SECONDARY_MAX = 8


@dataclass(slots=True)
class SecondaryModule:
    """One such module, its settings, and the log of its decisions."""

    root: Root
    tuner: Tuner
    # None without a limit, or where nothing may be measured.
    fit: MemoryFit | None
    explanation: DecisionLog
    # The memory of its first step is known.
    refined: bool = False
    # Why it may not be run for a measurement.
    run_refusal: str | None = None

    @property
    def applied(self) -> Applied:
        """The choice; nothing where it is only recommended."""
        return Applied() if self.tuner.recommends else self.tuner.applied

    def put(self) -> None:
        """Applies the choice from the next call on."""
        apply_settings(self.root, None, self.applied)

    def take_over(
        self, recorded: RecordedCall, tuned: TunedSettings, scale: LossScale | None
    ) -> None:
        """Chooses of the first module's settings for speed what is close on this module's call,
        which may be run; what is compiled is compiled for itself. `scale`: the first module's,
        which is then of both.
        """
        self.tuner.adopt_speed(self.root, recorded, tuned)
        plan = self.tuner.applied.plan
        if plan.loss_scale is None:
            return
        if scale is None:
            setting_called("precision").drop(self.tuner.applied)
            return
        scale.scale = min(scale.scale, plan.loss_scale.scale)
        self.tuner.applied.plan = replace(plan, loss_scale=scale)

    def roll_back(self, *, limited: bool) -> None:
        """Returns to plain settings, but for what keeps a memory limit."""
        chosen = self.tuner.applied
        self.tuner.settle_for(chosen.memory_only() if limited else Applied())
        self.put()

    def correct(self, observed_bytes: int) -> bool:
        """Like `MemoryFit.correct`, on the call that was recorded last."""
        recorded = self.root.recorded
        if self.fit is None or recorded is None:
            return False
        settled = self.fit.correct(self.root, recorded, observed_bytes, ends=False)
        self.put()
        return settled


def secondary_module(
    root: Root, roots: list[Root], session: Session, facts: ScriptFacts, whose: str
) -> SecondaryModule:
    """With nothing chosen for it yet. `whose`: the name of a later model in messages."""
    said = session.explanation.about(name_beside(root, roots) + whose)
    tuner = Tuner(
        session.environment.settings,
        session.features,
        said,
        session.tuning_budget_seconds,
        facts,
        source=type(roots[0].module).__name__,
    )
    return SecondaryModule(root, tuner, None, said)


def name_beside(root: Root, before: list[Root]) -> str:
    """The module's kind, with a number if the kind occurred before."""
    name = type(root.module).__name__
    same = sum(type(other.module).__name__ == name for other in before if other is not root)
    return f"{name} {same + 1}" if same else name


def names_of(roots: Sequence[Root]) -> str:
    """The classes of the modules, for people."""
    names = [type(root.module).__name__ for root in roots]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def too_many(roots: Sequence[Root]) -> str:
    """Why something is not done that is done for one module only."""
    return f"{len(roots)} modules are trained from outside, one is needed: {names_of(roots)}"
