"""Offload changes no bit; here between two places of the same memory."""

from pathlib import Path

import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject import offload
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.offload import OptimizerOffload, offload_refusal, to_host
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.settings import offload as offload_setting
from gpujob_worker.tune.tuner import Tuner
from tests.harness.worker_process import run_worker


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64))


def gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    torch.manual_seed(2)
    module(x).square().mean().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("rows", [None, 256])
def test_activations_come_back_bit_for_bit(
    rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[torch.Tensor] = []

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor)
        return to_host(tensor)

    monkeypatch.setattr(offload, "to_host", counted)
    module, x = model(), torch.randn(512, 64)
    root = Root(module, lambda _: None)
    root.install()
    root.plan = RootPlan(rows_per_step=rows)
    plain = gradients(module, x)
    assert copied == []
    root.plan = RootPlan(rows_per_step=rows, activations_on_host=True)
    assert all(map(torch.equal, gradients(module, x), plain))
    known = {parameter.data_ptr() for parameter in module.parameters()}
    assert len(copied) >= 3
    assert not known & {tensor.data_ptr() for tensor in copied}
    assert all(t.numel() * t.element_size() >= offload.ACTIVATION_BYTES_MIN for t in copied)


def test_a_copy_keeps_the_way_it_lies_and_does_not_follow() -> None:
    tensor = torch.randn(8, 3, 4, 4).to(memory_format=torch.channels_last)
    copy = to_host(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    tensor.zero_()
    assert float(copy.abs().sum()) > 0


def trained(offloaded: bool) -> tuple[nn.Module, torch.optim.Optimizer, list[int]]:
    module = model()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    waiting = OptimizerOffload(optimizer) if offloaded else None
    places: list[int] = []
    for step in range(4):
        gradients(module, torch.randn(16, 64, generator=torch.Generator().manual_seed(step)))
        if waiting is not None:
            waiting.step_starts()
        optimizer.step()
        if waiting is not None:
            waiting.step_ends()
        places.append(next(iter(optimizer.state.values()))["exp_avg"].data_ptr())
    return module, optimizer, places


def test_the_optimizers_state_comes_back_bit_for_bit() -> None:
    plain, _, still = trained(False)
    module, optimizer, places = trained(True)
    assert all(map(torch.equal, module.parameters(), plain.parameters()))
    assert len(set(still)) == 1
    assert len(set(places)) > 1, "the state was copied between the steps"
    again = torch.optim.Adam(model().parameters(), lr=0.01)
    again.load_state_dict(optimizer.state_dict())


def test_refusals() -> None:
    gpu = torch.device("cuda")
    assert offload_refusal(gpu) is None
    assert "compiled graph" in (offload_refusal(gpu, compiled=True) or "")
    assert offload_refusal(torch.device("cpu")) == "it is in host memory already"


def known(monkeypatch: pytest.MonkeyPatch, **off: bool) -> tuple[Tuner, DecisionLog]:
    """Adopts both as on a GPU."""

    def never(device: torch.device, *, compiled: bool = False) -> None:
        del device, compiled

    monkeypatch.setattr(offload_setting, "offload_refusal", never)
    log = DecisionLog()
    tuner = Tuner(Settings(), Features.without(*off), log, 1.0)
    call = RecordedCall(CallInputs.of((torch.randn(512, 64),), {}))
    settings = TunedSettings(activation_offload=True, optimizer_offload=True)
    tuner.adopt(Root(model(), lambda _: None), call, settings)
    return tuner, log


def test_known_offload_is_adopted_and_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, log = known(monkeypatch)
    assert tuner.tuned() == TunedSettings(activation_offload=True, optimizer_offload=True)
    assert log.lines == (
        "activation offload applied: from an earlier run",
        "optimizer offload applied: from an earlier run",
    )
    tuner, log = known(monkeypatch, offload=False)
    assert tuner.tuned() == TunedSettings()
    assert all(line.endswith("skipped: switched off") for line in log.lines)


def test_in_force_it_follows_the_optimizers_steps_and_is_taken_back() -> None:
    module = model()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    session = Session(Environment())
    trained = TrainedModel(session, ScriptFacts())
    trained.first.tuner = Tuner(Settings(), Features(), session.log, 1.0)
    trained.first.tuner.applied = Applied(optimizer_offload=True)
    trained.apply(optimizer)
    gradients(module, torch.randn(16, 64))
    optimizer.step()
    before = next(iter(optimizer.state.values()))["exp_avg"]
    trained.step_starts(optimizer)
    trained.step_ends(optimizer)
    after = next(iter(optimizer.state.values()))["exp_avg"]
    assert after is not before
    assert torch.equal(after, before)
    trained.roll_back("a test")
    assert trained.optimizer_offload is None
    assert session.state.tuned == TunedSettings()


def test_a_limit_that_nothing_keeps_ends_the_job_and_says_why_offload_does_not_help(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch import nn\n"
        "net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "for i in range(9):\n"
        "    opt.zero_grad(); net(torch.randn(64, 8)).square().mean().backward(); opt.step()\n"
    )
    environment = {"GPUJOB_MEMORY_LIMIT_BYTES": "1000000"}
    code, run = run_worker(tmp_path, ["python", str(script)], environment=environment)
    assert code == 1
    assert run.report["failure"]["failureClass"] == "OutOfMemory"
    said = "\n".join(run.report["explain"])
    assert "activation offload skipped: it is in host memory already" in said
    assert "optimizer offload skipped: it is in host memory already" in said
    assert "memory limit skipped: cannot be kept" in said
