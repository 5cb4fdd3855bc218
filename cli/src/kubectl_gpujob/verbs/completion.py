"""kubectl gpujob completion: scripts for bash, zsh, fish and kubectl itself.

All of them ask `kubectl-gpujob __complete WORDS`, which prints one candidate a line.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubectl_gpujob.errors import EXIT_DONE, UserError
from kubectl_gpujob.grammar import VERBS, World, module_of, parser_of, verb_named
from kubectl_gpujob.kubectl import Target

# Commands whose arguments are names of jobs.
OF_JOBS = (
    *("cancel", "checkpoints", "get", "logs", "report", "rerun", "resume", "simulate", "suspend"),
    *("timeline", "wait", "what-if", "why"),
)
# The last line for kubectl: no names of files.
NO_FILES = ":4"
_ASK = "kubectl-gpujob __complete"
_SCRIPTS: Mapping[str, str] = {
    "bash": f"""\
_kubectl_gpujob() {{
  local found; found=$({_ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null | grep -v '^:')
  COMPREPLY=($(compgen -W "$found" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _kubectl_gpujob kubectl-gpujob
""",
    "zsh": f"""\
#compdef kubectl-gpujob
_kubectl_gpujob() {{
  compadd -- ${{(f)"$({_ASK} ${{words[2,CURRENT]}} 2>/dev/null | grep -v '^:')"}}
}}
compdef _kubectl_gpujob kubectl-gpujob
""",
    "fish": f"""\
complete -c kubectl-gpujob -f \
-a "({_ASK} (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null | string match -v ':*')"
""",
    # For `kubectl gpujob`: the content of a program `kubectl_complete-gpujob` in PATH.
    "kubectl": f"""\
#!/bin/sh
exec {_ASK} "$@"
""",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=tuple(_SCRIPTS),
        help="the shell that sources the output; kubectl: for kubectl_complete-gpujob in PATH",
    )


def run(options: argparse.Namespace, world: World) -> int:
    world.screen.line(_SCRIPTS[options.shell].rstrip("\n"))
    return EXIT_DONE


def complete(words: Sequence[str], world: World) -> int:
    """Prints what the last word may become. What cannot be read completes to nothing."""
    try:
        found = candidates(words, world)
    except UserError:
        found = []
    for one in found:
        world.screen.line(one)
    world.screen.line(NO_FILES)
    return EXIT_DONE


def candidates(words: Sequence[str], world: World) -> list[str]:
    """Returns the candidates for the last of the words. Raises `UserError`."""
    *before, begun = words or ("",)
    if not before:
        return [verb.name for verb in VERBS if verb.name.startswith(begun)]
    if "--" in before:
        return []
    verb = verb_named(before[0])
    parser = parser_of(verb, module_of(verb))
    known = {name: one for one in parser._actions for name in one.option_strings}  # pyright: ignore[reportPrivateUsage]
    if begun.startswith("-"):
        return sorted(name for name in known if name.startswith(begun))
    option = known.get(before[-1])
    if option is not None and option.nargs != 0:
        return [str(one) for one in option.choices or () if str(one).startswith(begun)]
    if verb.name not in OF_JOBS:
        return []
    jobs = world.connect(_target(before)).jobs()
    return sorted(job.metadata.name for job in jobs if job.metadata.name.startswith(begun))


def _target(words: Sequence[str]) -> Target:
    """Returns the cluster and namespace that options among the words name."""
    given = dict(itertools.pairwise(words))
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            given[name] = value
    path = given.get("--kubeconfig")
    return Target(
        Path(path) if path else None,
        given.get("--context"),
        given.get("-n") or given.get("--namespace"),
    )
