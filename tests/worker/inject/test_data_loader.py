"""Worker processes for data loaders: which loaders get them, when, and how long."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from gpujob_api.settings import OptimizeMode, Toggle, TunedSettings
from gpujob_worker.inject.loader_workers import workers_that_fit
from gpujob_worker.run.meter import Timed
from gpujob_worker.tune import data_loader_policy
from gpujob_worker.tune.loader_trial import StepTimes
from tests.worker.inject.loader_training import Training
from tests.worker.inject.numbers_dataset import Long, Noisy, Numbers, OwnNoise


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(monkeypatch)


def test_workers_that_shorten_the_wait_and_the_steps_stay(training: Training) -> None:
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(1, 0.02, 0.008)
    assert not any(training.worked)
    training.passes(4, 0.012, 0.0)
    # The first batch of each pass is loaded here: many a script looks at one only.
    assert training.worked[20:] == [False, *[True] * 9] * 4
    assert training.session.state.tuned == TunedSettings(data_loader_workers=1)
    assert "steps take 0.0120 s with workers, 0.0000 s of it waiting" in training.said
    assert training.loader.num_workers == 0


def test_they_come_in_the_middle_of_a_pass(training: Training) -> None:
    """The only pass of a run may take days."""
    training.loader = DataLoader(Long(), batch_size=1, shuffle=True)
    training.tuned()
    assert sorted(training.passes(1, 0.02, 0.008)) == [*range(60)]
    assert 10 <= training.worked.index(True) <= 13


def test_as_many_as_the_step_needs_within_the_cores(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    times = StepTimes(0.1, 0.06)
    assert times.workers_needed(0) == 2  # 0.06 s of loading for 0.04 s of computing, and a margin
    assert times.workers_needed(2) == 7  # two load a batch in 0.1 s
    assert StepTimes(0.1, 0.001).workers_needed(0) == 1
    training.tuned()
    training.passes(3, 0.1, 0.09)
    assert training.session.state.tuned == TunedSettings(data_loader_workers=2)
    assert "waiting takes 90 %: 2 worker processes, on trial" in capsys.readouterr().err


def test_a_loader_that_is_refused_ends_its_trial(training: Training) -> None:
    training.loader = DataLoader(OwnNoise(), batch_size=1)
    training.tuned()
    training.passes(3, 0.1, 0.09)
    assert "data loading skipped: the dataset draws from a random generator" in training.said
    assert training.policy._trial is None
    assert training.applied.loader_workers is None


def test_how_many_workers_would_help_where_those_of_the_script_draw(training: Training) -> None:
    """More of them would deal the random numbers out otherwise: only the script may do that."""
    training.loader = DataLoader(Noisy(), batch_size=1, num_workers=1)
    training.tuned()
    training.passes(3, 0.02, 0.008)
    assert "1 workers draw random numbers" in training.said
    assert (
        "num_workers recommended: 2 in the script instead of 1: waiting takes 40" in training.said
    )
    assert training.loader.num_workers == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Training:
    """Of a user who says `dataLoading: On`."""
    return Training(monkeypatch, data_loading=Toggle.ON)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_draw_are_more_from_the_next_pass_on_where_asked_for(
    persistent: bool, asked: Training
) -> None:
    """They draw other random numbers; the order of the samples is the script's."""
    how: dict[str, Any] = {"shuffle": True, "persistent_workers": persistent}
    asked.loader = DataLoader(Noisy(), batch_size=1, num_workers=1, **how)
    torch.manual_seed(3)
    seen = asked.passes(1, 0.02, 0.008)
    assert asked.loader.num_workers == 1
    asked.tuned()
    seen += asked.passes(2, 0.02, 0.008)
    assert asked.loader.num_workers == 2
    assert len(set(seen)) == 30, "no pass gets the random numbers of another one"
    assert asked.session.state.tuned == TunedSettings(data_loader_workers=2)
    assert asked.said == (
        "data loading applied: asked for, 2 worker processes instead of 1 of its own, from the next"
        " pass on; what they draw at random is other numbers, of the same distribution"
    )
    if persistent:
        iterator: Any = asked.loader._iterator
        assert iterator._num_workers == 2
    torch.manual_seed(3)
    alone = DataLoader(Noisy(), batch_size=1, num_workers=1, **how)
    expected = [int(batch.item()) for _ in range(3) for batch in alone]
    assert [int(number) for number in seen] == expected


@pytest.mark.parametrize("fit", [1, 2])
def test_no_more_of_them_than_fit_into_shared_memory(
    fit: int, asked: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []

    def workers_that_fit(batch_bytes: int, batches_each: int) -> int:
        needed.append(batch_bytes * batches_each)
        return fit

    monkeypatch.setattr(data_loader_policy, "workers_that_fit", workers_that_fit)
    asked.loader = DataLoader(Noisy(), batch_size=1, num_workers=1, prefetch_factor=3)
    asked.passes(2, 0.02, 0.008)
    assert asked.loader.num_workers == fit
    assert needed == [3 * torch.tensor([0.0]).nbytes]
    assert ("workers draw random numbers" in asked.said) is (fit == 1)


def test_a_loader_that_gives_its_workers_a_task_of_their_own_is_left_alone(asked: Training) -> None:
    """Each may read its own part of the files."""

    def nothing(_: int) -> None:
        pass

    asked.loader = DataLoader(Noisy(), batch_size=1, num_workers=1, worker_init_fn=nothing)
    asked.passes(2, 0.02, 0.008)
    assert asked.loader.num_workers == 1
    assert "data loading skipped: its worker_init_fn may depend" in asked.said


def test_a_forked_process_starts_no_more_of_them(asked: Training) -> None:
    asked.loader = DataLoader(Noisy(), batch_size=1, num_workers=1)
    asked.passes(1, 0.02, 0.008)
    asked.policy.stop()
    asked.passes(1, 0.02, 0.008)
    assert asked.loader.num_workers == 1


@pytest.mark.parametrize("fit", [0, 1])
def test_workers_that_are_asked_for_fit_into_shared_memory(
    monkeypatch: pytest.MonkeyPatch, fit: int
) -> None:
    training = Training(monkeypatch)
    measured: list[int] = []

    def workers_that_fit(batch_bytes: int, batches_each: int) -> int:
        measured.append(batch_bytes * batches_each)
        return fit

    monkeypatch.setattr(data_loader_policy, "workers_that_fit", workers_that_fit)
    training.policy._workers = 2
    training.passes(1, 0.1, 0.09)
    assert training.worked[1:] == [fit > 0] * 9
    assert measured[0] == 2 * torch.tensor([0]).nbytes
    said = "1 worker process, new" if fit else "skipped: its batches do not fit into shared memory"
    assert f"data loading {'applied: ' if fit else ''}{said}" in training.said


def test_the_training_processes_of_a_node_share_its_shared_memory(tmp_path: Path) -> None:
    alone = workers_that_fit(1, 2, tmp_path, {})
    assert alone > 8
    assert workers_that_fit(1, 2, tmp_path, {"LOCAL_WORLD_SIZE": "4"}) <= alone / 4 * 1.5


def test_advice_where_the_cores_are_too_few(training: Training) -> None:
    training.session.takes_samples(8)
    training.tuned()
    training.passes(1, 0.1, 0.09)
    training.passes(5, 0.08, 0.07)
    assert "s with workers" in training.said
    assert "data format recommended: waiting takes 8" in training.said
    # Two processes that never rest load for twice as long as a step takes.
    assert "% of a step, 0.0800 s; its batches take 0.1600 s of a core, 20.00 ms a" in training.said
    assert "processes would keep up and there are cores for 2: samples that" in training.said
    assert "decoded on the GPU (NVIDIA DALI)" in training.said


def test_waiting_counts_once_the_other_settings_are_in_force(training: Training) -> None:
    """Steps that have become shorter wait for what they did not wait for before."""
    training.session.state.baseline_wait_percent = 4.0
    training.tuned()
    assert training.said == "data loading skipped: 4.0 % of the step is spent waiting, below 10 %"
    training.passes(3, 0.02, 0.008)
    assert any(training.worked)


def test_a_loop_that_waits_little_gets_none(training: Training) -> None:
    training.tuned()
    training.passes(3, 0.02, 0.001)
    assert not any(training.worked)
    assert training.said == "data loading skipped: 5.0 % of the step is spent waiting, below 10 %"


def test_a_machine_that_is_taken_in_turns_does_not_speak_against_workers(
    training: Training,
) -> None:
    """Steps were four times as long with workers as without, and none of it was their doing."""
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(1, 0.02, 0.008)
    training.turns = True
    training.passes(4, 0.013, 0.001)
    assert training.worked[-1]
    assert "steps take 0.0130 s with workers, 0.0010 s of it waiting" in training.said


def test_steps_that_wait_are_never_left_out(training: Training) -> None:
    """A few workers that are too slow give several batches at once, and then nothing for long."""
    meter = training.session.meter
    for number in range(21):
        meter.waited(0.08 if number % 4 == 0 else 0.0)
        training.now += 0.09 if number % 4 == 0 else 0.01
        meter.step_done()
    assert meter.undisturbed(Timed()) == (pytest.approx(0.03), pytest.approx(0.02))
    assert meter.undisturbed(meter.timed) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "waiting"),
    [
        (0.031, 0.001),  # less waiting, but the workers take the cores that the steps need
        (0.019, 0.009),
        (0.020, 0.008),
    ],
)
def test_workers_that_give_nothing_go_in_the_middle_of_the_pass(
    training: Training, seconds: float, waiting: float
) -> None:
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(1, 0.02, 0.008)
    seen = training.passes(7, seconds, waiting)
    assert sorted(seen) == sorted([*range(10)] * 7)
    assert training.applied.loader_workers is None
    assert training.session.state.tuned == TunedSettings()
    assert "data loading skipped: no gain: steps take" in training.said
    training.passes(1, seconds, waiting)
    assert not any(training.worked[-10:])


def test_a_loader_with_a_few_workers_gets_more(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the rest of its pass on trial, and from the start of a pass once it was judged."""
    training.loader = DataLoader(Numbers(), batch_size=1, shuffle=True, num_workers=1)
    training.tuned()
    training.passes(2, 0.02, 0.008)
    assert training.loader.num_workers == 1
    seen = training.passes(5, 0.012, 0.0)
    assert sorted(seen) == sorted([*range(10)] * 5)
    assert "2 worker processes, after 1 of its own" in capsys.readouterr().err
    assert training.loader.num_workers == 2


@pytest.mark.parametrize(
    ("seconds", "waiting", "verdict"),
    [(0.012, 0.0, "data loading steps take"), (0.019, 0.009, "data loading skipped: no gain")],
)
def test_loaders_that_are_made_for_one_pass_are_judged_and_let_go(
    training: Training, seconds: float, waiting: float, verdict: str
) -> None:
    training.passes_of_their_own(1, 0.02, 0.008)
    training.tuned()
    training.passes_of_their_own(1, 0.02, 0.008)
    loaders = training.passes_of_their_own(7, seconds, waiting)
    assert verdict in training.said
    gc.collect()
    assert not any(loader() for loader in loaders)


def test_a_recommendation_starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, OptimizeMode.RECOMMEND)
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(3, 0.02, 0.008)
    assert not any(training.worked)
    assert training.session.state.tuned == TunedSettings()
    expected = "data loading recommended: 2 worker processes: waiting takes 40 % of a step"
    assert training.said == expected


def test_loaded_cores_get_no_workers(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loader_policy, "busy_cores", lambda: "something waits for a core")
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(3, 0.02, 0.008)
    assert not any(training.worked)
    assert training.said == "data loading skipped: something waits for a core"
