"""Decides whether two jobs are the same workload, with the same GPU memory and time per step.

The user names the workload (`spec.workload`), or it is the image, command and environment without
the parts that differ between the runs of a sweep. The requests of `spec.optimize` count in both
cases.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.optimize import Optimize

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class Decides(Enum):
    """What an option affects in a run."""

    STEP = "what a step takes"
    LENGTH = "how many steps there are"
    NEITHER = "neither"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Hyperparameters that change numbers but no shapes. They count below a prefix too, as in
# `optimizer.lr`.
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
# The name of a run and where it stores its results. Other prefixes would give these words another
# meaning, as in `model.name`.
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
# Options that take several values.
_LISTS = frozenset(("betas", "milestones", "lr-milestones", "tags", "wandb-tags"))
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w./-]*)(?P<value>=.*)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[+~]{0,2}(?P<name>[A-Za-z_][\w./-]*)(?P<value>=.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\.?[0-9][0-9_.]*([eE][-+]?[0-9]+)?")
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh"))
_SHELL_COMMAND = re.compile(r"-[a-z]*c")


# Thousands of jobs have the same few options and variables.
@lru_cache(maxsize=4096)
def decides(name: str) -> Decides:
    """Returns what the option or the configuration key of this name affects."""
    words = name.lower().replace("_", "-").replace("/", ".").split(".")
    last = words[-1]
    if last in _LENGTHS:
        return Decides.LENGTH
    is_name = last in _NAMES and (len(words) == 1 or words[0] in _NAME_PREFIXES)
    return Decides.NEITHER if last in _NUMBERS or is_name else Decides.STEP


@lru_cache(maxsize=4096)
def variable_decides(name: str) -> Decides:
    """Returns what the environment variable of this name affects."""
    plain = name.lower().replace("_", "-")
    if plain in _VARIABLES or plain.startswith(_VARIABLE_PREFIXES):
        return Decides.NEITHER
    return decides(plain)


def options(arguments: Iterable[str]) -> Iterator[tuple[Decides, str]]:
    """Yields every argument with what it affects.

    The value of an option is a separate argument and affects the same. The command line of a shell
    is split into its arguments.
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


class Workload(NamedTuple):
    # SHA-256 (16 hex digits) of what makes two runs the same workload.
    fingerprint: str
    # The parts of the command that decide how long a run takes, or "". Runs of one workload with
    # different values take different times.
    run_length: str


def workload_of(spec: GPUJobSpec) -> Workload:
    """Returns the workload of the spec's runs, and what decides their length."""
    worker = spec.worker_container()
    return _workload(
        (spec.workers, spec.gpus_per_worker),
        spec.optimize,
        spec.workload,
        str(worker.get("image", "")),
        _texts(worker, "command"),
        _texts(worker, "args"),
        tuple(_plain(worker)),
    )


def program_of(spec: GPUJobSpec) -> tuple[str, ...]:
    """Returns what runs of one program have in common, whatever its options.

    That is the image, and the words of the command before the first option.
    """
    worker = spec.worker_container()
    words = [str(worker.get("image", ""))]
    for word in (*_texts(worker, "command"), *_texts(worker, "args")):
        if word.startswith("-"):
            break
        words.append(word)
    return tuple(words)


_Texts = tuple[str, ...]


# Thousands of jobs have the same command.
@lru_cache(maxsize=1024)
def _workload(
    sizes: tuple[int, int],
    optimize: Optimize,
    workload: str | None,
    image: str,
    command: _Texts,
    arguments: _Texts,
    variables: tuple[tuple[str, str], ...],
) -> Workload:
    of_command, of_arguments = _by_use(options(command)), _by_use(options(arguments))
    of_variables = _by_use((variable_decides(n), f"{n}={value}") for n, value in variables)
    identity: dict[str, object] = {
        "image": _content(image),
        "command": of_command.step,
        "args": of_arguments.step,
        "env": sorted(text.split("=", 1) for text in of_variables.step),
    }
    if workload is not None:
        identity = {"workload": workload}
    workers, gpus_per_worker = sizes
    identity |= {"workers": workers, "gpusPerWorker": gpus_per_worker}
    identity["batchTotal"] = optimize.batch_size.total
    if asked := _asked(optimize):
        identity["optimize"] = asked
    return Workload(
        fingerprint=hashlib.sha256(_JSON.encode(identity).encode()).hexdigest()[:16],
        run_length=" ".join((*of_command.length, *of_arguments.length, *of_variables.length)),
    )


def _asked(optimize: Optimize) -> dict[str, object]:
    """Returns every field that is not Auto, as in the spec, except `total`, which every identity
    has.
    """
    asked = encode(optimize)
    asked |= asked.pop("batchSize")
    asked.pop("total", None)
    return {name: value for name, value in asked.items() if value != "Auto"}


def _content(image: str) -> str:
    """Returns the image's digest if it has one, because that identifies the content whatever its
    name and tag.
    """
    return image.rpartition("@")[2]


class _ByUse(NamedTuple):
    """Parts of a command by what they affect."""

    step: tuple[str, ...]
    length: tuple[str, ...]


def _by_use(found: Iterable[tuple[Decides, str]]) -> _ByUse:
    parts = list(found)
    return _ByUse(
        tuple(text for decides, text in parts if decides is Decides.STEP),
        tuple(text for decides, text in parts if decides is Decides.LENGTH),
    )


def _texts(worker: Mapping[str, Any], field: str) -> _Texts:
    return tuple([str(word) for word in worker.get(field) or ()])


def _plain(worker: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields environment variables that have a literal value in the template."""
    for entry in worker.get("env") or ():
        if "value" in entry:
            yield str(entry.get("name", "")), str(entry["value"])
