"""The split forward: the whole batch's gradients, one chunk's memory, and every refusal."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.microbatch import NotSplittableError, chunked_call
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.tune.split_check import split_refusal


class Net(nn.Module):
    """Two inputs that carry samples, one that does not, two outputs."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(5, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any, scale: Any, *, offset: Any) -> tuple[Any, dict[str, Any]]:
        hidden = self.dropout(torch.tanh(self.norm(self.first(x + offset))))
        return self.second(hidden) * scale, {"hidden": hidden, "best": hidden.argmax(1)}


def loss_and_gradients(
    module: nn.Module, call: Callable[[CallInputs], Any], inputs: CallInputs
) -> tuple[Any, list[Any]]:
    output, more = call(inputs)
    loss = (output.square().sum(1) + more["hidden"].sum(1)).mean()
    wanted = [
        leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    return loss, list(torch.autograd.grad(loss, [*module.parameters(), *wanted]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 11])
def test_gradients_are_those_of_the_whole_batch(
    dtype: torch.dtype, tolerance: float, rows: int
) -> None:
    torch.manual_seed(1)
    module = Net().to(dtype)
    x = torch.randn(12, 5, dtype=dtype, requires_grad=True)
    scale = torch.rand(12, 1, dtype=dtype)
    offset = torch.randn(5, dtype=dtype, requires_grad=True)
    inputs = CallInputs.of((x, scale), {"offset": offset})
    whole = loss_and_gradients(module, lambda i: i.call(module), inputs)
    parts = loss_and_gradients(module, lambda i: chunked_call(module, module, i, rows), inputs)
    torch.testing.assert_close(parts[0], whole[0], rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(parts[1], whole[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance * 10, atol=tolerance)


class Spectrum(nn.Module):
    """Complex parameters, and complex outputs that the loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.cfloat))

    def forward(self, x: Any) -> Any:
        return torch.fft.fft(x, dim=1) @ self.weight


def test_complex_outputs_have_the_gradients_of_the_whole_batch() -> None:
    torch.manual_seed(3)
    module, x = Spectrum(), torch.randn(10, 6)
    call = CallInputs.of((x,), {})
    gradients: list[torch.Tensor] = []
    for output in (module(x), chunked_call(module, module, call, 3)):
        assert output.requires_grad
        gradients += torch.autograd.grad(output.abs().square().mean(), module.weight)
    torch.testing.assert_close(gradients[1], gradients[0])
    root = Root(module, lambda _: None)
    assert split_refusal(root, RecordedCall(call)) is None


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_gradients_are_those_of_the_whole_batch(dropout: float) -> None:
    """A penalty on gradients that comes only every so many steps, after the split was chosen."""
    found: list[list[torch.Tensor]] = []
    for rows in (12, 5) if dropout == 0.0 else (5, 5):
        torch.manual_seed(3)
        module = Net(dropout).double()
        x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
        scale = torch.rand(12, 1, dtype=torch.float64)
        offset = torch.zeros(5, dtype=torch.float64)
        inputs = CallInputs.of((x * 2, scale), {"offset": offset})
        split = rows < len(x)
        output, more = chunked_call(module, module, inputs, rows) if split else inputs.call(module)
        (slope,) = torch.autograd.grad(output.sum() + more["hidden"].sum(), x, create_graph=True)
        loss = slope.square().sum() + output.square().mean()
        loss.backward()
        assert x.grad is not None
        found.append([slope, x.grad, *(p.grad for p in module.parameters() if p.grad is not None)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_dropout_uses_the_same_mask_in_forward_and_backward() -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Dropout(0.5))
    inputs = CallInputs.of((torch.randn(9, 4),), {})
    output = chunked_call(module, module, inputs, 2)
    output.sum().backward()
    assert module[0].bias.grad is not None
    # d(sum)/d(bias) is the sum over rows of the kept masks: only what was kept in forward counts.
    kept = (output != 0).sum(0) * 4.0
    torch.testing.assert_close(module[0].bias.grad, kept)


def test_random_numbers_after_it_go_on_as_if_backward_drew_none() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    inputs = CallInputs.of((torch.randn(8, 4),), {})
    torch.manual_seed(3)
    output = chunked_call(module, module, inputs, 2)
    after_forward = torch.get_rng_state()
    output.sum().backward()
    assert torch.equal(torch.get_rng_state(), after_forward)


def test_only_one_chunk_is_kept_for_backward() -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    inputs = CallInputs.of((torch.randn(64, 64),), {})

    def saved_bytes(call: Callable[[], Any]) -> int:
        sizes: dict[int, int] = {}
        parameters = {parameter.data_ptr() for parameter in module.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in parameters:
                sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = call()
        del kept
        return sum(sizes.values())

    whole = saved_bytes(lambda: inputs.call(module))
    split = saved_bytes(lambda: chunked_call(module, module, inputs, 8))
    assert split < whole / 4


def graph_bytes_seen_by_the_loss(module: nn.Module, inputs: CallInputs, keeps_chunk: bool) -> int:
    """What the split call itself still holds once its output is there: a chunk's graph, or none."""
    alive: list[weakref.ref[torch.Tensor]] = []

    def remember(layer: nn.Module, args: Any, output: torch.Tensor) -> None:
        alive.append(weakref.ref(output))

    handles = [layer.register_forward_hook(remember) for layer in module.modules()]
    output = chunked_call(module, module, inputs, 8, keeps_chunk=keeps_chunk)
    for handle in handles:
        handle.remove()
    held = [tensor for tensor in (ref() for ref in alive) if tensor is not None]
    del output
    return sum(tensor.numel() for tensor in held)


def test_where_the_loss_needs_the_memory_no_chunk_is_kept() -> None:
    torch.manual_seed(6)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    inputs = CallInputs.of((torch.randn(32, 8),), {})
    assert graph_bytes_seen_by_the_loss(module, inputs, True) > 0
    assert graph_bytes_seen_by_the_loss(module, inputs, False) == 0
    gradients = [
        torch.autograd.grad(
            chunked_call(module, module, inputs, 8, keeps_chunk=keeps).square().mean(),
            list(module.parameters()),
        )
        for keeps in (True, False)
    ]
    assert all(map(torch.equal, *gradients))


def test_outputs_lie_as_the_chunks_do_and_are_never_there_twice() -> None:
    module = nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last)
    inputs = CallInputs.of((torch.randn(6, 3, 8, 8).to(memory_format=torch.channels_last),), {})
    output = chunked_call(module, module, inputs, 4)
    assert output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output, inputs.call(module))
    wide = nn.Linear(1, 1 << 16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        chunked_call(wide, wide, CallInputs.of((torch.randn(64, 1),), {}), 4, keeps_chunk=False)
    taken = [e.self_cpu_memory_usage for e in (profiler.events() or []) if e.name == "aten::empty"]
    joined = [e for e in (profiler.events() or []) if e.name == "aten::cat"]
    assert max(taken) == 64 * 4 * (1 << 16)
    assert not joined


def test_chunks_of_different_shapes_run_whole() -> None:
    class Trims(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[:, : 1 + int(x[0, 0] > 0)]

    x = torch.ones(8, 4)
    x[4:] = -1
    module = Trims()
    root = Root(module, lambda _: None)
    inputs = CallInputs.of((x,), {})
    assert root.run(RootPlan(rows_per_step=4), inputs).shape == (8, 2)
    with pytest.raises(NotSplittableError, match="different shapes"):
        chunked_call(module, module, inputs, 4)


def test_backward_twice_and_changed_parameters() -> None:
    module = nn.Linear(3, 2)
    inputs = CallInputs.of((torch.randn(6, 3),), {})
    loss = chunked_call(module, module, inputs, 2).square().sum()
    loss.backward(retain_graph=True)
    assert module.weight.grad is not None
    once = module.weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(module.weight.grad, 2 * once)
    loss = chunked_call(module, module, inputs, 2).square().sum()
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        loss.backward()


def test_the_users_autocast_is_kept_in_the_recomputation() -> None:
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    inputs = CallInputs.of((torch.randn(12, 8),), {})
    gradients: list[Any] = []
    for call in (lambda: inputs.call(module), lambda: chunked_call(module, module, inputs, 4)):
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            call().float().square().mean().backward()
        gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) == 4
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(split, whole, rtol=2e-2, atol=2e-2)


def refusal(module: nn.Module, *args: Any) -> str | None:
    root = Root(module, lambda _: None)
    return split_refusal(root, RecordedCall(CallInputs.of(args, {})))


def test_a_module_of_independent_samples_is_accepted() -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.4), nn.Linear(8, 2))
    assert refusal(net, torch.randn(10, 4)) is None
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    assert refusal(layer, torch.randn(6, 5, 8)) is None


class _Centered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y - y.mean(0)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.layer(x)


class _Buffered(_Counting):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen += 1  # pyright: ignore[reportOperatorIssue]
        return self.layer(x)


class _Noisy(_Counting):
    def forward(self, x: Any) -> Any:
        return self.layer(x) + torch.randn(4)


class _Scalar(_Counting):
    def forward(self, x: Any) -> Any:
        return self.layer(x).mean()


class _Outside(_Counting):
    weight = torch.ones(4, requires_grad=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.weight


REFUSED = [
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "BatchNorm1d 1 learns from"),
    (_Centered, "samples influence each other"),
    (_Counting, "forward changes calls"),
    (_Buffered, "forward changes buffer seen"),
    (_Noisy, "random numbers other than dropout"),
    (_Scalar, "could be weighted wrongly"),
    (_Outside, "not its parameters"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_what_is_not_safe_is_refused(make: Callable[[], nn.Module], reason: str) -> None:
    torch.manual_seed(6)
    module = make()
    before = torch.get_rng_state()
    found = refusal(module, torch.randn(8, 4, generator=torch.Generator().manual_seed(1)))
    assert found is not None
    assert reason in found
    assert torch.equal(before, torch.get_rng_state())
    assert getattr(module, "calls", 0) == 0
    assert float(getattr(module, "seen", torch.zeros(()))) == 0


def _forward_hook(module: nn.Module, inputs: Any, output: Any) -> None:
    del module, inputs, output


def _gradient_hook(gradient: torch.Tensor) -> torch.Tensor:
    return gradient


def test_hooks_small_batches_and_batch_norm_in_evaluation() -> None:
    hooked = nn.Sequential(nn.Linear(4, 4))
    hooked[0].register_forward_hook(_forward_hook)
    assert "hooks" in (refusal(hooked, torch.randn(8, 4)) or "")
    gradient = nn.Linear(4, 4)
    gradient.weight.register_hook(_gradient_hook)
    assert "parameter weight has hooks" in (refusal(gradient, torch.randn(8, 4)) or "")
    assert "at least 2" in (refusal(nn.Linear(4, 4), torch.randn(1, 4)) or "")
    frozen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    frozen[1].eval()
    assert refusal(frozen, torch.randn(8, 4)) is None


def test_a_call_that_cannot_be_split_leaves_the_random_state() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Flatten(0))
    before = torch.get_rng_state()
    with pytest.raises(NotSplittableError):
        chunked_call(module, module, CallInputs.of((torch.ones(8, 4),), {}), 2)
    assert torch.equal(before, torch.get_rng_state())


def test_recomputation_in_backward_makes_no_new_roots() -> None:
    found: list[str] = []

    def on_root(module: nn.Module) -> Root:
        found.append(type(module).__name__)
        root = Root(module, lambda _: None)
        root.plan = RootPlan(rows_per_step=2)
        root.install()
        return root

    discovery = Discovery(on_root)
    module = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1)))
    discovery.start()
    try:
        for _ in range(2):
            module(torch.randn(8, 4)).sum().backward()
        nn.MSELoss()(module(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
    finally:
        discovery.finish()
    assert found == ["Sequential"]
    assert nn.Module._compiled_call_impl is None
