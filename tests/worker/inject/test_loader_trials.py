"""How many worker processes a data loader gets: the number that was guessed, or a second one."""

import pytest

from gpujob_api.settings import TunedSettings
from tests.worker.inject.loader_training import Training


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(monkeypatch)


def test_more_are_tried_where_those_that_were_guessed_do_not_keep_up(training: Training) -> None:
    """The training process loads with all its threads, and a worker with one."""
    training.tuned()
    training.passes(1, 0.02, 0.008)
    training.passes(3, 0.016, 0.004)
    assert "waiting takes 25 % with 1 worker process: 2 on trial" in training.said
    training.passes(4, 0.012, 0.0)
    assert training.session.state.tuned == TunedSettings(data_loader_workers=2)
    assert training.applied.loader_workers == 2
    assert "steps take 0.0120 s with workers, 0.0000 s of it waiting, after" in training.said


def test_of_two_numbers_that_of_the_shorter_steps_stays(training: Training) -> None:
    training.tuned()
    training.passes(1, 0.02, 0.008)
    training.passes(3, 0.016, 0.004)
    seen = training.passes(4, 0.017, 0.005)
    assert sorted(seen) == sorted([*range(10)] * 4)
    assert training.session.state.tuned == TunedSettings(data_loader_workers=1)
    assert "steps take 0.0160 s with workers, 0.0040 s of it waiting, after" in training.said
    assert training.worked[-1]


def test_more_can_make_up_for_a_number_that_gave_nothing(training: Training) -> None:
    training.tuned()
    training.passes(1, 0.02, 0.008)
    training.passes(3, 0.021, 0.009)
    training.passes(4, 0.013, 0.0)
    assert training.session.state.tuned == TunedSettings(data_loader_workers=2)


def test_no_more_are_tried_where_only_one_can_load(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a batch draws is known when the one before is loaded."""
    training.tuned()
    training.passes(1, 0.02, 0.008)
    training.passes(1, 0.016, 0.004)
    for facts in training.policy._facts.values():
        facts.varies = True
    training.passes(6, 0.016, 0.004)
    said = capsys.readouterr().err
    assert "1 worker process, on trial" in said
    assert "2 on trial" not in said
    assert "; one process loads, for what a batch draws varies" in training.said
