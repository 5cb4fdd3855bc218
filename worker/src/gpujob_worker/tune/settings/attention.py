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
        reason = self.not_measured(context) or _seen(context)
        if reason is not None:
            yield Refused(reason)
            return
        for kernel in candidates(context.root.device.type):
            yield Candidate(context.plan.having(AttentionChoice(kernel)), kernel.value)

    def refusal(self, context: Context) -> str | None:
        """Empty without a run: only a run shows which kernels a model calls."""
        return self.not_measured(context)

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        if tuned.attention is None:
            return None
        reason = self.not_measured(context) or _seen(context)
        if reason is not None:
            return Refused(reason)
        choice = AttentionChoice(tuned.attention)
        return Candidate(context.plan.having(choice), f"{tuned.attention.value} ")

    def tuned(self, applied: Applied) -> dict[str, Any]:
        choice = applied.plan.setting(AttentionChoice)
        return {"attention": choice.kernel if choice is not None else None}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without(AttentionChoice)


def _seen(context: Context) -> str | None:
    watch = AttentionWatch()
    probe = RootProbe(context.root, few_rows(context.recorded, 2))
    try:
        with no_trace(context.root.module), watch:
            probe.run(replace(context.plan, compiled=None, compiled_blocks=None))
    except Exception as error:
        return f"a probe failed: {short(error)}"
    return watch.refusal()


SETTING = AttentionSetting()
