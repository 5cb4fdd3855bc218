"""Scripts that train several modules, each under DistributedDataParallel."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch._C._distributed_c10d import HashStore

from gpujob_api.settings import Settings
from gpujob_worker.control.consensus import Consensus
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.session import Session
from gpujob_worker.tune.tuner import Tuner
from tests.harness.data_parallel import said, train
from tests.harness.trained_models import trained_model

pytestmark = pytest.mark.timeout(240)

HEAD = """
import collections, json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
what, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

dist.init_process_group("gloo", init_method="file://" + out + "/group", rank=rank, world_size=size)
torch.manual_seed(1)
SEEN = collections.Counter()
class Net(nn.Sequential):
    def forward(s, x):
        x = s[0](x); SEEN[f"{s.name} {str(x.dtype)[6:]}"] += 1
        return s[2](s[1](x))
def net(name, *sizes):
    a, b, c = sizes; m = Net(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c)); m.name = name
    return DistributedDataParallel(m)
generator = torch.Generator().manual_seed(7 + rank)
noise = lambda *shape: torch.randn(*shape, generator=generator)
"""
ADVERSARIES = """
g, d = net("g", 4, 64, 16), net("d", 16, 64, 1)
go, do = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
bce = F.binary_cross_entropy_with_logits
for i in range(steps):
    if i == steps - 1: SEEN.clear()
    do.zero_grad(); fake = g(noise(64, 4)); x = noise(64, 16) + 1
    ld = bce(d(x), torch.ones(64, 1)) + bce(d(fake.detach()), torch.zeros(64, 1)); ld.backward()
    do.step()
    go.zero_grad(); loss = bce(d(fake), torch.ones(64, 1)); loss.backward(); go.step()
modules = [g, d]
"""
CRITIC = """
actor, critic = net("actor", 16, 64, 4), net("critic", 16, 64, 1)
opt = torch.optim.AdamW([*actor.parameters(), *critic.parameters()], 1e-3)
for i in range(steps):
    if i == steps - 1: SEEN.clear()
    x = noise(64, 16); opt.zero_grad()
    value = critic(x).squeeze(1); chance = F.log_softmax(actor(x), 1)[:, 0]
    gain = x.sum(1).tanh() - value
    loss = gain.square().mean() - (chance * gain.detach()).mean(); loss.backward(); opt.step()
modules = [actor, critic]
"""
# The second process calls the actor before the critic in its first step.
OPPOSED = """
actor, critic = net("actor", 16, 64, 4), net("critic", 16, 64, 1)
opt = torch.optim.AdamW([*actor.parameters(), *critic.parameters()], 1e-3)
for i in range(steps):
    if i == steps - 1: SEEN.clear()
    x = noise(64, 16); opt.zero_grad()
    if rank and not i: chance, value = actor(x), critic(x)
    else: value, chance = critic(x), actor(x)
    gain = x.sum(1).tanh() - value.squeeze(1); loss = gain.square().mean(); loss.backward()
    (-(F.log_softmax(chance, 1)[:, 0] * gain.detach()).mean()).backward(); opt.step()
modules = [actor, critic]
"""
# The discriminator steps while gradients of the generator wait for their exchange.
WAITING = """
g, d = net("g", 4, 64, 16), net("d", 16, 64, 1)
go, do = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
bce, ones = F.binary_cross_entropy_with_logits, torch.ones(64, 1)
for i in range(steps):
    go.zero_grad(); huge = 1e36 if rank and i == 12 else 1.0
    with g.no_sync(), d.no_sync(): (bce(d(g(noise(64, 4))), ones) * huge).backward()
    do.zero_grad(); ld = bce(d(noise(64, 16) + 1), ones); ld.backward(); do.step()
    loss = bce(d(g(noise(64, 4))), ones); loss.backward(); go.step()
modules = [g, d]
"""
END = """
values = torch.cat([p.detach().flatten() for m in modules for p in m.parameters()]).tolist()
print(json.dumps({"seen": SEEN, "values": values, "loss": loss.item()}), flush=True)
dist.destroy_process_group()
"""
KERNELS = 'SEEN = {n: o.param_groups[0]["fused"] for n, o in (("do", do), ("go", go))}\n'
SCRIPTS = {"adversaries": HEAD + ADVERSARIES + END, "critic": HEAD + CRITIC + END}
KNOWN = {"precision": "bfloat16"}


def asked(known: dict[str, Any] | None) -> dict[str, Any]:
    return {"precision": "bfloat16"} if known is None else {"precision": "bfloat16", "tuned": known}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("known", [None, KNOWN])
def test_each_module_gets_in_all_processes_what_the_first_one_gets(
    name: str, known: dict[str, Any] | None, tmp_path: Path
) -> None:
    outputs, reports = train(tmp_path / "run", steps=14, source=SCRIPTS[name], **asked(known))
    for output, text, report in zip(outputs, said(reports), reports, strict=True):
        assert report["tuned"]["precision"] == "bfloat16", text
        assert all(key.endswith(" bfloat16") for key in output["seen"]), text
        assert len(output["seen"]) == 2
        assert "2 processes decided together; the same in all" in text
    plain, _ = train(tmp_path / "plain", steps=14, source=SCRIPTS[name], mode="Off")
    assert outputs[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.05)


@pytest.mark.parametrize("known", [None, {"fusedOptimizer": True, "optimizersJudged": 2}])
def test_each_optimizer_gets_in_all_processes_the_kernel_that_the_first_one_gets(
    known: dict[str, Any] | None, tmp_path: Path
) -> None:
    """The harness compares the parameters of the processes."""
    source = SCRIPTS["adversaries"].replace("modules =", KERNELS + "modules =")
    settings: dict[str, Any] = {"precision": "float32", "tuned": known} if known else {}
    outputs, reports = train(tmp_path, steps=14, source=source, **settings)
    kernels = [output["seen"] for output in outputs]
    assert kernels[0] == kernels[1], said(reports)
    assert len(set(kernels[0].values())) == 1, "of both optimizers or of none"
    if known:
        assert kernels[0] == {"do": True, "go": True}, said(reports)
        assert all("of Adam 2 applied: from an earlier run" in text for text in said(reports))


@pytest.mark.parametrize("known", [None, KNOWN])
def test_what_one_process_finds_unsafe_for_a_module_no_process_applies(
    known: dict[str, Any] | None, tmp_path: Path
) -> None:
    """A hook on the second module in one process alone."""
    hooked = CRITIC.replace("opt =", "if rank: actor.module[0].register_forward_hook(none)\nopt =")
    hooked = "none = lambda *_: None" + hooked
    outputs, reports = train(tmp_path, steps=14, source=HEAD + hooked + END, **asked(known))
    for output, text in zip(outputs, said(reports), strict=True):
        assert output["seen"] == {"critic bfloat16": 1, "actor float32": 1}, text
    assert "of Net 2 skipped: not safe in all processes" in said(reports)[0]
    assert "of Net 2 skipped: module 0 has hooks of the script" in said(reports)[1]


@pytest.mark.parametrize("known", [None, {"precision": "float16"}])
def test_losses_are_scaled_for_the_first_module_alone(
    known: dict[str, Any] | None, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**asked(known), "precision": "float16"}
    outputs, reports = train(tmp_path, steps=14, source=SCRIPTS["critic"], **settings)
    for output, text in zip(outputs, said(reports), strict=True):
        assert output["seen"] == {"critic float16": 1, "actor float32": 1}, text


def test_an_overflow_that_others_do_not_know_yet_skips_no_step_of_another_module(
    tmp_path: Path,
) -> None:
    """The harness compares the parameters of the processes."""
    settings: dict[str, Any] = {"precision": "float16", "tuned": {"precision": "float16"}}
    _, reports = train(tmp_path, steps=14, source=HEAD + WAITING + END, **settings)
    assert [report["tuned"]["precision"] for report in reports] == ["float16"] * 2
    assert [report["skippedSteps"] for report in reports] == [1, 1]


def test_processes_that_call_modules_in_another_order_apply_nothing(tmp_path: Path) -> None:
    """They would measure and check different modules."""
    outputs, reports = train(tmp_path, steps=14, source=HEAD + OPPOSED + END, **asked(None))
    for output, report in zip(outputs, reports, strict=True):
        assert output["seen"] == {"critic float32": 1, "actor float32": 1}
        assert report["tuned"]["precision"] == "float32"
    assert "the first process proposed nothing" in said(reports)[1]


@pytest.mark.parametrize("known", [None, KNOWN])
def test_a_module_that_is_met_after_the_tuning_runs_as_written(
    known: dict[str, Any] | None, tmp_path: Path
) -> None:
    script = CRITIC.replace("opt =", 'late = net("late", 16, 64, 1)\nopt =')
    script = script.replace(
        "    gain =", "    if i > 9: value = value + late(x).squeeze(1)\n    gain ="
    )
    script = script.replace("*critic.p", "*late.parameters(), *critic.p")
    outputs, reports = train(tmp_path, steps=14, source=HEAD + script + END, **asked(known))
    for output, text in zip(outputs, said(reports), strict=True):
        expected = {"critic bfloat16": 1, "actor bfloat16": 1, "late float32": 1}
        assert output["seen"] == expected, text


def test_one_process_that_loses_its_loss_takes_back_what_all_modules_have(tmp_path: Path) -> None:
    lost = CRITIC.replace(
        "; loss.backward", "; loss = loss + 1e6 * (rank and i > 12); loss.backward"
    )
    outputs, reports = train(tmp_path, steps=90, source=HEAD + lost + END, **asked(None))
    for output, text in zip(outputs, said(reports), strict=True):
        assert output["seen"] == {"critic float32": 1, "actor float32": 1}, text
        assert "roll-back to plain settings: the loss diverges" in text
        assert "precision of Net 2 applied" in text


@pytest.mark.parametrize("known", [None, KNOWN])
def test_modules_beside_the_first_run_as_written_under_a_memory_limit(
    known: dict[str, Any] | None, tmp_path: Path
) -> None:
    """Of known settings the first module takes what is safe."""
    source, limit = SCRIPTS["critic"], 4 * 2**30
    outputs, reports = train(tmp_path, steps=14, source=source, limit_bytes=limit, **asked(known))
    first = "float32" if known is None else "bfloat16"
    for output, text in zip(outputs, said(reports), strict=True):
        assert output["seen"] == {f"critic {first}": 1, "actor float32": 1}, text


def test_a_module_in_the_place_of_the_first_is_measured_by_the_tuner_that_all_share() -> None:
    """The script has dropped the one before. What was found out about that one is not of this."""
    first, second, third = roots = [Root(nn.Linear(2, 2), lambda _: None) for _ in range(3)]
    for root in roots:
        root.install()
    model = trained_model(Session(Environment(settings=Settings())), *roots)
    model.decide_together(Consensus(HashStore(), 0, 2))
    model.first.use(Tuner(Settings(), Features(), DecisionLog(), 1.0))
    model.first.refuse("it has hooks")
    model.choose_for(second)
    model.drop(first)
    assert model.first.tuner is None
    assert model.first.refusal is None
    model.drop(second)
    assert model.roots == [third]
    assert model.first.refusal == "it was not looked at by all processes"
