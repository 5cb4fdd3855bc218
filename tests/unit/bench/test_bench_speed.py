"""From what scripts print and workers report to rows of figures."""

import itertools
from typing import Any

import pytest

from bench.speed.race import Deadline
from bench.speed.receiver import receiving
from bench.speed.results import applied_items, loss_at, losses, switch_of
from bench.speed.tight import predicted_bytes
from bench.speed.ways import (
    FREE_STEPS,
    FREE_STEPS_NO_TRIAL,
    WORKLOADS,
    batch_size,
    finder,
    injected,
    plain,
    scale_of,
    workload_module,
)
from bench.worker import summary
from gpujob_api.report import Report, WorkerPhase
from gpujob_api.settings import Settings
from gpujob_worker.control.phases import MEASURED_STEPS as TUNED_STEPS
from gpujob_worker.control.rollback_guard import CONFIRM_STEPS
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.reporter import Destination, post
from gpujob_worker.run.session import Session
from gpujob_worker.tune import pinned_memory
from gpujob_worker.tune.loader_trial import LoaderTrial
from gpujob_worker.tune.settings import FEATURES
from tests.harness.repository import ROOT

OUTPUT = "noise\n" + "".join(f"step {n} loss {10.0 - n:.6f}\n" for n in range(1, 9))
LINES = (
    "precision applied: 2.10x (95 % 2.00 to 2.20, 5 pairs); bfloat16 autocast",
    "fused optimizer applied: 1.20x; parameters differ by 1e-9",
    "data loading refused: 1.0 % of the step is spent waiting",
    "memory limit 1.5 GiB predicted for 64 samples, limit 1 GiB",
)


def report(lines: tuple[str, ...] = LINES) -> Report:
    return Report(attempt=1, phase=WorkerPhase.TRAINING, explain=lines)


def test_losses_are_read_from_what_a_script_prints() -> None:
    assert losses(OUTPUT)[:2] == [9.0, 8.0]
    assert loss_at(OUTPUT, 6) == pytest.approx((8 + 7 + 6 + 5 + 4) / 5)
    assert loss_at(OUTPUT, 9) is None
    assert loss_at(OUTPUT, 4) is None


def test_applied_items_are_those_that_the_worker_says() -> None:
    assert list(applied_items(report())) == ["precision", "fused optimizer"]
    assert applied_items(None) == {}


def test_every_item_that_speaks_for_itself_has_a_switch() -> None:
    for item in ("precision tf32", "fused optimizer", "data loading", "compile", "batch split"):
        assert switch_of(item) in FEATURES
        assert switch_of(f"{item} of Adam 2") == switch_of(item)


def test_predicted_memory_is_read_from_the_reason() -> None:
    assert predicted_bytes(report()) == 1.5 * 2**30
    assert predicted_bytes(report(LINES[:2])) is None


def test_one_item_alone_switches_all_others_off() -> None:
    scale = scale_of("cpu", quick=True)
    entry = injected("x", "vit", scale, url=None, only="precision")
    off = {part for part in entry.command if part.startswith("--no-")}
    assert off == {f"--no-{n.replace('_', '-')}" for n in FEATURES} - {"--no-precision"}
    assert "GPUJOB_REPORT_URL" not in entry.environment
    at = entry.command.index("--")
    assert list(entry.command[at + 1 :])[1:] == list(plain("p", "vit", scale).command[1:])


def test_a_limit_is_told_to_the_worker_and_fences_the_finders() -> None:
    scale = scale_of("cpu", quick=True)
    entry = injected("x", "vit", scale, url="http://h/", limit_bytes=5)
    assert entry.environment["GPUJOB_MEMORY_LIMIT_BYTES"] == "5"
    assert entry.fence_bytes is None
    assert finder("lightning", "vit", scale, 64, 5).fence_bytes == 5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", WORKLOADS)
def test_passes_end_while_settings_are_chosen_but_at_full_size(
    name: str, quick: bool, device: str
) -> None:
    scale = scale_of(device, quick=quick)
    config = workload_module(name).SIZES[scale.size]
    samples, batch = config["samples"], batch_size(name, scale)
    steps = samples * config.get("repeats", 1) // batch
    assert steps >= 8
    # At full size passes are as long as real ones: workers that are worth it start within them.
    assert (steps > FREE_STEPS[device]) is (scale.size == "full")
    assert batch * scale.batch_factor_when_tight <= samples


def last_step_of_a_loader_trial() -> int:
    """The step at whose batch the last number of workers is judged, on a device whose times are
    known at once."""
    meter = Session(Environment(Settings())).meter
    trial: LoaderTrial | None = None
    workers = 1
    for step in itertools.count(1):
        if trial is not None:
            # As the policy: workers start before a batch, and what was timed is read after it.
            if trial.may_start:
                trial.starts(workers)
            trial.before()
            if trial.verdict() is not None:
                if not trial.may_try_more:
                    return step
                workers += 1
                trial.starts(workers)
        meter.step_done()
        if step == TUNED_STEPS:
            trial = LoaderTrial(meter)
            meter.new_window()
    raise AssertionError


def test_no_trial_of_the_worker_reaches_into_the_measured_blocks() -> None:
    one_at_a_pass = 1
    loader = last_step_of_a_loader_trial() + one_at_a_pass
    assert loader == FREE_STEPS["cpu"]
    known_later = 1
    pinned = pinned_memory.BEFORE_STEPS + pinned_memory.SETTLE_STEPS + pinned_memory.TRIAL_STEPS
    assert loader + known_later + pinned == FREE_STEPS["cuda"]
    assert TUNED_STEPS + CONFIRM_STEPS <= FREE_STEPS_NO_TRIAL


@pytest.mark.parametrize(
    ("changed", "tries"),
    [
        ({}, True),
        ({"only": "data_loader"}, True),
        ({"only": "precision"}, False),
        ({"without": FEATURES}, False),
        ({"settings": {"dataLoading": "Off"}}, False),
    ],
)
def test_only_a_worker_that_tries_its_loader_gets_the_steps_for_it(
    changed: dict[str, Any], tries: bool
) -> None:
    scale = scale_of("cpu", quick=True)
    expected = FREE_STEPS["cpu"] if tries else FREE_STEPS_NO_TRIAL
    entry = injected("x", "vit", scale, url=None, **changed)
    assert entry.free_steps == expected
    assert plain("p", "vit", scale, beside_trials=tries).free_steps == expected
    settings = Settings.from_text(entry.environment["GPUJOB_SETTINGS"])
    assert settings.data_loading.value == ("Off" if "settings" in changed else "Auto")


def test_reports_arrive_under_the_name_of_their_program() -> None:
    with receiving() as receiver:
        post(Destination(receiver.url("gpt2/auto, compiled")), report())
        assert receiver.reports["gpt2/auto, compiled"] == report()


def test_deadlines_end() -> None:
    assert Deadline.after(None).has(1e9)
    assert Deadline.after(60).has(50)
    assert not Deadline.after(60).has(70)
    assert Deadline.after(-1).left() == 0


def test_the_mean_of_a_way_is_of_all_workloads_or_none() -> None:
    rows = [
        {"workload": "a", "way": "auto", "speedup": 2.0},
        {"workload": "a", "way": "auto, compiled", "speedup": 3.0},
        {"workload": "b", "way": "auto", "speedup": 8.0},
        {"workload": "b", "way": "auto, compiled", "note": "failed"},
    ]
    assert summary(rows) == {"auto: geometric mean of speedups": pytest.approx(4.0)}


def test_workloads_are_scripts_that_know_nothing_of_us() -> None:
    for name in WORKLOADS:
        text = (ROOT / "bench/workloads" / f"{name}.py").read_text()
        assert "gpujob" not in text.lower()
        assert "autocast" not in text
