"""One way to execute a model, before anything is built."""

from dataclasses import dataclass

from gpujob_api.serving import BackendName, Quantization
from gpujob_api.settings import Precision


@dataclass(frozen=True, slots=True)
class Plan:
    """All fields are concrete, none is Auto."""

    backend: BackendName
    precision: Precision = Precision.FLOAT32
    quantization: Quantization = Quantization.OFF

    def __str__(self) -> str:
        parts = [self.backend.value, self.precision.value]
        if self.quantization is not Quantization.OFF:
            parts.append(self.quantization.value)
        return " ".join(parts)


# The model as written, with which every other plan is compared.
REFERENCE = Plan(BackendName.EAGER)
