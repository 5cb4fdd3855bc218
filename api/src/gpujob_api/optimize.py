"""`spec.optimize`: what may be changed to make a job faster, and what may not."""

from dataclasses import dataclass, field
from typing import Annotated

from gpujob_api.bounds import INT32_MAX, Range
from gpujob_api.codec import FieldError, check
from gpujob_api.settings import OptimizeMode, Precision, Task, Toggle


@dataclass(frozen=True, slots=True)
class BatchSize:
    """`total` is the number of samples of one optimizer step, and never changes by itself.

    `per_step` divides it and is the number that goes through the GPU at once. None is Auto.
    """

    total: Annotated[int, Range(1, INT32_MAX)] | None = None
    per_step: "PerStep | None" = None

    def __post_init__(self) -> None:
        check(self)
        per_step = self.per_step.samples if self.per_step else None
        if self.total is not None and per_step is not None and self.total % per_step:
            raise FieldError("total", f"{self.total} is not divisible by perStep {per_step}")


@dataclass(frozen=True, slots=True)
class PerStep:
    """`Auto` or a number of samples."""

    samples: int | None = None

    @classmethod
    def from_json(cls, value: object, path: str) -> "PerStep":
        if value == "Auto":
            return cls(None)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INT32_MAX:
            return cls(value)
        raise FieldError(path, f"must be Auto or a number from 1 to {INT32_MAX}; got {value!r}")

    def to_json(self) -> object:
        return "Auto" if self.samples is None else self.samples


@dataclass(frozen=True, slots=True)
class Optimize:
    mode: OptimizeMode = OptimizeMode.AUTO
    task: Task = Task.AUTO
    precision: Precision = Precision.AUTO
    batch_size: BatchSize = field(default_factory=BatchSize)
    activation_checkpointing: Toggle = Toggle.AUTO
    compile: Toggle = Toggle.AUTO
    data_loading: Toggle = Toggle.AUTO
