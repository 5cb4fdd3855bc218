"""Options of a training command by what they decide: the GPU memory and time of a step, how long
the run takes, or neither.

Names are compared without case, leading dashes and the difference between `_` and `-`.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache


class Decides(Enum):
    """What an option decides of a run."""

    STEP = "what a step takes"
    LENGTH = "how many steps there are"
    NEITHER = "neither"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Hyperparameters that change numbers, but no shapes: also below a prefix, as in `optimizer.lr`.
_NUMBERS = _names("""
    lr learning-rate base-lr max-lr min-lr init-lr final-lr lr-min lr-max peak-lr blr
    weight-decay wd l2 beta1 beta2 betas adam-beta1 adam-beta2 adam-epsilon eps epsilon
    gamma lr-gamma lr-decay lr-step-size lr-scheduler lr-scheduler-type lr-schedule lr-milestones
    milestones warmup warmup-steps warmup-epochs warmup-ratio warmup-iters lr-warmup-epochs
    lr-warmup-steps lr-warmup-decay lr-decay-iters label-smoothing clip-grad clip-grad-norm
    grad-clip max-grad-norm temperature tau seed random-seed manual-seed
""")
_LENGTHS = _names("""
    epochs num-epochs n-epochs nb-epochs max-epochs num-train-epochs train-epochs nepochs
    steps max-steps num-steps total-steps train-steps num-train-steps max-train-steps iters
    max-iters num-iters total-iters iterations num-iterations max-iterations
""")
# What a run is called and where it leaves its results: a prefix would make other things of them,
# such as `model.name`.
_NAMES = _names("""
    result results output out output-dir output-path out-dir out-path results-dir log-dir
    logging-dir logdir log-file log-interval log-every logging-steps print-freq save-dir
    save-path checkpoint-dir ckpt-dir run-name run-id runid run name exp exp-name exp-id
    experiment experiment-name experiment-id job-name job-id trial trial-id trial-name sweep-id
    tag tags notes group project entity wandb wandb-project wandb-entity wandb-name wandb-run-name
    wandb-run-id wandb-group wandb-tags comment resume resume-from resume-from-checkpoint
    ckpt-path timestamp date
""")
_NAME_PREFIXES = frozenset(("run", "experiment", "exp", "logger", "logging", "wandb", "mlflow"))
_VARIABLE_PREFIXES = ("wandb-", "mlflow-", "comet-", "neptune-", "clearml-")
_VARIABLES = frozenset(("pythonhashseed",))
# These take several values.
_LISTS = frozenset(("betas", "milestones", "lr-milestones", "tags", "wandb-tags"))
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w./-]*)(?P<value>=.*)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[+~]{0,2}(?P<name>[A-Za-z_][\w./-]*)(?P<value>=.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\.?[0-9][0-9_.]*([eE][-+]?[0-9]+)?")
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh"))
_SHELL_COMMAND = re.compile(r"-[a-z]*c")


# Thousands of jobs have the same few options and variables.
@lru_cache(maxsize=4096)
def decides(name: str) -> Decides:
    """What the option, or the configuration key, of this name decides."""
    words = name.lower().replace("_", "-").replace("/", ".").split(".")
    last = words[-1]
    if last in _LENGTHS:
        return Decides.LENGTH
    is_name = last in _NAMES and (len(words) == 1 or words[0] in _NAME_PREFIXES)
    return Decides.NEITHER if last in _NUMBERS or is_name else Decides.STEP


@lru_cache(maxsize=4096)
def variable_decides(name: str) -> Decides:
    """What the environment variable of this name decides."""
    plain = name.lower().replace("_", "-")
    if plain in _VARIABLES or plain.startswith(_VARIABLE_PREFIXES):
        return Decides.NEITHER
    return decides(plain)


def options(arguments: Iterable[str]) -> Iterator[tuple[Decides, str]]:
    """Every argument with what it decides; the value of an option is an argument of its own and
    decides the same. What a shell is given to run is taken apart.
    """
    value_of: Decides | None = None
    is_list, shell = False, ""
    for argument in arguments:
        if value_of is not None and _is_value(argument):
            yield value_of, argument
            value_of = value_of if is_list else None
            continue
        value_of = None
        if shell and _SHELL_COMMAND.fullmatch(shell):
            yield from options(_words(argument))
            shell = ""
            continue
        shell = argument if shell or argument.rpartition("/")[2] in _SHELLS else ""
        match = _OPTION.fullmatch(argument) or _ASSIGNMENT.fullmatch(argument)
        found = decides(match["name"]) if match is not None else Decides.STEP
        yield found, argument
        if match is not None and found is not Decides.STEP and match["value"] is None:
            value_of = found
            is_list = match["name"].lower().replace("_", "-") in _LISTS


def _is_value(argument: str) -> bool:
    return not argument.startswith("-") or _NUMBER.fullmatch(argument) is not None


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation that does not end
        return [text]
