"""What scripts keep beside torch's state: averages, histories, buffers, generators, counters."""

from pathlib import Path

from tests.worker.resume.shapes.script import OUTPUTS, ROWS, Part, Script

# What lies there counts as installed.
LIBRARIES = Path(__file__).parent / "site-packages"


def running_mean(script: Script) -> None:
    script.setup.append("$running = None")
    script.batch_end += [
        "if $running is None:",
        "    $running = loss.item()",
        "$running = 0.9 * $running + 0.1 * loss.item()",
    ]
    script.results.append('print("running", $running)')


def tensor_mean(script: Script) -> None:
    """A tensor that is rebound by each step."""
    script.setup.append("$smooth = torch.zeros(())")
    script.batch_end.append("$smooth = 0.9 * $smooth + 0.1 * loss.detach()")
    script.results.append('print("smooth", $smooth.item())')


def average_meter(script: Script) -> None:
    script.top += """
class AverageMeter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.sum = self.count = 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
    @property
    def avg(self):
        return self.sum / max(1, self.count)
""".splitlines()
    script.setup += ["$meter = AverageMeter()", "$averages = []"]
    anew = script.chance(0.5)
    script.epoch_start.append("$meter = AverageMeter()" if anew else "$meter.reset()")
    script.batch_end.append("$meter.update(loss.item(), len(x))")
    script.epoch_end += [
        "$averages.append($meter.avg)",
        'print("epoch", epoch, "loss", $meter.avg)',
    ]
    script.results.append('print("averages", $averages)')


def sums(script: Script) -> None:
    script.epoch_start += ["$total = 0.0", "$count = 0"]
    script.setup += ["$total, $count = 0.0, 0", "$losses = []"]
    script.batch_end += ["$total += loss.item()", "$count += 1"]
    script.epoch_end.append("$losses.append($total / $count)")
    script.results.append('print("losses", $losses)')


def histories(script: Script) -> None:
    kind = script.one_of(
        "history", {"list": 1, "defaultdict": 1, "deque": 1, "array": 1, "dict": 1}
    )
    add = {
        "list": ("[]", "$history.append(loss.item())", "$history[-20:]"),
        "defaultdict": (
            "collections.defaultdict(list)",
            '$history["loss" if $step % 2 else "other"].append(loss.item())',
            "{name: sum(values) for name, values in $history.items()}",
        ),
        "deque": (
            "collections.deque(maxlen=7)", "$history.append(loss.item())", "list($history)"
        ),
        "array": ("np.zeros(64)", "$history[$step % 64] = loss.item()", "$history.sum()"),
        "dict": ('{"loss": [], "n": 0}', '$history["loss"].append(loss.item())',
                 'sum($history["loss"])'),
    }[kind]  # fmt: skip
    script.setup.append(f"$history = {add[0]}")
    script.batch_end.append(add[1])
    script.results.append(f'print("history", {add[2]})')


def seen_rows(script: Script) -> None:
    script.setup.append("$rows = collections.Counter()")
    script.batch_end.append("$rows.update(i.tolist())")
    script.results.append('print("rows", sorted($rows.items()))')


def seen_set(script: Script) -> None:
    script.setup.append("$seen = set()")
    script.batch_end.append("$seen |= set(i.tolist())")
    script.results.append('print("seen", len($seen), sum($seen))')


def progress_dataclass(script: Script) -> None:
    script.top += """
@dataclasses.dataclass
class Progress:
    samples: int = 0
    worst: float = 0.0
    losses: list = dataclasses.field(default_factory=list)
""".splitlines()
    script.setup.append("$progress = Progress()")
    script.batch_end += [
        "$progress.samples += len(x)",
        "$progress.worst = max($progress.worst, loss.item())",
        "$progress.losses.append(round(loss.item(), 6))",
    ]
    script.results.append('print("progress", $progress)')


def numpy_generator(script: Script) -> None:
    kind = script.one_of("numpy", {"default_rng": 2, "RandomState": 1})
    draw = "standard_normal(tuple(x.shape))" if kind == "default_rng" else "randn(*x.shape)"
    maker = "np.random.default_rng(7)" if kind == "default_rng" else "np.random.RandomState(7)"
    script.setup.append(f"$rng = {maker}")
    script.inputs.append(f"x = x + 0.05 * torch.from_numpy($rng.{draw}).float()")
    script.results.append(f'print("rng", $rng.{draw.split("(")[0]}())'.replace("()()", "()"))


def python_generator(script: Script) -> None:
    script.setup.append("$dice = random.Random(3)")
    script.inputs += ["if $dice.random() < 0.3:", "    x = x.flip(1)"]
    script.results.append('print("dice", $dice.random())')


def torch_generator(script: Script) -> None:
    script.setup.append("$noise = torch.Generator().manual_seed(5)")
    script.inputs.append("x = x + 0.05 * torch.randn(x.shape, generator=$noise)")
    script.results.append('print("noise", torch.rand((), generator=$noise).item())')


def drawn_inputs(script: Script) -> None:
    """Augmentation by the global generators."""
    script.one_of("augmentation", {"torch": 1, "numpy": 1, "random": 1, "mixup": 1})
    script.inputs += {
        "torch": ["x = x + 0.1 * torch.randn_like(x)"],
        "numpy": ["x = x * float(np.random.beta(2.0, 2.0) + 0.5)"],
        "random": ["if random.random() < 0.4:", "    x = -x"],
        "mixup": ["share = random.betavariate(1, 1)",
                  "x = share * x + (1 - share) * x[torch.randperm(len(x))]"],
    }[script.labels["augmentation"]]  # fmt: skip


def memory_bank(script: Script) -> None:
    script.setup.append(f"$bank = torch.zeros({ROWS}, {OUTPUTS})")
    script.losses.append("loss = loss + 0.05 * (pred - $bank[i]).square().mean()")
    script.batch_end += [
        "with torch.no_grad():",
        "    $bank[i] = 0.7 * $bank[i] + 0.3 * pred.detach()",
    ]
    script.results.append('print("bank", $bank.sum().item())')


def replay(script: Script) -> None:
    script.setup.append("$replay = collections.deque(maxlen=6)")
    script.inputs += [
        "$replay.append((x.clone(), y, i))",
        "if len($replay) > 2:",
        "    old = random.choice($replay)",
        "    x, y, i = torch.cat([x, old[0]]), torch.cat([y, old[1]]), torch.cat([i, old[2]])",
    ]
    script.results.append(
        'print("replay", len($replay), sum(one[0].sum().item() for one in $replay))'
    )


def tensor_dict(script: Script) -> None:
    script.setup.append(f'$sums = {{"x": torch.zeros(6), "pred": torch.zeros({OUTPUTS}), "n": 0}}')
    script.batch_end += [
        '$sums["x"] += x.detach().sum(0)',
        '$sums["pred"] = $sums["pred"] + pred.detach().sum(0)',
        '$sums["n"] += len(x)',
    ]
    script.results.append(
        'print("sums", {key: torch.as_tensor(value).sum().item() for key, value in $sums.items()})'
    )


def averaged_weights(script: Script) -> None:
    kinds = {"dict": 2.0, "object": 2.0}
    if script.is_module:
        kinds |= {"deepcopy": 2, "swa": 1}
    kind = script.one_of("averaged", kinds)
    every = script.tensors
    if kind == "dict":
        script.setup.append(f"$ema = {{name: value.detach().clone() for name, value in {every}}}")
        script.stepped += [
            f"for name, value in {every}:",
            "    if value.is_floating_point():",
            "        $ema[name].mul_(0.9).add_(value.detach(), alpha=0.1)",
        ]
        script.results.append('print("ema", digest($ema.values()))')
    elif kind == "object":
        script.top += _EMA
        script.setup.append(f"$ema = EMA({every}, 0.9)")
        script.stepped.append(f"$ema.update({every})")
        script.results.append('print("ema", $ema.updates, digest($ema.shadow.values()))')
    elif kind == "deepcopy":
        script.setup.append("$teacher = copy.deepcopy($model).requires_grad_(False)")
        script.stepped += [
            "with torch.no_grad():",
            "    for mean, value in zip($teacher.parameters(), $model.parameters()):",
            "        mean.lerp_(value, 0.1)",
        ]
        script.results.append('print("teacher", digest($teacher.parameters()))')
    else:
        script.setup.append("$swa = torch.optim.swa_utils.AveragedModel($model)")
        script.epoch_end.append("$swa.update_parameters($model)")
        script.results.append('print("swa", digest($swa.parameters()))')


_EMA = """
class EMA:
    def __init__(self, tensors, decay):
        self.decay, self.updates = decay, 0
        self.shadow = {name: value.detach().clone() for name, value in tensors}
    def update(self, tensors):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in tensors:
            self.shadow[name] = decay * self.shadow[name] + (1 - decay) * value.detach()
""".splitlines()


def counters(script: Script) -> None:
    kind = script.one_of(
        "counter",
        {"nonlocal": 1, "global": 1, "function": 1, "class": 1, "count": 1, "default": 1,
         "bound next": 0.3},
    )  # fmt: skip
    script.top += _COUNTERS.get(kind, "").splitlines()
    if kind == "count":
        script.setup.append("$ids = itertools.count()")
        script.batch_end.append("number = next($ids)")
        script.results.append('print("ids", next($ids))')
        return
    make = {"nonlocal": "make_counter()", "bound next": "itertools.count(1).__next__"}
    script.setup.append(f"$ticks = {make.get(kind, 'tick')}")
    script.batch_end.append("$ticks()")
    script.results.append('print("ticks", $ticks())')


_COUNTERS = {
    "nonlocal": """
def make_counter():
    ticks = 0
    def tick():
        nonlocal ticks
        ticks += 1
        return ticks
    return tick
""",
    "global": """
calls = 0
def tick():
    global calls
    calls += 1
    return calls
""",
    "function": """
def tick():
    tick.calls = getattr(tick, "calls", 0) + 1
    return tick.calls
""",
    "class": """
class Ticks:
    calls = 0
def tick():
    Ticks.calls += 1
    return Ticks.calls
""",
    "default": """
def tick(calls=[0]):
    calls[0] += 1
    return calls[0]
""",
}


def forward_hook(script: Script) -> None:
    if not script.is_module:
        return
    script.top += [
        "activations = []",
        "def note(module, given, out):",
        "    if module.training:",
        "        activations.append(out.detach().float().mean().item())",
    ]
    script.setup.append("$model.register_forward_hook(note)")
    script.results.append('print("activations", len(activations), sum(activations))')


def text_trace(script: Script) -> None:
    script.setup.append('$trace = ""')
    script.stepped.append('$trace += f"{loss.item():.4f},"')
    script.results.append('print("trace", hashlib.md5($trace.encode()).hexdigest())')


def confusion(script: Script) -> None:
    if not script.is_classifier:
        return
    for place in (script.setup, script.epoch_start):
        place.append(f"$confusion = np.zeros(({OUTPUTS}, {OUTPUTS}), dtype=int)")
    script.batch_end += [
        "for one, other in zip(y.tolist(), pred.argmax(1).tolist()):",
        "    $confusion[one, other] += 1",
    ]
    script.results.append('print("confusion", $confusion.tolist())')


def library(script: Script) -> None:
    """A part of the model whose library keeps what its forward passes decide."""
    if not script.is_module:
        return
    script.top += [
        "import sys",
        f"sys.path.insert(0, {str(LIBRARIES)!r})",
        "import standin",
    ]
    script.setup.append(f"$head = standin.Head(standin.Config({OUTPUTS}))")
    script.forward.insert(1, "pred = $head(pred)")
    script.results.append(
        'print("head", $head.config.problem_type, sorted($head.config.lengths.items()),'
        " $head.means, $head.last.item())"
    )


PARTS: dict[str, tuple[float, Part]] = {
    "running mean": (0.25, running_mean),
    "tensor mean": (0.1, tensor_mean),
    "average meter": (0.2, average_meter),
    "sums": (0.3, sums),
    "histories": (0.3, histories),
    "seen rows": (0.3, seen_rows),
    "seen set": (0.1, seen_set),
    "progress dataclass": (0.12, progress_dataclass),
    "numpy generator": (0.12, numpy_generator),
    "python generator": (0.12, python_generator),
    "torch generator": (0.12, torch_generator),
    "drawn inputs": (0.25, drawn_inputs),
    "memory bank": (0.1, memory_bank),
    "replay": (0.1, replay),
    "tensor dict": (0.1, tensor_dict),
    "averaged weights": (0.25, averaged_weights),
    "counters": (0.25, counters),
    "forward hook": (0.06, forward_hook),
    "text trace": (0.06, text_trace),
    "confusion": (0.08, confusion),
}
