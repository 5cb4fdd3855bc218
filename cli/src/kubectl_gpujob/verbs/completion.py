"""kubectl gpujob completion: scripts for bash, zsh and fish.

They complete the commands, and the names of jobs after commands that take one. kubectl completes a
plugin through a program called `kubectl_complete-gpujob`; the scripts complete `kubectl-gpujob`.
"""

import argparse
from collections.abc import Mapping

from kubectl_gpujob.errors import EXIT_DONE
from kubectl_gpujob.grammar import VERBS, World

# Commands whose arguments are names of jobs.
OF_JOBS = (
    *("cancel", "checkpoints", "get", "logs", "report", "rerun", "resume", "simulate", "suspend"),
    *("timeline", "wait", "why"),
)

_NAMES = "kubectl-gpujob list -o name 2>/dev/null | sed 's|.*/||'"
_BASH = """\
_kubectl_gpujob() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}}
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{verbs}" -- "$word"))
  elif [[ " {of_jobs} " == *" $verb "* && $word != -* ]]; then
    COMPREPLY=($(compgen -W "$({names})" -- "$word"))
  fi
}}
complete -F _kubectl_gpujob kubectl-gpujob
"""
_ZSH = """\
#compdef kubectl-gpujob
_kubectl_gpujob() {{
  local -a verbs jobs
  verbs=({described})
  if (( CURRENT == 2 )); then
    _describe command verbs
  elif [[ " {of_jobs} " == *" $words[2] "* ]]; then
    jobs=(${{(f)"$({names})"}})
    _describe job jobs
  fi
}}
compdef _kubectl_gpujob kubectl-gpujob
"""
_FISH = """\
complete -c kubectl-gpujob -f
{lines}
complete -c kubectl-gpujob -n "__fish_seen_subcommand_from {of_jobs}" \
-a "(kubectl-gpujob list -o name 2>/dev/null | string replace -r '.*/' '')"
"""
_SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="source its output in this shell")


def run(options: argparse.Namespace, world: World) -> int:
    world.screen.line(script(options.shell).rstrip("\n"))
    return EXIT_DONE


def script(shell: str) -> str:
    described = " ".join(f"'{verb.name}:{verb.summary}'" for verb in VERBS)
    lines = "\n".join(
        f"complete -c kubectl-gpujob -n __fish_use_subcommand -a {verb.name} -d '{verb.summary}'"
        for verb in VERBS
    )
    return _SCRIPTS[shell].format(
        verbs=" ".join(verb.name for verb in VERBS),
        of_jobs=" ".join(OF_JOBS),
        described=described.replace("job's", "jobs"),
        names=_NAMES,
        lines=lines.replace("job's", "jobs"),
    )
