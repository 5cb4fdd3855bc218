"""Training scripts put together from parts that people write, by a seed.

A script has a loop, which calls `BODY` for each batch, and a few parts of state: each part is some
lines before the loop, some for each step, some for each epoch, and some that print what it has at
the end. Every script sets its seeds itself, and prints the hash of its weights last.
"""

import random
import textwrap
from dataclasses import dataclass, field

EPOCHS = 4
HEAD = """
import collections, copy, csv, dataclasses, hashlib, itertools, json, logging, math, os, random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
exec(compile(os.environ["SHAPES_STOP"], "<stop>", "exec"), {})
torch.manual_seed(1); random.seed(2); np.random.seed(3)
features = torch.randn(80, 6); targets = features.sum(1, keepdim=True) + 0.1 * torch.randn(80, 1)
dataset = TensorDataset(features, targets)
def new_model():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
"""
STEP = """
prediction = model(inputs)
loss = nn.functional.mse_loss(prediction, labels)
EXTRA
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
ACCUMULATED = """
prediction = model(inputs)
loss = nn.functional.mse_loss(prediction, labels) / 2
EXTRA
loss.backward()
micro += 1
if micro % 2 == 0:
    optimizer.step()
    optimizer.zero_grad()
"""
END = """
digest = hashlib.sha256()
for value in model.state_dict().values(): digest.update(value.numpy().tobytes())
print("END", digest.hexdigest()[:16])
"""


@dataclass(frozen=True)
class Part:
    """Lines of a script: before the loop, before and after each step, of each epoch, at the end."""

    name: str
    before: str = ""
    extra: str = ""
    step: str = ""
    epoch: str = ""
    end: str = ""
    # Variables that a function has to declare.
    names: tuple[str, ...] = ()


PARTS = (
    Part(
        "counter", "steps = 0", step="steps += 1", end='print("END steps", steps)', names=("steps",)
    ),
    Part(
        "every tenth step",
        "seen = 0; shown = []",
        step="seen += 1\nif seen % 10 == 0: shown.append(round(loss.item(), 6))",
        end='print("END shown", shown)',
        names=("seen",),
    ),
    Part(
        "bare parameter",
        "scale = nn.Parameter(torch.zeros(())); optimizer.add_param_group({'params': [scale]})",
        extra="loss = loss * torch.exp(scale) - scale",
        end='print("END scale", scale.item())',
    ),
    Part(
        "averaged weights",
        "average = {k: v.clone() for k, v in model.state_dict().items()}",
        step="for k, v in model.state_dict().items():\n"
        "    if v.is_floating_point(): average[k].lerp_(v, 0.1)\n"
        "    else: average[k].copy_(v)",
        end='print("END average", sum(v.double().sum().item() for v in average.values()))',
    ),
    Part(
        "averaged model",
        "shadow = copy.deepcopy(model)",
        step="with torch.no_grad():\n"
        "    for a, b in zip(shadow.parameters(), model.parameters()): a.lerp_(b, 0.2)",
        end='print("END shadow", sum(p.sum().item() for p in shadow.parameters()))',
    ),
    Part(
        "meter",
        "class Meter:\n"
        "    def __init__(self): self.total, self.count = 0.0, 0\n"
        "    def add(self, value): self.total += value; self.count += 1\n"
        "meter = Meter()",
        step="meter.add(loss.item())",
        end='print("END meter", meter.total / meter.count, meter.count)',
    ),
    Part(
        "histories",
        "counts = collections.Counter(); groups = collections.defaultdict(list)\n"
        "last = collections.deque(maxlen=3)",
        step="counts[int(loss.item() * 10)] += 1; groups[len(last)].append(loss.item())\n"
        "last.append(loss.item())",
        end='print("END histories", sorted(counts.items()), dict(groups), list(last))',
    ),
    Part(
        "replay",
        "memory = collections.deque(maxlen=20)",
        extra="if memory:\n"
        "    old_inputs, old_labels = random.choice(memory)\n"
        "    loss = loss + 0.1 * nn.functional.mse_loss(model(old_inputs), old_labels)",
        step="memory.append((inputs.clone(), labels.clone()))",
        end='print("END memory", sum(a.sum().item() for a, _ in memory))',
    ),
    Part(
        "own generators",
        "own = random.Random(5); other = np.random.default_rng(6)\n"
        "third = torch.Generator().manual_seed(7)",
        extra="loss = loss * (1 + 0.01 * own.random() + 0.01 * other.random()\n"
        "    + 0.01 * torch.rand((), generator=third))",
    ),
    Part(
        "global draws",
        extra="loss = loss + 0.01 * random.random() * prediction.mean() * float(np.random.rand())",
    ),
    Part(
        "warm-up by hand",
        "number = 0",
        extra="number += 1\nfor group in optimizer.param_groups:\n"
        "    group['lr'] = 0.02 * min(1.0, number / 10) * (0.5 + 0.5 * math.cos(number / 40))",
        names=("number",),
    ),
    Part(
        "step schedule",
        "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)",
        epoch="schedule.step()",
        end='print("END rate", schedule.get_last_lr())',
    ),
    Part(
        "milestones",
        "schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.5)",
        epoch="schedule.step()",
        end='print("END rate", optimizer.param_groups[0]["lr"])',
    ),
    Part(
        "one cycle",
        "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=1000)",
        step="schedule.step()",
        end='print("END rate", optimizer.param_groups[0]["lr"])',
    ),
    Part(
        "plateau",
        "schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
        epoch="schedule.step(loss.item())",
        end='print("END rate", optimizer.param_groups[0]["lr"])',
    ),
    Part(
        "evaluation and early stop",
        "held = DataLoader(dataset, batch_size=20); best = float('inf'); bad = 0\n"
        "def evaluate():\n"
        "    model.eval()\n"
        "    with torch.no_grad():\n"
        "        total = 0.0\n"
        "        for a, b in held:\n"
        "            total += nn.functional.mse_loss(model(a), b).item()\n"
        "    model.train()\n"
        "    return total / len(held)",
        epoch="value = evaluate()\n"
        "if value < best: best, bad = value, 0; torch.save(model.state_dict(), 'best.pt')\n"
        "else: bad += 1",
        end='print("END best", best, bad)',
        names=("best", "bad"),
    ),
    Part(
        "statistics",
        "total = torch.zeros(6); rows = 0\n"
        "for a, _ in DataLoader(dataset, batch_size=16):\n"
        "    total += a.sum(0); rows += len(a)\n"
        "mean = total / rows",
        extra="loss = loss + 0.01 * (inputs - mean).pow(2).mean() * prediction.mean()",
        end='print("END mean", mean.tolist(), rows)',
    ),
    Part(
        "log of each step",
        "log = open('steps.csv', 'w', newline=''); rows_of_log = csv.writer(log)",
        step="rows_of_log.writerow([f'{loss.item():.6f}'])",
        end="log.close()",
    ),
    Part(
        "log of each epoch",
        epoch="with open('epochs.jsonl', 'a') as stream:\n"
        "    stream.write(json.dumps({'loss': round(loss.item(), 6)}) + '\\n')",
    ),
    Part(
        "logging",
        "logger = logging.getLogger('train'); logger.setLevel(logging.INFO)\n"
        "logger.addHandler(logging.FileHandler('train.log', mode='w'))",
        step="logger.info('loss %.6f', loss.item())",
    ),
    Part(
        "checkpoints of its own",
        "epochs_done = 0",
        epoch="epochs_done += 1\n"
        "torch.save({'model': model.state_dict(), 'epoch': epochs_done}, f'own-{epochs_done}.pt')\n"
        "np.save('losses.npy', np.array([loss.item()]))",
        names=("epochs_done",),
    ),
    Part(
        "dataclass",
        "@dataclasses.dataclass\nclass State:\n"
        "    steps: int = 0\n    losses: list = dataclasses.field(default_factory=list)\n"
        "state = State()",
        step="state.steps += 1; state.losses.append(loss.item())",
        end='print("END state", state.steps, sum(state.losses))',
    ),
    Part(
        "closure",
        "def make_counter():\n    count = 0\n    def add(amount):\n        nonlocal count\n"
        "        count += amount\n        return count\n    return add\n"
        "add = make_counter()",
        step="add(loss.item())",
        end='print("END closure", add(0))',
    ),
    Part(
        "freezing",
        "turn = 0",
        epoch="turn += 1\nfor p in model[0].parameters(): p.requires_grad_(turn % 2 == 0)",
        names=("turn",),
    ),
    Part(
        "array",
        "table = np.zeros((40, 3)); at = 0",
        step="table[at % 40] = loss.item(); at += 1",
        end='print("END table", table.sum(), at)',
        names=("at",),
    ),
    Part("clipping", extra="", step="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
)

LOADERS = (
    "DataLoader(dataset, batch_size=8, shuffle=True)",
    "DataLoader(dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(4))",
    "DataLoader(dataset, batch_size=8, sampler=WeightedRandomSampler([1.0] * 80, 80))",
    "DataLoader(dataset, batch_size=7, drop_last=True, shuffle=True)",
)
LOOPS = {
    "epochs": "for epoch in range(EPOCHS):\n    for inputs, labels in loader:\n        BODY\n"
    "    EACH\n",
    "enumerate": "for epoch in range(EPOCHS):\n"
    "    for index, (inputs, labels) in enumerate(loader):\n        BODY\n    EACH\n",
    "budget": "made = 0\nwhile made < 30:\n    for inputs, labels in loader:\n        BODY\n"
    "        made += 1\n        if made >= 30: break\n    EACH\n",
    "refill": "batches = iter(loader)\nfor number in range(36):\n    try:\n"
    "        inputs, labels = next(batches)\n    except StopIteration:\n"
    "        batches = iter(loader)\n        inputs, labels = next(batches)\n    BODY\n"
    "    if number % 9 == 8:\n        EACH\n",
    "cycle": "batches = itertools.cycle(loader)\nfor number in range(36):\n"
    "    inputs, labels = next(batches)\n    BODY\n    if number % 9 == 8:\n        EACH\n",
    "endless generator": "def endless(of):\n    while True:\n        for pair in of:\n"
    "            yield pair\nbatches = endless(loader)\nnumber = 0\nwhile True:\n"
    "    inputs, labels = next(batches)\n    BODY\n    number += 1\n"
    "    if number % 9 == 0:\n        EACH\n    if number == 36: break\n",
    "two loaders": "second = DataLoader(dataset, batch_size=8, shuffle=True)\n"
    "for epoch in range(EPOCHS):\n    for (inputs, labels), (more, _) in zip(loader, second):\n"
    "        inputs = inputs + 0.01 * more[: len(inputs)]\n        BODY\n    EACH\n",
    "random batches": "for number in range(36):\n    rows_now = torch.randint(0, 80, (8,))\n"
    "    inputs, labels = features[rows_now], targets[rows_now]\n    BODY\n"
    "    if number % 9 == 8:\n        EACH\n",
    "permutation": "for epoch in range(EPOCHS):\n    order = torch.randperm(80)\n"
    "    for start in range(0, 80, 8):\n        picked = order[start : start + 8]\n"
    "        inputs, labels = features[picked], targets[picked]\n        BODY\n    EACH\n",
    "shuffled chunks": "for epoch in range(EPOCHS):\n"
    "    chunks = [torch.arange(80)[start : start + 8] for start in range(0, 80, 8)]\n"
    "    random.shuffle(chunks)\n    for picked in chunks:\n"
    "        inputs, labels = features[picked], targets[picked]\n        BODY\n    EACH\n",
    "one function an epoch": "def train_one_epoch(model, optimizer, loader):\n    NAMES\n"
    "    for inputs, labels in loader:\n        BODY\n    EACH\n"
    "for epoch in range(EPOCHS):\n    train_one_epoch(model, optimizer, loader)\n",
    "trainer": "class Trainer:\n    def __init__(self): self.made = 0\n"
    "    def fit(self):\n        NAMES\n        for epoch in range(EPOCHS):\n"
    "            for inputs, labels in loader:\n                BODY\n"
    "                self.made += 1\n            EACH\n"
    "trainer = Trainer()\ntrainer.fit()\nprint('END made', trainer.made)\n",
    "two stages": "for epoch in range(2):\n    for inputs, labels in loader:\n        BODY\n"
    "    EACH\n"
    "for p in model[0].parameters(): p.requires_grad_(False)\n"
    "for stage in range(2):\n    for inputs, labels in loader:\n        BODY\n    EACH\n",
    "rates": "for rate in [0.01, 0.003, 0.001]:\n"
    "    for group in optimizer.param_groups: group['lr'] = rate\n"
    "    for inputs, labels in loader:\n        BODY\n    EACH\n",
    "folds": "scores = []\nfor fold in range(3):\n    torch.manual_seed(fold)\n"
    "    kept = TensorDataset(features[fold::3], targets[fold::3])\n"
    "    part = DataLoader(kept, batch_size=4, shuffle=True)\n"
    "    for epoch in range(2):\n        for inputs, labels in part:\n            BODY\n"
    "        EACH\n"
    "    scores.append(loss.item())\nprint('END scores', scores)\n",
}


@dataclass(frozen=True)
class Script:
    """A script and what it was put together from."""

    text: str
    loop: str
    parts: tuple[str, ...] = field(default=())


def script(seed: int) -> Script:
    rng = random.Random(seed)
    loop = rng.choice(sorted(LOOPS))
    chosen = rng.sample(PARTS, rng.randint(1, 4))
    clashes = {"step schedule", "milestones", "one cycle", "plateau", "warm-up by hand"}
    schedules = [part for part in chosen if part.name in clashes]
    parts = [part for part in chosen if part not in schedules[1:]]
    # Parameters that are added after a schedule was made have no rate of it.
    parts.sort(key=lambda part: part.name != "bare parameter")
    step = STEP
    before = [part.before for part in parts]
    names = [name for part in parts for name in part.names]
    if rng.random() < 0.2:
        step = ACCUMULATED
        before.append("micro = 0")
        names.append("micro")
    optimizer = rng.choice(
        (
            "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
            "torch.optim.AdamW(model.parameters(), lr=0.01)",
        )
    )
    made = f"model = new_model(); optimizer = {optimizer}\nloader = {rng.choice(LOADERS)}\n"
    code = _filled(LOOPS[loop], parts, step, names)
    end = "\n".join(part.end for part in parts if part.end)
    body = "\n".join([made, *filter(None, before), code, end, END])
    if rng.random() < 0.3 and loop not in ("one function an epoch", "trainer"):
        # Also in a function; then nothing of it is global.
        body = "def main():\n" + textwrap.indent(body, "    ") + "\nmain()\n"
    return Script(HEAD + body, loop, tuple(part.name for part in parts))


def _filled(loop: str, parts: list[Part], step: str, names: list[str]) -> str:
    extra = "\n".join(part.extra for part in parts if part.extra)
    each_step = "\n".join(part.step for part in parts if part.step)
    each_epoch = "\n".join(part.epoch for part in parts if part.epoch) or "pass"
    body = step.replace("EXTRA", extra).strip() + ("\n" + each_step if each_step else "")
    filled: list[str] = []
    for line in loop.replace("EPOCHS", str(EPOCHS)).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        word = line.strip()
        declared = f"global {', '.join(names)}" if names else "pass"
        texts = {"BODY": body, "EACH": each_epoch, "NAMES": declared}
        filled.append(textwrap.indent(texts[word], indent) if word in texts else line)
    return "\n".join(filled)
