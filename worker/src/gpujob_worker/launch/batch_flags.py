"""Splits batches of scripts through their own flags for splitting a batch.

A row of the table has a flag for the samples of one step and one for the number of steps in a
batch. A row is used only if the script's source declares both flags, and their product stays
unchanged.
"""

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpujob_worker.run.decision_log import DecisionLog

SOURCE_BYTES_MAX = 4 << 20
_ITEM = "arguments"

TABLE: tuple[tuple[str, str], ...] = (
    ("--per_device_train_batch_size", "--gradient_accumulation_steps"),
    ("--batch-size", "--gradient-accumulation-steps"),
    ("--batch_size", "--gradient_accumulation_steps"),
    ("--batch-size", "--accumulation-steps"),
    ("--batch_size", "--accumulation_steps"),
    ("--batch-size", "--grad-accum-steps"),
    ("--batch_size", "--grad_accum_steps"),
    ("--batch-size", "--accum-iter"),
    ("--batch_size", "--accum_iter"),
)


def adapt(
    script: str,
    given: Sequence[str],
    per_step: int | None,
    log: DecisionLog,
    table: Path | None,
) -> Sequence[str]:
    """Returns the arguments with the batch split by the script's own flags, if it has them."""
    if per_step is None:
        return given
    declared = declared_flags(Path(script))
    for batch_flag, steps_flag in (*_user_table(table), *TABLE):
        if batch_flag not in declared or steps_flag not in declared:
            continue
        batch = _value(given, batch_flag, declared[batch_flag])
        steps = _value(given, steps_flag, declared[steps_flag])
        if batch is None or steps is None or (batch * steps) % per_step or per_step >= batch:
            log.skipped(_ITEM, f"{batch_flag} {batch} x {steps_flag} {steps} stays")
            return given
        more = batch * steps // per_step
        arguments = _set(given, batch_flag, per_step)
        arguments = _set(arguments, steps_flag, more)
        log.applied(
            _ITEM, f"{batch_flag} {per_step} {steps_flag} {more}, in all {batch * steps} as before"
        )
        return arguments
    return given


def declared_flags(script: Path) -> dict[str, Any]:
    """Returns the flags that the source passes to `add_argument`, with their constant defaults."""
    try:
        if script.stat().st_size > SOURCE_BYTES_MAX:
            return {}
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    flags: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            default = _default(node)
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    flags[argument.value] = default
    return flags


def _default(call: ast.Call) -> Any:
    for keyword in call.keywords:
        if keyword.arg == "default" and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return None


def _value(arguments: Sequence[str], flag: str, default: Any) -> int | None:
    text: Any = default
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            text = arguments[index + 1]
        elif argument.startswith(f"{flag}="):
            text = argument.partition("=")[2]
    try:
        number = int(text)
    except (TypeError, ValueError):
        return None
    return number if number > 0 else None


def _set(arguments: Sequence[str], flag: str, value: int) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == flag:
            skip = True
        elif not argument.startswith(f"{flag}="):
            kept.append(argument)
    return (*kept, flag, str(value))


def _user_table(path: Path | None) -> list[tuple[str, str]]:
    """Returns rows from a user's file. Raises `SystemExit` with the reason if it cannot be read."""
    if path is None:
        return []
    try:
        rows = json.loads(path.read_text())
        return [(str(batch), str(steps)) for batch, steps in rows]
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"gpujob-run: --argument-table {path}: {error}") from None
