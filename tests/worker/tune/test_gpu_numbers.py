"""Numbers are compared as if nothing were dropped, for what the loss used, in bounded memory."""

import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpujob_api.settings import Settings
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.guards import without_dropout
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe import compare
from gpujob_worker.probe.compare import closeness
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.settings.channels_last import ChannelsLast, sample_shapes
from gpujob_worker.tune.split_check import split_refusal
from gpujob_worker.tune.trial import BFLOAT16, SAME_TYPE, AcceptanceRule, Trial
from tests.harness.imitated_gpu import FAST_HALF, installed
from tests.harness.worker_process import run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]


@pytest.fixture
def gpu() -> Generator[None]:
    with installed(FAST_HALF):
        yield


class Attending(nn.Module):
    """Drops in a layer and in attention, as transformers do."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(16, 48), nn.Linear(16, 16)
        self.dropout, self.p = nn.Dropout(p), p

    def forward(self, x: Any) -> Any:
        heads = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.inward(x).chunk(3, -1)]
        found = functional.scaled_dot_product_attention(*heads, dropout_p=self.p)
        return x + self.dropout(self.outward(found.transpose(1, 2).flatten(2)))


class Images(nn.Sequential):
    def __init__(self) -> None:
        layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(8, 4, 3))
        super().__init__(*layers)


def trial(model: nn.Module, x: torch.Tensor) -> tuple[Trial, DecisionLog, Root, RecordedCall]:
    log = DecisionLog()
    root, call = Root(model, lambda _: None), RecordedCall(CallInputs.of((x,), {}))
    root.install()
    made = Trial(AcceptanceRule(Settings(), log, 60.0), root, call)
    return made, log, root, call


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_another_type_is_not_refused_for_its_masks(gpu: None, p: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(p), nn.Linear(64, 8))
    made, log, _, _ = trial(model.to("cuda"), torch.randn(64, 16, device="cuda"))
    plan = RootPlan(autocast=torch.bfloat16)
    assert made.accepts("precision", RootPlan(), plan, tolerance=BFLOAT16), log.lines
    assert "outputs differ by 0." in log.line("precision")


def test_attentions_masks_do_not_count_either(gpu: None) -> None:
    torch.manual_seed(0)
    made, log, root, call = trial(Attending(0.3).to("cuda"), torch.randn(8, 6, 16, device="cuda"))
    plan = RootPlan(autocast=torch.bfloat16)
    assert made.accepts("precision", RootPlan(), plan, tolerance=BFLOAT16), log.lines
    assert made.safe("precision", RootPlan(), plan, BFLOAT16), log.lines
    assert split_refusal(root, call) is None


class Noisy(nn.Linear):
    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        out = super().forward(input)
        return out + torch.randn_like(out)


def test_a_split_is_refused_for_what_is_drawn_on_the_gpu(gpu: None) -> None:
    """It was refused as if samples influenced each other."""
    _, _, root, call = trial(Noisy(16, 8).to("cuda"), torch.randn(8, 16, device="cuda"))
    host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
    assert split_refusal(root, call) == "forward draws random numbers other than dropout's"
    assert torch.equal(torch.cuda.get_rng_state(), device)
    assert torch.equal(torch.get_rng_state(), host), "nothing is drawn on the host"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_another_order_in_memory_is_not_refused_for_its_masks(gpu: None, device: str) -> None:
    torch.manual_seed(0)
    made, log, _, call = trial(Images().to(device), torch.randn(4, 3, 8, 8, device=device))
    plan = RootPlan().having(ChannelsLast(sample_shapes(call.inputs)))
    assert made.safe("channels_last", RootPlan(), plan, SAME_TYPE), log.lines


def test_what_is_wrong_is_still_refused_where_a_model_drops(gpu: None) -> None:
    class Wrong(nn.Linear):
        def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
            out = super().forward(input)
            return out if out.dtype is torch.float32 else out * 1.2

    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.1), Wrong(64, 8)).to("cuda")
    made, log, _, _ = trial(model, torch.randn(64, 16, device="cuda"))
    plan = RootPlan(autocast=torch.bfloat16)
    assert not made.accepts("precision", RootPlan(), plan, tolerance=BFLOAT16)
    assert "numbers disagree: outputs differ by 20 %" in log.line("precision")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, Attending])
def test_without_dropout_forward_and_backward_are_those_of_zero(
    gpu: None, device: str, kind: Any
) -> None:
    def taught(p: float) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = kind(p) if kind is not Attending else Attending(p)
        model = nn.Sequential(nn.Linear(16, 16), layer).to(device)
        out = model(torch.ones(2, 5, 16, device=device))
        return [
            out.detach().cpu(),
            *(g.cpu() for g in torch.autograd.grad(out.square().sum(), list(model.parameters()))),
        ]

    with without_dropout():
        dropped = taught(0.4)
    torch.testing.assert_close(dropped, taught(0.0))
    assert not torch.allclose(taught(0.4)[0], dropped[0]), "outside it drops"


def test_an_output_that_the_loss_did_not_use_counts_for_nothing() -> None:
    """Its gradient of an even share hid the loss's; what only logs was compared."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.used(x), self.unused(x), self.unused(x).detach()

    root = Root(Both(), lambda _: None)
    root.install()
    root.recording = True
    x = torch.randn(6, 4)
    root.module(x)[0].square().sum().backward()
    recorded = root.recorded
    assert recorded is not None
    found = RootProbe(root, recorded).run(RootPlan())
    weight, bias, other_weight, other_bias = found.gradients
    assert (other_weight, other_bias) == (None, None)
    assert weight is not None
    assert bias is not None
    module: Any = root.module
    torch.testing.assert_close([weight, bias], [module.used.weight.grad, module.used.bias.grad])
    assert len(found.outputs) == 2, "what has no gradient may be a target, and is compared"


def test_a_call_without_any_recorded_gradient_is_compared_whole() -> None:
    outputs = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    unknown: list[list[torch.Tensor | None]] = [[], [None, None]]
    for known in unknown:
        assert RecordedCall(CallInputs.of((), {}), known).used(outputs) == [True, True]
    call = RecordedCall(CallInputs.of((), {}), [None, torch.full((3,), 2.0)])
    assert call.used(outputs) == [False, True]
    assert torch.equal(call.gradients_for(outputs)[1], torch.full((3,), 2.0))


def test_pieces_are_compared_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    a, b = (
        [torch.randn(3, 50, 7), torch.randn(()), None],
        [torch.randn(3, 50, 7), torch.randn(()), None],
    )
    b[0] = b[0].transpose(0, 2).contiguous().transpose(0, 2) if b[0] is not None else None
    whole = closeness(a, b)
    seen: list[int] = []
    plain = compare._reals

    def reals(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.numel())
        return plain(tensor)

    monkeypatch.setattr(compare, "_reals", reals)
    for most in (1, 10, 149, 2**21):
        monkeypatch.setattr(compare, "PIECE_ELEMENTS", most)
        seen.clear()
        found = closeness(a, b)
        assert found.relative_error == pytest.approx(whole.relative_error)
        assert found.cosine == pytest.approx(whole.cosine)
        assert max(seen) <= max(most, 1)
        assert sum(seen) == 2 * 1051
    assert closeness([torch.full((9,), math.nan)], [torch.ones(9)]).relative_error == math.inf


def test_a_transformer_with_dropout_is_sped_up(tmp_path: Path) -> None:
    """Its masks in bfloat16 are others than in float32, and it was refused for them."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to('cuda')\n"
        "opt = torch.optim.AdamW(net.parameters()); x = torch.randn(8, 5, 16, device='cuda')\n"
        "for _ in range(20):\n"
        "    opt.zero_grad(); (net(x) - 1).square().mean().backward(); opt.step()\n"
    )
    settings = {"compile": "Off"}
    code, run = run_worker(tmp_path, ["python", str(script)], settings=settings, gpu=FAST_HALF)
    assert code == 0, run.errors
    assert run.report["tuned"]["precision"] == "bfloat16", run.errors
    assert run.report["speedup"]["ratio"] > 1.5
