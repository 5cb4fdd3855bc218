"""Lightning's Trainer, resumed as if it had not stopped.

Its own checkpoints have neither random states nor the loader's position, so a resume repeats the
head of an epoch and never reads its tail. On a stop it ends with exit code 0. Its own connector
collects and restores the state here.
"""

import functools
import sys
from typing import Any

from gpujob_worker.resume.passes import Pass
from gpujob_worker.resume.unmodified import Unmodified

MODULES = ("pytorch_lightning.trainer.trainer", "lightning.pytorch.trainer.trainer")
_ITEM = "resume"
_PATH = "gpujob"
# For people who load a model by hand. A class that is passed to the model need not be savable.
_NOT_NEEDED = ("hyper_parameters", "hparams_name", "hparams_type", "datamodule_hyper_parameters")


class LightningTraining:
    """One call of `Trainer.fit`."""

    kind = "lightning trainer"
    leaves_evaluations = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def _loaders(self) -> list[Any]:
        combined = self._trainer.fit_loop._combined_loader
        return list(combined.flattened) if combined is not None else []

    def owns(self, loader: Any) -> bool:
        return any(loader is mine for mine in self._loaders)

    def consumed(self, record: Pass) -> int:
        del record
        return self._trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def between_batches(self) -> bool:
        """Whether it is in an epoch, after a whole batch. Lightning cannot resume between
        epochs.
        """
        if len(self._loaders) != 1:
            return False
        epoch = self._trainer.fit_loop.epoch_progress.total
        return epoch.ready == epoch.started == epoch.completed + 1

    def steps_total(self) -> int | None:
        """Returns the number of steps, which is exact if no early end is expected, or None."""
        trainer = self._trainer
        if trainer.max_steps > 0:
            return int(trainer.max_steps)
        batches, epochs = trainer.num_training_batches, trainer.max_epochs
        if batches == float("inf") or epochs is None or epochs < 0:
            return None
        return int(-(-batches // trainer.accumulate_grad_batches) * epochs)

    def snapshot(self) -> dict[str, Any]:
        state = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return {name: value for name, value in state.items() if name not in _NOT_NEEDED}


def adapt(module: str, unmodified: Unmodified) -> None:
    """Patches the Trainer once its module was imported."""
    kind: Any = sys.modules[module].Trainer
    plain: Any = kind.fit

    @functools.wraps(plain)
    def fit(self: Any, *arguments: Any, **keywords: Any) -> Any:
        connector, refusal = self._checkpoint_connector, _refusal(self)
        if refusal is not None:
            unmodified.session.log.skipped(_ITEM, refusal)
            return plain(self, *arguments, **keywords)
        vars(connector)["resume_start"] = _resumes(self, unmodified)
        try:
            return plain(self, *arguments, **keywords)
        finally:
            vars(connector).pop("resume_start", None)
            vars(self._signal_connector).pop("_sigterm_notifier_fn", None)
            vars(self.strategy).pop("load_checkpoint", None)
            if isinstance(unmodified.training, LightningTraining):
                unmodified.end()

    kind.fit = fit


def _resumes(trainer: Any, unmodified: Unmodified) -> Any:
    """Replaces the connector's `resume_start`. The processes have found each other by then."""
    plain = trainer._checkpoint_connector.resume_start

    def resume_start(path: Any = None, *arguments: Any, **keywords: Any) -> Any:
        refusal = unmodified.open_store()
        if refusal is not None:
            unmodified.session.log.skipped(_ITEM, refusal)
            return plain(path, *arguments, **keywords)
        # Its handler would end the run after the batch, saved or not. Ours is called instead.
        vars(trainer._signal_connector)["_sigterm_notifier_fn"] = _nothing
        body = unmodified.begin(LightningTraining(trainer))
        if body is not None:
            _give(trainer.strategy, body)
            path = _PATH
        return plain(path, *arguments, **keywords)

    return resume_start


def _nothing(*_: Any) -> None: ...


def _give(strategy: Any, body: dict[str, Any]) -> None:
    """Makes the strategy load `body` from the path."""
    plain = strategy.load_checkpoint

    def load_checkpoint(path: Any, *arguments: Any, **keywords: Any) -> Any:
        return dict(body) if path == _PATH else plain(path, *arguments, **keywords)

    vars(strategy)["load_checkpoint"] = load_checkpoint


def _refusal(trainer: Any) -> str | None:
    name = type(trainer.strategy).__name__
    if "FSDP" in name or "DeepSpeed" in name or "ModelParallel" in name:
        return f"{name}: its checkpoints are written by all processes together"
    return None
