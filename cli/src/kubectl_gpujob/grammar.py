"""The commands and the options that they share. A command's module is imported when it runs."""

import argparse
import difflib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol, cast

from gpujob_api.meta import API_VERSION
from gpujob_api.version import installed_version
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import EXIT_DONE, UsageError
from kubectl_gpujob.kubectl import Target
from kubectl_gpujob.screen import Screen

PROGRAM = "kubectl gpujob"


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside that a command uses. Tests replace it."""

    screen: Screen
    connect: Callable[[Target], Cluster]
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    # Returns a line that the user types, or "" at the end of the input.
    ask: Callable[[str], str] = field(default=lambda _: "")

    def cluster(self, options: argparse.Namespace) -> Cluster:
        return self.connect(target_of(options))


class VerbModule(Protocol):
    """What the module of a command has."""

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace, world: World) -> int:
        """Returns the exit code. Raises `UserError`."""
        ...


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    group: str
    summary: str
    # Below `kubectl_gpujob.verbs`. Several commands may share one.
    module: str
    # Whether the words after `--` are a command, in `options.command`.
    takes_command: bool = False


_JOBS, _RUN, _CLUSTER, _OTHER = "Jobs", "A run", "The cluster", "Other"
VERBS: Sequence[Verb] = (
    Verb("submit", _JOBS, "Create a GPUJob from a command line, without YAML.", "submit", True),
    Verb("list", _JOBS, "List jobs with status, progress and remaining time.", "list"),
    Verb("get", _JOBS, "Show the object of a job.", "get"),
    Verb("cancel", _JOBS, "Delete jobs. Their pods get the time to save a checkpoint.", "change"),
    Verb("suspend", _JOBS, "Stop jobs until they are resumed.", "change"),
    Verb("resume", _JOBS, "Let suspended jobs continue.", "change"),
    Verb("rerun", _JOBS, "Create a copy of a job under a new name.", "rerun"),
    Verb("sweep", _JOBS, "Create a job for each point of a grid, or show them.", "sweep", True),
    Verb("wait", _JOBS, "Wait until a job runs, reaches a step or ends.", "wait"),
    Verb("logs", _RUN, "Print a job's log, and follow it from one attempt to the next.", "logs"),
    Verb("why", _RUN, "Explain why a job waits, or how it ended.", "why"),
    Verb("report", _RUN, "Show measurements, settings, checkpoint and attempts.", "report"),
    Verb("timeline", _RUN, "Show a job's events in order.", "timeline"),
    Verb("checkpoints", _RUN, "Show what an interruption would preserve.", "checkpoints"),
    Verb("simulate", _CLUSTER, "Simulate extra jobs, nodes or quota. Read-only.", "simulate"),
    Verb("what-if", _CLUSTER, "Show the effect of a change, by simulation. Read-only.", "what_if"),
    Verb("top", _CLUSTER, "Show running jobs or GPUs by their measured use.", "top"),
    Verb("gpus", _CLUSTER, "Show GPU models: how many, how many free, prices.", "gpus"),
    Verb("nodes", _CLUSTER, "Show GPU nodes and the use of their GPUs.", "nodes"),
    Verb("queue", _CLUSTER, "Show queues, their use, and the jobs that wait.", "queue"),
    Verb(
        "dashboard",
        _CLUSTER,
        "Open a page of GPUs, queues, jobs and services in a browser.",
        "dashboard",
    ),
    Verb("doctor", _CLUSTER, "Check the installation and name the remedy of each fault.", "doctor"),
    Verb(
        "completion",
        _OTHER,
        "Print a completion script for bash, zsh, fish or kubectl.",
        "completion",
    ),
    Verb("version", _OTHER, "Show versions of plugin, operator and CRDs.", "version"),
)


def verb_named(name: str) -> Verb:
    """Raises `UsageError` with the nearest command."""
    for verb in VERBS:
        if verb.name == name:
            return verb
    near = difflib.get_close_matches(name, [verb.name for verb in VERBS], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"unknown command {name!r}{hint} ({PROGRAM} --help lists all)")


def module_of(verb: Verb) -> VerbModule:
    return cast("VerbModule", importlib.import_module(f"kubectl_gpujob.verbs.{verb.module}"))


def parser_of(verb: Verb, module: VerbModule) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {verb.name}",
        description=verb.summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(verb=verb.name)
    module.arguments(parser)
    return parser


def run(arguments: Sequence[str], world: World) -> int:
    """Returns the exit code. Raises `UserError`, and `SystemExit` after help and wrong usage."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        world.screen.line(overview())
        return EXIT_DONE
    if arguments[0] == "--version":
        world.screen.line(plugin_version())
        return EXIT_DONE
    if arguments[0] == "__complete":
        from kubectl_gpujob.verbs import completion

        return completion.complete(arguments[1:], world)
    verb = verb_named(arguments[0])
    module = module_of(verb)
    words = list(arguments[1:])
    at = words.index("--") if verb.takes_command and "--" in words else len(words)
    options = parser_of(verb, module).parse_args(words[:at])
    options.command = words[at + 1 :]
    return module.run(options, world)


def plugin_version() -> str:
    return f"kubectl-gpujob {installed_version()} ({API_VERSION})"


def overview() -> str:
    """Returns the help of the whole program."""
    widest = max(len(verb.name) for verb in VERBS)
    lines = [f"usage: {PROGRAM} COMMAND [options]", ""]
    for group in dict.fromkeys(verb.group for verb in VERBS):
        lines.append(f"{group}:")
        lines += [
            f"  {verb.name.ljust(widest)}   {verb.summary}" for verb in VERBS if verb.group == group
        ]
        lines.append("")
    lines += [
        f"{PROGRAM} COMMAND --help shows a command's options.",
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the job failed, 4 timed out.",
    ]
    return "\n".join(lines)


# -- options that commands share


def add_target(parser: argparse.ArgumentParser, *, all_namespaces: bool = False) -> None:
    parser.add_argument("-n", "--namespace", help="namespace (default: the context's)")
    if all_namespaces:
        parser.add_argument(
            "-A", "--all-namespaces", action="store_true", help="jobs of all namespaces"
        )
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.add_argument("--kubeconfig", type=Path, help="kubeconfig file (default: kubectl's)")


def add_selector(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-l", "--selector", default="", help="label selector, such as team=vision")


def add_output(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Adds `-o`. The first format is the default."""
    parser.add_argument(
        "-o",
        "--output",
        choices=formats,
        default=formats[0],
        help=f"output format: {', '.join(formats)} (default: {formats[0]})",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the origin of decisions: a dump, and another configuration of the operator."""
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DUMP",
        help="read a cycle that the operator dumped, not the cluster",
    )  # fmt: skip
    parser.add_argument(
        "--configuration", type=Path, metavar="FILE",
        help="the operator's configuration file (default: the dump's, or the cluster's)",
    )  # fmt: skip


def target_of(options: argparse.Namespace) -> Target:
    return Target(options.kubeconfig, options.context, options.namespace)
