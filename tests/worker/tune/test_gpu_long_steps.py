"""Long steps are measured: the time for tuning follows the run; few runs on a GPU prove much."""

import itertools
import math
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.probe.compare import PAIRS_MIN, measure_speedup, speedup
from gpujob_worker.run.session import tuning_budget_seconds
from gpujob_worker.tune.trial import GPU_NOISE, SPEEDUP_NEEDED
from tests.harness.imitated_gpu import CostModel, GpuModel
from tests.harness.worker_process import run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("step_seconds", "steps_total", "seconds"),
    [
        (None, None, 12.0),
        (0.05, None, 12.0),
        (2.0, None, 40.0),
        (2.0, 100, 12.0),
        (2.0, 2_000, 80.0),
        (0.1, 1_000_000, 120.0),
        (30.0, None, 120.0),
    ],
)
def test_the_time_for_tuning_follows_the_run(
    step_seconds: float | None, steps_total: int | None, seconds: float
) -> None:
    assert tuning_budget_seconds(step_seconds, steps_total) == seconds


@given(st.floats(1e-6, 1e6), st.integers(1, 10**9))
def test_it_has_its_bounds(step_seconds: float, steps_total: int) -> None:
    found = tuning_budget_seconds(step_seconds, steps_total)
    assert 12 <= found <= 120
    assert found == 12 or found <= 0.02 * step_seconds * steps_total * (1 + 1e-9)


def test_one_pair_proves_a_large_gain_where_the_noise_is_known() -> None:
    assert speedup([1.5], [1.0]).low == 0, "a CPU's is not"
    assert speedup([1.5], [1.0], GPU_NOISE).low > SPEEDUP_NEEDED
    assert speedup([1.2], [1.0], GPU_NOISE).low < SPEEDUP_NEEDED
    two = speedup([1.25, 1.25], [1.0, 1.0], GPU_NOISE)
    assert two.low > SPEEDUP_NEEDED
    assert two.high < math.inf


def test_pairs_that_deviate_more_speak_for_themselves() -> None:
    apart = [3.0, 1.0], [1.0, 1.0]
    assert speedup(*apart, GPU_NOISE) == speedup(*apart)
    many = [1.5, 1.5, 1.51, 1.5, 1.5], [1.0] * 5
    assert speedup(*many, GPU_NOISE) == speedup(*many)


def test_a_measurement_without_time_ends_after_a_pair() -> None:
    found = measure_speedup(
        lambda: 3.6, lambda: 2.0, lambda: False, needed=SPEEDUP_NEEDED, noise=GPU_NOISE
    )
    assert found.pairs == 1
    assert found.low > SPEEDUP_NEEDED


def pairs_of(plain: list[float], candidate: list[float], noise: float | None = GPU_NOISE) -> int:
    """How many are run where there is time for any number; the times come again and again."""
    one, two = itertools.cycle(plain), itertools.cycle(candidate)
    found = measure_speedup(
        lambda: next(one), lambda: next(two), lambda: True, needed=SPEEDUP_NEEDED, noise=noise
    )
    return found.pairs


def test_one_clear_pair_is_enough_although_there_is_time_for_more() -> None:
    assert pairs_of([3.6], [2.0]) == 1
    assert pairs_of([3.6], [2.0], noise=None) == PAIRS_MIN, "a CPU's noise is not known"
    assert pairs_of([2.5], [2.0]) == 2, "within the noise of one pair"
    assert pairs_of([2.1], [2.0]) == PAIRS_MIN, "and of four pairs"


def test_a_gain_that_a_pause_may_be_is_no_proof() -> None:
    assert pairs_of([0.36], [0.2]) == 2
    assert pairs_of([0.036], [0.02]) == PAIRS_MIN


def test_few_pairs_that_deviate_more_prove_nothing() -> None:
    assert pairs_of([2.7, 5.0], [2.05, 2.0]) >= PAIRS_MIN


def accepted_of_a_hundred(ratio: float, noise: float) -> float:
    """Of candidates that are so much faster, with this deviation of each run."""
    random, tries, accepted = Random(1), 1500, 0
    for _ in range(tries):
        found = measure_speedup(
            lambda: 10 * ratio * math.exp(random.gauss(0, noise)),
            lambda: 10 * math.exp(random.gauss(0, noise)),
            lambda: True,
            needed=SPEEDUP_NEEDED,
            noise=GPU_NOISE,
        )
        accepted += found.low > SPEEDUP_NEEDED
    return 100 * accepted / tries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "as_needed", "slower"), [(0.035, 12, 1), (0.07, 13, 3), (GPU_NOISE, 16, 7)]
)
def test_how_often_a_candidate_without_a_gain_is_accepted(
    noise: float, as_needed: float, slower: float
) -> None:
    """What the text of `measure_speedup` says."""
    assert accepted_of_a_hundred(SPEEDUP_NEEDED, noise) == pytest.approx(as_needed, abs=3)
    assert accepted_of_a_hundred(1.0, noise) == pytest.approx(slower, abs=2)


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to("cuda")
opt = torch.optim.AdamW(net.parameters()); x = torch.randn(32, 16, device="cuda")
for _ in range(20):
    opt.zero_grad(); (net(x) - 1).square().mean().backward(); opt.step()
"""


# Forward of both layers, their weights' gradients, and what goes back from the second to the first.
FLOP = 2 * 32 * (2 * (16 * 32 + 32 * 8) + 32 * 8)


@pytest.mark.parametrize("options", [(), ("--tuning-seconds", "12")])
def test_steps_of_two_seconds_are_sped_up(options: tuple[str, ...], tmp_path: Path) -> None:
    """One pair in its share of 12 s was refused with "1.79x (95 % 0.00 to inf, 1 pairs)"."""
    rate = FLOP / 2.0
    rates = {torch.float32: rate, torch.bfloat16: 1.8 * rate, torch.float16: 1.8 * rate}
    cost = CostModel(flop_per_second=rates, tf32_flop_per_second=rate)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    code, run = run_worker(
        tmp_path,
        ["python", str(script)],
        settings={"compile": "Off"},
        options=("--explain", *options),
        gpu=GpuModel(cost=cost),
    )
    assert code == 0, run.errors
    assert run.report["baseline"]["stepSeconds"] == pytest.approx(2.0, rel=0.01)
    assert run.report["tuned"]["precision"] == "bfloat16", run.errors
    assert run.report["current"]["stepSeconds"] == pytest.approx(2.0 / 1.8, rel=0.01)
    if not options:
        assert run.report["speedup"]["ratio"] == pytest.approx(1.8, rel=0.01)
