"""The interface of a setting that can be injected; each module in `settings` has one.

The tuning, the applied settings, the reports and the command line use this interface and know no
setting by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.inject.guards import parallel_wrapper
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.trial import AcceptanceRule, Tolerance, Trial


@dataclass(slots=True)
class Context:
    """The facts on which the choice of a setting depends: the request, the module, a call of it."""

    settings: Settings
    features: Features
    acceptance_rule: AcceptanceRule
    applied: Applied
    root: Root
    recorded: RecordedCall
    facts: ScriptFacts

    @property
    def plan(self) -> RootPlan:
        """The choices so far."""
        return self.applied.plan

    def trial(self) -> Trial:
        return Trial(self.acceptance_rule, self.root, self.recorded)


@dataclass(slots=True)
class Target:
    """What a setting is applied to: a module, an optimizer, or both."""

    root: Root | None
    optimizer: torch.optim.Optimizer | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that may replace the present one, for a setting or for a part of it."""

    plan: RootPlan
    what: str = ""
    # Overrides the setting's own name.
    item: str = ""
    # None: the tolerance for a different order of the same operations.
    tolerance: Tolerance | None = None
    # Requested: kept if it is close, however fast it is.
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a part of a setting is not tried."""

    why: str
    item: str = ""


class Setting(ABC):
    """One setting. `NAME` is the name of its module, and of the switch that turns it off."""

    NAME: ClassVar[str]
    # Its name in messages.
    ITEM: ClassVar[str]
    # The fields of `TunedSettings` that it sets.
    FIELDS: ClassVar[tuple[str, ...]]
    # Lower ones are tried before higher ones.
    ORDER: ClassVar[int]
    # It logs a line if there is no root module; parts of another setting need not.
    SAID_WITHOUT_ROOT: ClassVar[bool] = True
    # It is chosen so that a step takes less memory, not less time.
    FOR_MEMORY: ClassVar[bool] = False
    # It changes no number, or only by the order of additions: each process decides for itself.
    OWN: ClassVar[bool] = False

    def refusal(self, context: Context) -> str | None:
        """Why the setting is not tried at all."""
        return self.switched_off(context)

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        """Plans to measure, the most promising first. They are generated one after the other, so
        that each may build on the then current `context.plan`. None: the setting is not chosen for
        speed.
        """
        del context
        return iter(())

    def tried(self, context: Context) -> Iterator[Candidate | Refused]:
        """The candidates, or the one reason why there are none."""
        reason = self.refusal(context)
        return self.candidates(context) if reason is None else iter((Refused(reason),))

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        """The value that an earlier run found, to be adopted; None if that run had none."""
        del context, tuned
        return None

    @abstractmethod
    def tuned(self, applied: Applied) -> dict[str, Any]:
        """The values of `FIELDS`."""

    @abstractmethod
    def drop(self, applied: Applied) -> None:
        """Removes it from the choices before they are applied."""

    def keep_only(self, applied: Applied, agreed: TunedSettings) -> None:
        """Drops choices that are not in `agreed`; adds nothing."""
        if any(value != getattr(agreed, name) for name, value in self.tuned(applied).items()):
            self.drop(applied)

    def put(self, target: Target, applied: Applied) -> None:
        """Makes the target match `applied`."""
        if self.chosen(applied):
            self.apply(target)
        else:
            self.undo(target)

    def chosen(self, applied: Applied) -> bool:
        """True if `applied` has it."""
        plain = self.tuned(Applied())
        return self.tuned(applied) != plain

    def apply(self, target: Target) -> None:
        """Applies what a plan does not contain; idempotent."""
        del target

    def undo(self, target: Target) -> None:
        """Undoes `apply`; no effect if `apply` had none."""
        del target

    def switched_off(self, context: Context) -> str | None:
        return None if context.features.allows(self.NAME) else "switched off"

    def not_measured(self, context: Context) -> str | None:
        """Why nothing can be measured for it: the switch, a wrapper that must not be run."""
        wrapper = parallel_wrapper(context.root.module)
        left = f"{wrapper} is left as it is" if wrapper else None
        return self.switched_off(context) or left
