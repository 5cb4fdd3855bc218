"""What scripts do in the course of a training: schedules, evaluations, early ends, changes."""

from tests.worker.resume.shapes.script import Part, Script

_EVALUATE = """
DECORATOR
def evaluate(forward, batches):
    total, count = 0.0, 0
BODY    return total / count
"""
_EVALUATE_BODY = """    for x, y, i in batches:
        total += score(forward(x), y).item() * len(x)
        count += len(x)
"""


def evaluation(script: Script) -> None:
    """Defines `$value` at the end of each epoch, by data of its own or by that of the training."""
    kind = script.one_of("evaluation", {"decorated": 2, "with": 2, "inline": 2, "no loader": 1})
    loss = "F.cross_entropy" if script.is_classifier else "F.mse_loss"
    call = "lambda x: $model(x.bfloat16()).float()" if _is_half(script) else "$model"
    script.top += ["def score(pred, y):", f"    return {loss}(pred, y)"]
    script.setup += [
        f"$validation = DataLoader(dataset, batch_size=16, shuffle={script.chance(0.2)})",
        "$value = float('inf')",
    ]
    if script.is_module:
        script.evaluation.append("$model.eval()")
    if kind == "no loader":
        forward = "$model(X.bfloat16()).float()" if _is_half(script) else "$model(X)"
        script.evaluation += ["with torch.no_grad():", f"    $value = score({forward}, Y).item()"]
    elif kind == "inline":
        script.evaluation += [
            "$value = 0.0",
            f"forward = {call}",
            "with torch.no_grad():",
            "    for a, b, _ in $validation:",
            "        $value += score(forward(a), b).item()",
        ]
    else:
        decorator, body = ("@torch.no_grad()", _EVALUATE_BODY)
        if kind == "with":
            inner = "".join(f"    {line}\n" for line in body.splitlines())
            decorator, body = "", f"    with torch.no_grad():\n{inner}"
        text = _EVALUATE.replace("DECORATOR", decorator).replace("BODY", body)
        script.top += text.splitlines()
        script.evaluation.append(f"$value = evaluate({call}, $validation)")
    if script.is_module:
        script.evaluation.append("$model.train()")
    script.evaluation.append('print("value", epoch, $value)')
    script.results.append('print("value", $value)')


def _is_half(script: Script) -> bool:
    return script.parameters == "$masters"


def patience(script: Script) -> None:
    """Ends the training early; the best value is kept, and maybe the weights that gave it."""
    script.ends_early = True
    script.setup += ["$best = float('inf')", "$bad = 0", "$stop = False"]
    kept = [f"    $best_state = {{n: v.detach().clone() for n, v in {script.tensors}}}"]
    keeps = script.one_of("best weights", {"none": 2, "in memory": 1, "deepcopy": 1, "file": 1})
    if keeps == "deepcopy" and script.is_module:
        kept = ["    $best_state = copy.deepcopy($model.state_dict())"]
    if keeps == "file":
        kept = [f'    torch.save(dict({script.tensors}), "best.pt")']
    script.setup += ["$best_state = None"] if keeps not in ("none", "file") else []
    script.epoch_end += [
        "if $value < $best:",
        "    $best, $bad = $value, 0",
        *(kept if keeps != "none" else []),
        "else:",
        "    $bad += 1",
        "    if $bad >= 2:",
        "        $stop = True",
    ]
    script.results.append('print("best", $best, $bad, $stop)')
    if keeps == "file":
        script.finish += ['$best_state = torch.load("best.pt")']
    if keeps != "none":
        script.finish += [
            "with torch.no_grad():",
            f"    for n, v in {script.tensors}:",
            "        v.copy_($best_state[n])",
        ]


def schedule(script: Script) -> None:
    epochs, steps = script.epochs, script.epochs * (script.steps_of_epoch + 2) * 2
    kinds = {
        "StepLR": ("StepLR($optimizer, 2, 0.5)", "epoch"),
        "MultiStepLR": ("MultiStepLR($optimizer, [1, 3], 0.3)", "epoch"),
        "ExponentialLR": ("ExponentialLR($optimizer, 0.9)", "epoch"),
        "CosineAnnealingLR": (f"CosineAnnealingLR($optimizer, {epochs})", "epoch"),
        "OneCycleLR": (
            f"OneCycleLR($optimizer, 0.05, total_steps={steps}, cycle_momentum=False)",
            "step",
        ),
        "LambdaLR": ("LambdaLR($optimizer, lambda n: min(1.0, (n + 1) / 10))", "step"),
        "CyclicLR": ("CyclicLR($optimizer, 0.001, 0.05, 5, cycle_momentum=False)", "step"),
        "SequentialLR": (
            "SequentialLR($optimizer, [torch.optim.lr_scheduler.LinearLR($optimizer, 0.1, 1.0, 5),"
            " torch.optim.lr_scheduler.ExponentialLR($optimizer, 0.99)], [5])",
            "step",
        ),
        "ReduceLROnPlateau": ("ReduceLROnPlateau($optimizer, factor=0.5, patience=0)", "value"),
    }
    own = {"warm-up": 2.0, "by hand": 2.0, "generator": 0.5}
    kind = script.one_of("schedule", {**dict.fromkeys(kinds, 1.0), **own})
    if kind in own:
        _own_schedule(script, kind)
    else:
        if kind == "ReduceLROnPlateau" and not script.evaluation:
            evaluation(script)
        made, when = kinds[kind]
        script.setup.append(f"$schedule = torch.optim.lr_scheduler.{made}")
        call = "$schedule.step($value)" if when == "value" else "$schedule.step()"
        (script.stepped if when == "step" else script.epoch_end).append(call)
    script.results.append('print("rates", [group["lr"] for group in $optimizer.param_groups])')


def _own_schedule(script: Script, kind: str) -> None:
    set_rate = ["for group in $optimizer.param_groups:", '    group["lr"] = rate']
    if kind == "warm-up":
        script.inputs += ["rate = 0.02 * min(1.0, ($step + 1) / 12)", *set_rate]
    elif kind == "by hand":
        script.epoch_end += [
            "if epoch % 2 == 1:",
            "    for group in $optimizer.param_groups:",
            '        group["lr"] *= 0.7',
        ]
    else:
        script.top += [
            "def rates_of_steps():", "    rate = 0.02", "    while True:", "        yield rate",
            "        rate *= 0.98",
        ]  # fmt: skip
        script.setup.append("$rates = rates_of_steps()")
        script.inputs += ["rate = next($rates)", *set_rate]


def clipping(script: Script) -> None:
    kind = script.one_of("clipping", {"norm": 2, "value": 1})
    call = "clip_grad_norm_({}, 1.0)" if kind == "norm" else "clip_grad_value_({}, 0.5)"
    script.gradients.append(f"torch.nn.utils.{call.format(script.parameters)}")


def log_every(script: Script) -> None:
    script.stepped += [
        "if $step % 10 == 0:",
        '    print("step", $step, "loss", loss.item(), flush=True)',
    ]


def freezing(script: Script) -> None:
    if not script.is_module or script.parameters == "$masters":
        return
    kind = script.one_of("freezing", {"unfreeze": 1, "freeze": 1})
    freeze = kind == "freeze"
    first = "list($model.children())[0].parameters()"
    if not freeze:
        script.setup += [f"for p in {first}:", "    p.requires_grad_(False)"]
    script.epoch_start += [
        "if epoch == 2:",
        f"    for p in {first}:",
        f"        p.requires_grad_({not freeze})",
        *(["        p.grad = None"] if freeze else []),
    ]


def loss_weight(script: Script) -> None:
    script.setup.append("$weight = 1.0")
    script.losses.append("loss = loss * $weight")
    script.epoch_end += [
        "if epoch == 1:",
        "    $weight = 0.5",
        "elif epoch > 2:",
        "    $weight *= 0.9",
    ]
    script.results.append('print("weight", $weight)')


def regularization(script: Script) -> None:
    script.losses += [
        "if $step > 10:",
        f"    loss = loss + 0.001 * sum(p.square().sum() for p in {script.parameters})",
    ]


def another_optimizer(script: Script) -> None:
    if "groups" in script.labels or "schedule" in script.labels:
        return
    script.epoch_start += [
        "if epoch == 2:",
        f"    $optimizer = torch.optim.SGD({script.parameters}, lr=0.01, momentum=0.5)",
    ]


def larger_batches(script: Script) -> None:
    script.epoch_start += [
        "if epoch == 2:",
        f"    $loader = DataLoader(dataset, batch_size={2 * script.batch}, shuffle=True)",
    ]


def seed_of_epoch(script: Script) -> None:
    script.epoch_start += ["torch.manual_seed(100 + epoch)", "random.seed(epoch)"]


def statistics(script: Script) -> None:
    """A pass over the loader before the training, which draws an order."""
    script.setup += [
        "$input_mean, $rows_read = torch.zeros(6), 0",
        "for a, _, _ in $loader:",
        "    $input_mean += a.sum(0)",
        "    $rows_read += len(a)",
        "$input_mean /= $rows_read",
    ]
    script.inputs.insert(0, "x = x - $input_mean")


def scaler(script: Script) -> None:
    """Wraps the step; does nothing without a GPU, as in a script that runs on both."""
    script.labels["scaler"] = "yes"
    script.setup.append('$scaler = torch.amp.GradScaler("cuda", enabled=False)')


def dropout_change(script: Script) -> None:
    if not script.is_module:
        return
    script.epoch_start += [
        "for part in $model.modules():",
        "    if isinstance(part, nn.Dropout):",
        "        part.p = 0.1 * min(epoch, 4)",
    ]


PARTS: dict[str, tuple[float, Part]] = {
    "evaluation": (0.5, evaluation),
    "patience": (0.25, patience),
    "schedule": (0.55, schedule),
    "clipping": (0.2, clipping),
    "log every": (0.4, log_every),
    "freezing": (0.12, freezing),
    "loss weight": (0.12, loss_weight),
    "regularization": (0.1, regularization),
    "another optimizer": (0.08, another_optimizer),
    "larger batches": (0.08, larger_batches),
    "seed of epoch": (0.06, seed_of_epoch),
    "statistics": (0.15, statistics),
    "scaler": (0.12, scaler),
    "dropout change": (0.06, dropout_change),
}
