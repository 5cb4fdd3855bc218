"""channels_last for images, with which convolutions on many GPUs are faster."""

from collections.abc import Iterator
from typing import Any

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.channels_last import ChannelsLast, channels_last_refusal, sample_shapes
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting


class ChannelsLastSetting(Setting):
    NAME = "channels_last"
    ITEM = "channels_last"
    FIELDS = ("channels_last",)
    ORDER = 50

    def refusal(self, context: Context) -> str | None:
        reason = self.not_measured(context)
        return reason or channels_last_refusal(context.root.module, context.recorded.inputs)

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        shapes = sample_shapes(context.recorded.inputs)
        yield Candidate(context.plan.having(ChannelsLast(shapes)))

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        return next(self.tried(context)) if tuned.channels_last else None

    def tuned(self, applied: Applied) -> dict[str, Any]:
        return {"channels_last": applied.plan.setting(ChannelsLast) is not None}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without(ChannelsLast)


SETTING = ChannelsLastSetting()
