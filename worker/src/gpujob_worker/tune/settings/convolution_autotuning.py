"""Lets cuDNN benchmark its convolution kernels if a model sees a single input shape."""

from collections.abc import Iterator
from typing import Any

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.process_flags import (
    ConvolutionAutotuning,
    convolution_autotuning_refusal,
)
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting


class ConvolutionAutotuningSetting(Setting):
    NAME = "convolution_autotuning"
    ITEM = "convolution autotuning"
    FIELDS = ("convolution_autotuning",)
    ORDER = 60

    def refusal(self, context: Context) -> str | None:
        reason, root = self.not_measured(context), context.root
        return reason or convolution_autotuning_refusal(root.module, len(root.signatures))

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        yield Candidate(context.plan.having(ConvolutionAutotuning()))

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        if not tuned.convolution_autotuning:
            return None
        # No other shape can have been seen before the first call.
        reason = self.not_measured(context)
        reason = reason or convolution_autotuning_refusal(context.root.module, 1)
        return next(self.candidates(context)) if reason is None else Refused(reason)

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"convolution_autotuning": applied.plan.setting(ConvolutionAutotuning) is not None}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without(ConvolutionAutotuning)


SETTING = ConvolutionAutotuningSetting()
