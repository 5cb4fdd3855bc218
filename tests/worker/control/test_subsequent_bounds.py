"""Within one process: which later models are looked at, for how long, and what they start with."""

from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.report import Timing
from gpujob_api.settings import OptimizeMode, Settings, TunedSettings
from gpujob_worker.control.subsequent_models import LOOKS_MAX, UNTUNED_MAX, SubsequentModels
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.trial import AN_EARLIER_RUN
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call


def later_models(mode: OptimizeMode = OptimizeMode.AUTO, **values: Any) -> SubsequentModels:
    session = Session(Environment(settings=Settings(mode=mode), **values), tuning_seconds=0.0)
    return SubsequentModels(session, TrainedModel(session, ScriptFacts()))


def test_nothing_is_looked_for_where_nothing_would_be_done() -> None:
    assert later_models().watches
    assert not later_models(OptimizeMode.RECOMMEND).watches
    assert not later_models(world_size=2).watches


def trains(later: SubsequentModels, root: Root) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(root.module.parameters(), lr=0.1)
    later.made(optimizer)
    later.before_call(root)
    later._model.meet(root)  # pyright: ignore[reportPrivateUsage]
    later._model.facts.saw(optimizer)  # pyright: ignore[reportPrivateUsage]
    return optimizer


def test_the_time_for_looking_at_models_is_limited_but_for_a_memory_limit() -> None:
    for limit in (None, 2**40):
        later = later_models(memory_limit_bytes=limit)
        session, model = later._session, later._model  # pyright: ignore[reportPrivateUsage]
        for seconds in (0.0, 0.0, 60.0, 0.0):
            root, call = root_and_call(Model())
            root.recorded = call
            optimizer = trains(later, root)
            later.spent(seconds)
            session.state.tuned, session.state.tuning_seconds = TunedSettings(batch_per_step=4), 1.0
            del optimizer
            assert later.is_over(warm=True)
            known, alike = session.state.known_tuned, model.first_shape
            later.begin()
        assert alike is (limit is not None)
        assert known == (TunedSettings(batch_per_step=4) if alike else TunedSettings())
        assert later.watches is alike
        line = session.log.line("later models")
        assert ("those that follow run as written" in line) is not alike


def test_models_that_are_made_for_a_few_steps_are_not_looked_at_for_ever() -> None:
    later = later_models(memory_limit_bytes=2**40)
    for _ in range(UNTUNED_MAX):
        assert later.watches
        later.begin()
    assert not later.watches


def test_what_is_not_said_aloud_is_said_once_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = DecisionLog(verbose=True)
    for count in range(5):
        log.note("models", str(count), aloud=count in (0, 2))
    assert capsys.readouterr().err == "gpujob: models 0\ngpujob: models 2\n"
    for _ in range(2):
        log.end()
    assert capsys.readouterr().err == "gpujob: models 4\n"


def test_a_sweep_over_models_says_again_only_what_means_something_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    later = later_models()
    session = later._session  # pyright: ignore[reportPrivateUsage]
    session.log.verbose = True
    for number in range(13):
        # The last but one is of the first one's shape, with another shape of batch.
        kind = type(f"Model{number if number != 11 else 0}", (Model,), {})
        root, call = root_and_call(kind(), rows=12 if number != 11 else 8)
        root.recorded = call
        optimizer = trains(later, root)
        session.state.tuned, session.state.tuning_seconds = TunedSettings(batch_per_step=4), 1.0
        del optimizer
        assert later.is_over(warm=True)
        later.begin()
    session.log.end()
    said = [line for line in capsys.readouterr().err.splitlines() if "later models" in line]
    counts = [line.split("later models ")[1].split(" started")[0] for line in said]
    assert counts == ["0 of 1", "0 of 11", "0 of 12"], said
    assert session.log.line("later models").endswith("; 9 more as written")


def test_garbage_is_looked_for_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    later = later_models()
    root, call = root_and_call(Model())
    root.recorded = call
    optimizer = trains(later, root)
    later.warm()
    looks: list[int] = []
    monkeypatch.setattr(
        "gpujob_worker.control.subsequent_models.gc.collect", lambda: looks.append(1)
    )
    assert not later.is_over(warm=False)
    assert not looks
    assert not any(later.is_over(warm=True) for _ in range(2 * LOOKS_MAX))
    assert len(looks) == LOOKS_MAX
    assert not later.suits(torch.optim.SGD(nn.Linear(2, 2).parameters()))
    assert later.suits(torch.optim.SGD(root.module.parameters()))
    assert not later.suits(torch.optim.Adam(root.module.parameters()))
    # Of another model, and kept: it says nothing of this one.
    other = torch.optim.SGD(nn.Linear(2, 2).parameters())
    later._model.facts.saw(other)  # pyright: ignore[reportPrivateUsage]
    del optimizer
    assert later.is_over(warm=False)
    later.begin()
    later._model.meet(root)  # pyright: ignore[reportPrivateUsage]
    assert not later.is_over(warm=False)  # nobody has stepped this one yet: all must be gone
    del other
    assert later.is_over(warm=False)


def test_a_split_is_made_for_the_next_model_as_it_was_for_the_last_one_like_it() -> None:
    """The limit found that the last chunk's graph is not to be kept; a report does not say it."""
    later = later_models(memory_limit_bytes=2**40)
    model = later._model  # pyright: ignore[reportPrivateUsage]
    for alike, rows, kept in ((True, None, True), (True, 4, False), (False, 4, False)):
        root, _ = root_and_call(Model())
        model.meet(root)
        model.first_shape = alike
        model.first.applied = Applied(RootPlan(rows_per_step=rows, keeps_chunk=not alike))
        model.renew()
        assert model.keeps_chunk is kept
    root, call = root_and_call(Model().eval())
    tuner = Tuner(Settings(), Features(), DecisionLog(), 1.0, source=AN_EARLIER_RUN)
    known = TunedSettings(batch_per_step=4)
    tuner.adopt(root, call, known, keeps_chunk=model.keeps_chunk)
    assert tuner.applied.plan == RootPlan(rows_per_step=4, keeps_chunk=False)


def test_a_model_of_another_shape_is_not_compared_with_the_first() -> None:
    session = Session(Environment())
    session.meter.window.seconds.extend([0.5, 0.5])
    session.meter.window.peak_memory_bytes = 10
    session.state.begin_model(alike=True)
    assert session.report().current == Timing(0.5, session.meter.window.peak_memory_bytes or 10)
    session.meter.window.seconds.append(0.25)
    now = session.report().current
    assert now is not None
    assert now.step_seconds == 0.25
    session.state.begin_model(alike=False)
    session.meter.window.seconds.append(9.0)
    session.meter.window.peak_memory_bytes = 2**50
    assert session.report().current == Timing(0.25, 2**50)
