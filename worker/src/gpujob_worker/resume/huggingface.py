"""Hugging Face's Trainer, resumed as if it had not stopped.

Its own checkpoints are exact only for a dataset that draws no random numbers, because it fetches
the first batch and then restores the random state. Its own loading code runs here, and gets the
content of our checkpoint instead of its files.
"""

import contextlib
import copy
import functools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from gpujob_api.report import Protection
from gpujob_worker.resume.passes import Pass
from gpujob_worker.resume.unmodified import Unmodified

MODULE = "transformers.trainer"
_ITEM = "resume"
_STATE_FILE = "trainer_state.json"
_LOADS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler")
_CALLBACKS = "_load_callback_state"
_OWN_STOP = "JITCheckpointCallback"


class HuggingFaceTraining:
    """One call of `Trainer.train`."""

    kind = "hugging face trainer"
    leaves_evaluations = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def owns(self, loader: Any) -> bool:
        prepared = self._trainer.callback_handler.train_dataloader
        base = getattr(prepared, "base_dataloader", prepared)
        return prepared is not None and (loader is base or loader is prepared)

    def consumed(self, record: Pass) -> int:
        state, accumulated = self._trainer.state, self._trainer.args.gradient_accumulation_steps
        try:
            batches = len(record.loader)
        except TypeError:  # a stream has only one pass
            return state.global_step * accumulated
        steps = max(batches // accumulated + (batches % accumulated > 0), 1)
        return state.global_step % steps * accumulated

    def between_batches(self) -> bool:
        return True

    def steps_total(self) -> int | None:
        return int(self._trainer.state.max_steps)

    def snapshot(self) -> dict[str, Any]:
        trainer = self._trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        return {
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "state": self._state_text(),
        }

    def _state_text(self) -> str:
        """Returns the trainer's state in its own form, including that of its callbacks."""
        trainer = self._trainer
        state = copy.deepcopy(trainer.state)
        for callback in [*trainer.callback_handler.callbacks, trainer.control]:
            name = type(callback).__name__
            if name in state.stateful_callbacks:
                kept = state.stateful_callbacks[name]
                state.stateful_callbacks[name] = (
                    [*kept, callback.state()] if isinstance(kept, list) else callback.state()
                )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / _STATE_FILE
            state.save_to_json(str(path))
            return path.read_text()

    @contextlib.contextmanager
    def given(self, body: dict[str, Any]) -> Generator[str]:
        """Yields a folder to resume from. Inside, the trainer loads `body` instead of files."""
        trainer = self._trainer

        def model(_: str, model: Any = None) -> None:
            (model or trainer.model).load_state_dict(body["model"])

        def optimizer(_: str | None) -> None:
            trainer.optimizer.load_state_dict(body["optimizer"])
            trainer.lr_scheduler.load_state_dict(body["scheduler"])

        def scaler(_: str | None) -> None:
            if body["scaler"] is not None:
                trainer.accelerator.scaler.load_state_dict(body["scaler"])

        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / _STATE_FILE).write_text(body["state"])
            vars(trainer).update(zip(_LOADS, (model, optimizer, scaler), strict=True))
            vars(trainer)["_load_rng_state"] = _nothing
            if not getattr(trainer.args, "restore_callback_states_from_checkpoint", False):
                vars(trainer)[_CALLBACKS] = functools.partial(_restore_callbacks, trainer)
            try:
                yield folder
            finally:
                for name in (*_LOADS, "_load_rng_state", _CALLBACKS):
                    vars(trainer).pop(name, None)


def lost_best(state: str) -> str | None:
    """Returns the trainer's best checkpoint if it is gone. The trainer then goes on without it."""
    best = json.loads(state).get("best_model_checkpoint")
    return str(best) if best is not None and not os.path.isdir(best) else None


def _restore_callbacks(trainer: Any) -> None:
    """Restores the callbacks in place, such as the patience of an early stop.

    The trainer does so only with `restore_callback_states_from_checkpoint`, by new callbacks.
    """
    for name, kept in trainer.state.stateful_callbacks.items():
        alike = [one for one in trainer.callback_handler.callbacks if type(one).__name__ == name]
        for callback, state in zip(alike, kept if isinstance(kept, list) else [kept], strict=False):
            for attribute, value in state.get("attributes", {}).items():
                setattr(callback, attribute, value)


def _nothing(_: str | None) -> None:
    """Does nothing, because the random state is restored right before the next batch is read."""


def adapt(unmodified: Unmodified) -> None:
    """Patches the trainer once `transformers.trainer` was imported."""
    module: Any = sys.modules[MODULE]
    plain_train, plain_skip = module.Trainer.train, module.skip_first_batches

    @functools.wraps(plain_train)
    def train(
        self: Any, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any
    ) -> Any:
        refusal = _refusal(self) or unmodified.open_store()
        if refusal is not None:
            unmodified.session.log.skipped(_ITEM, refusal)
            return plain_train(self, resume_from_checkpoint, *arguments, **keywords)
        _give_up_own_stop(self)
        training = HuggingFaceTraining(self)
        body = unmodified.begin(training)
        try:
            if body is None:
                return plain_train(self, resume_from_checkpoint, *arguments, **keywords)
            best = lost_best(body["state"])
            if best is not None:
                why = f"{best}, the trainer's best checkpoint, is gone; put output_dir on a volume"
                unmodified.session.state.protected(Protection.BEST_EFFORT, why)
                unmodified.session.log.note("protection", f"{training.kind}: BestEffort: {why}")
            with training.given(body) as folder:
                return plain_train(self, folder, *arguments, **keywords)
        finally:
            unmodified.end()

    @functools.wraps(plain_skip)
    def skip_first_batches(dataloader: Any, *arguments: Any, **keywords: Any) -> Any:
        if unmodified.restoring:
            return dataloader  # it moves to its position itself, without reading again
        return plain_skip(dataloader, *arguments, **keywords)

    module.Trainer.train = train
    module.skip_first_batches = skip_first_batches


def _refusal(trainer: Any) -> str | None:
    for name in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        if getattr(trainer, name, False):
            return f"{name}: its checkpoints are written by all processes together"
    return None


def _give_up_own_stop(trainer: Any) -> None:
    """Removes its own checkpoint on SIGTERM, after which the script would continue as if it had
    finished.
    """
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == _OWN_STOP:
            trainer.remove_callback(callback)
            manager = getattr(callback, "jit_manager", None)
            plain = getattr(manager, "_original_sigterm_handler", None)
            signal.signal(signal.SIGTERM, plain if plain is not None else signal.SIG_DFL)
