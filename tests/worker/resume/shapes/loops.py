"""The training loops that people write: over epochs and batches, or over steps.

A loop is put together from lines. What may become a function of its own is kept apart: the batches
of one epoch.
"""

from dataclasses import dataclass, field

from tests.worker.resume.shapes.script import ROWS, Lines, Script, indented, lines


@dataclass
class Loop:
    """`head` begins a turn of the outer loop; `stop` leaves it. Without a head there is one loop,
    which is all in `batches`.
    """

    batches: Lines
    head: Lines = field(default_factory=lines)
    start: Lines = field(default_factory=lines)
    end: Lines = field(default_factory=lines)
    stop: Lines = field(default_factory=lines)


def body(script: Script, number: str | None = None) -> Lines:
    """What is done with a batch; `number` counts the batches from 0, where a loop does."""
    count = script.accumulation
    scaled = "loss" if count == 1 else f"(loss / {count})"
    has_scaler = "scaler" in script.labels
    first = count == 1 and script.labels.get("zero_grad") == "first"
    step = ["$scaler.unscale_($optimizer)"] if has_scaler and script.gradients else []
    step += script.gradients
    step += (
        ["$scaler.step($optimizer)", "$scaler.update()"] if has_scaler else ["$optimizer.step()"]
    )
    step += [] if first else ["$optimizer.zero_grad()"]
    step += ["$step += 1", *script.stepped]
    found = [*script.inputs, *script.forward, *script.losses]
    found += ["$optimizer.zero_grad()"] if first else []
    found.append(f"$scaler.scale({scaled}).backward()" if has_scaler else f"{scaled}.backward()")
    if count == 1:
        return [*found, *step, *script.batch_end]
    if number is None:
        found.append("$micro += 1")
    counted = "$micro" if number is None else f"({number} + 1)"
    return [*found, f"if {counted} % {count} == 0:", *indented(step), *script.batch_end]


def _over(
    head: str, script: Script, first: Lines | None = None, number: str | None = None
) -> Lines:
    return [head, *indented([*(first or []), *body(script, number)])]


def _batches(kind: str, script: Script) -> Lines:
    """The loop over the batches of one epoch."""
    size = script.batch
    rows = ["x, y = X[i], Y[i]"]
    loops = {
        "plain": lambda: _over("for x, y, i in $loader:", script),
        "whole batch": lambda: _over("for batch in $loader:", script, ["x, y, i = batch"]),
        "enumerate": lambda: _over("for n, (x, y, i) in enumerate($loader):", script, number="n"),
        "zip range": lambda: _over("for n, (x, y, i) in zip(range(99), $loader):", script),
        "islice": lambda: _over("for x, y, i in itertools.islice($loader, 4):", script),
        "tqdm": lambda: _over("for x, y, i in tqdm($loader, disable=True):", script),
        "zip": lambda: _over(
            "for (x, y, i), (more, _, _) in zip($loader, $other):", script,
            ["x = x + 0.01 * more.mean(0)"],
        ),
        "in turn": lambda: [
            *_over("for x, y, i in $loader:", script), *_over("for x, y, i in $other:", script),
        ],
        "randperm": lambda: [
            f"order = torch.randperm({ROWS})",
            *_over(
                f"for at in range(0, {ROWS}, {size}):", script,
                [f"i = order[at:at + {size}]", *rows],
            ),
        ],
        "split": lambda: _over(f"for i in torch.randperm({ROWS}).split({size}):", script, rows),
        "randint": lambda: _over(
            f"for n in range({ROWS // size}):", script,
            [f"i = torch.randint(0, {ROWS}, ({size},))", *rows], number="n",
        ),
        "generator": lambda: _over(f"for x, y, i in minibatches({size}):", script),
        "listed": lambda: [
            f"chunks = [I[at:at + {size}] for at in range(0, {ROWS}, {size})]",
            "random.shuffle(chunks)", *_over("for i in chunks:", script, rows),
        ],
        "manual next": lambda: [
            "batches = iter($loader)", "while True:", "    try:",
            "        x, y, i = next(batches)", "    except StopIteration:", "        break",
            *indented(body(script)),
        ],
    }  # fmt: skip
    return loops[kind]()


EPOCH_KINDS = {
    "plain": 5.0, "whole batch": 2, "enumerate": 4, "zip range": 1, "islice": 1, "tqdm": 2,
    "zip": 2, "in turn": 1.5, "randperm": 2, "split": 1, "randint": 2, "generator": 1, "listed": 1,
    "manual next": 1,
}  # fmt: skip
STEP_KINDS = {
    "while over loader": 2.0, "next and refill": 2, "cycle": 1, "cycle enumerate": 1,
    "while True": 1.5, "range randint": 1.5, "endless generator": 1,
}  # fmt: skip


def epoch_loop(script: Script) -> Loop:
    kind = script.one_of("loop", EPOCH_KINDS)
    if kind in ("zip", "in turn"):
        script.setup.append(
            f"$other = DataLoader(dataset, batch_size={script.batch}, shuffle=True)"
        )
    if kind == "generator":
        script.top += _MINIBATCHES
    count = script.epochs
    heads: dict[str, tuple[Lines, Lines]] = {
        "range": ([f"for epoch in range({count}):"], []),
        "tqdm": ([f"for epoch in tqdm(range({count}), disable=True):"], []),
        "count": (["for epoch in itertools.count():"], [f"if epoch + 1 >= {count}:", "    break"]),
        "while": ([f"while $epoch < {count}:"], ["$epoch += 1"]),
    }
    weights = {"range": 7.0, "tqdm": 1, "count": 1, "while": 1}
    start = list(script.epoch_start)
    if script.resumes_itself:
        script.labels["epochs"] = "from its own checkpoint"
        head, after = [f"for epoch in range($start, {count}):"], lines()
    else:
        header = script.one_of("epochs", weights)
        head, after = heads[header]
        if header == "while":
            script.setup.append("$epoch = 0")
            head = [*head, "    epoch = $epoch"]
    stop = [*(["if $stop:", "    break"] if script.ends_early else []), *after]
    end = [*script.evaluation, *script.epoch_end]
    return Loop(_batches(kind, script), head, start, end, stop)


_MINIBATCHES = """
def minibatches(size):
    order = torch.randperm(len(X))
    for at in range(0, len(X), size):
        i = order[at:at + size]
        yield X[i], Y[i], i
""".splitlines()


def step_loop(script: Script) -> Loop:
    """An epoch is a number of batches, after which there is an evaluation."""
    kind = script.one_of("loop", STEP_KINDS)
    every = script.batches
    if kind == "while over loader":
        return _while_over_loader(script)
    most = every * script.epochs
    before = [f"epoch = n // {every}"]
    if script.epoch_start:
        before += [f"if n % {every} == 0:", *indented(script.epoch_start)]
    end = [*script.evaluation, *script.epoch_end]
    end = [f"if (n + 1) % {every} == 0:", *indented(end)] if end else []
    stop = ["if $stop:", "    break"] if script.ends_early else []
    rows = [f"i = torch.randint(0, {ROWS}, ({script.batch},))", "x, y = X[i], Y[i]"]

    def all_of(head: Lines, batch: Lines, last: Lines) -> Loop:
        return Loop([*head, *indented([*before, *batch, *body(script, "n"), *end, *stop, *last])])

    refill = [
        "try:", "    x, y, i = next($batches)", "except StopIteration:",
        "    $batches = iter($loader)", "    x, y, i = next($batches)",
    ]  # fmt: skip
    over = [f"if n + 1 >= {most}:", "    break"]
    if kind == "next and refill":
        script.setup.append("$batches = iter($loader)")
        return all_of([f"for n in range({most}):"], refill, [])
    if kind == "cycle":
        script.setup.append("$batches = itertools.cycle($loader)")
        return all_of([f"for n in range({most}):"], ["x, y, i = next($batches)"], [])
    if kind == "cycle enumerate":
        return all_of(["for n, (x, y, i) in enumerate(itertools.cycle($loader)):"], [], over)
    if kind == "while True":
        script.setup.append("$n = 0")
        return all_of(["while True:", "    n = $n"], rows, ["$n += 1", *over])
    if kind == "range randint":
        return all_of([f"for n in range({most}):"], rows, [])
    script.top += ["def endless(loader):", "    while True:", "        yield from loader"]
    script.setup.append("$batches = endless($loader)")
    return all_of([f"for n in range({most}):"], ["x, y, i = next($batches)"], [])


def _while_over_loader(script: Script) -> Loop:
    most = script.steps_of_epoch * script.epochs
    script.setup.append("$epoch = 0")
    inner = [*body(script), f"if $step >= {most}:", "    break"]
    stop = ["if $stop:", "    break"] if script.ends_early else []
    return Loop(
        [
            f"while $step < {most}:",
            *indented(["epoch = $epoch", *script.epoch_start, "for x, y, i in $loader:"]),
            *indented(inner, 2),
            *indented([*script.evaluation, *script.epoch_end, "$epoch += 1", *stop]),
        ]
    )
