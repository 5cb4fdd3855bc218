"""A split is compared on the real batch, whole and in the very pieces that will be used."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.split_check import AtOnce, Compared, compare, split_refusal
from gpujob_worker.tune.tuner import Tuner

ROWS, PIECE = 64, 16


class Experts(nn.Module):
    """Each sample goes to one of the experts, which have room for so many of a batch."""

    def __init__(self, factor: float = 1.0, least: int = 8, most: int = 10**6) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.factor, self.least, self.most = factor, least, most

    def forward(self, x: Any) -> Any:
        shares = self.gate(x).softmax(-1)
        which = shares.argmax(-1)
        share = shares.gather(-1, which[:, None])
        room = max(self.least, math.ceil(self.factor * len(x) / 4))
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (which == number).nonzero()[:, 0][: min(room, self.most)]
            found = found.index_add(0, rows, expert(x[rows]) * share[rows])
        return found


class Layer(nn.Module):
    """What a test does with the outputs of a layer, where there are at least so many samples."""

    def __init__(self, then: Callable[[Any], Any], width: int = 8, least: int = 1) -> None:
        super().__init__()
        self.layer, self.then, self.least = nn.Linear(8, width), then, least

    def forward(self, x: Any) -> Any:
        out = self.layer(x)
        return self.then(out) if len(x) >= self.least else out


def ranked(x: Any) -> Any:
    """A weight by the sample's place among all of the batch."""
    return x * (1 + x.sum(1).argsort().argsort()[:, None] / 100)


def best_of_batch(x: Any) -> Any:
    """Only the half of the samples with the largest sum goes on."""
    kept = torch.zeros(len(x), 1, device=x.device).index_fill(
        0, x.sum(1).topk(len(x) // 2).indices, 1.0
    )
    return x * kept


def one_dropped(x: Any) -> Any:
    """The smallest of more than 32 samples: hardly anything in a norm over all."""
    dropped = x.sum(1).argmin() if len(x) > 32 else -1
    return torch.where(torch.arange(len(x), device=x.device)[:, None] == dropped, 0.0, x)


class ScaledBack(torch.autograd.Function):
    """Changes nothing forward, and divides by the norm of the whole batch's gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient / gradient.norm()


def scaled_back(x: Any) -> Any:
    return ScaledBack.apply(x)


DEPENDENT: dict[str, Callable[[], nn.Module]] = {
    "capacity": Experts,
    # Enough room for each sample of this batch, and not for each of another one.
    "capacity that is not reached yet": lambda: Experts(factor=3.0, least=2),
    "a fixed capacity": lambda: Experts(least=1000, most=24),
    "contrast in the batch": lambda: Layer(lambda x: (x @ x.T).softmax(1) @ x),
    "mean of the batch": lambda: Layer(lambda x: x - x.mean(0)),
    "rank in the batch": lambda: Layer(ranked, least=7),
    "best of the batch": lambda: Layer(best_of_batch),
    "one sample of many": lambda: Layer(one_dropped),
    "count of samples": lambda: Layer(lambda x: x / len(x)),
    "a place in the batch": lambda: Layer(lambda x: (x, torch.arange(len(x), device=x.device))),
    "gradients of the batch": lambda: Layer(scaled_back),
    "the whole in one number": lambda: Layer(lambda x: x.mean()),
}


def call_of(module: nn.Module, *args: Any) -> tuple[Root, RecordedCall]:
    return Root(module, lambda _: None), RecordedCall(CallInputs.of(args, {}))


def batch(rows: int = ROWS) -> torch.Tensor:
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))
    x[::2] += 1.5
    return x


PARTS = [None, AtOnce(2 * PIECE, ROWS), AtOnce(2 * PIECE, 2 * PIECE)]


@pytest.mark.parametrize("at_once", PARTS)
@pytest.mark.parametrize("kind", DEPENDENT)
def test_samples_that_depend_on_each_other_are_not_split(kind: str, at_once: AtOnce | None) -> None:
    torch.manual_seed(2)
    root, call = call_of(DEPENDENT[kind](), batch())
    before = torch.get_rng_state()
    found = compare(root, call, PIECE, at_once)
    small = at_once is not None and at_once.without_graph < ROWS
    if small and kind in ("one sample of many", "a fixed capacity"):
        # There is no more to see in 32 samples.
        return
    assert found.refusal is not None
    known = ("samples influence each other: of", "could be weighted wrongly")
    assert any(text in found.refusal for text in known), found.refusal
    assert torch.equal(before, torch.get_rng_state())


def test_a_few_samples_show_nothing_of_a_capacity(device: str) -> None:
    """Why the whole batch is compared at all."""
    torch.manual_seed(2)
    root, call = call_of(Experts().to(device), batch().to(device))
    assert split_refusal(root, call) is None
    assert compare(root, call, PIECE).refusal is not None


def test_the_refusal_has_numbers() -> None:
    root, call = call_of(Layer(lambda x: x / len(x)), batch())
    text = compare(root, call, PIECE).refusal
    assert text == (
        "samples influence each other: of 64 samples whole and in pieces of 16 the outputs differ "
        "by 300 %, allowed 0.002 % (one sample by 300 %, allowed 0.1 %)"
    )


def masked(x: Any) -> Any:
    return x.masked_fill(torch.arange(8, device=x.device) > 5, -math.inf)


def transformed(x: Any) -> Any:
    return torch.fft.fft(x, dim=1)


def predicted(x: Any) -> Any:
    return x, x.argmax(1), x > 0


INDEPENDENT: dict[str, Callable[[], nn.Module]] = {
    "deep": lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(40)]),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 2)),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True),
    "masked logits": lambda: Layer(masked),
    "predictions beside the outputs": lambda: Layer(predicted),
    "one number a sample": lambda: Layer(lambda x: x[:, 0], width=1),
    "nothing but zeros": lambda: Layer(lambda x: x * 0),
    "complex": lambda: Layer(transformed),
    "experts with room for all": lambda: Experts(factor=4.0),
}


@pytest.mark.parametrize("kind", INDEPENDENT)
@pytest.mark.parametrize("rows", [64, 61])
def test_independent_samples_are_split(kind: str, rows: int) -> None:
    torch.manual_seed(3)
    x = batch(rows) if kind != "attention" else torch.randn(rows, 5, 8)
    root, call = call_of(INDEPENDENT[kind](), x)
    assert split_refusal(root, call) is None
    assert compare(root, call, PIECE) == Compared()
    assert compare(root, call, PIECE, AtOnce(rows, rows)) == Compared()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rounding_of_the_type_is_allowed_and_a_dropped_sample_is_not(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    root, call = call_of(INDEPENDENT["deep"]().to(dtype), batch().to(dtype))
    assert compare(root, call, PIECE) == Compared()
    root, call = call_of(Layer(one_dropped).to(dtype), batch().to(dtype))
    assert "one sample by 1" in (compare(root, call, PIECE).refusal or "")


def test_gradients_that_nearly_cancel_out_are_no_reason() -> None:
    """Of a model that has learned: a mean over samples that pull in all directions."""
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    root, call = call_of(module, batch(4096))
    signs = torch.tensor([1.0, -1.0]).repeat(2048)[:, None]
    x = call.inputs.leaves[0]
    x[1::2] = x[::2]
    call.output_gradients = [signs * 1000 + 1e-1]
    assert compare(root, call, 512) == Compared()


@pytest.mark.parametrize(
    ("draw", "source"),
    [
        (random.random, ", of Python's generator"),
        (np.random.rand, ", of NumPy's generator"),
        (lambda: float(torch.rand(())), ""),
        (np.random.default_rng(3).random, ", of a generator of the script's own"),
    ],
)
def test_a_draw_of_any_generator_is_one(draw: Callable[[], float], source: str) -> None:
    """A depth that is drawn for each call: pieces would be of different depths."""

    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.draw = nn.Linear(8, 8), draw

        def forward(self, x: Any) -> Any:
            return self.layer(x) if self.draw() < 2 else x

    root, call = call_of(Drawn(), batch())
    before = random.getstate(), repr(np.random.get_state())
    expected = f"forward draws random numbers other than dropout's{source}"
    assert split_refusal(root, call) == expected
    assert compare(root, call, PIECE).refusal == expected
    assert (random.getstate(), repr(np.random.get_state())) == before


class NeedsMemory(nn.Module):
    """Runs out of memory above so many samples, with a graph or without one."""

    def __init__(self, with_graph: int, without_graph: int) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(8, 8), (without_graph, with_graph)

    def forward(self, x: Any) -> Any:
        if len(x) > self.rows[torch.is_grad_enabled()]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        return self.layer(x)


def test_where_the_batch_does_not_fit_the_largest_part_is_compared_and_said() -> None:
    root, call = call_of(NeedsMemory(20, 40), batch())
    assert compare(root, call, 8) == Compared(
        part="outputs of 32 and gradients of 16 samples compared, as many as memory allows"
    )
    assert compare(root, call, 8, AtOnce(17, 33)).part.startswith("outputs of 33 and gradients of")
    root, call = call_of(NeedsMemory(2, 2), batch())
    assert "a probe failed: OutOfMemoryError" in (compare(root, call, 8).refusal or "")


def test_what_follows_from_the_pieces_is_compared_on_halves_where_two_do_not_fit() -> None:
    root, call = call_of(Layer(lambda x: x / len(x)), batch())
    assert "of 20 samples whole and in pieces of 10" in (
        compare(root, call, 32, AtOnce(20, 20)).refusal or ""
    )


def test_a_split_that_may_be_made_finer_is_compared_in_finer_pieces_too() -> None:
    """Less than 8 samples are too few for something in it."""
    root, call = call_of(Layer(lambda x: x if len(x) >= 8 else 2 * x), batch())
    assert compare(root, call, PIECE) == Compared()
    assert "in pieces of 4" in (compare(root, call, PIECE, AtOnce(ROWS, ROWS)).refusal or "")


def tuner(*, limited: bool = False) -> tuple[Tuner, DecisionLog]:
    said = DecisionLog()
    facts = ScriptFacts(memory_limited=limited)
    return Tuner(Settings(), Features(), said, 1.0, facts), said


def test_a_split_that_is_asked_for_is_refused_too() -> None:
    torch.manual_seed(2)
    root, call = call_of(Experts(), batch())
    tried, said = tuner()
    assert not tried.split(root, call, PIECE, "as asked for")
    assert tried.applied.plan.rows_per_step is None
    assert said.line("batch split").startswith(
        "batch split skipped: samples influence each other: of 64 samples whole and in pieces of 16"
    )


@pytest.mark.parametrize("limited", [False, True])
def test_what_was_compared_is_said_where_it_is_not_all(limited: bool) -> None:
    root, call = call_of(INDEPENDENT["dropout"](), batch())
    tried, said = tuner(limited=limited)
    for _ in range(2):
        assert tried.split(root, call, PIECE, "as asked for")
    line = "batch split applied: 64 samples in steps of 16, as asked for"
    if limited:
        # Of an earlier run's split: nothing is known yet of what fits.
        line += "; outputs of 32 and gradients of 16 samples compared, as many as memory allows"
    assert said.line("batch split") == line


def test_each_split_is_compared_once() -> None:
    calls = 0

    def counts(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x

    root, call = call_of(Layer(counts, least=7), batch())
    tried, _ = tuner()
    tried.split(root, call, PIECE, "")
    first = calls
    assert first > 0
    tried.split(root, call, PIECE, "")
    assert calls == first
    tried.split(root, call, 8, "")
    assert calls > first
