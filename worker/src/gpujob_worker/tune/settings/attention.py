"""The kernel of `scaled_dot_product_attention`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.attention import AttentionChoice, AttentionWatch, candidates
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting
from gpujob_worker.tune.trial import few_rows, short


class AttentionSetting(Setting):
    NAME = "attention"
    ITEM = "attention kernel"
    FIELDS = ("attention",)
    ORDER = 40

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        seen = self.not_measured(context) or _seen(context)
        if isinstance(seen, str):
            yield Refused(seen)
            return
        kernels = candidates(context.root.device.type, seen.types)
        if not kernels:
            yield Refused("torch's own choice is the only kernel for float32")
        for kernel in kernels:
            yield Candidate(context.plan.having(AttentionChoice(kernel)), kernel.value)

    def refusal(self, context: Context) -> str | None:
        """Returns why nothing is measured. Only a run shows which kernels a model calls."""
        return self.not_measured(context)

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        if tuned.attention is None:
            return None
        seen = self.not_measured(context) or _seen(context)
        if isinstance(seen, str):
            return Refused(seen)
        choice = AttentionChoice(tuned.attention)
        return Candidate(context.plan.having(choice), f"{tuned.attention.value} ")

    def tuned(self, applied: Applied) -> dict[str, Any]:
        choice = applied.plan.setting(AttentionChoice)
        return {"attention": choice.kernel if choice is not None else None}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without(AttentionChoice)


def _seen(context: Context) -> AttentionWatch | str:
    """Returns the kernels that run under the settings so far, or why there is nothing to choose."""
    recorded = context.recorded
    probe = RootProbe(context.root, few_rows(recorded, 2))
    try:
        with no_trace(context.root.module), AttentionWatch() as watch:
            plan = context.plan.without(AttentionChoice)
            probe.run(replace(plan, compiled=None, compiled_blocks=None))
    except Exception as error:
        return f"a probe failed: {short(error)}"
    return watch.refusal() or watch


SETTING = AttentionSetting()
