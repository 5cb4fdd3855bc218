"""Probing leaves no trace: what can be put back is; what cannot is seen before anything runs."""

import copy
import logging
import pickle
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.guards import probe_refusal
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, hide_from_script_compiler
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.safety_check import trace_refusal

GENERATOR = np.random.default_rng(3)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)


class OwnState(Base):
    """Draws from generators of its own, keeps plain tensors, logs."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)
        self.drawer = random.Random(2)
        self.bank = torch.zeros(3, device=device)
        self.banks = [torch.zeros(2, device=device)]
        self.log = logging.getLogger("own")

    def forward(self, x: Any) -> Any:
        self.bank += 1
        self.banks[0] -= 1
        self.log.warning("seen")
        noise = torch.randn(x.shape, generator=self.generator).to(x.device)
        return self.layer(x + noise) * self.drawer.random() + float(GENERATOR.normal())


def test_generators_tensors_and_log_of_the_script_are_put_back(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = OwnState(device).to(device)
    x = torch.ones(2, 4, device=device)
    with no_trace(model):
        tried = model(x)
        model(x)
    assert caplog.messages == []
    assert model.bank.tolist() == [0, 0, 0]
    assert model.banks[0].tolist() == [0, 0]
    assert torch.equal(model(x), tried)
    assert caplog.messages == ["seen"]


class Momentum(Base):
    def forward(self, x: Any) -> Any:
        self.layer.bias.data = self.layer.bias.data * 0.9
        self.layer.weight.data.mul_(0.9)
        return self.layer(x)


class ScalesInput(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x.mul_(0.5))


class WritesBatch(Base):
    def forward(self, batch: Any) -> Any:
        batch["out"] = self.layer(batch["x"])
        return batch["out"]


@dataclass
class Batch:
    x: torch.Tensor
    out: torch.Tensor | None = None


class WritesObject(Base):
    def forward(self, batch: Any) -> Any:
        batch.out = self.layer(batch.x)
        return batch.out


class ReturnsObject(Base):
    def forward(self, x: Any) -> Any:
        return Batch(x, self.layer(x))


def same(gradient: torch.Tensor) -> torch.Tensor:
    return gradient


class Hooks(Base):
    def forward(self, x: Any) -> Any:
        out = self.layer(x)
        out.register_hook(same)
        return out


class Trains(Base):
    """Learns in its own forward, as meta learning does; its last step left gradients."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.to(device)
        self.optimizer = torch.optim.Adam(self.layer.parameters(), 0.1)
        self.forward(torch.ones(3, 4, device=device))

    def forward(self, x: Any) -> Any:
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.layer(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


class Differentiates(Trains):
    def forward(self, x: Any) -> Any:
        loss = self.layer(x).square().mean()
        loss.backward()
        return loss


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Trains, "forward steps an optimizer"),
        (Differentiates, "forward changes the gradient of layer.weight"),
    ],
)
def test_a_forward_that_trains_is_not_run_twice(
    kind: type[Trains], reason: str, device: str
) -> None:
    model = kind(device)
    gradients = [parameter.grad for parameter in model.parameters()]
    state = (model.state_dict(), model.optimizer.state_dict(), gradients)
    before = copy.deepcopy(state)
    assert (looked_at(model, torch.ones(3, 4, device=device)) or "").startswith(reason)
    assert repr(state) == repr(before)
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    model.optimizer.step()


def looked_at(model: nn.Module, *args: Any) -> str | None:
    root = Root(model, lambda _: None)
    return trace_refusal(root, RecordedCall(CallInputs.of(args, {}).detached()), whole=True)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def named(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": x}


@pytest.mark.parametrize(
    ("model", "argument", "reason"),
    [
        (Momentum, plain, "forward changes parameter layer."),
        (ScalesInput, plain, "forward changes its input in place"),
        (WritesBatch, named, "forward writes into the dict"),
        (WritesObject, Batch, "forward writes into the Batch"),
        (ReturnsObject, plain, "what it returns is inside a Batch"),
        (Hooks, plain, "forward calls register_hook"),
    ],
)
def test_what_cannot_be_undone_is_seen(
    model: Callable[[], nn.Module],
    argument: Callable[[torch.Tensor], Any],
    reason: str,
    device: str,
) -> None:
    module, given = model().to(device), argument(torch.ones(3, 4, device=device))
    before = copy.deepcopy((module.state_dict(), given))
    assert (looked_at(module, given) or "").startswith(reason)
    assert repr((module.state_dict(), given)) == repr(before)


def test_parameters_that_are_made_in_the_first_call_are_seen() -> None:
    reason = looked_at(nn.LazyLinear(2), torch.ones(3, 4))
    assert (reason or "").startswith("parameter weight is made in the")


def test_what_leaves_nothing_is_run(device: str) -> None:
    x, layer = torch.ones(3, 4, device=device), nn.Linear(4, 2).to(device)
    assert looked_at(OwnState(device).to(device), x) is None
    # One state without a batch: two of its four numbers cannot run, all can.
    assert looked_at(layer, x[0]) is None
    assert looked_at(layer, {"none": None}) is None
    layer.weight.data.fill_(float("nan"))
    assert looked_at(layer, x) is None


def test_hooks_for_all_modules_count() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "for all modules" in (probe_refusal(nn.Linear(2, 2)) or "")
    finally:
        handle.remove()
    assert probe_refusal(nn.Linear(2, 2)) is None


def test_a_call_gets_the_very_objects_of_the_script() -> None:
    model, batch = WritesBatch(), {"x": torch.ones(3, 4)}
    Root(model, lambda _: None).install()
    output = model(batch)
    assert batch["out"] is output


def test_transforms_go_past_us(device: str) -> None:
    model, x = Base().to(device).layer, torch.ones(3, 4, device=device)
    found: list[nn.Module] = []

    def on_root(module: nn.Module) -> Root:
        found.append(module)
        return Root(module, lambda _: None)

    discovery = Discovery(on_root)
    discovery.start()
    try:
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(p: Any, rows: Any) -> Any:
            return functional_call(model, p, (rows,)).square().sum()

        gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        assert gradients["weight"].shape == (3, 2, 4)
        assert found == []
        root = Root(model, lambda _: None)
        root.install()
        assert vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    finally:
        discovery.finish()
    own = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    root.recording = True
    functional_call(model, own, (x,))
    assert root.recorded is not None
    assert "functional_call" in (trace_refusal(root, root.recorded, whole=True) or "")
    model(x)
    assert trace_refusal(root, root.recorded, whole=True) is None


def test_no_hook_stays_on_a_parameter_that_is_returned(device: str) -> None:
    class ReturnsParameter(Base):
        def forward(self, x: Any) -> Any:
            return self.layer(x), self.layer.bias

    model = ReturnsParameter().to(device)
    root = Root(model, lambda _: None)
    root.install()
    root.recording = True
    for _ in range(2):
        out, bias = model(torch.ones(3, 4, device=device))
        (out.sum() + 3 * bias.sum()).backward()
    assert root.recorded is not None
    assert [g is not None for g in root.recorded.output_gradients] == [True, True]
    root.stop_recording()
    assert not model.layer.bias._backward_hooks


class CopiesItself(Base):
    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def test_copies_of_a_model_stay_plain_whatever_it_copies(device: str) -> None:
    model = CopiesItself().to(device)
    root = Root(model, lambda _: sys.exit("called"))
    root.install()
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in twins:
        assert vars(twin).get("_compiled_call_impl") is None
        assert twin.layer(torch.ones(1, 4, device=device)).shape == (1, 2)


class Counting(Base):
    """Keeps what it sees in containers of the standard library."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()
        self.recent = deque[int]([7], maxlen=2)
        self.by_rows = defaultdict[int, list[int]](list)
        self.order = OrderedDict[str, int](first=1, second=2)

    def forward(self, x: Any) -> Any:
        self.calls["forward"] += 1
        self.recent.append(len(x))
        self.by_rows[len(x)].append(1)
        self.order.move_to_end("first")
        return self.layer(x)


def test_counters_and_queues_of_a_model_are_put_back() -> None:
    model = Counting()
    model.calls["forward"] = 3
    with no_trace(model):
        model(torch.ones(2, 4))
        model(torch.ones(3, 4))
        assert (model.calls["forward"], list(model.recent)) == (5, [2, 3])
    assert model.calls == {"forward": 3}
    assert (list(model.recent), model.recent.maxlen) == ([7], 2)
    assert dict(model.by_rows) == {}
    assert list(model.order) == ["first", "second"]


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_a_model_in_training_can_be_compiled_to_a_script() -> None:
    """As many do at the end, to export it; the script compiler looks at every attribute."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    root = Root(model, lambda _: None)
    root.install()
    hide_from_script_compiler()
    x = torch.randn(2, 4)
    assert torch.equal(torch.jit.script(model)(x), model(x))
    assert vars(model)["_compiled_call_impl"] is root
