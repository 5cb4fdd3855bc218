"""The options of `gpujob-run`, from its command line or from one variable for every process."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from gpujob_api.codec import FieldError
from gpujob_api.settings import ENV_SETTINGS
from gpujob_api.version import ShowVersion
from gpujob_worker.run.features import Features
from gpujob_worker.run.profiling import FIRST_STEP, ProfileRequest, ProfileWith
from gpujob_worker.run.settings_names import refuse_unknown_names
from gpujob_worker.tune.settings import FEATURES

# The options of the command line, for processes that were started without it.
ENV_OPTIONS = "GPUJOB_OPTIONS"
PROFILE_STEPS_DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they were read. The defaults are those of a run without any."""

    explain: bool = False
    settings: str | None = None
    tuning_seconds: float | None = None
    argument_table: Path | None = None
    features: Features = field(default_factory=Features)
    report_directory: Path | None = None
    profile: ProfileRequest | None = None
    nsys: bool = False


def read_options(arguments: Sequence[str]) -> Options:
    """Returns the options. If they cannot be read, ends the program with 2 and the reason, as
    argparse does.
    """
    return _options(parser().parse_args(list(arguments)))


def options_of_run(environ: Mapping[str, str]) -> Options:
    """Returns the options of a process that was started in a run. Raises `ValueError` with the
    reason.
    """
    try:
        arguments = shlex.split(environ.get(ENV_OPTIONS, ""))
        return _options(_Quiet(add_help=False, parents=[parser()]).parse_args(arguments))
    except (ValueError, SystemExit) as error:
        raise ValueError(f"{ENV_OPTIONS}: {error}") from None


class _Quiet(argparse.ArgumentParser):
    """Raises an error where a command line would end the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _options(parsed: argparse.Namespace) -> Options:
    off = [name for name in FEATURES if getattr(parsed, f"no_{name}")]
    steps = parsed.profile_steps or (PROFILE_STEPS_DEFAULT if parsed.nsys else None)
    request = (
        ProfileRequest(steps, parsed.profile_directory, ProfileWith(parsed.profile_with))
        if steps is not None
        else None
    )
    return Options(
        explain=parsed.explain,
        settings=parsed.settings,
        tuning_seconds=parsed.tuning_seconds,
        argument_table=parsed.argument_table,
        features=Features.without(*off, cuda_graphs=parsed.cuda_graphs),
        report_directory=parsed.report_directory,
        profile=request,
        nsys=parsed.nsys,
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="gpujob-run",
        description="Starts a command; what trains in it runs with injected settings, measured.",
        epilog="example: gpujob-run --explain -- python train.py --epochs 3",
    )
    made.add_argument("--version", action=ShowVersion)
    made.add_argument("--explain", action="store_true", help="print what is applied and skipped")
    made.add_argument(
        "--settings", metavar="JSON", type=_settings, help=f"in place of {ENV_SETTINGS}"
    )
    made.add_argument(
        "--tuning-seconds",
        type=float,
        help="most seconds to spend on probing (default: 2 %% of the run, 12 to 120)",
    )
    made.add_argument(
        "--argument-table",
        type=Path,
        metavar="FILE",
        help="JSON list of [batch flag, accumulation flag] for scripts that split by themselves",
    )
    made.add_argument(
        "--cuda-graphs", action="store_true", help="try to replay compiled steps as CUDA graphs"
    )
    _add_measuring(made)
    for name in FEATURES:
        flag = "--no-" + name.replace("_", "-")
        made.add_argument(flag, dest=f"no_{name}", action="store_true", help=argparse.SUPPRESS)
    names = ", ".join("--no-" + name.replace("_", "-") for name in FEATURES)
    made.epilog = f"{made.epilog}; switch items off with {names}"
    return made


def _add_measuring(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--report-directory",
        type=Path,
        metavar="DIR",
        help="write report.md and report.json there at the end: before, after, and why",
    )
    made.add_argument(
        "--profile-steps",
        type=_positive,
        metavar="N",
        help=f"profile N steps after step {FIRST_STEP}, for TensorBoard",
    )
    made.add_argument(
        "--profile-directory",
        type=Path,
        metavar="DIR",
        default=Path("gpujob-profile"),
        help="where profiles go (default %(default)s)",
    )
    made.add_argument(
        "--profile-with",
        choices=[tool.value for tool in ProfileWith],
        default=ProfileWith.TORCH.value,
        help="cuda: mark the steps for a profiler that runs around this process",
    )
    made.add_argument(
        "--nsys", action="store_true", help="print the nsys command line and run nothing"
    )


def _settings(text: str) -> str:
    """Rejects names that no setting has. The values are read later."""
    try:
        refuse_unknown_names(text)
    except FieldError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number
