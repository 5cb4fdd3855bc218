"""Training scripts as people write them, which know nothing of checkpoints; they stop themselves.

Arguments: worker processes of the loader, batches that make a step, and the step after which the
script sends itself SIGTERM (0: never). The last line printed is a digest of the weights. Samples
draw random numbers, there is dropout, a schedule, and an evaluation after each epoch.
"""

from pathlib import Path

from tests.harness.worker_process import WorkerRun, run_worker

BEGIN = """
import hashlib, os, random, signal, sys, warnings
import numpy, torch
from torch import nn
warnings.simplefilter("ignore")
workers, accumulated = (int(text) for text in sys.argv[1:3])
torch.manual_seed(1); random.seed(1); numpy.random.seed(1)
x = torch.randn(96, 8)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 96
    def __getitem__(self, i):
        noise = torch.randn(8)
        if workers == 0: noise = noise + random.random() + float(numpy.random.rand())
        return {"x": x[i] + 0.1 * noise, "labels": x[i].sum().tanh()}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
    def forward(self, x=None, labels=None):
        out = self.layers(x)
        return {"loss": (out.squeeze(-1) - labels).square().mean(), "logits": out}
def stops(step):
    # A variable would come back as it was in the attempt before.
    if step and step == int(sys.argv[3]): os.kill(os.getpid(), signal.SIGTERM)
def loader(**more):
    return torch.utils.data.DataLoader(
        Data(), batch_size=8 // accumulated, num_workers=workers, **more)
net = Net()
"""
END = """
digest = hashlib.sha256()
for tensor in net.state_dict().values(): digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""
HUGGING_FACE = (
    BEGIN
    + """
from transformers import Trainer, TrainerCallback, TrainingArguments
class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **more): stops(state.global_step)
args = TrainingArguments(output_dir="OUT", per_device_train_batch_size=8 // accumulated,
    gradient_accumulation_steps=accumulated, num_train_epochs=3, report_to=[], save_strategy="no",
    logging_strategy="no", disable_tqdm=True, use_cpu=True, learning_rate=0.01, warmup_steps=5,
    dataloader_num_workers=workers, eval_strategy="epoch", enable_jit_checkpoint=JIT)
Trainer(model=net, args=args, train_dataset=Data(), eval_dataset=Data(), callbacks=[Stop()]).train()
"""
    + END
)
LIGHTNING = (
    BEGIN
    + """
import pytorch_lightning as lightning
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = net
    def training_step(self, batch, index): return self.net(**batch)["loss"]
    def validation_step(self, batch, index): self.log("loss", self.net(**batch)["loss"])
    def configure_optimizers(self):
        made = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [made], [torch.optim.lr_scheduler.StepLR(made, 1, 0.8)]
class Stop(lightning.Callback):
    def on_train_batch_end(self, trainer, *more): stops(trainer.global_step)
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, callbacks=[Stop()],
    enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    accumulate_grad_batches=accumulated)
trainer.fit(Module(), loader(shuffle=True), loader())
"""
    + END
)
LOOP = """
train, test = loader(shuffle=True), loader()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
PREPARE
step = 0
for epoch in range(3):
    net.train()
    total = batches = 0
    for batch in train:
        loss = net(**batch)["loss"] / accumulated
        BACKWARD
        batches += 1
        total += loss.item()
        if batches % accumulated == 0:
            optimizer.step(); optimizer.zero_grad()
            step += 1
            stops(step)
    schedule.step()
    net.eval()
    with torch.no_grad(): value = sum(net(**batch)["loss"].item() for batch in test) / len(test)
    print("epoch", epoch, total / batches, value, flush=True)
    torch.save(net.state_dict(), f"OUT-{epoch}.pt")
"""
PLAIN = BEGIN + LOOP.replace("PREPARE", "").replace("BACKWARD", "loss.backward()") + END
# Processes that train together; two more arguments: whom the stop reaches, and a folder of theirs.
GROUP = """
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(100 + rank); random.seed(100 + rank); numpy.random.seed(100 + rank)
stopped_by = stops
def stops(step):
    if rank == int(sys.argv[4]): stopped_by(step)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[5]}", rank=rank, world_size=size)
"""
_SHARES = (
    LOOP.replace("loader(shuffle=True)", "loader(sampler=order)", 1)
    .replace("BACKWARD", "loss.backward()")
    .replace("    net.train()", "    net.train(); order.set_epoch(epoch)")
    .replace(
        "train, test =",
        "order = torch.utils.data.distributed.DistributedSampler(Data(), size, rank)\n"
        "train, test =",
    )
    .replace("step += 1\n", 'step += 1; print("step", step, flush=True)\n')
    .replace("OUT-{epoch}", "OUT-{rank}-{epoch}")
)
REPLICAS = (
    BEGIN
    + GROUP
    + _SHARES.replace("PREPARE", "net = nn.parallel.DistributedDataParallel(net)")
    + END
)
# Each process has a part of each parameter, and of the optimizer's state; also of a layer whose
# rows cannot be shared out evenly. The digest is of the part.
SHARDS = (
    BEGIN
    + GROUP
    + """
from torch.distributed.fsdp import fully_shard
mesh = dist.init_device_mesh("cpu", (size,))
torch.manual_seed(1)
net = Net(); net.layers[3] = nn.Sequential(nn.Linear(16, 3), nn.Linear(3, 1))
for layer in (net.layers[0], net.layers[3]): fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
torch.manual_seed(100 + rank)
"""
    + _SHARES.replace("PREPARE", "")
    + END.replace(
        "digest.update(", "digest.update(getattr(tensor, '_local_tensor', tensor).contiguous()."
    ).replace(".contiguous().tensor.", ".contiguous().")
)
# The same under torchrun; the fourth argument is whom the stop reaches: a rank, or the launcher.
_ENDS = "os.kill(os.getpid(), signal.SIGTERM)"
_REACHES = "os.kill(os.getppid() if sys.argv[4] == 'launcher' else os.getpid(), signal.SIGTERM)"
REPLICAS_OF_LAUNCHER = (
    REPLICAS.replace(', init_method=f"file://{sys.argv[5]}", rank=rank, world_size=size', "")
    .replace("rank == int(sys.argv[4])", 'str(rank) == sys.argv[4].replace("launcher", "1")')
    .replace(_ENDS, _REACHES)
)
ACCELERATE = (
    BEGIN
    + LOOP.replace(
        "PREPARE",
        "from accelerate import Accelerator\n"
        "one = Accelerator(cpu=True)\n"
        "net, optimizer, train, test, schedule = "
        "one.prepare(net, optimizer, train, test, schedule)\n",
    ).replace("BACKWARD", "one.backward(loss)")
    + END
)

# The same trainers in processes that train together.
ACCELERATE_GROUP = ACCELERATE.replace(BEGIN, BEGIN + GROUP)
HUGGING_FACE_GROUP = HUGGING_FACE.replace(BEGIN, BEGIN + GROUP).replace("JIT", "False")
# Lightning starts the other process itself.
LIGHTNING_GROUP = LIGHTNING.replace(
    "logger=False", 'logger=False, devices=2, strategy="ddp"'
).replace("stops(trainer.global_step)", "stops(trainer.global_step * (trainer.global_rank == 0))")

# A script whose loop is put in for CODE; its argument is the step after which it stops itself, and
# it prints its count of steps with the digest of its weights.
OWN_LOOP = """
import hashlib, os, signal, sys, torch
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(40, 4)
def stops(step):
    if step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
def loader():
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
def learn(batch):
    global step
    optimizer.zero_grad(); model(batch).square().mean().backward(); optimizer.step()
    step += 1
    stops(step)
step = 0
CODE
print(step, hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
"""


def attempt(
    folder: Path, number: int, source: str, *arguments: int, grace_seconds: float = 60.0
) -> WorkerRun:
    """One attempt at a script, which may resume; `arguments` are those of the script."""
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(source.replace("OUT", str(folder / "out")).replace("JIT", "False"))
    _, done = run_worker(
        folder / f"attempt-{number}",
        ["python", str(script), *map(str, arguments)],
        # What a measurement finds may differ from attempt to attempt, and its rounding with it.
        settings={"mode": "Recommend"},
        options=("--explain", "--tuning-seconds", "1"),
        environment={
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(number),
            "GPUJOB_GRACE_SECONDS": str(grace_seconds),
        },
    )
    return done


def said(done: WorkerRun) -> str:
    return "\n".join(done.report["explain"])


def last_line(done: WorkerRun) -> str:
    """What the script, which ended well, printed last."""
    assert done.process.exitcode == 0, done.errors
    return done.output.splitlines()[-1]
