"""The optimizer's kernel: switched in place, saved as written, refused where there is none."""

import copy

import pytest
import torch

from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.inject.fused_optimizer import (
    OptimizerCopy,
    fused_in_force,
    fused_refusal,
    keep_fused,
    use_fused,
)
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model


def tuner(log: DecisionLog, **off: bool) -> Tuner:
    return Tuner(Settings(), Features.without(*off), log, 1.0)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_a_fused_optimizer_takes_the_same_step(kind: str, device: str) -> None:
    torch.manual_seed(5)
    model = Model().to(device)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(4, 16, device=device)).sum().backward()
        optimizer.step()
    reason = fused_refusal(optimizer)
    if kind == "Adagrad" and reason == "Adagrad has no fused kernel for cuda in torch":
        pytest.skip("older torch has it for the CPU alone")
    assert reason is None
    plain, fused = OptimizerCopy(optimizer), OptimizerCopy(optimizer)
    use_fused(fused.optimizer, True)
    plain.step_seconds()
    fused.step_seconds()
    assert plain.closeness(fused).relative_error < 1e-6
    before = [p.clone() for p in model.parameters()]
    use_fused(optimizer, True)
    optimizer.step()
    for ours, expected, old in zip(model.parameters(), plain.parameters, before, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(ours, old)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_what_the_script_saves_names_no_kernel_of_ours(amsgrad: bool, device: str) -> None:
    """A run without us loads it and steps as it would have; in this one the kernel stays."""
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=amsgrad)
    model(torch.randn(4, 16, device=device)).sum().backward()
    optimizer.step()
    plain = copy.deepcopy(optimizer.state_dict())
    use_fused(optimizer, True)
    use_fused(optimizer, True)
    saved = optimizer.state_dict()
    assert saved["param_groups"] == plain["param_groups"]
    assert fused_in_force(optimizer)
    assert len(optimizer._optimizer_state_dict_post_hooks) == 1
    optimizer.load_state_dict(saved)
    assert not fused_in_force(optimizer)
    assert keep_fused(optimizer)
    assert fused_in_force(optimizer)


def test_a_kernel_that_the_script_chose_is_saved() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    use_fused(optimizer, True)
    use_fused(optimizer, False)
    optimizer.param_groups[0]["fused"] = True
    assert optimizer.state_dict()["param_groups"][0]["fused"] is True


def test_an_optimizer_whose_kernel_is_for_another_device_is_left_alone(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Adagrad's in older torch. A step would raise, in a run that only takes it over too."""

    def has_kernel(name: str, key: str) -> bool:
        return (name, key) != ("aten::_fused_adagrad_", "CUDA")

    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", has_kernel)
    model, log = Model().to(device), DecisionLog()
    optimizer = torch.optim.Adagrad(model.parameters())
    adopting = tuner(log)
    adopted = adopting.adopt_fused(optimizer, TunedSettings(fused_optimizer=True))
    assert adopted is (device == "cpu")
    why = "skipped: Adagrad has no fused kernel for cuda in torch"
    assert (why in log.line("fused optimizer")) is (device == "cuda")
    assert fused_refusal(torch.optim.Adam(model.parameters())) is None


def test_fused_refusals() -> None:
    model = Model()
    refused = {
        "Adadelta has no fused kernel": torch.optim.Adadelta(model.parameters()),
        "chose the kernel itself": torch.optim.Adam(model.parameters(), foreach=False),
        "differentiable or capturable": torch.optim.Adam(model.parameters(), capturable=True),
    }
    for reason, optimizer in refused.items():
        assert reason in (fused_refusal(optimizer) or "")

    class Mine(torch.optim.SGD):
        pass

    assert "Mine has no fused kernel" in (fused_refusal(Mine(model.parameters(), lr=1.0)) or "")


def test_the_optimizer_is_not_measured_where_its_copies_do_not_fit(device: str) -> None:
    model = Model().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    log = DecisionLog()
    tuner(log).fused_optimizer(optimizer, free_bytes=1000)
    assert "of copies" in log.line("fused optimizer")
    tuner(log, optimizer=False).fused_optimizer(optimizer)
    assert log.line("fused optimizer") == "fused optimizer skipped: switched off"
