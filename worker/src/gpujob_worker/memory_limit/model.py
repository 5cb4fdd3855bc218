"""Predicts the memory of one step from the rows that go through the model at once.

A step has parts, and its peak is that of the largest part: the model's forward and backward, the
loss (between the model's return and the start of its backward), and the optimizer. The loss always
sees the outputs of the whole batch, however the model's call is split, so its part does not shrink
with the rows. Parts are modelled separately, because a fit over their maximum would give a wrong
slope.
"""

from collections.abc import Sequence
from dataclasses import dataclass

RESERVE_FRACTION = 0.05
# Ways whose memory differs by less are considered equal.
ALIKE_FRACTION = 0.005
# Maximum number of pieces of a batch while the memory of the loss is unknown.
PIECES_MAX = 64
# The optimizer's step reads and writes whole lists of tensors, and takes their size once more.
_OPTIMIZER_TEMPORARIES_FACTOR = 1


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes above those resident between steps, by rows."""

    fixed_bytes: float
    bytes_per_row: float

    def at(self, rows: int) -> float:
        return self.fixed_bytes + self.bytes_per_row * rows


@dataclass(frozen=True, slots=True)
class LossBytes:
    """Memory of the whole batch's loss, in addition to the model's outputs.

    `held_bytes` is the memory above (or below) the outputs when backward reaches the model: the
    outputs' gradients, less outputs that are no longer referenced.
    """

    peak_bytes: float
    held_bytes: float
    measured: bool = False


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Bytes of one step over `rows` samples."""

    rows: int
    resident_bytes: float  # between steps, without gradients
    gradient_bytes: float  # of all parameters
    held: Line  # after forward, with its graph and outputs
    peak: Line  # of forward and backward, with the parameters' gradients
    output_bytes_per_row: float
    loss: LossBytes
    # Gradients of the previous step that the script drops only after its forward.
    late_gradient_bytes: float = 0.0
    # Assumed gradients and optimizer state of modules that train in the same job, if not there yet.
    beside_bytes: float = 0.0

    def predict(self, rows: int, *, keeps_chunk: bool = True) -> float:
        """Returns the step's peak with this many rows at once. With all rows, the step is not
        split.
        """
        temporaries = _OPTIMIZER_TEMPORARIES_FACTOR * self.gradient_bytes
        optimizer = self.gradient_bytes + temporaries
        parts = self._whole() if rows >= self.rows else self._split(rows, keeps_chunk)
        return self.resident_bytes + self.beside_bytes + max(optimizer, *parts)

    def _whole(self) -> tuple[float, float]:
        kept_more = max(0.0, self.loss.held_bytes - self._outputs)
        loss = self.late_gradient_bytes + self.held.at(self.rows) + self.loss.peak_bytes
        return loss, self.peak.at(self.rows) + kept_more

    def _split(self, rows: int, keeps_chunk: bool) -> tuple[float, float]:
        kept = self.held.at(rows) if keeps_chunk else 0.0
        loss = self.late_gradient_bytes + self._outputs + kept + self.loss.peak_bytes
        held = max(0.0, self._outputs + self.loss.held_bytes)
        # The sum over the chunks so far exists next to the gradients of the present chunk.
        return loss, held + self.gradient_bytes + self.peak.at(rows)

    @property
    def _outputs(self) -> float:
        return self.output_bytes_per_row * self.rows


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows at once, and whether the last chunk's graph is kept during the loss."""

    rows: int
    keeps_chunk: bool
    predicted_bytes: float


def fit(points: Sequence[tuple[int, float]]) -> Line:
    """Returns the least squares fit over (rows, bytes). Needs two or more different rows."""
    count = len(points)
    mean_rows = sum(rows for rows, _ in points) / count
    mean_bytes = sum(used for _, used in points) / count
    spread = sum((rows - mean_rows) ** 2 for rows, _ in points)
    if spread == 0:
        raise ValueError(f"probes at different batch sizes are needed; got {list(points)}")
    joint = sum((rows - mean_rows) * (used - mean_bytes) for rows, used in points)
    slope = max(0.0, joint / spread)
    return Line(max(0.0, mean_bytes - slope * mean_rows), slope)


def divisors(total: int) -> list[int]:
    """Returns all divisors, the largest first."""
    small = [n for n in range(1, int(total**0.5) + 1) if total % n == 0]
    return sorted({*small, *(total // n for n in small)}, reverse=True)


def rows_within(model: MemoryModel, limit_bytes: int) -> Rows | None:
    """Returns the largest divisor of the batch that fits with the reserve, or None.

    A kept chunk saves its second forward, so it is kept if it fits too.
    """
    budget = limit_bytes * (1 - RESERVE_FRACTION)
    for rows in divisors(model.rows):
        for keeps_chunk in (True, False):
            predicted = model.predict(rows, keeps_chunk=keeps_chunk)
            if predicted <= budget:
                return Rows(rows, keeps_chunk, predicted)
    return None


def least_rows(model: MemoryModel) -> Rows | None:
    """Returns the split with the least memory, in at most `PIECES_MAX` pieces, or None.

    Among splits that take about the same memory it is the coarsest, because no split reduces the
    loss.
    """
    pieces = [n for n in divisors(model.rows)[1:] if model.rows // n <= PIECES_MAX]
    splits = [Rows(rows, False, model.predict(rows, keeps_chunk=False)) for rows in pieces]
    least = min((split.predicted_bytes for split in splits), default=0.0)
    return next((s for s in splits if s.predicted_bytes <= least * (1 + ALIKE_FRACTION)), None)


def probe_rows(total: int) -> list[int]:
    """Returns at most three small batch sizes, far enough apart to show a slope."""
    first = max(2, total // 16)  # a BatchNorm rejects a batch of one sample
    return sorted({min(total, first * factor) for factor in (1, 2, 4)})
