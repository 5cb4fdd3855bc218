"""Memory of a step as a function of the rows that go through the card at once.

`M(rows) = max(optimizer step, resident + fixed + slope * rows)`: two lines, so the peaks of
forward/backward and of the optimizer are kept apart; a fit over their maximum would see the wrong
slope below the kink.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESERVE_FRACTION = 0.05


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Bytes of one step; `fixed_bytes` includes what is resident between steps."""

    optimizer_bytes: float
    fixed_bytes: float
    bytes_per_row: float

    def predict(self, rows: int) -> float:
        return max(self.optimizer_bytes, self.fixed_bytes + self.bytes_per_row * rows)


def fit(
    probes: Sequence[tuple[int, float]], resident_bytes: float, optimizer_bytes: float
) -> MemoryModel:
    """Least squares over (rows, forward/backward bytes above resident). Needs two or more rows."""
    count = len(probes)
    mean_rows = sum(rows for rows, _ in probes) / count
    mean_bytes = sum(used for _, used in probes) / count
    spread = sum((rows - mean_rows) ** 2 for rows, _ in probes)
    if spread == 0:
        raise ValueError(f"probes at different batch sizes are needed; got {list(probes)}")
    joint = sum((rows - mean_rows) * (used - mean_bytes) for rows, used in probes)
    slope = max(0.0, joint / spread)
    fixed = max(0.0, mean_bytes - slope * mean_rows)
    return MemoryModel(optimizer_bytes, resident_bytes + fixed, slope)


def divisors(total: int) -> list[int]:
    """All divisors, the largest first."""
    small = [n for n in range(1, int(total**0.5) + 1) if total % n == 0]
    return sorted({*small, *(total // n for n in small)}, reverse=True)


def rows_within(model: MemoryModel, total: int, limit_bytes: int) -> int | None:
    """The largest divisor of `total` that fits with the reserve; None when no row does."""
    budget = limit_bytes * (1 - RESERVE_FRACTION)
    return next((rows for rows in divisors(total) if model.predict(rows) <= budget), None)


def probe_rows(total: int) -> list[int]:
    """At most three small batch sizes that are far enough apart to see a slope."""
    first = max(2, total // 16)  # one sample alone is no batch for a BatchNorm
    return sorted({min(total, first * factor) for factor in (1, 2, 4)})


def measure(
    run: Callable[[int], None],
    peak_above_resident: Callable[[Callable[[], None]], float],
    total: int,
) -> list[tuple[int, float]]:
    """Runs `run(rows)` at each probe size; returns (rows, peak bytes above resident)."""
    return [(n, peak_above_resident(lambda n=n: run(n))) for n in probe_rows(total)]
