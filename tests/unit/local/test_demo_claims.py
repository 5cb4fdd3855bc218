"""The demo's claims hold on what they claim, and fail on anything less."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, ReservationSource
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec
from gpujob_api.meta import Condition, ConditionStatus, Metadata
from gpujob_api.quantities import GIB, MIB
from gpujob_api.report import CheckpointReport, Timing
from gpujob_api.settings import Precision, TunedSettings
from gpujob_local.demo import claims
from gpujob_local.demo.telling import Teller
from tests.harness.builders import T0, make_job, measured, placed, reserve, with_status

TUNED = TunedSettings(precision=Precision.BFLOAT16, batch_per_step=16)


def held(name: str, memory: int, source: ReservationSource, card: str = "GPU-0") -> GPUJob:
    job = make_job(name, memory_bytes=int(1.8 * GIB))
    job = placed(job, ("n0", (card,)), held=reserve(memory, source))
    return with_status(job, measurement=measured(400 * MIB))


FIRST = [
    held("first", 2 * GIB, ReservationSource.WHOLE_CARD),
    held("first", 656 * MIB, ReservationSource.MEASURED),
]


@pytest.mark.parametrize(
    ("card", "memory", "holds"),
    [("GPU-0", 656 * MIB, True), ("GPU-1", 656 * MIB, False), ("GPU-0", 2 * GIB, False)],
)
def test_packed_needs_one_card_for_what_was_declared_for_two(
    card: str, memory: int, holds: bool
) -> None:
    second = [held("second", memory, ReservationSource.PROFILE, card)]
    assert claims.packed(FIRST, second, 2 * GIB).holds is holds


def test_packed_fails_without_a_measurement() -> None:
    second = [held("second", 656 * MIB, ReservationSource.PROFILE)]
    assert not claims.packed(FIRST[:1], second, 2 * GIB).holds


def waiting(message: str) -> GPUJob:
    condition = Condition("Scheduled", ConditionStatus.FALSE, "NoRoom", message, T0)
    return with_status(make_job("guest"), conditions=(condition,))


@pytest.mark.parametrize(
    ("message", "attempt", "holds"),
    [
        ("1 too full, strangers included; 244 MiB are missing", 1, True),
        ("no room", 1, False),
        ("1 too full, strangers included; 244 MiB are missing", 2, False),
    ],
)
def test_the_stranger_claim_needs_numbers_and_one_attempt(
    message: str, attempt: int, holds: bool
) -> None:
    final = placed(make_job("guest"), attempt=attempt)
    claim = claims.stranger_respected(waiting(message), final, GIB, 2 * GIB)
    assert claim.holds is holds


@pytest.mark.parametrize(("loss", "holds"), [(1.01, True), (1.2, False)])
def test_the_loss_must_agree(loss: float, holds: bool) -> None:
    job = placed(make_job())
    timings = {"baseline": Timing(0.4, GIB), "current": Timing(0.2, GIB // 2)}
    job = with_status(
        job,
        measurement=replace(measured(GIB), **timings),
        tuned=TUNED,
        explain=("precision: bfloat16",),
    )
    claim = claims.optimized(job, {"loss": loss}, {"loss": 1.0})
    assert claim.holds is holds
    assert "2.00x" in claim.figures[0]
    assert not claims.optimized(placed(make_job()), {"loss": 1.0}, {"loss": 1.0}).holds
    others = [job, placed(make_job("not-measured"))]
    gains = claims.optimized(job, {"loss": loss}, {"loss": 1.0}, others).figures
    assert gains[0] == "job, chosen by measurement: step 400.0 ms -> 200.0 ms (2.00x)"
    assert gains[1:] == claim.figures


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
