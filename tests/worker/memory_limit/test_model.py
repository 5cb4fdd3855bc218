"""The memory model: lines, parts of a step, and the rows that fit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.memory_limit.model import (
    ALIKE_FRACTION,
    PIECES_MAX,
    Line,
    LossBytes,
    MemoryModel,
    divisors,
    fit,
    least_rows,
    probe_rows,
    rows_within,
)

pytestmark = pytest.mark.any_torch


def model(rows: int = 64, **changed: Any) -> MemoryModel:
    values: dict[str, Any] = {
        "resident_bytes": 1000.0,
        "gradient_bytes": 10.0,
        "held": Line(0.0, 8.0),
        "peak": Line(10.0, 10.0),
        "output_bytes_per_row": 1.0,
        "loss": LossBytes(3.0 * rows, 0.0, measured=True),
    }
    return MemoryModel(rows=rows, **(values | changed))


@given(st.floats(0, 1e9), st.floats(0, 1e7), st.integers(8, 4096))
def test_a_line_is_found_exactly(fixed: float, slope: float, total: int) -> None:
    line = fit([(rows, fixed + slope * rows) for rows in probe_rows(total)])
    for rows in (1, total // 2, total):
        assert line.at(rows) == pytest.approx(fixed + slope * rows, rel=1e-6, abs=1e-3 * total)


def test_probes_at_one_size_are_an_error() -> None:
    with pytest.raises(ValueError, match="different batch sizes"):
        fit([(4, 1.0), (4, 2.0)])


def test_the_peak_is_that_of_the_largest_part() -> None:
    whole = 1000 + 64 * 8 + 3 * 64
    assert model().predict(64) == whole, "the loss comes on top of the whole graph"
    outputs = 64
    # The loss sees the whole batch's outputs, beside one chunk's graph or none.
    assert model().predict(4) == 1000 + outputs + 4 * 8 + 3 * 64
    assert model().predict(4, keeps_chunk=False) == 1000 + outputs + 3 * 64
    # Backward: the outputs' gradients, the sum of gradients, and a chunk that is run again.
    small_loss = LossBytes(1.0, 0.0)
    assert model(loss=small_loss).predict(4) == 1000 + outputs + 10 + 10 + 40
    dropped = LossBytes(1.0, -1000.0)
    assert model(loss=dropped).predict(4) == max(1000 + 10 + 50, 1000 + outputs + 32 + 1)
    assert model(gradient_bytes=900.0).predict(1) == 1000 + 2 * 900, "the optimizer's step"
    late = model(late_gradient_bytes=10.0)
    assert late.predict(64) == whole + 10
    assert late.predict(4, keeps_chunk=False) == 1000 + outputs + 3 * 64 + 10


@given(st.integers(1, 5000), st.integers(1, 100_000))
def test_rows_divide_the_batch_and_fit(total: int, limit: int) -> None:
    present = model(total)
    found = rows_within(present, limit)
    if found is None:
        assert present.predict(1, keeps_chunk=False) > limit * 0.95
        return
    assert total % found.rows == 0
    assert found.predicted_bytes <= limit * 0.95
    assert found.predicted_bytes == present.predict(found.rows, keeps_chunk=found.keeps_chunk)
    larger = [n for n in divisors(total) if n > found.rows]
    assert all(present.predict(n, keeps_chunk=False) > limit * 0.95 for n in larger)
    if not found.keeps_chunk:
        assert present.predict(found.rows) > limit * 0.95


@given(st.integers(1, 5000), st.floats(0, 1e5))
def test_the_least_split_is_no_finer_than_it_helps(total: int, loss: float) -> None:
    present = model(total, loss=LossBytes(loss, 0.0))
    found = least_rows(present)
    pieces = [rows for rows in divisors(total)[1:] if total // rows <= PIECES_MAX]
    assert (found is None) is (not pieces)
    if found is None:
        return
    for rows in pieces:
        predicted = present.predict(rows, keeps_chunk=False)
        alike = found.predicted_bytes <= predicted * (1 + ALIKE_FRACTION)
        assert alike, "no other takes clearly less"
        assert rows <= found.rows or predicted > found.predicted_bytes, "no coarser one is alike"


def test_many_rows_are_not_run_one_by_one() -> None:
    found = least_rows(model(8192, loss=LossBytes(0.0, 0.0)))
    assert found is not None
    assert found.rows == 8192 // PIECES_MAX
    assert least_rows(model(8191)) is None, "a prime number"
