"""Makes scripts with their own checkpoints resume from the newest one, through their own flags.

The job has their location (`spec.checkpoint.path`) and the arguments
(`spec.checkpoint.resumeArguments`). The flags of well-known scripts are found in their source.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpujob_api.settings import Settings
from gpujob_worker.checkpoint.own_files import absolute, newest_checkpoint
from gpujob_worker.launch.batch_flags import SOURCE_BYTES_MAX
from gpujob_worker.run.decision_log import DecisionLog

PLACEHOLDER = "{path}"
_ITEM = "own checkpoint"
# Flags that take the file, or nothing if they are switches, in order of preference.
FLAGS = (
    *("--resume-from-checkpoint", "--resume_from_checkpoint"),
    *("--resume-from", "--resume_from", "--resume", "--ckpt-path", "--ckpt_path"),
)
# Programs whose arguments are in no script: Ultralytics' YOLO.
PROGRAMS = {"yolo": ("resume=True", f"model={PLACEHOLDER}")}
# Configurations made of a script's own globals: the name and its value.
GLOBALS = {"init_from": "resume"}
_SWITCHES = ("store_true", "store_const")


def adapt_resume(
    script: str,
    given: Sequence[str],
    settings: Settings,
    directory: Path | None,
    log: DecisionLog,
) -> Sequence[str]:
    """Returns the arguments that make the script resume from its own newest checkpoint, if any."""
    pattern = settings.script_checkpoint
    if pattern is None:
        return given
    where = absolute(pattern, directory)
    newest = newest_checkpoint(where)
    if newest is None:
        log.note(_ITEM, f"none at {where} at its start: the script starts anew")
        return given
    arguments = settings.resume_arguments or known_arguments(script)
    if not arguments:
        log.skipped(
            _ITEM, f"{newest.name} is there, and no flag to resume: name checkpoint.resumeArguments"
        )
        return given
    filled = tuple(text.replace(PLACEHOLDER, str(newest)) for text in arguments)
    flag = filled[0].partition("=")[0]
    if any(text.partition("=")[0] == flag for text in given):
        log.skipped(_ITEM, f"the command has {flag} already")
        return given
    log.applied(_ITEM, f"{' '.join(filled)}: what comes back is what the script saved")
    return [*given, *filled]


def known_arguments(script: str) -> tuple[str, ...]:
    """Returns the arguments by the program's name or the script's source; empty if no flag of the
    table is found.
    """
    program = Path(script).name
    if program in PROGRAMS:
        return PROGRAMS[program]
    tree = _parsed(Path(script))
    if tree is None:
        return ()
    declared = dict(_declared(tree))
    for flag in FLAGS:
        if flag in declared:
            return (flag,) if declared[flag] in _SWITCHES else (flag, PLACEHOLDER)
    for name, value in _globals(tree):
        if name in GLOBALS and isinstance(value, str):
            return (f"--{name}={GLOBALS[name]}",)
    return ()


def _parsed(script: Path) -> ast.Module | None:
    try:
        if script.stat().st_size > SOURCE_BYTES_MAX:
            return None
        return ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _declared(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yields the flags that the source passes to `add_argument`, with their actions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            actions = [
                keyword.value.value
                for keyword in node.keywords
                if keyword.arg == "action" and isinstance(keyword.value, ast.Constant)
            ]
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, actions[0] if actions else None


def _globals(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value.value
