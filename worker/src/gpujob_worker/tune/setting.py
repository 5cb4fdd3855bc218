"""What a setting that can be injected says of itself; a module each in `settings`.

The tuning, the settings in force, reports and the command line ask these and know none by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.inject.guards import parallel_wrapper
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import RecordedCall, Root, RootPlan
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.trial import AcceptanceRule, Tolerance, Trial


@dataclass(slots=True)
class Context:
    """What is known where a setting is chosen: what was asked for, the module, a call of it."""

    settings: Settings
    features: Features
    decision: AcceptanceRule
    applied: Applied
    root: Root
    recorded: RecordedCall
    facts: ScriptFacts

    @property
    def plan(self) -> RootPlan:
        """What was chosen so far."""
        return self.applied.plan

    def trial(self) -> Trial:
        return Trial(self.decision, self.root, self.recorded)


@dataclass(slots=True)
class Target:
    """What a setting is put on: a module, an optimizer, or both."""

    root: Root | None
    optimizer: torch.optim.Optimizer | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that may take the place of the present one, for one item or as part of it."""

    plan: RootPlan
    what: str = ""
    # In place of the setting's own item.
    item: str = ""
    # None: what another order of the same operations differs by.
    tolerance: Tolerance | None = None
    # Asked for: kept where it is close, however fast.
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a part of an item is not tried."""

    why: str
    item: str = ""


class Setting(ABC):
    """One setting. `NAME` is that of its module, and of the switch that turns it off."""

    NAME: ClassVar[str]
    # In what is said of it.
    ITEM: ClassVar[str]
    # Of `TunedSettings`, those that it fills.
    FIELDS: ClassVar[tuple[str, ...]]
    # Lower ones are tried before higher ones.
    ORDER: ClassVar[int]
    # It says so where there is no root module to try it on; parts of another item need not.
    SAID_WITHOUT_ROOT: ClassVar[bool] = True
    # It changes no number, or no more than the order of additions: each process has its own.
    OWN: ClassVar[bool] = False

    def refusal(self, context: Context) -> str | None:
        """What speaks against it before anything is tried."""
        return self.switched_off(context)

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        """Plans to measure, the most promising first; asked for one after the other, so that each
        may build on `context.plan` as it then is. None: it is not chosen for speed."""
        del context
        return iter(())

    def tried(self, context: Context) -> Iterator[Candidate | Refused]:
        """The candidates, or the one reason why there are none."""
        reason = self.refusal(context)
        return self.candidates(context) if reason is None else iter((Refused(reason),))

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        """What an earlier run found, to be taken over; None where that run had nothing of it."""
        del context, tuned
        return None

    @abstractmethod
    def tuned(self, applied: Applied) -> dict[str, Any]:
        """The values of `FIELDS`."""

    @abstractmethod
    def drop(self, applied: Applied) -> None:
        """Takes it out of what was chosen, before that is in force."""

    def keep_only(self, applied: Applied, agreed: TunedSettings) -> None:
        """Drops what `agreed` has not; nothing is added."""
        if any(value != getattr(agreed, name) for name, value in self.tuned(applied).items()):
            self.drop(applied)

    def put(self, target: Target, applied: Applied) -> None:
        """Makes the target as `applied` has it."""
        if self.chosen(applied):
            self.apply(target)
        else:
            self.undo(target)

    def chosen(self, applied: Applied) -> bool:
        """Whether `applied` has it."""
        plain = self.tuned(Applied())
        return self.tuned(applied) != plain

    def apply(self, target: Target) -> None:
        """Puts in force what a plan does not carry; once more changes nothing."""
        del target

    def undo(self, target: Target) -> None:
        """Takes back what `apply` did; where it did nothing, nothing."""
        del target

    def switched_off(self, context: Context) -> str | None:
        return None if context.features.allows(self.NAME) else "switched off"

    def not_measured(self, context: Context) -> str | None:
        """What speaks against every measurement: the switch, a wrapper that must not be run."""
        wrapper = parallel_wrapper(context.root.module)
        left = f"{wrapper} is left as it is" if wrapper else None
        return self.switched_off(context) or left
