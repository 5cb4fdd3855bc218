"""Settings of a model that only answers: its answers are compared before anything is timed."""

import math
import shutil
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import OptimizeMode, Precision, Settings, Toggle
from gpujob_worker.inject.answering import AnsweringRoot
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.probe.compare import Closeness, answer_closeness
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.trial import AGREEMENT_PERCENT, ANSWER_ERROR, BFLOAT16, SAME_TYPE
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import FAST_HALF, installed

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]


@pytest.fixture
def gpu() -> Generator[None]:
    with installed(FAST_HALF):
        yield


class Scaled(nn.Linear):
    """Another layer in another type."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        out = super().forward(input)
        return out if out.dtype is torch.float32 else out * 1.2


class Infinite(nn.Linear):
    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        out = super().forward(input)
        return out if out.dtype is torch.float32 else out / 0.0


class Close(nn.Module):
    """Classes so close together that rounding decides between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 100 + 1e-3 * self.layer(x)


def model(inner: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), inner(64, 64), nn.Tanh(), nn.Dropout(0.5), nn.Linear(64, 8)
    ).eval()


def recorded(module: nn.Module, batch: torch.Tensor, mode: Any = torch.no_grad) -> AnsweringRoot:
    root = AnsweringRoot(module, lambda: False, lambda _: None, lambda _r, _s, _o: None)
    root.install()
    root.record()
    with mode():
        module(batch)
    root.stop_recording()
    return root


def chosen(root: AnsweringRoot, settings: Settings | None = None) -> tuple[RootPlan, DecisionLog]:
    log = DecisionLog()
    assert root.recorded is not None
    tuner = Tuner(settings or Settings(), Features(), log, 60.0)
    tuner.speed(root, root.recorded)
    return tuner.applied.plan, log


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_lower_precision_is_chosen_where_answers_agree(gpu: None, mode: Any) -> None:
    module = model().to("cuda")
    root = recorded(module, torch.randn(64, 16, device="cuda"), mode)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.get_rng_state()
    plan, log = chosen(root)
    assert plan.autocast is torch.bfloat16
    assert plan.loss_scale is None
    assert "outputs differ by " in log.line("precision")
    assert "largest entries agree in 100 %" in log.line("precision")
    assert "cosine" not in log.line("precision")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    root.plan = plan
    with mode():
        assert module(torch.randn(4, 16, device="cuda")).dtype is torch.float32


def test_a_recorded_answer_counts_as_one_call() -> None:
    root = recorded(model(), torch.randn(64, 16))
    assert root.rows == 64
    assert root.calls_as_large == 1.0  # a factor of a module's seconds


def test_answers_in_inference_mode_are_tried_there() -> None:
    seen: list[bool] = []
    root = recorded(model(), torch.randn(64, 16), torch.inference_mode)
    root.module.register_forward_hook(
        lambda _m, _i, _o: seen.append(torch.is_inference_mode_enabled())
    )
    plan, log = chosen(root, Settings(precision=Precision.BFLOAT16))
    assert plan.autocast is torch.bfloat16, log.lines
    assert all(seen[1:])  # the first call finds the last layer


@pytest.mark.parametrize("inner", [Scaled, Infinite])
def test_other_answers_are_refused_with_their_numbers_and_never_timed(
    gpu: None, inner: type[nn.Linear]
) -> None:
    module = model(inner).to("cuda")
    root = recorded(module, torch.randn(64, 16, device="cuda"))
    calls: list[int] = []
    module.register_forward_hook(lambda _m, _i, _o: calls.append(1))
    assert root.recorded is not None
    log = DecisionLog()
    tuner = Tuner(Settings(precision=Precision.BFLOAT16), Features(), log, 60.0)
    tuner.speed_items(root, root.recorded).choose("precision")
    assert tuner.applied.plan.autocast is None
    assert "precision skipped: numbers disagree: bfloat16 autocast" in log.line("precision")
    assert "outputs differ by" in log.line("precision")
    # The call that finds the last layer, and one of each way.
    assert len(calls) == 3


def test_a_small_error_that_changes_classes_is_refused(gpu: None) -> None:
    torch.manual_seed(0)
    root = recorded(Close().eval().to("cuda"), torch.randn(64, 16, device="cuda"))
    plan, log = chosen(root, Settings(precision=Precision.FLOAT16))
    line = log.line("precision")
    percent = float(line.split("largest entries agree in ")[1].split(" %")[0])
    assert plan.autocast is None, line
    assert percent < AGREEMENT_PERCENT


def test_recommended_settings_are_not_applied(gpu: None) -> None:
    root = recorded(model().to("cuda"), torch.randn(64, 16, device="cuda"))
    _, log = chosen(root, Settings(mode=OptimizeMode.RECOMMEND))
    assert "precision recommended: " in log.line("precision")


def test_the_script_s_own_autocast_is_left_as_it_is(gpu: None) -> None:
    def own() -> Any:
        return torch.autocast("cuda", dtype=torch.bfloat16)

    module = model().to("cuda")
    root = AnsweringRoot(module, lambda: False, lambda _: None, lambda _r, _s, _o: None)
    root.install()
    root.record()
    with torch.no_grad(), own():
        module(torch.randn(64, 16, device="cuda"))
    plan, log = chosen(root)
    assert plan.autocast is None
    assert "the script uses autocast itself" in log.line("precision")


def test_a_call_of_another_kind_runs_as_written(gpu: None) -> None:
    """Settings were tried on calls without gradients, and outside of the script's autocast."""
    module = model().to("cuda")
    root = recorded(module, torch.randn(64, 16, device="cuda"))
    root.plan, _ = chosen(root)
    seen: list[torch.dtype] = []
    module[0].register_forward_hook(lambda _l, _i, out: seen.append(out.dtype))
    module(torch.randn(4, 16, device="cuda").requires_grad_()).sum().backward()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        module(torch.randn(4, 16, device="cuda"))
    with torch.no_grad():
        module(torch.randn(4, 16, device="cuda"))
    assert seen == [torch.float32, torch.float16, torch.bfloat16]


def test_tensors_of_inference_mode_are_recorded_as_copies() -> None:
    with torch.inference_mode():
        batch = torch.randn(8, 16)
    root = recorded(model(), batch, torch.inference_mode)
    assert root.recorded is not None
    (kept,) = root.recorded.inputs.leaves
    assert torch.equal(kept, batch)
    assert not kept.is_inference()
    with torch.inference_mode():
        batch.zero_()  # as a script does that fills the same tensor again
    assert kept.any()
    assert root.recorded.grad_mode is not None
    assert root.recorded.grad_mode.inference


class Filling(nn.Linear):
    """A forward that returns a buffer, which each call fills."""

    answer: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("answer", torch.zeros(64, outputs))

    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        out = super().forward(input)
        self.answer.copy_(out if out.dtype is torch.float32 else out * 1.2)
        return self.answer


def test_an_answer_in_a_buffer_is_not_compared_with_itself(gpu: None) -> None:
    root = recorded(Filling(16, 8).eval().to("cuda"), torch.randn(64, 16, device="cuda"))
    plan, log = chosen(root)
    assert plan.autocast is None
    assert "precision skipped: numbers disagree" in log.line("precision")


class Remembering(nn.Linear):
    """A forward that changes a parameter, as every try would."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        with torch.no_grad():
            self.weight += 1e-3
        return super().forward(input)


class Held:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Holding(nn.Linear):
    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        return Held(super().forward(input))


@pytest.mark.parametrize(
    ("kind", "reason"), [(Remembering, "changes parameter"), (Holding, "is inside a Held")]
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_module_whose_call_cannot_be_repeated_is_left_alone(
    kind: type[nn.Linear], reason: str, mode: Any
) -> None:
    root = recorded(kind(16, 8).eval(), torch.randn(8, 16), mode)
    assert root.recorded is not None
    assert reason in (trace_refusal(root, root.recorded, whole=True) or "")


class CachedLayer:
    """The inputs of one layer so far."""

    def __init__(self) -> None:
        self.seen: torch.Tensor | None = None
        self.filled = torch.zeros(8, 16)
        self.counts = [0]


class Cache:
    def __init__(self) -> None:
        self.layers = [CachedLayer() for _ in range(80)]

    def state(self) -> list[float]:
        layer = self.layers[-1]
        seen = 0 if layer.seen is None else layer.seen.numel()
        return [seen, float(layer.filled.sum()), sum(layer.counts), len(layer.counts)]


class Growing(nn.Linear):
    def __init__(self, way: str, cache: Cache | None = None) -> None:
        super().__init__(16, 8)
        self.way, self.cache = way, cache

    def forward(self, input: Any, cache: Cache | None = None) -> Any:  # noqa: A002 - as torch has it
        layer = (cache or self.cache or Cache()).layers[-1]
        if self.way == "attribute":
            layer.seen = input if layer.seen is None else torch.cat([layer.seen, input])
        elif self.way == "tensor":
            layer.filled[: len(input)] += input
        else:
            layer.counts.append(len(input))
        return super().forward(input)


@pytest.mark.parametrize("way", ["attribute", "tensor", "list"])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_is_left_as_the_script_s_calls_fill_it(way: str, given: bool, mode: Any) -> None:
    with mode():
        cache = Cache()
    module = Growing(way, None if given else cache).eval()
    root = AnsweringRoot(module, lambda: False, lambda _: None, lambda _r, _s, _o: None)
    root.install()
    root.record()
    with mode():
        module(torch.ones(8, 16), *([cache] if given else []))
    before = cache.state()
    assert root.recorded is not None
    assert "writes into" in (trace_refusal(root, root.recorded, whole=True) or "")
    assert cache.state() == before


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_a_model_is_compiled_for_its_answers() -> None:
    root, log = recorded(model(), torch.randn(16, 16)), DecisionLog()
    assert root.recorded is not None
    tuner = Tuner(Settings(compile=Toggle.ON), Features(), log, 60.0)
    tuner.compile(root, root.recorded)
    assert tuner.applied.plan.compiled is not None, log.lines
    assert "largest entries agree in 100 %" in log.line("compile")
    root.plan = tuner.applied.plan
    with torch.inference_mode():
        batch = torch.randn(16, 16)
        plain: Any = root.module._call_impl(batch)  # pyright: ignore[reportPrivateUsage]
        assert torch.allclose(root.module(batch), plain, atol=1e-5)


A, B = torch.tensor([[1.0, 2.0], [4.0, 3.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("reference", "other", "percent"),
    [
        ([A], [A], 100.0),
        ([A], [B], 50.0),
        ([A, torch.tensor([1, 2])], [B, torch.tensor([1, 2])], 75.0),
        # Classes of a pixel are in the second dimension, those of a word in the last one.
        ([A.T.reshape(1, 2, 2, 1)], [B.T.reshape(1, 2, 2, 1)], 50.0),
        ([A.view(1, 2, 2)], [B.view(1, 2, 2)], 50.0),
        # No classes.
        ([torch.ones(4)], [torch.ones(4)], None),
        ([torch.ones(4, 1)], [torch.ones(4, 1)], None),
        (
            [torch.ones(2, 2, dtype=torch.complex64)],
            [torch.ones(2, 2, dtype=torch.complex64)],
            None,
        ),
        ([], [], None),
    ],
)
def test_the_largest_entries_are_compared(
    reference: list[torch.Tensor], other: list[torch.Tensor], percent: float | None
) -> None:
    assert answer_closeness(reference, other).agreement_percent == percent


@pytest.mark.parametrize(
    "other", [[A.double()], [A[:1]], [A, A], [], [A * float("nan")], [A.to(torch.bfloat16)]]
)
def test_other_shapes_types_and_numbers_that_are_not_finite_never_hold(
    other: list[torch.Tensor],
) -> None:
    found = answer_closeness([A], other)
    assert found.relative_error == math.inf
    assert not BFLOAT16.holds(found, Closeness(0.0, 1.0))


@pytest.mark.parametrize(
    ("error", "percent", "holds"),
    [
        (0.0, 100.0, True),
        (0.0, None, True),
        (ANSWER_ERROR, AGREEMENT_PERCENT, True),
        (ANSWER_ERROR * 1.01, 100.0, False),
        (0.0, AGREEMENT_PERCENT - 0.1, False),
    ],
)
def test_the_bounds_of_an_answer(error: float, percent: float | None, holds: bool) -> None:
    answers = Closeness(error, 1.0, percent, answers=True)
    assert BFLOAT16.holds(answers, Closeness(0.0, 1.0)) is holds
    exact = Closeness(error, 1.0, percent, answers=True)
    assert SAME_TYPE.holds(exact, Closeness(0.0, 1.0)) is (holds and error == 0.0)
