"""How a script is written: all in its module, in `main`, in functions, in a trainer class."""

from collections.abc import Callable

from tests.worker.resume.shapes.loops import Loop
from tests.worker.resume.shapes.script import (
    Lines,
    Script,
    bound,
    indented,
    lines,
    named,
    used,
)

# Of the loop, what the lines after a batch use.
_LAST = "loss, pred"


def around(script: Script, text: Lines) -> Lines:
    return [script.around, *indented(text)] if script.around else text


def _inline(loop: Loop) -> Lines:
    """The whole loop in one function."""
    if not loop.head:
        return loop.batches
    return [*loop.head, *indented([*loop.start, *loop.batches, *loop.end, *loop.stop])]


def _folds(script: Script, text: Lines, prefix: str = "$") -> Lines:
    """A new model for each fold, and the mean of what they give."""
    if script.labels.get("folds") != "yes":
        return text
    score = f"float(next(iter({script.parameters})).detach().abs().mean())".replace("$", prefix)
    return [
        "scores = []",
        "for fold in range(3):",
        *indented([*text, f"scores.append({score})", 'print("fold", fold, scores[-1])']),
        'print("mean", sum(scores) / len(scores))',
    ]


def _end(script: Script) -> Lines:
    return ['print("== end")', *script.results]


def module(script: Script, loop: Loop) -> Lines:
    unit = _folds(script, [*script.setup, *around(script, _inline(loop)), *script.finish])
    return named([*script.top, *script.data, *unit, *_end(script)], "")


def main(script: Script, loop: Loop) -> Lines:
    unit = [*script.setup, *around(script, _inline(loop)), *script.finish]
    inner = [*_folds(script, unit), *_end(script)]
    return named(
        [*script.top, *script.data, "", "def main():", *indented(inner), "",
         'if __name__ == "__main__":', "    main()"],
        "",
    )  # fmt: skip


def _with_function(
    script: Script, loop: Loop, define: Callable[[str, Lines, bool], tuple[Lines, Lines]]
) -> tuple[Lines, Lines]:
    """The definition of a function for a part of the loop, and the loop that calls it.

    `define(name, lines, gives_last)` returns the definition and the lines of the call; `gives_last`
    tells whether the lines after the call need the last batch's values.
    """
    if not loop.head:
        definition, call = define("train", loop.batches, False)
        return definition, call
    if script.one_of("function", {"batches": 2, "epoch": 1}) == "batches":
        definition, call = define("train_one_epoch", loop.batches, True)
        turn = [*loop.start, *call, *loop.end, *loop.stop]
    else:
        whole = [*loop.start, *loop.batches, *loop.end]
        definition, call = define("run_epoch", whole, False)
        turn = [*call, *loop.stop]
    return definition, [*loop.head, *indented(turn)]


def _scoped(keyword: str) -> Callable[[str, Lines, bool], tuple[Lines, Lines]]:
    def define(name: str, text: Lines, gives_last: bool) -> tuple[Lines, Lines]:
        shared = bound(text)
        inner = [f"{keyword} {', '.join(shared)}"] if shared else []
        inner += [*text, f"return {_LAST}"] if gives_last else text
        epoch = "" if name == "train" else "epoch"
        call = f"{name}({epoch})"
        return (
            ["", f"def {name}({epoch}):", *indented(inner), ""],
            [f"{_LAST} = {call}" if gives_last else call],
        )

    return define


def functions(script: Script, loop: Loop) -> Lines:
    """Functions that change globals."""
    definition, outer = _with_function(script, loop, _scoped("global"))
    unit = _folds(script, [*script.setup, *around(script, outer), *script.finish])
    return named([*script.top, *script.data, *definition, *unit, *_end(script)], "")


def closure(script: Script, loop: Loop) -> Lines:
    """Functions in `main` that change its variables."""
    definition, outer = _with_function(script, loop, _scoped("nonlocal"))
    unit = [*script.setup, *definition, *around(script, outer), *script.finish]
    inner = [*_folds(script, unit), *_end(script)]
    return named([*script.top, *script.data, "", "def main():", *indented(inner), "", "main()"], "")


def arguments(script: Script, loop: Loop) -> Lines:
    """Functions that get all they need, and return what they changed."""

    def define(name: str, text: Lines, gives_last: bool) -> tuple[Lines, Lines]:
        needs, gives = used(text), bound(text)
        given = ["epoch", *needs] if name != "train" else needs
        returned = [f"${one}" for one in gives] + ([_LAST] if gives_last else [])
        call = f"{name}({', '.join(('$' + one if one != 'epoch' else one) for one in given)})"
        definition = [
            "",
            f"def {name}({', '.join(given)}):",
            *indented([*text, f"return {', '.join(returned)}"] if returned else text),
            "",
        ]
        return definition, [f"{', '.join(returned)} = {call}" if returned else call]

    definition, outer = _with_function(script, loop, define)
    unit = [*script.setup, *around(script, outer), *script.finish]
    inner = [*_folds(script, unit), *_end(script)]
    text = [
        *script.top,
        *script.data,
        *definition,
        "",
        "def main():",
        *indented(inner),
        "",
        "main()",
    ]
    return named(text, "")


def namespace(script: Script, loop: Loop) -> Lines:
    """One object with all that there is, handed from function to function."""

    def define(name: str, text: Lines, gives_last: bool) -> tuple[Lines, Lines]:
        epoch = "" if name == "train" else ", epoch"
        last = [f"return {_LAST}"] if gives_last else []
        call = f"{name}(s{epoch})"
        return (
            ["", f"def {name}(s{epoch}):", *indented([*text, *last]), ""],
            [f"{_LAST} = {call}" if gives_last else call],
        )

    definition, outer = _with_function(script, loop, define)
    unit = ["s = types.SimpleNamespace()", *script.setup, *around(script, outer), *script.finish]
    inner = [*_folds(script, unit), *_end(script)]
    text = [
        *script.top,
        *script.data,
        *definition,
        "",
        "def main():",
        *indented(inner),
        "",
        "main()",
    ]
    return named(text, "s.")


def trainer(script: Script, loop: Loop) -> Lines:
    methods = lines()

    def define(name: str, text: Lines, gives_last: bool) -> tuple[Lines, Lines]:
        epoch = "" if name == "train" else "epoch"
        comma = ", " if epoch else ""
        last = [f"return {_LAST}"] if gives_last else []
        call = f"self.{name}({epoch})"
        return (
            ["", f"def {name}(self{comma}{epoch}):", *indented([*text, *last])],
            [f"{_LAST} = {call}" if gives_last else call],
        )

    definition, outer = _with_function(script, loop, define)
    methods += ["def __init__(self):", *indented(script.setup), *definition, ""]
    methods += ["def fit(self):", *indented([*around(script, outer), *script.finish]), ""]
    methods += ["def report(self):", *indented(_end(script))]
    text = named([*script.top, *script.data, "", "class Trainer:", *indented(methods), ""], "self.")
    unit = _folds(script, ["trainer = Trainer()", "trainer.fit()"], "trainer.")
    if script.one_of("trainer", {"in module": 1, "in main": 1}) == "in main":
        return [*text, "def main():", *indented([*unit, "trainer.report()"]), "", "main()"]
    return [*text, *unit, "trainer.report()"]


STYLES = {
    "module": module,
    "main": main,
    "functions": functions,
    "closure": closure,
    "arguments": arguments,
    "namespace": namespace,
    "trainer": trainer,
}
