"""Each module of a model has a name and a log of its own, in whatever order they are measured."""

from itertools import permutations

import pytest
from torch import nn

from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


def model_of(*modules: nn.Module) -> tuple[TrainedModel, list[Root]]:
    model = TrainedModel(Session(Environment()), ScriptFacts())
    roots = [Root(module, lambda _: None) for module in modules]
    for root in roots:
        model.meet(root)
    return model, roots


def lines_of(model: TrainedModel) -> list[str]:
    """Returns the lines of the log after each module has decided about its precision."""
    for module in model.modules:
        module.log.applied("precision", "a test")
    return sorted(model.session.log.lines)


@pytest.mark.parametrize("leads", list(permutations(range(4), 2)))
def test_modules_of_one_class_have_different_names(leads: tuple[int, ...]) -> None:
    model, roots = model_of(*(nn.Linear(2, 2) for _ in range(4)))
    for lead in leads:
        model.lead(roots[lead])
    assert model.first.root is roots[leads[-1]]
    assert len(lines_of(model)) == 4
    assert model.first.name == "Linear"


def test_a_module_keeps_its_name_when_another_is_dropped() -> None:
    model, roots = model_of(nn.Conv2d(1, 1, 1), nn.Linear(2, 2), nn.Linear(2, 2))
    model.drop(roots[1])
    model.meet(Root(nn.Linear(2, 2), lambda _: None))
    assert [module.name for module in model.modules] == ["Conv2d", "Linear 2", "Linear 3"]


def test_the_leading_module_decides_for_the_run() -> None:
    model, roots = model_of(nn.Conv2d(1, 1, 1), nn.Linear(2, 2))
    model.lead(roots[1])
    assert lines_of(model) == ["precision applied: a test", "precision of Conv2d applied: a test"]


def test_the_names_of_the_next_model_begin_anew() -> None:
    model, _ = model_of(nn.Conv2d(1, 1, 1), nn.Linear(2, 2))
    model.renew()
    for module in (nn.Conv2d(1, 1, 1), nn.Linear(2, 2)):
        model.meet(Root(module, lambda _: None))
    assert [module.name for module in model.modules] == ["Conv2d", "Linear"]
