"""The batches on which a backend is compared: single samples, every size, ragged, shuffled.

Two batches of one size in a row have different rows, so that answers of the previous one show.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

SINGLE_MAX = 16
BATCHES_A_SIZE = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of calibration rows, padded to `size` by repeating the last one.

    `name` completes the sentence "relative error 7.1 % <name>".
    """

    name: str
    rows: tuple[int, ...]
    size: int
    # The whole calibration set is made of these, in order, without the repeated rows.
    whole: bool = False


def cases(samples: int, sizes: tuple[int, ...]) -> Iterator[Case]:
    """Yields the batches for so many calibration samples. `sizes` are ascending."""
    smallest, largest = sizes[0], sizes[-1]
    step = max(1, samples // SINGLE_MAX)
    for row in list(range(0, samples, step))[:SINGLE_MAX]:
        yield Case("at batch 1", (row,), smallest)
    shuffled = list(range(samples))
    random.Random(0).shuffle(shuffled)  # noqa: S311 - the same order in every run
    start = 0
    for size in sizes:
        if size == 1:
            continue
        for _ in range(BATCHES_A_SIZE):
            rows = tuple((start + number) % samples for number in range(size))
            start += size
            yield Case(f"at batch {size}", rows, size)
        ragged = tuple((start + number) % samples for number in range(size - 1))
        yield Case(f"at batch {size - 1} padded to {size}", ragged, size)
        mixed = tuple(shuffled[(start + number) % samples] for number in range(size))
        yield Case(f"on a shuffled batch of {size}", mixed, size)
    for first in range(0, samples, largest):
        rows = tuple(range(first, min(first + largest, samples)))
        yield Case("on the calibration set", rows, largest, whole=True)
