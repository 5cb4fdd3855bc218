"""Trainers are told what was asked for in their own arguments; the real libraries run here."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from gpujob_api.settings import Precision, Settings, Toggle
from gpujob_worker.adapters import huggingface, lightning, tensorflow_jax
from gpujob_worker.adapters.requested_settings import RequestedSettings
from gpujob_worker.inject.guards import probe_refusal
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from tests.harness.worker_process import run_worker

pytestmark = [pytest.mark.timeout(240), pytest.mark.trainers]

HUGGING_FACE = """
import sys, torch
from torch import nn
from transformers import Seq2SeqTrainingArguments, Trainer
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(8, 16); self.b = nn.Linear(16, 1)
    def forward(self, x=None, labels=None):
        out = self.b(torch.tanh(self.a(x)))
        return {"loss": (out.squeeze(-1) - labels).square().mean(), "logits": out}
x = torch.randn(64, 8)
data = [{"x": r, "labels": r.sum().tanh()} for r in x]
args = Seq2SeqTrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=8, max_steps=12,
    report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
    learning_rate=0.01)
net = Net()
Trainer(model=net, args=args, train_dataset=data).train()
print("batch", args.per_device_train_batch_size, args.gradient_accumulation_steps, args.bf16)
with torch.no_grad(): print("loss", net(x=x, labels=x.sum(1).tanh())["loss"].item())
"""
LIGHTNING = """
import torch, warnings
warnings.simplefilter("ignore")
from torch import nn
import pytorch_lightning as lightning
x = torch.randn(64, 8); y = x.sum(1, keepdim=True).tanh()
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = nn.Linear(8, 1)
    def training_step(self, batch, index): return (self.net(batch[0]) - batch[1]).square().mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters(), lr=0.01)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False,
    enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, y), batch_size=8))
print("precision", trainer.precision)
"""
ACCELERATE = """
import torch
from torch import nn
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = nn.Linear(8, 1); opt = torch.optim.Adam(net.parameters(), lr=0.01)
x = torch.randn(64, 8); y = x.sum(1, keepdim=True).tanh()
data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=8)
net, opt, loader = accelerator.prepare(net, opt, loader)
for a, b in loader:
    opt.zero_grad(); loss = (net(a) - b).square().mean(); accelerator.backward(loss); opt.step()
print("precision", accelerator.mixed_precision)
"""


def run(folder: Path, source: str, settings: dict[str, Any]) -> tuple[str, str]:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(source)
    command = ["python", str(script), str(folder / "out")]
    code, done = run_worker(folder, command, settings=settings)
    assert code == 0, done.errors
    return done.output, "\n".join(done.report["explain"])


def test_hugging_faces_trainer_splits_its_batch(tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "plain", HUGGING_FACE, {"mode": "Off"})
    settings = {"batchPerStep": 2, "precision": "float32"}
    split, said = run(tmp_path / "split", HUGGING_FACE, settings)
    assert "batch 8 1 False" in plain
    assert "batch 2 4 False" in split
    losses = [float(text.splitlines()[-1].split()[1]) for text in (plain, split)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert "hugging face trainer batch split applied: 8 samples in steps of 2" in said


def test_hugging_faces_trainer_uses_what_was_asked_for(tmp_path: Path) -> None:
    output, said = run(tmp_path, HUGGING_FACE, {"precision": "bfloat16"})
    assert "batch 8 1 True" in output
    assert "hugging face trainer applied: bf16=True" in said
    assert "precision skipped: the script uses autocast itself" in said


def test_lightnings_trainer_uses_what_was_asked_for(tmp_path: Path) -> None:
    output, said = run(tmp_path, LIGHTNING, {"precision": "bfloat16", "batchPerStep": 4})
    assert "precision bf16-mixed" in output
    assert "lightning precision applied: bf16-mixed, as asked for" in said
    assert "batch split applied: 8 samples in steps of 4" in said


def test_accelerate_uses_what_was_asked_for(tmp_path: Path) -> None:
    output, said = run(tmp_path, ACCELERATE, {"precision": "bfloat16"})
    assert output == "precision bf16\n"
    assert "accelerate ACCELERATE_MIXED_PRECISION applied: bf16" in said


def arguments(**values: Any) -> Any:
    plain = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "auto_find_batch_size": False,
    }
    return SimpleNamespace(**{**plain, **values})


@pytest.mark.parametrize(
    ("values", "rows", "changes", "line"),
    [
        ({}, 4, (4, 4), "applied: 16 samples in steps of 4"),
        ({}, 8, None, "skipped: steps of 8 do not split 8, 16 in all"),
        ({}, 3, None, "skipped: steps of 3 do not split 8, 16 in all"),
        ({"auto_find_batch_size": True}, 4, None, "skipped: auto_find_batch_size"),
    ],
)
def test_the_batch_keeps_its_total(
    values: dict[str, Any], rows: int, changes: tuple[int, int] | None, line: str
) -> None:
    log = DecisionLog()
    found = huggingface.changed_arguments(
        arguments(**values), set(), RequestedSettings(batch_per_step=rows), log
    )
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    assert found == ({} if changes is None else dict(zip(names, changes, strict=True)))
    assert log.lines[0].startswith(f"hugging face trainer batch split {line}")


def test_what_the_script_chose_stays() -> None:
    wishes = RequestedSettings(mixed_precision="fp16", compile=True, loader_workers=2)
    log = DecisionLog()
    chosen = {"tf32", "torch_compile_backend", "dataloader_num_workers"}
    assert huggingface.changed_arguments(arguments(), chosen, wishes, log) == {}
    assert huggingface.changed_arguments(arguments(), set(), wishes, log) == {
        "fp16": True,
        "torch_compile": True,
        "dataloader_num_workers": 2,
        "dataloader_persistent_workers": True,
    }
    for keywords in ({"precision": "64-true"}, {"plugins": [object()]}):
        assert lightning.chosen_precision(keywords, wishes, log) is None
    assert log.lines[-1] == "lightning precision skipped: the script chooses it itself"
    assert lightning.chosen_precision({}, wishes, log) == "16-mixed"


def test_variables_that_are_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.delenv("ACCELERATE_DYNAMO_BACKEND", raising=False)
    log = DecisionLog()
    huggingface.set_variables(RequestedSettings("bf16", compile=True), log)
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "no"
    assert os.environ.pop("ACCELERATE_DYNAMO_BACKEND") == "inductor"
    assert "skipped: it is 'no' already" in log.lines[0]


def test_wishes_follow_settings_and_switches() -> None:
    settings = Settings(precision=Precision.BFLOAT16, batch_per_step=4, compile=Toggle.ON)
    assert RequestedSettings.of(settings, Features()) == RequestedSettings("bf16", 4, True, None)
    off = Features.without("precision", "batch_split", "compile")
    assert RequestedSettings.of(settings, off) == RequestedSettings()
    assert (
        RequestedSettings.of(Settings(precision=Precision.AUTO), Features()) == RequestedSettings()
    )


def test_other_frameworks_get_variables_and_are_measured_from_outside(tmp_path: Path) -> None:
    for name in ("tensorflow", "jax"):
        (tmp_path / f"{name}.py").write_text("import os\nseen = dict(os.environ)\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nbefore = set(os.environ)\nimport jax, tensorflow\n"
        "print(sorted(set(tensorflow.seen) - before), jax.seen['XLA_PYTHON_CLIENT_PREALLOCATE'])\n"
    )
    command = ["python", str(script)]
    settings = {"compile": "On", "precision": "bfloat16"}
    _, done = run_worker(tmp_path, command, settings=settings, environment={"TF_XLA_FLAGS": "mine"})
    names = ["JAX_DEFAULT_MATMUL_PRECISION", "TF_FORCE_GPU_ALLOW_GROWTH"]
    assert done.output == f"{[*names, 'XLA_PYTHON_CLIENT_PREALLOCATE']} false\n"
    said = done.report["explain"]
    assert all(line.endswith("the GPU is measured from outside") for line in said), said
    _, off = run_worker(tmp_path / "off", command, settings={"mode": "Off"})
    assert "KeyError: 'XLA_PYTHON_CLIENT_PREALLOCATE'" in off.errors


def test_precisions_of_other_frameworks() -> None:
    exact = tensorflow_jax.tensorflow_variables(Settings(precision=Precision.FLOAT32))
    assert exact["NVIDIA_TF32_OVERRIDE"] == "0"
    assert tensorflow_jax.jax_variables(Settings(precision=Precision.TF32))[
        "JAX_DEFAULT_MATMUL_PRECISION"
    ] == ("tensorfloat32")


CHECKPOINTED = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging
logging.set_verbosity_error()
torch.manual_seed(2)
shape = dict(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)
net = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
net.gradient_checkpointing_enable()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
ids = torch.randint(0, 32, (6, 12))
for step in range(12):
    opt.zero_grad(); loss = net(input_ids=ids, labels=ids).loss; loss.backward(); opt.step()
    print(loss.item())
"""


def test_checkpointing_of_transformers_does_not_hinder_precision(tmp_path: Path) -> None:
    """It hooks the embedding; that hook marks what comes out and calls nothing of the script."""
    script = tmp_path / "train.py"
    script.write_text(CHECKPOINTED)
    command = ["python", str(script)]
    code, plain = run_worker(tmp_path / "plain", command, settings={"mode": "Off"})
    assert code == 0, plain.errors
    settings = {"precision": "bfloat16", "batchPerStep": 2, "compile": "Off"}
    code, run = run_worker(tmp_path / "run", command, settings=settings)
    assert code == 0, run.errors
    said = "\n".join(run.report["explain"])
    assert "precision applied: asked for" in said
    assert "batch split skipped: module transformer.wte has hooks, which would run" in said
    losses = [[float(line) for line in text.split()] for text in (plain.output, run.output)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1][:7] == losses[0][:7], "the first steps are as written"


def test_other_hooks_of_a_trainers_library_are_the_scripts() -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))

    def counts(*_: Any) -> None: ...

    counts.__module__ = "transformers.modeling_utils"
    model[0].register_forward_hook(counts)
    assert (probe_refusal(model) or "").startswith("module 0 has hooks of the script")


COLLECTING = """
import torch
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
net = BertModel(BertConfig(vocab_size=32, output_hidden_states=True, **sizes))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    kept = net(torch.randint(0, 32, (8, 4))).hidden_states
    opt.zero_grad(); kept[1].square().mean().backward(); opt.step()
    assert len(kept) == 3, kept
"""


def test_models_of_transformers_that_return_hidden_states_are_tuned(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COLLECTING)
    code, found = run_worker(
        tmp_path, ["python", str(script)], options=("--explain", "--tuning-seconds", "2")
    )
    assert code == 0, found.errors
    said = "\n".join(found.report["explain"])
    assert "which would run in probes too" not in said, said
    assert "precision " in said, said
