"""The imitated GPU differs from the plain CPU in what a CUDA device differs in, and no more."""

import time
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.harness.imitated_gpu import CostModel, GpuModel, ImitatedGpu, installed
from tests.harness.imitated_gpu.clock import LAUNCHES_MAX

pytestmark = pytest.mark.any_torch
MIB = 1024**2
COST = CostModel(scripted={"mm": 0.2}, by_type={torch.bfloat16: 0.5})


@pytest.fixture
def gpu() -> Generator[ImitatedGpu]:
    with installed(GpuModel(cost=COST)) as found:
        yield found


def seconds_of(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def on(device: str, *shape: int) -> torch.Tensor:
    return torch.ones(shape, device=device)


def test_kernels_are_queued_and_reading_a_value_waits_for_them(gpu: ImitatedGpu) -> None:
    x = on("cuda", 2, 2)
    torch.cuda.synchronize()
    products: list[torch.Tensor] = []
    assert seconds_of(lambda: products.append(x @ x)) < 0.001
    assert seconds_of(lambda: products.append(products[0].sum())) < 0.001
    for read in (lambda: products[1].item(), lambda: float(products[1]), products[0].cpu):
        assert seconds_of(read) == pytest.approx(0.2, abs=0.01)
        products[0] = x @ x
        products[1] = products[0].sum()
    assert seconds_of(torch.cuda.synchronize) == pytest.approx(0.2, abs=0.01)
    on_host = on("cpu", 2, 2)
    waits = gpu.clock.waits
    assert (on_host @ on_host).sum().item() == 8
    assert gpu.clock.waits == waits


def test_the_queue_has_an_end(gpu: ImitatedGpu) -> None:
    x = on("cuda", 2, 2)
    torch.cuda.synchronize()
    queued = seconds_of(lambda: [x @ x for _ in range(LAUNCHES_MAX)])
    assert queued < 1
    assert seconds_of(lambda: [x @ x for _ in range(10)]) == pytest.approx(10 * 0.2, rel=0.05)


def test_events_tell_the_devices_time(gpu: ImitatedGpu) -> None:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = on("cuda", 2, 2)
    begin.record()
    for _ in range(3):
        _ = x @ x
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="not ready"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(600, rel=0.01)
    assert gpu.clock.waits == 1
    untimed = torch.cuda.Event()
    untimed.record()
    with pytest.raises(RuntimeError, match="invalid"):
        begin.elapsed_time(untimed)


def test_half_the_bits_are_twice_as_fast_where_scripted(gpu: ImitatedGpu) -> None:
    x = on("cuda", 2, 2)
    for dtype, seconds in ((torch.float32, 0.2), (torch.bfloat16, 0.1)):
        typed = x.to(dtype)
        torch.cuda.synchronize()
        _ = typed @ typed
        assert seconds_of(torch.cuda.synchronize) == pytest.approx(seconds, rel=0.01)


def test_what_is_not_scripted_takes_time_by_type_and_size(gpu: ImitatedGpu) -> None:
    big = on("cuda", 1, 1024, 1024)
    found: list[float] = []
    for x in (big, big.bfloat16(), big[:, :512, :512].contiguous()):
        torch.cuda.synchronize()
        torch.bmm(x, x)
        found.append(seconds_of(torch.cuda.synchronize))
    assert found[0] > 4 * found[1]
    assert found[0] > 4 * found[2]


def test_only_pinned_memory_is_copied_beside_the_host(gpu: ImitatedGpu) -> None:
    x, plain = on("cuda", 2, 2), torch.empty(2, 2)
    pinned = torch.empty(2, 2, pin_memory=True)
    assert (pinned.is_pinned(), plain.is_pinned()) == (True, False)
    for target, non_blocking, waits in (
        (pinned, True, False),
        (pinned, False, True),
        (plain, True, True),
    ):
        torch.cuda.synchronize()
        product = x @ x
        took = seconds_of(lambda: target.copy_(product, non_blocking=non_blocking))  # noqa: B023
        assert (took > 0.1) is waits
        assert target.tolist() == [[2, 2], [2, 2]]
    _ = x @ x
    assert seconds_of(lambda: plain.to("cuda")) > 0.1, "as cudaMemcpy does"


def test_what_lies_on_the_device_cannot_be_pinned(gpu: ImitatedGpu) -> None:
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        on("cuda", 2).pin_memory()
    beside = torch.empty_like(on("cuda", 2, 3).t(), device="cpu", pin_memory=True)
    assert (beside.is_pinned(), beside.device.type, beside.stride()) == (True, "cpu", (1, 3))
    on_host = DataLoader(TensorDataset(on("cpu", 4, 2)), 2, pin_memory=True)
    assert all(batch.is_pinned() for (batch,) in on_host)
    on_device = DataLoader(TensorDataset(on("cuda", 4, 2)), 2, pin_memory=True)
    with pytest.raises(RuntimeError, match="can be pinned"):
        next(iter(on_device))


def dropped(device: str, dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    x = torch.ones(2, 16, 8, 8, device=device).to(dtype).contiguous(memory_format=layout)
    torch.manual_seed(3)
    return functional.dropout(x, 0.5).cpu() == 0


def test_dropouts_masks_go_by_type_and_by_the_order_in_memory(gpu: ImitatedGpu) -> None:
    first, last = torch.contiguous_format, torch.channels_last
    masks = {
        device: [
            dropped(device, *kind) for kind in ((torch.float32, first), (torch.bfloat16, first))
        ]
        for device in ("cpu", "cuda")
    }
    assert torch.equal(*masks["cpu"])
    assert not torch.equal(*masks["cuda"])
    again = dropped("cuda", torch.float32, first)
    assert torch.equal(again, masks["cuda"][0]), "the same seed, type and order"
    assert not torch.equal(dropped("cuda", torch.float32, last), masks["cuda"][0])
    assert masks["cuda"][1].float().mean() == pytest.approx(0.5, abs=0.05)


def test_attentions_masks_go_by_type_too(gpu: ImitatedGpu) -> None:
    def attended(dtype: torch.dtype, p: float) -> torch.Tensor:
        torch.manual_seed(3)
        q = torch.eye(8, device="cuda").expand(1, 2, 8, 8).to(dtype)
        return functional.scaled_dot_product_attention(q, q, q, dropout_p=p).float().cpu()

    torch.testing.assert_close(
        attended(torch.float32, 0), attended(torch.bfloat16, 0), atol=0.01, rtol=0.1
    )
    assert (attended(torch.float32, 0.5) - attended(torch.bfloat16, 0.5)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("dtype", "order", "kernel"),
    [
        (torch.float32, None, "efficient"),
        (torch.bfloat16, None, "flash"),
        (torch.bfloat16, [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], "cudnn"),
        (torch.float32, [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], None),
    ],
)
def test_attention_goes_to_the_first_kernel_that_takes_it(
    dtype: torch.dtype, order: list[SDPBackend] | None, kernel: str | None, gpu: ImitatedGpu
) -> None:
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 1, 4, 8).to("cuda", dtype).requires_grad_() for _ in range(3))
    with sdpa_kernel(order, set_priority=True) if order is not None else nullcontext():
        gpu.launched.clear()
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found = [name for name in gpu.launched if "attention" in name]
    assert found == ([f"_scaled_dot_product_{kernel}_attention"] if kernel is not None else [])
    a, b, c = (tensor.detach().cpu().float().requires_grad_() for tensor in (q, k, v))
    expected = functional.scaled_dot_product_attention(a, b, c, is_causal=True)
    ours = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    theirs = torch.autograd.grad(expected.square().sum(), (a, b, c))
    rtol, atol = (0.05, 0.1) if dtype is torch.bfloat16 else (1e-4, 1e-5)
    for one, other in zip((out, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(one.float().cpu(), other, rtol=rtol, atol=atol)


def test_what_is_computed_again_draws_the_same_numbers(gpu: ImitatedGpu) -> None:
    def gradient(again: bool) -> torch.Tensor:
        torch.manual_seed(3)
        x = torch.ones(64, device="cuda", requires_grad=True)
        drop = functional.dropout
        out = checkpoint(drop, x, use_reentrant=False) if again else drop(x)
        torch.rand(8, device="cuda")
        return torch.autograd.grad(out.sum(), [x])[0].cpu()

    assert torch.equal(gradient(True), gradient(False))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("compressed", [False, True])
def test_sparse_matrices_lie_on_the_device(compressed: bool, gpu: ImitatedGpu) -> None:
    plain = torch.eye(1024).to_sparse_csr() if compressed else torch.eye(1024).to_sparse()
    sparse, x = plain.to("cuda"), torch.ones(1024, 2, device="cuda", requires_grad=True)
    assert sparse.device == x.device
    assert sparse.layout is plain.layout
    assert torch.cuda.memory_allocated() >= 3 * 4096 + x.numel() * 4
    (sparse @ x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), torch.ones(1024, 2))
    with pytest.raises(RuntimeError, match="same device"):
        _ = sparse @ on("cpu", 1024, 2)


def test_random_numbers_have_a_state_of_their_own(gpu: ImitatedGpu) -> None:
    torch.manual_seed(1)
    host, state = torch.get_rng_state(), torch.cuda.get_rng_state()
    first = torch.randn(4, device="cuda")
    assert torch.equal(torch.get_rng_state(), host)
    assert not torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state_all([state])
    assert torch.equal(torch.randn(4, device="cuda").cpu(), first.cpu())
    torch.manual_seed(1)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_the_allocator_counts_and_keeps_what_was_freed(gpu: ImitatedGpu) -> None:
    kept = torch.empty(3 * MIB, device="cuda")
    passing = torch.empty(5 * MIB, device="cuda")
    assert kept[0].device == passing.device, "a view takes nothing"
    assert torch.cuda.memory_allocated() == 32 * MIB
    del passing
    assert torch.cuda.memory_allocated() == 12 * MIB
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_reserved() == 32 * MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_reserved() == torch.cuda.max_memory_reserved() == 12 * MIB
    small = [torch.empty(1, device="cuda") for _ in range(3)]
    assert len(small) == 3
    assert torch.cuda.memory_stats()["segment.all.current"] == 2
    assert torch.cuda.memory_reserved() == 14 * MIB


def test_a_limit_is_kept_by_running_out_of_memory(gpu: ImitatedGpu) -> None:
    torch.cuda.set_per_process_memory_fraction(
        64 * MIB / torch.cuda.get_device_properties(0).total_memory
    )
    held = torch.empty(10 * MIB, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"allocate 40.00 MiB"):
        torch.empty(10 * MIB, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    del held
    assert torch.empty(15 * MIB, device="cuda").numel() == 15 * MIB, "what is cached goes first"
    assert torch.empty(30 * MIB).numel() > 0, "the host has no such limit"


def test_a_graph_is_replayed_into_the_same_memory_and_must_not_wait(gpu: ImitatedGpu) -> None:
    x, graph = torch.ones(2, 2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ x).relu() + 1
    torch.cuda.synchronize()
    at = y.data_ptr()
    x.fill_(2)
    assert seconds_of(graph.replay) < 0.001
    assert seconds_of(lambda: y.sum().item()) == pytest.approx(0.2, rel=0.05)
    assert (y.tolist(), y.data_ptr()) == ([[9, 9], [9, 9]], at)
    for waiting in (
        torch.cuda.synchronize,
        lambda: y.sum().item(),
        lambda: x.copy_(torch.zeros(2, 2)),
        torch.cuda.Event().query,
    ):
        with (
            pytest.raises(RuntimeError, match="capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            waiting()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.copy_(torch.zeros(2, 2).pin_memory(), non_blocking=True)


def test_streams_go_on_beside_each_other(gpu: ImitatedGpu) -> None:
    x, side = on("cuda", 2, 2), torch.cuda.Stream()
    torch.cuda.synchronize()
    _ = x @ x
    with torch.cuda.stream(side):
        _ = x @ x
    assert seconds_of(torch.cuda.synchronize) == pytest.approx(0.2, rel=0.05)


def test_the_device_describes_itself(gpu: ImitatedGpu) -> None:
    assert torch.cuda.is_available()
    assert not torch.cuda.is_initialized()
    x = on("cuda", 2)
    assert torch.cuda.is_initialized()
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert "H100" in torch.cuda.get_device_name()
    assert torch.cuda.get_device_capability() == (9, 0)
    assert (x.device, x.is_cuda, x.cpu().is_cuda) == (torch.device("cuda", 0), True, False)
    with pytest.raises(TypeError, match="numpy"):
        _ = x.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        _ = x + on("cpu", 2)


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}])
def test_training_comes_out_as_on_the_cpu(gpu: ImitatedGpu, options: dict[str, Any]) -> None:
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
        x, y = torch.randn(5, 2, 8, 8), torch.randint(8, (5,))
        net.to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, **options)
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
            optimizer.step()
        assert all(
            p.device.type == device and isinstance(p, nn.Parameter) for p in net.parameters()
        )
        return [parameter.detach().cpu() for parameter in net.parameters()]

    torch.testing.assert_close(trained("cuda"), trained("cpu"))


def test_autocast_casts_on_the_device(gpu: ImitatedGpu) -> None:
    net = nn.Linear(2, 2).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        assert net(on("cuda", 3, 2)).dtype is torch.bfloat16
    assert net(on("cuda", 3, 2)).dtype is torch.float32


def test_nothing_of_it_stays() -> None:
    plain = (torch.cuda.is_available(), time.perf_counter, torch.Tensor.to, torch.cuda.Event)
    with installed():
        assert torch.cuda.is_available()
    assert (
        torch.cuda.is_available(),
        time.perf_counter,
        torch.Tensor.to,
        torch.cuda.Event,
    ) == plain
    assert torch.ones(2).to("cpu").device.type == "cpu"
