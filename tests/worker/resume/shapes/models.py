"""What a script learns: its data, the loader's options, the model, the loss and the optimizer."""

from tests.worker.resume.shapes.script import FEATURES, OUTPUTS, ROWS, Script, indented

_HIDDEN = 12


def add_data(script: Script) -> None:
    classes = script.is_classifier = script.one_of("task", {"classify": 3, "regress": 2}) == (
        "classify"
    )
    script.data += [
        f"X = torch.randn({ROWS}, {FEATURES})",
        f"Y = (X @ torch.randn({FEATURES}, {OUTPUTS})){'.argmax(1)' if classes else '.tanh()'}",
        f"I = torch.arange({ROWS})",
    ]
    kind = script.one_of("dataset", {"tensors": 4, "class": 2, "augmenting": 3, "cached": 1})
    if kind == "tensors":
        script.data.append("dataset = TensorDataset(X, Y, I)")
        return
    script.top += _DATASETS[kind]
    script.data.append("dataset = Rows(X, Y)")
    if kind == "augmenting" and script.chance(0.5):
        script.labels["curriculum"] = "noise of the dataset"
        script.epoch_start.append("dataset.noise = 0.02 * (epoch + 1)")


_DATASETS = {
    "class": """
class Rows(Dataset):
    def __init__(self, x, y): self.x, self.y = x, y
    def __len__(self): return len(self.x)
    def __getitem__(self, n): return self.x[n], self.y[n], n
""".splitlines(),
    "augmenting": """
class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.noise = x, y, 0.1
    def __len__(self):
        return len(self.x)
    def __getitem__(self, n):
        x = self.x[n] + self.noise * torch.randn(6)
        if random.random() < 0.5:
            x = x.flip(0)
        return x * float(np.random.uniform(0.9, 1.1)), self.y[n], n
""".splitlines(),
    "cached": """
class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.cache, self.reads = x, y, {}, 0
    def __len__(self):
        return len(self.x)
    def __getitem__(self, n):
        self.reads += 1
        if n not in self.cache:
            self.cache[n] = self.x[n] + 0.1 * torch.randn(6)
        return self.cache[n], self.y[n], n
""".splitlines(),
}


def loader(script: Script) -> str:
    """The expression that makes the loader of a run."""
    order = script.one_of(
        "order",
        {"shuffle": 8, "generator": 3, "weights": 2, "replacement": 1, "own sampler": 1,
         "batch sampler": 1, "in order": 1},
    )  # fmt: skip
    last = ", drop_last=True" if script.chance(0.3) else ""
    size = f"batch_size={script.batch}"
    options = {
        "shuffle": f"{size}, shuffle=True{last}",
        "in order": f"{size}{last}",
        "generator": f"{size}, shuffle=True, generator=torch.Generator().manual_seed(11){last}",
        "weights": f"{size}, sampler=WeightedRandomSampler(torch.rand({ROWS}) + 0.1, {ROWS}){last}",
        "replacement": f"{size}, sampler=RandomSampler(dataset, replacement=True){last}",
        "own sampler": f"{size}, sampler=Shuffled({ROWS}){last}",
        "batch sampler": "batch_sampler="
        f"BatchSampler(RandomSampler(dataset), {script.batch}, drop_last={bool(last)})",
    }[order]
    if order == "own sampler":
        script.top += _SAMPLER
    collate = script.one_of("collate", {"default": 8, "function": 1, "drawing": 1})
    if collate != "default":
        script.top += _COLLATE + (["    x = x + 0.01 * random.random()"] * (collate == "drawing"))
        script.top.append("    return x, y, i")
        options += ", collate_fn=collate"
    processes = script.one_of("loader processes", {"none": 19, "one": 1})
    if processes == "one":
        options += ", num_workers=1"
        if script.chance(0.5):
            options += ", persistent_workers=True"
    return f"DataLoader(dataset, {options})"


_SAMPLER = """
class Shuffled(Sampler):
    def __init__(self, count):
        self.count, self.epoch = count, 0
    def __len__(self):
        return self.count
    def __iter__(self):
        order = list(range(self.count))
        random.Random(100 + self.epoch).shuffle(order)
        self.epoch += 1
        return iter(order)
""".splitlines()
_COLLATE = """
def collate(rows):
    x = torch.stack([row[0] for row in rows])
    y = torch.stack([row[1] for row in rows])
    i = torch.tensor([int(row[2]) for row in rows])
""".splitlines()


def add_model(script: Script) -> None:
    kind = script.one_of(
        "model", {"class": 4, "sequential": 4, "counting": 2, "bare": 2, "masters": 2, "two": 2}
    )
    script.setup += ["$step = 0"]
    loss = "F.cross_entropy(pred, y)" if script.is_classifier else "F.mse_loss(pred, y)"
    script.forward += ["pred = $model(x)", f"loss = {loss}"]
    _MODELS[kind](script)
    _add_optimizer(script, kind)
    digest = f"digest(value for _, value in {script.tensors})"
    script.results += ['print("step", $step)', f'print("weights", {digest})']


def _sequential(script: Script) -> None:
    layers = [f"nn.Linear({FEATURES}, {_HIDDEN})"]
    layers += ["nn.BatchNorm1d(12)"] if script.chance(0.4) else []
    layers += ["nn.ReLU()"]
    layers += ["nn.Dropout(0.2)"] if script.chance(0.5) else []
    layers += [f"nn.Linear({_HIDDEN}, {OUTPUTS})"]
    script.setup.append(f"$model = nn.Sequential({', '.join(layers)})")


_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(6, 12), nn.Dropout(0.2)
        self.last = nn.Linear(12, 3)
BEGIN
    def forward(self, x):
FORWARD
        return self.last(self.drop(self.first(x).relu()))
"""


def _class(script: Script) -> None:
    script.top += _NET.replace("BEGIN\n", "").replace("FORWARD\n", "").splitlines()
    script.setup.append("$model = Net()")


def _counting(script: Script) -> None:
    """A model with state of its own: a plain number, and a buffer."""
    begin = "self.calls = 0\nself.register_buffer('mean', torch.zeros(6))\n"
    forward = (
        "if self.training:\n    self.calls += 1\n"
        "    with torch.no_grad(): self.mean.lerp_(x.mean(0), 0.1)\n"
        "x = x - 0.1 * self.mean\n"
    )
    text = _NET.replace("BEGIN", "\n".join(indented(begin.splitlines(), 2)))
    script.top += text.replace("FORWARD", "\n".join(indented(forward.splitlines(), 2))).splitlines()
    script.setup.append("$model = Net()")
    script.results.append('print("calls", $model.calls)')


def _bare(script: Script) -> None:
    """Tensors that learn, without a module."""
    script.is_module = False
    script.parameters, script.tensors = "$weights", "enumerate($weights)"
    script.top += [
        "def net(weights, x):",
        "    return torch.tanh(x @ weights[0] + weights[1]) @ weights[2]",
    ]
    made = "nn.Parameter(0.3 * torch.randn({}, {}))"
    kind = script.one_of("bare", {"parameters": 1, "tensors": 1})
    if kind == "tensors":
        made = "(0.3 * torch.randn({}, {})).requires_grad_()"
    shapes = ((FEATURES, _HIDDEN), (1, _HIDDEN), (_HIDDEN, OUTPUTS))
    script.setup += [
        f"$weights = [{', '.join(made.format(*shape) for shape in shapes)}]",
        "$model = functools.partial(net, $weights)",
    ]


def _masters(script: Script) -> None:
    """A model of bfloat16, and its weights in float32, which the optimizer steps."""
    _sequential(script)
    script.setup += [
        "$model = $model.bfloat16()",
        "$masters = [p.detach().clone().float().requires_grad_() for p in $model.parameters()]",
    ]
    script.forward[0] = "pred = $model(x.bfloat16()).float()"
    script.parameters = "$masters"
    script.gradients += [
        "for master, p in zip($masters, $model.parameters()):",
        "    master.grad = p.grad.float()",
    ]
    script.stepped += [
        "with torch.no_grad():",
        "    for master, p in zip($masters, $model.parameters()):",
        "        p.copy_(master)",
        "$model.zero_grad()",
    ]
    script.results.append('print("masters", digest($masters))')


def _two(script: Script) -> None:
    """A generator and a critic, with an optimizer each."""
    _sequential(script)
    script.setup += [
        f"$critic = nn.Sequential(nn.Linear({OUTPUTS}, 8), nn.Tanh(), nn.Linear(8, 1))",
        "$critic_optimizer = torch.optim.Adam($critic.parameters(), lr=0.01)",
    ]
    truth = f"F.one_hot(y, {OUTPUTS}).float()" if script.is_classifier else "y"
    script.forward += [
        f"truth = {truth}",
        "wrong = $critic(pred.detach()).mean() - $critic(truth).mean()",
        "wrong = wrong + 0.1 * $critic(truth).square().mean()",
        "$critic_optimizer.zero_grad()",
        "wrong.backward()",
        "$critic_optimizer.step()",
        "loss = loss - 0.05 * $critic(pred).mean()",
    ]
    script.results.append('print("critic", digest($critic.state_dict().values()))')


_MODELS = {
    "class": _class, "sequential": _sequential, "counting": _counting, "bare": _bare,
    "masters": _masters, "two": _two,
}  # fmt: skip
_OPTIMIZERS = {
    "SGD": "torch.optim.SGD({}, lr=0.05)",
    "momentum": "torch.optim.SGD({}, lr=0.05, momentum=0.9, nesterov=True)",
    "Adam": "torch.optim.Adam({}, lr=0.01)",
    "AdamW": "torch.optim.AdamW({}, lr=0.01, weight_decay=0.1)",
    "RMSprop": "torch.optim.RMSprop({}, lr=0.005)",
    "Adagrad": "torch.optim.Adagrad({}, lr=0.05)",
}


def _add_optimizer(script: Script, model: str) -> None:
    kind = script.one_of("optimizer", {name: 1 for name in _OPTIMIZERS})
    learns = script.parameters
    if model == "sequential" and script.chance(0.25):
        script.labels["groups"] = "two"
        learns = (
            '[{"params": $model[0].parameters()}, {"params": $model[-1].parameters(), "lr": 0.02}]'
        )
    script.setup.append(f"$optimizer = {_OPTIMIZERS[kind].format(learns)}")
