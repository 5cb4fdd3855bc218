"""The kinds of scripts and of ways to start them, each what people write, as small as it goes."""

import sys
from dataclasses import dataclass, field

MARK = '''
"""Leaves a file at the twelfth step, whoever's optimizer makes it."""
import os
from torch.optim.optimizer import register_optimizer_step_post_hook
seen = []
def stepped(*_):
    seen.append(1)
    if len(seen) == 12: open(os.environ["MARK"], "w").close()
register_optimizer_step_post_hook(stepped)
'''
HEAD = """
import os, sys, torch, mark
STEPS = int(os.environ["STEPS"])
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3); torch.set_num_threads(1)
x = torch.randn(64, 16); y = x.sum(1, keepdim=True).tanh()
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
mse = nn.MSELoss()
def end(net):
    with torch.no_grad(): print(f"loss {mse(net(x), y).item():.9g}\\n", end="", flush=True)
"""
LOOP = """
def train(net, opt):
    for i in range(STEPS):
        a, b = x[i % 4 * 16:][:16], y[i % 4 * 16:][:16]
        opt.zero_grad(); loss = mse(net(a), b); loss.backward(); opt.step()
"""
PLAIN = (
    HEAD + LOOP + "net = Net(); train(net, torch.optim.AdamW(net.parameters(), 1e-2)); end(net)\n"
)
LOADER = (
    HEAD
    + """
net = Net(); opt = torch.optim.AdamW(net.parameters(), 1e-2)
loader = DataLoader(TensorDataset(x, y), 16, shuffle=True, num_workers=WORKERS)
for epoch in range(STEPS // 4):
    for a, b in loader: opt.zero_grad(); mse(net(a), b).backward(); opt.step()
end(net)
"""
)
GAN = (
    HEAD
    + """
g, d = nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
og, od = (torch.optim.Adam(m.parameters(), 1e-3) for m in (g, d))
for i in range(STEPS // 2):
    fake = g(torch.randn(16, 4))
    od.zero_grad()
    (d(fake.detach()).square().mean() + (d(x) - 1).square().mean()).backward(); od.step()
    og.zero_grad(); (d(fake) - 1).square().mean().backward(); og.step()
end(d)
"""
)
AUTOCAST = (
    HEAD
    + """
net = Net(); opt = torch.optim.AdamW(net.parameters(), 1e-2)
for i in range(STEPS):
    with torch.autocast("cpu", torch.bfloat16): out = net(x)
    opt.zero_grad(); mse(out.float(), y).backward(); opt.step()
end(net)
"""
)
COMPILED = (
    HEAD
    + LOOP
    + """
net = Net(); fast = torch.compile(net, backend="eager")
train(fast, torch.optim.AdamW(net.parameters(), 1e-2)); end(net)
"""
)
PREPARED = (
    HEAD
    + """
from gpujob_worker import prepare
net = Net(); opt = torch.optim.AdamW(net.parameters(), 1e-2)
job = prepare(net, opt, DataLoader(TensorDataset(x, y), 16, shuffle=True))
for epoch in range(STEPS // 4):
    for a, b in job.loader: opt.zero_grad(); mse(net(a), b).backward(); opt.step()
end(net)
"""
)
PARALLEL = (
    HEAD
    + """
import torch.distributed as dist
def main(rank=None, size=None):
    where = {} if rank is None else dict(init_method="file://" + os.environ["MARK"] + ".group",
                                         rank=rank, world_size=size)
    dist.init_process_group("gloo", **where); rank = dist.get_rank()
    torch.manual_seed(3); torch.set_num_threads(1)
    net = nn.parallel.DistributedDataParallel(Net())
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    for i in range(STEPS):
        opt.zero_grad(); mse(net(x[rank::2]), y[rank::2]).backward(); opt.step()
    if rank == 0: end(net.module)
    dist.destroy_process_group()
"""
)
TORCHRUN = PARALLEL + 'if __name__ == "__main__": main()\n'
SPAWNED = (
    PARALLEL
    + """
if __name__ == "__main__": torch.multiprocessing.spawn(main, args=(2,), nprocs=2)
"""
)
FORKED = (
    HEAD
    + LOOP
    + """
def child(): net = Net(); train(net, torch.optim.AdamW(net.parameters(), 1e-2)); end(net)
if __name__ == "__main__":
    import multiprocessing
    p = multiprocessing.get_context("fork").Process(target=child); p.start(); p.join()
    sys.exit(p.exitcode)
"""
)
ACCELERATE = (
    HEAD
    + """
from accelerate import Accelerator
a = Accelerator(cpu=True); net = Net(); opt = torch.optim.AdamW(net.parameters(), 1e-2)
net, opt, loader = a.prepare(net, opt, DataLoader(TensorDataset(x, y), 16))
for epoch in range(STEPS // 4):
    for b, c in loader: opt.zero_grad(); a.backward(mse(net(b), c)); opt.step()
end(net)
"""
)
TRAINER = (
    HEAD
    + """
from transformers import Trainer, TrainingArguments
class Whole(nn.Module):
    def __init__(self): super().__init__(); self.net = Net()
    def forward(self, x=None, labels=None): return {"loss": mse(self.net(x), labels)}
w = Whole()
Trainer(model=w, args=TrainingArguments(output_dir=os.environ["MARK"] + ".out", max_steps=STEPS,
    per_device_train_batch_size=16, report_to=[], save_strategy="no", logging_strategy="no",
    disable_tqdm=True, use_cpu=True, learning_rate=1e-2),
    train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y)]).train()
end(w.net)
"""
)
LIGHTNING = (
    HEAD
    + """
import warnings; warnings.simplefilter("ignore")
import pytorch_lightning as lightning
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = Net()
    def training_step(self, batch, index): return mse(self.net(batch[0]), batch[1])
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), 1e-2)
if __name__ == "__main__":
    lightning.seed_everything(3); m = Module()
    t = lightning.Trainer(max_steps=STEPS, max_epochs=-1, accelerator="cpu", devices=DEVICES,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, strategy="ddp" if DEVICES > 1 else "auto")
    t.fit(m, DataLoader(TensorDataset(x, y), 16, shuffle=True))
    if t.global_rank == 0: end(m.net)
"""
)
EVALUATING = HEAD + "for i in range(STEPS):\n    with torch.no_grad(): Net()(x)\nend(Net())\n"
TOOL = "import json, sys\nprint(json.dumps(sorted(sys.argv[1:])))\n"

PYTHON = ("python", "train.py")


@dataclass(frozen=True, slots=True)
class Kind:
    """A script and how it is started; other files beside it by name."""

    source: str
    command: tuple[str, ...] = PYTHON
    trains: bool = True
    files: dict[str, str] = field(default_factory=dict[str, str])
    # What it is started through where it is hooked; without it the start-up hook alone.
    through: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "plain loop": Kind(PLAIN),
    "module": Kind(PLAIN, ("python", "-m", "train")),
    "shell": Kind(PLAIN, ("sh", "run.sh"), files={"run.sh": "python train.py\n"}),
    "shell with loader": Kind(
        LOADER.replace("WORKERS", "0"),
        ("sh", "run.sh"),
        files={"run.sh": "python train.py\n"},
        through=("gpujob-run", "--"),
    ),
    "console script": Kind(
        PLAIN, ("./train-it",), files={"train-it": f"#!{sys.executable}\nimport train\n"}
    ),
    "loader": Kind(LOADER.replace("WORKERS", "0")),
    "loader with workers": Kind(LOADER.replace("WORKERS", "1")),
    "two modules (GAN)": Kind(GAN),
    "own autocast": Kind(AUTOCAST),
    "own torch.compile": Kind(COMPILED),
    "prepare()": Kind(PREPARED),
    "forked child": Kind(FORKED),
    "spawned DDP, 2": Kind(SPAWNED),
    "torchrun DDP, 2": Kind(
        TORCHRUN, ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    ),
    "accelerate launch": Kind(ACCELERATE, ("accelerate", "launch", "--cpu", "train.py")),
    "Hugging Face Trainer": Kind(TRAINER),
    "Lightning": Kind(LIGHTNING.replace("DEVICES", "1")),
    "Lightning DDP, 2": Kind(LIGHTNING.replace("DEVICES", "2")),
    "python -I": Kind(
        PLAIN.replace("import os,", "import sys; sys.path[:0] = ['.']\nimport os,"),
        ("python", "-I", "train.py"),
    ),
    "evaluation": Kind(EVALUATING, trains=False),
    "another program": Kind(TOOL, ("python", "train.py", "a"), trains=False),
}
