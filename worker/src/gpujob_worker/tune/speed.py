"""Settings that make a step faster. The candidates of each are tried on one recorded batch."""

from gpujob_api.settings import TunedSettings
from gpujob_worker.tune.registry import SETTINGS, setting_called
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting
from gpujob_worker.tune.trial import tolerance_of

# The settings that are measured on the root's plan, in this order.
SPEED = tuple(s for s in SETTINGS if type(s).candidates is not Setting.candidates)


class SpeedItems:
    """Tries settings one after the other. Each one builds on those accepted before."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._trial = context.trial()

    def expected(self) -> list[str]:
        """Returns the settings that are not ruled out beforehand."""
        return [setting.ITEM for setting in SPEED if setting.refusal(self._context) is None]

    def choose_all(self) -> None:
        for setting in SPEED:
            self.choose(setting.NAME)

    def choose(self, name: str) -> None:
        """Chooses one setting by its name."""
        context, setting = self._context, setting_called(name)
        accepted = False
        for found in setting.tried(context):
            item = found.item or setting.ITEM
            if isinstance(found, Refused):
                context.acceptance_rule.skip(item, found.why)
                continue
            # The log line of the candidate accepted before stays, unless this one is better.
            own = f"{item} {found.what}" if accepted and not found.item else item
            if self._accepts(own, found):
                context.applied.plan, accepted = found.plan, True
                if own != item:
                    context.acceptance_rule.settle(item, own)

    def _accepts(self, item: str, found: Candidate) -> bool:
        return self._trial.accepts(
            item,
            self._context.plan,
            found.plan,
            what=found.what,
            tolerance=found.tolerance or tolerance_of(found.plan, self._context.root),
            forced=found.forced,
        )

    def adopt(self, tuned: TunedSettings) -> None:
        """Adopts the settings of an earlier run, after a check on a few samples."""
        for setting in SPEED:
            found = setting.known(self._context, tuned)
            if found is not None:
                self._adopt(setting.ITEM, found)

    def _adopt(self, item: str, found: Candidate | Refused) -> None:
        context = self._context
        if isinstance(found, Refused):
            context.acceptance_rule.skip(item, found.why)
        elif self._trial.safe(
            item, context.plan, found.plan, tolerance_of(found.plan, context.root)
        ):
            context.applied.plan = found.plan
            context.acceptance_rule.accept(item, f"{found.what}{context.acceptance_rule.source}")
