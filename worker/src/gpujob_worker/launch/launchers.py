"""torchrun and `accelerate launch`: their workers run the script under this launcher.

They start one process for each GPU with a command line of their own; only the command that they
start is changed.
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def under_launcher(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """The command with its script run as `gpujob-run options -- python script`; other commands
    unchanged.
    """
    words = list(command)
    name = Path(words[0]).name
    if name == "torchrun":
        return _rewritten(words, 1, _torchrun_parser(), options)
    if name.startswith("python") and "-m" in words:
        at = words.index("-m") + 2
        if words[at - 1] in LAUNCHER_MODULES:
            return _rewritten(words, at, _torchrun_parser(), options)
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _rewritten(words, 2, _accelerate_parser(), options)
    return words


def _rewritten(
    words: list[str], start: int, parser: argparse.ArgumentParser, options: Sequence[str]
) -> list[str]:
    parsed = parser.parse_args(words[start:])
    if parsed.no_python:
        return words
    script = [parsed.training_script, *parsed.training_script_args]
    head = words[: len(words) - len(script)]
    target = ["-m", *script] if parsed.module else script
    own = [] if parsed.module else ["-m"]
    # Their parsers consume a `--` right after the script's name.
    return [*head, *own, "gpujob_worker", *options, "--launched", "--", "python", *target]


def _torchrun_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def _accelerate_parser() -> argparse.ArgumentParser:
    launch: Any = importlib.import_module("accelerate.commands.launch")
    return launch.launch_command_parser()
