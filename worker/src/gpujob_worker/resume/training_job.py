"""The small interface: exact resume, and an exact split of any loss. Five lines at most.

    job = gpujob_worker.prepare(model, optimizer, loader, scheduler)
    for epoch in range(epochs):
        for batch in job.loader:          # comes back to its place after an interruption
            loss = job.step(batch, fn)    # or the script's own step, unchanged

Without these lines the script works as before; without an operator they change nothing.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.report import Protection
from gpujob_api.settings import TunedSettings
from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.checkpoint.store import Loaded, Store
from gpujob_worker.resume.checkpointer import Checkpointer
from gpujob_worker.resume.gradient_accumulation import LossReduction, SplitStep
from gpujob_worker.resume.random_numbers import random_state, restore_random
from gpujob_worker.resume.resumable_loader import ResumableLoader
from gpujob_worker.run.current_session import ensure_session
from gpujob_worker.run.session import Session

Stateful = Any


class Job:
    """One training run that can be interrupted between two steps and continued as if it was not."""

    def __init__(
        self,
        session: Session,
        parts: dict[str, Stateful],
        loader: Any,
        split: SplitStep,
    ) -> None:
        self._session = session
        self._parts = parts
        self._split = split
        self._values: dict[str, Any] = {}
        # The steps of this process at the last safe point of the loop over the loader.
        self._steps = session.meter.steps
        self._store = self._open_store()
        self._checkpointer = Checkpointer(session, self._store, self._state)
        self._loaded = self._store.load() if self._store is not None else None
        self._note_store()
        if self._store is not None:
            session.state.protected(Protection.EXACT, None)
        self.loader: Any = (
            ResumableLoader(loader, self._between_batches) if loader is not None else None
        )
        self._adopt_loaded()

    @property
    def resumed_from_step(self) -> int | None:
        """The step of the checkpoint from which this run continues, or None for a fresh start."""
        return self._session.state.resumed_from_step

    @property
    def should_stop(self) -> bool:
        """True once the run is stopped. The next safe point leaves."""
        return self._session.stop.requested

    def state(self, name: str, value: Any) -> Any:
        """Saves `value` too, and returns it.

        It is an object with state_dict/load_state_dict, or a list or a dict, which is filled again
        in place.
        """
        if name in self._parts or name in self._values:
            raise ValueError(f"state {name!r} is registered already")
        kept = self._parts if hasattr(value, "load_state_dict") else self._values
        if kept is self._values and not isinstance(value, (list, dict)):
            raise TypeError(f"state {name!r} must be a list, a dict or have load_state_dict")
        kept[name] = value
        return value

    def step(self, batch: Any, loss_of: Callable[[Any], Any]) -> torch.Tensor:
        """Makes one optimizer step over the whole batch, in pieces if memory requires it.

        `loss_of(piece)` returns the loss or, with loss_reduction="token", the summed loss and its
        number of tokens. Returns the loss of the whole batch.
        """
        return self._split.step(batch, loss_of)

    def steps(self, total: int) -> Iterator[int]:
        """Yields steps from the next one up to `total`, for scripts without a loader."""
        self._session.state.expect_steps(total)
        self._restore_now()
        while self._session.state.step < total:
            at = self._session.state.step
            yield at
            if self._session.state.step == at:
                raise RuntimeError("no optimizer step was made; steps() would never end")
            self.safe_point()

    def safe_point(self) -> None:
        """Marks the time between two steps: writes a checkpoint when one is due, and leaves on a
        stop.
        """
        self._checkpointer.safe_point()

    def _between_batches(self) -> None:
        """Is a safe point if the script has made a step since the last one.

        A checkpoint has no gradients, so those of batches accumulated for a step would be lost.
        """
        steps = self._session.meter.steps
        if steps > self._steps:
            self._steps = steps
            self.safe_point()

    def _state(self) -> dict[str, Any]:
        tuned, scale = self._session.state.tuned, self._session.state.loss_scale
        return {
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "values": dict(self._values),
            "loader": self.loader.state() if self.loader is not None else None,
            "random": random_state(),
            "tuned": encode(tuned) if tuned is not None else None,
            "scale": scale.saved() if scale is not None else None,
        }

    def _open_store(self) -> Store | None:
        environment = self._session.environment
        directory = environment.checkpoint_directory
        if directory is None:
            return None
        if environment.world_size > 1:
            text = (
                f"{environment.world_size} processes: of several only scripts without"
                " gpujob_worker.prepare are saved"
            )
            self._session.log.skipped("checkpoint", text)
            return None
        return Store(directory, environment.attempt, environment.settings.checkpoint_keep)

    def _note_store(self) -> None:
        for number, note in enumerate(self._store.notes if self._store is not None else ()):
            self._session.log.note(f"resume {number + 1}", note)

    def _adopt_loaded(self) -> None:
        """Adopts what is needed before the first step. The state itself follows when the step
        starts.
        """
        loaded = self._loaded
        if loaded is None:
            return
        session = self._session
        session.state.resumes(loaded.step)
        try:
            tuned = loaded.state["tuned"]
            known = decode(TunedSettings, tuned, "tuned") if tuned is not None else None
            loader_state = loaded.state["loader"]
        except (KeyError, TypeError, FieldError) as error:
            raise MismatchError(f"step-{loaded.step} has another layout: {error}") from None
        session.state.start_with(known)
        session.state.start_with_scale(loaded.state.get("scale"))
        if self.loader is not None and loader_state is not None:
            self.loader.resume_from(loader_state, self._restore_now)
        session.log.note("resume", f"from step {loaded.step}")

    def _restore_now(self) -> None:
        """Restores the loaded state, over anything that the script did while skipping."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        missing = set(loaded.state["parts"]) ^ set(self._parts)
        missing |= set(loaded.state["values"]) ^ set(self._values)
        if missing:
            names = ", ".join(sorted(missing))
            raise MismatchError(f"step-{loaded.step} and the script differ in {names}")
        try:
            self._fill(loaded)
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise MismatchError(f"step-{loaded.step} does not fit the script: {error}") from None

    def _fill(self, loaded: Loaded) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(loaded.state["parts"][name])
        for name, value in self._values.items():
            value.clear()
            if isinstance(value, list):
                value.extend(loaded.state["values"][name])
            else:
                value.update(loaded.state["values"][name])
        restore_random(loaded.state["random"])
        self._checkpointer.resumed()


def prepare(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any = None,
    scheduler: Any = None,
    *,
    loss_reduction: LossReduction = "mean",
    clip_norm: float | None = None,
    steps_total: int | None = None,
) -> Job:
    """Makes a run that resumes exactly. Call it after model, optimizer and scheduler are built.

    loss_reduction is the kind of loss for `job.step`: "mean", "sum", or "token" (sum and count).
    clip_norm clips the whole batch's gradient norm in `job.step`. steps_total is for the report.
    """
    session = ensure_session()
    session.leaves_stops_to_script()
    session.stop.listen()
    session.state.expect_steps(steps_total or session.state.steps_total)
    parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    if scheduler is not None:
        parts["scheduler"] = scheduler
    if os.environ.get("GPUJOB_NAME") is None and session.environment.checkpoint_directory is None:
        session.log.note("checkpoint", "no directory is set; nothing is saved")
    split = SplitStep(session, model, optimizer, loss_reduction, clip_norm)
    return Job(session, parts, loader, split)
