"""Sets arguments of Hugging Face's Trainer and of Accelerate that the script left at their
defaults.

The trainer can weight tokens over accumulated batches, which code outside it cannot. So a batch is
split by the trainer's own arguments, and the product of both stays as in the script.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from gpujob_worker.adapters.requested_settings import RequestedSettings
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.run.decision_log import DecisionLog

TRAINER = "hugging face trainer"
ACCELERATE = "accelerate"
ENV_MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION"
ENV_DYNAMO_BACKEND = "ACCELERATE_DYNAMO_BACKEND"
_GIVEN = "_gpujob_given"


def watch(wishes: RequestedSettings, log: DecisionLog) -> None:
    """Adapts later imports: TrainingArguments, and the variables that Accelerate reads."""
    when_imported("transformers.training_args", lambda: _adapt_arguments(wishes, log))
    when_imported("accelerate", before=lambda: set_variables(wishes, log))


def set_variables(wishes: RequestedSettings, log: DecisionLog) -> None:
    """Sets the variables that Accelerate's own launcher would set. Existing values stay."""
    wanted = {
        ENV_MIXED_PRECISION: wishes.mixed_precision,
        ENV_DYNAMO_BACKEND: "inductor" if wishes.compile else None,
    }
    for name, value in wanted.items():
        if value is None:
            continue
        if name in os.environ:
            log.skipped(f"{ACCELERATE} {name}", f"it is {os.environ[name]!r} already")
            continue
        os.environ[name] = value
        log.applied(f"{ACCELERATE} {name}", f"{value}, as asked for")


def _adapt_arguments(wishes: RequestedSettings, log: DecisionLog) -> None:
    kind: Any = sys.modules["transformers.training_args"].TrainingArguments
    plain_init: Any = kind.__post_init__

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # Only here are explicit arguments distinguishable from defaults, even for subclasses.
        made = object.__new__(cls)
        if args or kwargs:
            vars(made)[_GIVEN] = (len(args), kwargs)
        return made

    @functools.wraps(plain_init)
    def __post_init__(self: Any) -> None:  # noqa: N807
        given = _given(self, *vars(self).pop(_GIVEN, (0, {})))
        changes = changed_arguments(self, given, wishes, log)
        before = {name: getattr(self, name) for name in changes}
        _set(self, changes)
        try:
            plain_init(self)
        except (ValueError, ImportError) as error:
            if not changes:
                raise
            _set(self, before)
            plain_init(self)
            log.skipped(TRAINER, f"{_text(changes)}: {error}")
            return
        if changes:
            log.applied(TRAINER, _text(changes))

    kind.__new__ = __new__
    kind.__post_init__ = __post_init__


def _given(arguments: Any, positional: int, keywords: Mapping[str, Any]) -> set[str]:
    """Returns the names of the arguments that the script chose.

    A command line parser passes all of them, chosen or not.
    """
    fields = [field for field in dataclasses.fields(arguments) if field.init]
    names = {field.name for field in fields[:positional]} | set(keywords)
    if len(names) < len(fields):
        return names
    flags = {argument.partition("=")[0].lstrip("-").replace("-", "_") for argument in sys.argv}
    changed = {f.name for f in fields if getattr(arguments, f.name) != f.default}
    return flags | {f.name for f in fields if f.name in changed and _is_plain(f)}


def _is_plain(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING


def changed_arguments(
    arguments: Any, given: set[str], wishes: RequestedSettings, log: DecisionLog
) -> dict[str, Any]:
    """Returns new values by name. The script's choices stay, except for the two factors of the
    batch.
    """
    changes = _split(arguments, wishes, log)
    if wishes.mixed_precision is not None:
        if given & {"bf16", "fp16", "tf32"}:
            log.skipped(f"{TRAINER} precision", "the script chooses it itself")
        else:
            changes[wishes.mixed_precision] = True
    if wishes.compile and not given & {"torch_compile", "torch_compile_backend"}:
        changes["torch_compile"] = True
    if wishes.loader_workers is not None and "dataloader_num_workers" not in given:
        changes["dataloader_num_workers"] = wishes.loader_workers
        changes["dataloader_persistent_workers"] = True
    return changes


def _split(arguments: Any, wishes: RequestedSettings, log: DecisionLog) -> dict[str, Any]:
    rows = wishes.batch_per_step
    if rows is None:
        return {}
    item = f"{TRAINER} batch split"
    present = arguments.per_device_train_batch_size
    total = present * arguments.gradient_accumulation_steps
    if arguments.auto_find_batch_size:
        log.skipped(item, "auto_find_batch_size changes the batch itself")
    elif rows >= present or total % rows:
        log.skipped(item, f"steps of {rows} do not split {present}, {total} in all")
    else:
        log.applied(item, f"{total} samples in steps of {rows}, in all {total} as before")
        return {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": total // rows,
        }
    return {}


def _set(arguments: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(arguments, name, value)


def _text(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items())
