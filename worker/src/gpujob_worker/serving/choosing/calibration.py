"""The samples with which backends are compared: read, counted, and repeated if they are few."""

from dataclasses import dataclass

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.examples import NEXT_STEP, Examples, read_examples
from gpujob_worker.serving.rows import count, first_rows
from gpujob_worker.serving.signature import InputError

SAMPLES = 256
SAMPLES_MIN = 8


@dataclass(frozen=True, slots=True)
class Calibration:
    """`distinct` of the samples are different; the others repeat them."""

    inputs: Tensors
    distinct: int

    @property
    def note(self) -> str:
        """Returns what a report says about few samples, or an empty text."""
        if self.distinct >= SAMPLES:
            return ""
        return f"compared on {self.distinct} samples, {SAMPLES} are better"


def calibration(examples: Examples) -> Calibration:
    """Returns at least `SAMPLES` samples for a measurement. Raises `InputError` if there are so few
    that a comparison would show nothing.
    """
    tensors = read_examples(examples)
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors.values()}
    found = min(sizes, default=0)
    if len(sizes) != 1 or found < SAMPLES_MIN:
        got = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise InputError(
            f"examples: a measurement needs at least {SAMPLES_MIN} samples in each input, better"
            f" {SAMPLES}; got {got or 'no tensors'}; {NEXT_STEP}"
        )
    total = count(tensors)
    inputs = tensors if total >= SAMPLES else first_rows(tensors, SAMPLES)
    return Calibration(
        {name: tensor[:SAMPLES] for name, tensor in inputs.items()}, min(total, SAMPLES)
    )
