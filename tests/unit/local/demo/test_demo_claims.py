"""The demo's claims hold on what they claim, and fail on anything less."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, ReservationSource
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec
from gpujob_api.meta import Condition, ConditionStatus, Metadata
from gpujob_api.quantities import GIB, MIB
from gpujob_api.report import CheckpointReport
from gpujob_api.settings import Precision, TunedSettings
from gpujob_local.demo import claims
from gpujob_local.demo.telling import Teller
from gpujob_local.demo.turns import LEFT_OUT, PAIRS, Comparison
from tests.harness.builders import T0, make_job, measured, placed, reserve, with_status

TUNED = TunedSettings(precision=Precision.BFLOAT16, batch_per_step=16)


def held(name: str, memory: int, source: ReservationSource, card: str = "GPU-0") -> GPUJob:
    job = make_job(name, memory_bytes=int(1.8 * GIB))
    job = placed(job, ("n0", (card,)), held=reserve(memory, source))
    return with_status(job, measurement=measured(400 * MIB))


FIRST = [
    held("first", 2 * GIB, ReservationSource.WHOLE_GPU),
    held("first", 656 * MIB, ReservationSource.MEASURED),
]


@pytest.mark.parametrize(
    ("card", "memory", "holds"),
    [("GPU-0", 656 * MIB, True), ("GPU-1", 656 * MIB, False), ("GPU-0", 2 * GIB, False)],
)
def test_packed_needs_one_gpu_for_what_was_declared_for_two(
    card: str, memory: int, holds: bool
) -> None:
    second = held("second", memory, ReservationSource.PROFILE, card)
    away = held("away", 656 * MIB, ReservationSource.MEASURED, "GPU-2")
    assert claims.packed(FIRST, second, [FIRST[-1], away], 2 * GIB).holds is holds


def test_packed_beside_another_job_than_the_first_is_packed_as_well() -> None:
    second = held("second", 656 * MIB, ReservationSource.PROFILE, "GPU-1")
    other = held("other", 656 * MIB, ReservationSource.MEASURED, "GPU-1")
    claim = claims.packed(FIRST, second, [FIRST[-1], other], 2 * GIB)
    assert claim.holds
    assert "second joined other on GPU-1" in claim.figures[1]


def test_packed_fails_without_a_measurement() -> None:
    second = held("second", 656 * MIB, ReservationSource.PROFILE)
    assert not claims.packed(FIRST[:1], second, FIRST[:1], 2 * GIB).holds


def waiting(message: str) -> GPUJob:
    condition = Condition("Scheduled", ConditionStatus.FALSE, "InsufficientCapacity", message, T0)
    return with_status(make_job("guest"), conditions=(condition,))


@pytest.mark.parametrize(
    ("message", "attempt", "holds"),
    [
        ("1 too full, unmanaged processes included; 244 MiB short)", 1, True),
        ("no room", 1, False),
        ("1 too full, unmanaged processes included; 244 MiB short)", 2, False),
    ],
)
def test_the_unmanaged_process_claim_needs_numbers_and_one_attempt(
    message: str, attempt: int, holds: bool
) -> None:
    final = placed(make_job("guest"), attempt=attempt)
    claim = claims.unmanaged_process_respected(waiting(message), final, GIB, 2 * GIB)
    assert claim.holds is holds


TUNING = with_status(
    placed(make_job()),
    tuned=TUNED,
    explain=("precision applied: 2.00x", "compile skipped: tried once training has lasted 120 s"),
)


def compared(speedups: Sequence[float], loss: float = 1.0, **changes: Any) -> Comparison:
    in_turns = Comparison(tuple(speedups), (1.0,) * len(speedups), 1.0, loss, TUNED)
    return replace(in_turns, **changes)


@pytest.mark.parametrize(
    ("loss", "learned", "holds"), [(1.01, 0.99, True), (1.2, 1.0, False), (1.0, 0.8, False)]
)
def test_the_loss_must_agree(loss: float, learned: float, holds: bool) -> None:
    claim = claims.optimized(TUNING, {"loss": learned}, compared([2.0] * PAIRS, loss))
    assert claim.holds is holds
    assert "2.00x (95 % 2.00 to 2.00, 20 pairs)" in claim.figures[0]
    assert claim.figures[1] == "applied: precision bfloat16, batchPerStep 16"
    assert claim.figures[2] == "precision applied: 2.00x"


@pytest.mark.parametrize(
    ("slower", "holds"), [(0, True), (LEFT_OUT, True), (LEFT_OUT + 1, False), (PAIRS, False)]
)
def test_all_of_the_interval_must_be_faster(slower: int, holds: bool) -> None:
    comparison = compared([0.9] * slower + [1.5] * (PAIRS - slower))
    assert claims.optimized(TUNING, {"loss": 1.0}, comparison).holds is holds


def test_a_step_as_long_as_before_is_no_gain() -> None:
    assert not claims.optimized(TUNING, {"loss": 1.0}, compared([1.0] * PAIRS)).holds


@pytest.mark.parametrize("in_force", [None, TunedSettings(), replace(TUNED, batch_per_step=8)])
def test_only_settings_in_force_count(in_force: TunedSettings | None) -> None:
    """What is faster without them is noise, or the merit of something else."""
    comparison = compared([2.0] * PAIRS, in_force=in_force)
    assert not claims.optimized(TUNING, {"loss": 1.0}, comparison).holds
    nothing = with_status(TUNING, tuned=in_force)
    expected = in_force is not None and in_force != TunedSettings()
    assert claims.optimized(nothing, {"loss": 1.0}, comparison).holds is expected


def test_without_a_comparison_nothing_is_claimed() -> None:
    assert not claims.optimized(TUNING, {"loss": 1.0}, None).holds


def moved(resumed: int) -> list[GPUJob]:
    job = placed(make_job("gpt"))
    after = with_status(
        job, checkpoint=CheckpointReport(182), counters=Counters(interruptions=1), attempt=2
    )
    return [job, after, with_status(after, resumed_from_step=resumed)]


@pytest.mark.parametrize(
    ("resumed", "weights", "loss", "holds"),
    [
        (182, "a" * 64, 0.5, True),
        (181, "a" * 64, 0.5, False),
        (182, "b" * 64, 0.5, False),
        (182, "a" * 64, 0.5000001, False),
    ],
)
def test_nothing_is_lost_only_when_every_bit_is_the_same(
    resumed: int, weights: str, loss: float, holds: bool
) -> None:
    """I6."""
    one: dict[str, Any] = {"weights": "a" * 64, "loss": 0.5}
    other = {"weights": weights, "loss": loss}
    assert claims.nothing_lost(moved(resumed), one, other, 10.0).holds is holds


@pytest.mark.parametrize(
    ("probed", "tuned", "holds"),
    [(0.0, TUNED, True), (3.0, TUNED, False), (0.0, TunedSettings(), False)],
)
def test_the_second_time_must_not_probe(probed: float, tuned: TunedSettings, holds: bool) -> None:
    profile = GPUProfile(Metadata("workload-x"), GPUProfileSpec("x", "image"))
    first = [with_status(placed(make_job()), tuned=TUNED, tuning_seconds=4.0)]
    second = [with_status(placed(make_job()), tuned=tuned, tuning_seconds=probed)]
    assert claims.instant(first, second, profile).holds is holds
    assert not claims.instant(first, second, None).holds


def test_the_verdict_needs_claims_and_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert not Teller().verdict()
    teller = Teller()
    teller.claim("one", True, "figure")
    assert teller.verdict()
    teller.claim("two", False)
    assert not teller.verdict()
    assert "FAIL 2. two" in capsys.readouterr().out
