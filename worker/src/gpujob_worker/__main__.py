"""`gpujob-run [options] -- COMMAND`: starts a command in which every process that trains is hooked.

The first folder on PYTHONPATH does the rest, in each Python process. This process becomes the
command if that is Python. Otherwise it stays the parent and forwards a stop.
"""

import os
import shlex
import sys
from collections.abc import Sequence

from gpujob_api.codec import FieldError
from gpujob_api.serving import ENV_SERVING_HOST
from gpujob_api.settings import ENV_SETTINGS, OptimizeMode
from gpujob_worker.device.cpu_cores import keep_to_cores
from gpujob_worker.device.nvml import visible_memory_bytes
from gpujob_worker.launch.command import hooked, ignores_path, resolved, runs_python
from gpujob_worker.launch.engine_flags import hold, placed_at
from gpujob_worker.launch.forwarder import adopts_orphans, run_as_child
from gpujob_worker.options import ENV_OPTIONS, parser, read_options
from gpujob_worker.run.environment import Environment, read_environment
from gpujob_worker.run.profiling import nsys_command

EXIT_USAGE = 2
EXIT_NOT_FOUND = 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns an exit code if there is nothing to start. Otherwise, it does not return."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words, command = _split(given)
    options = read_options(words)
    if not command:
        parser().error("a command is needed: gpujob-run -- python train.py")
    try:
        values = read_environment(os.environ, options.settings)
    except FieldError as error:
        sys.stderr.write(f"gpujob-run: {error}\n")
        return EXIT_USAGE
    keep_to_cores(os.environ)
    if options.nsys and options.profile is not None:
        kept = _without(words, ("--nsys",), ("--profile-steps", "--profile-with"))
        sys.stdout.write(nsys_command(options.profile, kept, command) + "\n")
        return 0
    program = resolved(command)
    if program is None:
        sys.stderr.write(f"gpujob-run: {command[0]}: command not found\n")
        return EXIT_NOT_FOUND
    program = _held(program, values)
    flag = ignores_path(program)
    if flag is not None:
        text = f"python {flag} does not read PYTHONPATH: the script runs as it is"
        sys.stderr.write(f"gpujob-run: {text}, nothing is injected\n")
    environment = hooked(os.environ)
    if options.settings is not None:
        environment[ENV_SETTINGS] = options.settings
    own = _without(words, (), ("--settings",))
    environment[ENV_OPTIONS] = " ".join([environment.get(ENV_OPTIONS, ""), shlex.join(own)]).strip()
    sys.stdout.flush()
    sys.stderr.flush()
    if not runs_python(program) and adopts_orphans():
        run_as_child(program, environment, values.grace_seconds)
    os.execve(program[0], program, environment)  # noqa: S606 - by design
    return 0  # reached only if a test continues in this process


def _held(program: list[str], values: Environment) -> list[str]:
    """Returns the command. An engine on a shared GPU gets its memory flag, except in modes that
    change nothing. One on a process node gets its address.
    """
    limit_bytes = values.memory_limit_bytes if values.settings.mode is OptimizeMode.AUTO else None
    held = hold(program, limit_bytes, lambda: visible_memory_bytes(os.environ))
    placed = placed_at(held.command, os.environ.get(ENV_SERVING_HOST, ""))
    for line in filter(None, (held.line, placed.line)):
        sys.stderr.write(f"gpujob-run: {line}\n")
    return list(placed.command)


def _without(words: list[str], flags: tuple[str, ...], valued: tuple[str, ...]) -> list[str]:
    """Returns the words without some options: `flags`, and `valued` ones with their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if skip:
            skip = False
        elif name in valued:
            skip = name == word
        elif name not in flags:
            kept.append(word)
    return kept


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
