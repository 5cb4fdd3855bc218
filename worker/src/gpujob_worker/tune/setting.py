"""The interface of a setting that can be injected. Each module in `settings` has one.

Tuning, applied settings, reports and the command line use this interface and name no setting.
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
    """The facts on which the choice of a setting depends: the request, the module, and a call of
    it.
    """

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
    # None means the tolerance for another order of the same operations.
    tolerance: Tolerance | None = None
    # A requested candidate is kept if it is close, however fast it is.
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a part of a setting is not tried."""

    why: str
    item: str = ""


class Setting(ABC):
    """One setting. `NAME` is the name of its module and of the switch that turns it off."""

    NAME: ClassVar[str]
    # The setting's name in messages.
    ITEM: ClassVar[str]
    # The fields of `TunedSettings` that the setting fills.
    FIELDS: ClassVar[tuple[str, ...]]
    # Settings with lower numbers are tried first.
    ORDER: ClassVar[int]
    # A line is logged if there is no root module. A part of another setting needs no own line.
    SAID_WITHOUT_ROOT: ClassVar[bool] = True
    # The setting makes a step take less memory, not less time.
    FOR_MEMORY: ClassVar[bool] = False
    # The setting changes no number, or only the order of additions, so each process decides for
    # itself.
    OWN: ClassVar[bool] = False

    def refusal(self, context: Context) -> str | None:
        """Returns why the setting is not tried at all, or None."""
        return self.switched_off(context)

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        """Yields the plans to measure, the most promising first. Yields nothing if the setting is
        not chosen for speed.

        Plans are generated one after the other, so that each may build on the current
        `context.plan`.
        """
        del context
        return iter(())

    def tried(self, context: Context) -> Iterator[Candidate | Refused]:
        """Returns the candidates, or the single reason why there are none."""
        reason = self.refusal(context)
        return self.candidates(context) if reason is None else iter((Refused(reason),))

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        """Returns the value that an earlier run found, to be adopted, or None if that run had
        none.
        """
        del context, tuned
        return None

    @abstractmethod
    def tuned(self, applied: Applied) -> dict[str, Any]:
        """Returns the values of `FIELDS`."""

    @abstractmethod
    def drop(self, applied: Applied) -> None:
        """Removes the setting from the choices before they are applied."""

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
        """Returns whether `applied` includes this setting."""
        plain = self.tuned(Applied())
        return self.tuned(applied) != plain

    def apply(self, target: Target) -> None:
        """Applies the part that no plan contains. Idempotent."""
        del target

    def undo(self, target: Target) -> None:
        """Undoes `apply`. No effect if nothing was applied."""
        del target

    def switched_off(self, context: Context) -> str | None:
        return None if context.features.allows(self.NAME) else "switched off"

    def not_measured(self, context: Context) -> str | None:
        """Returns why nothing can be measured: the switch is off, or a wrapper must not be run."""
        wrapper = parallel_wrapper(context.root.module)
        left = f"{wrapper} is left as it is" if wrapper else None
        return self.switched_off(context) or left
