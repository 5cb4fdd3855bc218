"""The settings that the user requested, in terms that trainers share. Settings left to Auto are
measured.
"""

from dataclasses import dataclass

from gpujob_api.settings import Precision, Settings, Toggle
from gpujob_worker.inject.loader_workers import workers_wanted
from gpujob_worker.run.features import Features

_MIXED = {Precision.BFLOAT16: "bf16", Precision.FLOAT16: "fp16"}


@dataclass(frozen=True, slots=True)
class RequestedSettings:
    """Settings that were requested. None and False mean not requested, or switched off."""

    mixed_precision: str | None = None
    batch_per_step: int | None = None
    compile: bool = False
    loader_workers: int | None = None

    @classmethod
    def of(cls, settings: Settings, features: Features) -> "RequestedSettings":
        workers = workers_wanted() if settings.data_loading is Toggle.ON else 0
        return cls(
            mixed_precision=_MIXED.get(settings.precision)
            if features.allows("precision")
            else None,
            batch_per_step=settings.batch_per_step if features.allows("batch_split") else None,
            compile=settings.compile is Toggle.ON and features.allows("compile"),
            loader_workers=workers if workers > 0 and features.allows("data_loader") else None,
        )
