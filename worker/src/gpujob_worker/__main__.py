"""`gpujob-run [options] -- python train.py args`: runs a script with injected settings."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from gpujob_api.codec import FieldError
from gpujob_api.settings import ENV_SETTINGS, OptimizeMode
from gpujob_worker.adapters import huggingface, lightning, tensorflow_jax
from gpujob_worker.adapters.requested_settings import RequestedSettings
from gpujob_worker.device.cpu_cores import keep_to_cores
from gpujob_worker.launch.batch_flags import adapt
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.launch.interpreters import Interpreter, interpreter_of
from gpujob_worker.launch.launchers import LAUNCHER_MODULES, under_launcher
from gpujob_worker.launch.script_runner import (
    PythonCommand,
    clean_traceback,
    flush_streams,
    parse_python,
    run_python,
)
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import read_environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.profiling import (
    FIRST_STEP,
    ProfileRequest,
    ProfileWith,
    StepProfiler,
    nsys_command,
)
from gpujob_worker.run.session import Session
from gpujob_worker.tune.settings import FEATURES

EXIT_USAGE = 2
PROFILE_STEPS_DEFAULT = 5
EXIT_NOT_FOUND = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code. Does not return if another program replaces this
    process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, command = _split(given)
    parsed = _parser().parse_args(options)
    if not command:
        _parser().error("a command is needed: gpujob-run -- python train.py")
    try:
        environment = read_environment(os.environ, parsed.settings)
    except FieldError as error:
        sys.stderr.write(f"gpujob-run: {error}\n")
        return EXIT_USAGE
    keep_to_cores(os.environ)
    if parsed.nsys:
        sys.stdout.write(nsys_command(_profile_request(parsed), _kept(options), command) + "\n")
        return 0
    python = parse_python(command)
    if python is None or (python.is_module and python.target in LAUNCHER_MODULES):
        _run_other(command, options, parsed.settings)
    interpreter = interpreter_of(command[0])
    if interpreter is Interpreter.WITHOUT:
        _say_without(command[0])
        _run_other(command, [], parsed.settings)
    if interpreter is Interpreter.OTHER or python.options:
        program = command[0] if interpreter is Interpreter.OTHER else sys.executable
        _run_below(program, python, options)
    explanation = DecisionLog(verbose=parsed.explain)
    python = adapt(python, environment.settings.batch_per_step, explanation, parsed.argument_table)
    off = [name for name in FEATURES if getattr(parsed, f"no_{name}")]
    features = Features.without(*off, cuda_graphs=parsed.cuda_graphs)
    session = Session(
        environment,
        features,
        explanation,
        parsed.tuning_seconds,
        report_directory=parsed.report_directory,
        profiler=StepProfiler(_profile_request(parsed)) if parsed.profile_steps else None,
    )
    return _run(session, python)


def _profile_request(parsed: argparse.Namespace) -> ProfileRequest:
    steps = parsed.profile_steps or PROFILE_STEPS_DEFAULT
    return ProfileRequest(steps, parsed.profile_directory, ProfileWith(parsed.profile_with))


def _kept(options: list[str]) -> list[str]:
    """The launcher's options without those that the nsys command line sets itself."""
    kept: list[str] = []
    skip = False
    for option in options:
        name = option.partition("=")[0]
        if skip:
            skip = False
        elif name in ("--profile-steps", "--profile-with"):
            skip = name == option
        elif name != "--nsys":
            kept.append(option)
    return kept


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpujob-run",
        description="Runs a training script with injected settings, measured and reported.",
        epilog="example: gpujob-run --explain -- python train.py --epochs 3",
    )
    parser.add_argument("--explain", action="store_true", help="print what is applied and skipped")
    parser.add_argument("--settings", metavar="JSON", help=f"in place of {ENV_SETTINGS}")
    parser.add_argument(
        "--tuning-seconds",
        type=float,
        help="most seconds to spend on probing (default: 2 %% of the run, 12 to 120)",
    )
    parser.add_argument(
        "--argument-table",
        type=Path,
        metavar="FILE",
        help="JSON list of [batch flag, accumulation flag] for scripts that split by themselves",
    )
    parser.add_argument(
        "--cuda-graphs", action="store_true", help="try to replay compiled steps as CUDA graphs"
    )
    parser.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)
    _add_measuring(parser)
    for name in FEATURES:
        flag = "--no-" + name.replace("_", "-")
        parser.add_argument(flag, dest=f"no_{name}", action="store_true", help=argparse.SUPPRESS)
    names = ", ".join("--no-" + name.replace("_", "-") for name in FEATURES)
    parser.epilog = f"{parser.epilog}; switch items off with {names}"
    return parser


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report-directory",
        type=Path,
        metavar="DIR",
        help="write report.md and report.json there at the end: before, after, and why",
    )
    parser.add_argument(
        "--profile-steps",
        type=_positive,
        metavar="N",
        help=f"profile N steps after step {FIRST_STEP}, for TensorBoard",
    )
    parser.add_argument(
        "--profile-directory",
        type=Path,
        metavar="DIR",
        default=Path("gpujob-profile"),
        help="where profiles go (default %(default)s)",
    )
    parser.add_argument(
        "--profile-with",
        choices=[tool.value for tool in ProfileWith],
        default=ProfileWith.TORCH.value,
        help="cuda: mark the steps for a profiler that runs around this process",
    )
    parser.add_argument(
        "--nsys", action="store_true", help="print the nsys command line and run nothing"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


def _run(session: Session, command: PythonCommand) -> int:
    session.start()
    hook = when_imported("torch", lambda: _inject(session))
    if session.optimizes:
        _adapt_trainers(session)
    error: BaseException | None = None
    try:
        run_python(command)
    except BaseException as raised:
        error = raised
    # torch's optimizers exist once torch was executed; a lazily imported torch may be listed
    # without them.
    if not hook.done and "torch.optim" in sys.modules:
        session.explanation.skipped("everything", "torch was imported past the import hook")
    session.finish(error)
    return _exit_code(error)


def _adapt_trainers(session: Session) -> None:
    settings, explanation = session.environment.settings, session.explanation
    if settings.mode is OptimizeMode.RECOMMEND or not session.features.allows("trainers"):
        return
    wishes = RequestedSettings.of(settings, session.features)
    huggingface.watch(wishes, explanation)
    lightning.watch(wishes, explanation)
    tensorflow_jax.watch(settings, explanation)


def _inject(session: Session) -> None:
    from gpujob_worker.hooks import Hooks

    if session.optimizes:
        session.listen_for_stop()
    Hooks(session).install()


def _exit_code(error: BaseException | None) -> int:
    """The exit code that the interpreter would have returned. Prints what the interpreter would
    have printed.
    """
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return int(error.code or 0)
        flush_streams()
        sys.stderr.write(f"{error.code}\n")
        return 1
    if isinstance(error, KeyboardInterrupt):
        # The interpreter ends by the signal itself, so that shells see it.
        clean_traceback(error)
        _show_as_it_is(error.__traceback__)
        raise error
    clean_traceback(error)
    flush_streams()
    sys.excepthook(type(error), error, error.__traceback__)
    return 1


def _show_as_it_is(traceback: TracebackType | None) -> None:
    """From here on, tracebacks show the script's frames only."""
    plain = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        plain(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = show


def _say_without(program: str) -> None:
    text = f"{program} is another interpreter than {sys.executable} and has no gpujob_worker"
    sys.stderr.write(f"gpujob-run: {text}: the script runs as it is, nothing is injected\n")


def _run_below(program: str, command: PythonCommand, options: list[str]) -> NoReturn:
    """Runs the command in a new interpreter, because it has options of its own or is another
    interpreter.
    """
    target = ["-m", command.target] if command.is_module else [command.target]
    again = [program, *command.options, "-m", "gpujob_worker", *options, "--", "python"]
    flush_streams()
    os.execv(program, [*again, *target, *command.arguments])  # noqa: S606 - by design


def _run_other(command: list[str], options: list[str], settings: str | None) -> NoReturn:
    """Launchers start their workers under `gpujob-run`. Any other program runs unchanged."""
    program = shutil.which(command[0])
    if program is None:
        sys.stderr.write(f"gpujob-run: {command[0]}: command not found\n")
        raise SystemExit(EXIT_NOT_FOUND)
    if settings is not None:
        os.environ[ENV_SETTINGS] = settings
    under = under_launcher(command, options)
    if under == command and "--explain" in options:
        text = "neither a python with a script nor a known launcher"
        sys.stderr.write(f"gpujob-run: {command[0]} is {text}: it runs as it is, uninjected\n")
    flush_streams()
    os.execv(program, under)  # noqa: S606 - by design


if __name__ == "__main__":
    sys.exit(main())
