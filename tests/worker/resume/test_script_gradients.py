"""Which gradients are part of a script's state between two steps."""

from typing import Any

import pytest
import torch

from gpujob_worker.resume.script_gradients import ScriptGradients


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> ScriptGradients:
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        monkeypatch.setattr(kind, "zero_grad", kind.zero_grad)
    found = ScriptGradients()
    found.install()
    return found


class Training:
    """A model of two parameters; `frozen` leaves one of them to no optimizer."""

    def __init__(self, gradients: ScriptGradients, *, frozen: bool = False) -> None:
        self._gradients = gradients
        self.model = torch.nn.Linear(2, 1)
        parameters = [self.model.weight] if frozen else list(self.model.parameters())
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.made: list[Any] = [self.model, self.optimizer]

    def backward(self) -> None:
        self.model(torch.ones(3, 2)).sum().backward()

    def step(self) -> None:
        self._gradients.before_step(self.optimizer)
        self.optimizer.step()
        self._gradients.after_step(self.optimizer)

    def train(self, steps: int, clears: Any) -> None:
        for _ in range(steps):
            clears.zero_grad()
            self.backward()
            self.step()


@pytest.mark.parametrize("of", ["optimizer", "model"])
def test_gradients_that_are_cleared_before_each_step_are_not_saved(
    of: str, gradients: ScriptGradients
) -> None:
    training = Training(gradients)
    training.train(3, getattr(training, of))
    assert training.model.weight.grad is not None
    assert gradients.saved(training.made) == []


def test_of_a_first_step_it_is_not_known_who_clears_them(gradients: ScriptGradients) -> None:
    training = Training(gradients)
    training.train(1, training.optimizer)
    assert len(gradients.saved(training.made)) == 2


def test_what_the_next_step_adds_to_is_saved_and_put_back(gradients: ScriptGradients) -> None:
    training = Training(gradients)
    for _ in range(3):
        training.backward()
        training.step()
    saved = gradients.saved(training.made)
    other = Training(gradients)
    gradients.restore(other.made, saved)
    weight, bias = training.model.weight.grad, training.model.bias.grad
    again: Any = other.model
    assert weight is not None
    assert bias is not None
    assert torch.equal(again.weight.grad, weight)
    assert torch.equal(again.bias.grad, bias)
    assert again.weight.grad is not weight


def test_gradients_that_a_script_keeps_between_clears_are_saved(
    gradients: ScriptGradients,
) -> None:
    """Every second step clears them."""
    training = Training(gradients)
    for step in range(4):
        if step % 2 == 0:
            training.optimizer.zero_grad()
        training.backward()
        training.step()
    assert len(gradients.saved(training.made)) == 2


def test_another_models_clear_leaves_them(gradients: ScriptGradients) -> None:
    """One of two adversaries clears its own gradients alone."""
    training, other = Training(gradients), Training(gradients)
    for _ in range(3):
        other.model.zero_grad()
        for each in (training, other):
            each.backward()
            each.step()
    saved = gradients.saved([*training.made, *other.made])
    assert {row[0] for row in saved} >= {1}


def test_what_no_optimizer_steps_is_saved_for_whoever_reads_all_gradients(
    gradients: ScriptGradients,
) -> None:
    """A norm of all gradients counts them, and the optimizer's `zero_grad` leaves them."""
    training = Training(gradients, frozen=True)
    training.train(3, training.optimizer)
    saved = gradients.saved(training.made)
    assert [row[:-1] for row in saved] == [(0, "bias")]
    other = Training(gradients, frozen=True)
    gradients.restore(other.made, saved)
    assert other.model.bias.grad is not None
    assert float(other.model.bias.grad) == 9.0
    assert other.model.weight.grad is None


def test_gradients_of_the_way_back_are_gone(gradients: ScriptGradients) -> None:
    training = Training(gradients)
    training.backward()
    gradients.restore(training.made, [])
    assert all(tensor.grad is None for tensor in training.model.parameters())


@pytest.mark.parametrize("row", [(1, 0, 7, torch.ones(1)), (0, "scale", torch.ones(1))])
def test_a_gradient_without_a_parameter_is_refused(
    row: tuple[Any, ...], gradients: ScriptGradients
) -> None:
    with pytest.raises(LookupError):
        gradients.restore(Training(gradients).made, [row])
