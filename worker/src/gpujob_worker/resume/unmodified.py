"""Unmodified scripts: saved between two batches, and resumed there.

A trainer's adapter returns the loader from which it trains, the number of batches in its weights,
and its state. `Passes` moves the loader to its position. One training at a time is handled.
"""

import time
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook

from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.report import Protection
from gpujob_api.settings import ResumeMode, TunedSettings
from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.checkpoint.shared_store import SharedStore
from gpujob_worker.checkpoint.store import Loaded, Store
from gpujob_worker.inject.ddp import process_group, watch_process_group
from gpujob_worker.resume.checkpointer import Checkpointer
from gpujob_worker.resume.continuation import STEPS, Continuation
from gpujob_worker.resume.gang import Gang
from gpujob_worker.resume.lockstep import Order
from gpujob_worker.resume.passes import Pass, Passes, at_boundary
from gpujob_worker.resume.persistent_workers import memory_refusal
from gpujob_worker.resume.started_process import StartedProcess
from gpujob_worker.run.session import Session

_ITEM = "resume"
# An evaluation may continue until this share of the grace period is left. Then it is cut short.
EVALUATION_SHARE = 0.5
# Minimum rest of the grace period for the loss of one more step, in steps.
STEPS_FOR_A_LOSS = 4.0


class Training(Protocol):
    """One training of a trainer, running or about to begin."""

    kind: str
    # Whether it can continue from the middle of an evaluation. The rest of that is then left out.
    leaves_evaluations: bool

    def owns(self, loader: Any) -> bool:
        """Returns whether the training's batches come from this loader."""
        ...

    def consumed(self, record: Pass) -> int:
        """Returns the number of the pass's batches that are in the weights."""
        ...

    def between_batches(self) -> bool:
        """Returns whether the trainer itself can continue from here."""
        ...

    def steps_total(self) -> int | None:
        """Returns the total number of steps, or None if it is not known."""
        ...

    def snapshot(self) -> Any:
        """Returns the trainer's state as plain values and tensors."""
        ...


class Fallback(Protocol):
    """Handles the script itself if no trainer trains."""

    def begins(self, loader: Any) -> None:
        """Called when a pass of any loader begins."""
        ...

    def fetches(self, loader: Any) -> None:
        """Called when a batch of any loader is requested."""
        ...

    def stepped(self, optimizer: Any) -> None:
        """Called when an optimizer made a step."""
        ...

    def met(self) -> None:
        """Called when the process group started. Anything that the process read alone does not
        count.
        """
        ...


class Unmodified:
    """The training that is handled, its store, and the loaders of the process."""

    def __init__(self, session: Session, passes: Passes | None = None) -> None:
        self.session = session
        self.passes = passes or Passes()
        self.store: Store | SharedStore | None = None
        self.gang: Gang | None = None
        self._started: StartedProcess | None = None
        if not session.is_first and session.environment.checkpoint_directory is not None:
            self._started = StartedProcess(session)
        self.loaded: Loaded | None = None
        self._training: Training | None = None
        self._checkpointer: Checkpointer | None = None
        self._pass: Pass | None = None
        self._boundary: Any = None
        self._pending: dict[str, Any] | None = None
        self._stepped = self._off = False
        self.plain: Fallback | None = None
        self.continuation: Continuation | None = None
        # The step of the checkpoint that this attempt found.
        self.loaded_step = 0
        # A stop's checkpoint is committed. Only a few more steps are left to record.
        self.saved_to_leave = False
        self._step_seconds = self._passed_at = 0.0

    def install(self) -> None:
        self.passes.begins = self._begins
        self.passes.fetching = self._fetching
        self.passes.install()
        register_optimizer_step_post_hook(self._after_step)
        watch_process_group(self._meet)

    @property
    def training(self) -> Training | None:
        return self._training

    @property
    def pass_under_way(self) -> Pass | None:
        """The training loader's pass, or None between two passes."""
        return None if self._boundary is not None else self._pass

    @property
    def restoring(self) -> bool:
        """Whether the loaded state waits for its loader's pass."""
        return self._pending is not None

    @property
    def waits_for_group(self) -> bool:
        """Whether several processes are announced that have not found each other yet."""
        return self.gang is None and self.session.environment.world_size > 1

    @property
    def opens_when_it_trains(self) -> bool:
        """Whether no checkpoint can exist for this process yet, and another process may still be
        the one that is saved.
        """
        alone = self.gang is None and self.store is None
        return alone and self._started is not None and not self._started.is_known()

    def open_store(self) -> str | None:
        """Opens the directory once. Returns why nothing is saved there, or None."""
        if self.store is not None:
            return None
        refusal = self._refusal()
        if refusal is None:
            refusal = self._claim()
        if refusal is not None:
            return refusal
        if self.gang is not None:
            self.store, self.loaded = self.gang.store, self.gang.loaded
        else:
            environment = self.session.environment
            own = self._started
            directory = environment.checkpoint_directory if own is None else own.directory
            assert directory is not None
            keep = environment.settings.checkpoint_keep
            store = Store(directory, environment.attempt, keep)
            self.loaded = store.load()
            self.store = store
        self.loaded_step = self.loaded.step if self.loaded is not None else 0
        notes = self.store.notes if self.store is not None else ()
        for number, note in enumerate(notes):
            self.session.log.note(f"{_ITEM} {number + 1}", note)
        return None

    def _refusal(self) -> str | None:
        session = self.session
        if session.environment.checkpoint_directory is None:
            return "no checkpoint directory is set"
        if session.script_owns_safe_points:
            return "the script saves by itself, with gpujob_worker.prepare"
        if self.gang is not None:
            return None
        if self.waits_for_group:
            size = session.environment.world_size
            return f"{size} processes are announced and have no process group"
        return None

    def _claim(self) -> str | None:
        """Returns why other processes are saved in place of this one, or None."""
        if self.gang is not None:
            return self.gang.open()
        return self._started.claim() if self._started is not None else None

    def _meet(self) -> None:
        """Called when the process group has started. All of its processes open the directory
        together, or none.
        """
        found = process_group()
        if found is None or found[1] == 1 or self.gang is not None or self._off:
            return
        self.gang = Gang(self.session, *found)
        adopted = self.loaded is None and self.loaded_step > 0
        if self._checkpointer is not None or adopted:
            self.gang.meet("it has begun to save by itself")
            return
        # Until now it has only read the existing checkpoints.
        self.store = self.loaded = None
        self.loaded_step = 0
        self.gang.meet(None)
        if self.plain is not None:
            self.plain.met()

    def begin(self, training: Training) -> Any:
        """Begins a training. Returns the body of its checkpoint, or None for a fresh start.

        Raises `MismatchError` for a checkpoint of something else.
        """
        assert self.store is not None, "open_store first"
        session = self.session
        refusal = session.stop.listen()
        if refusal is not None:
            session.log.skipped("graceful stop", refusal)
        session.leaves_stops_to_script()
        self._training, self._pass, self._stepped = training, None, False
        self._passed_at = time.monotonic()
        pace = self.gang.lockstep() if self.gang is not None else None
        self._checkpointer = Checkpointer(session, self.store, self._snapshot, pace=pace)
        if self._is_plain(training):
            self.continuation = self._new_continuation()
            return None
        session.state.protected(Protection.EXACT, None)
        loaded, self.loaded = self.loaded, None
        return None if loaded is None else self._adopt(training, loaded)

    def _new_continuation(self) -> Continuation:
        assert self.store is not None
        directory, gang = self.store.directory, self.gang
        if gang is None:
            return Continuation(self.session, directory)
        return Continuation(self.session, directory, gang.rank, gang.first_word)

    def adopts(self, loaded: Loaded) -> None:
        """Called when a script is on its way to this checkpoint. Its settings apply from now on."""
        self._knows(loaded)
        self.loaded = None

    def arrived(self, step: int) -> None:
        """Called when the script is where the checkpoint of `step` was made."""
        assert self._checkpointer is not None
        self.session.state.resumes(step)
        self._checkpointer.resumed()
        if self.continuation is not None:
            self.continuation.compare_after(step)

    def end(self) -> None:
        """Ends the training, whether it ended well or not. Later code is the script's."""
        self._training = self._pending = self._pass = self.continuation = None
        if self._checkpointer is not None:
            self._checkpointer.wait(0.0)
            self._checkpointer = None
        self.session.leaves_stops_to_script(leaves=False)

    def stop(self) -> None:
        """Stops in a forked child."""
        self.passes.stop()
        self._training, self._off = None, True

    def _adopt(self, training: Training, loaded: Loaded) -> Any:
        """Adopts what is needed before the first step. The loader's position follows with
        its pass.
        """
        state, step = loaded.state, loaded.step
        kind = self._knows(loaded)
        if kind != training.kind:
            raise MismatchError(f"step-{step} is one of {kind}, and {training.kind} trains now")
        self._pending = {"step": step, "pass": state["pass"]}
        self.session.log.note(_ITEM, f"{training.kind}: from step {step}")
        return state["body"]

    def _knows(self, loaded: Loaded) -> str:
        """Adopts the settings of the checkpoint before the model's first call. Returns the kind of
        training.
        """
        state, step = loaded.state, loaded.step
        try:
            kind, tuned = state["kind"], state["tuned"]
            known = decode(TunedSettings, tuned, "tuned") if tuned is not None else None
        except (KeyError, TypeError, FieldError) as error:
            raise MismatchError(f"step-{step} has another layout: {error}") from None
        self.session.state.resumes(step)
        self.session.state.start_with(known)
        self.session.state.start_with_scale(state.get("scale"))
        return str(kind)

    def _begins(self, loader: Any) -> dict[str, Any] | None:
        if self.plain is not None and self.is_of_script:
            self.plain.begins(loader)
        training = self._training
        if training is None:
            return None
        if not training.owns(loader):
            return None
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._restored(pending)
            return pending["pass"]
        if self._stepped and training.between_batches():
            self._boundary = loader
            try:
                self._safe_point()
            finally:
                self._boundary = None
        return None

    def _restored(self, pending: dict[str, Any]) -> None:
        assert self._checkpointer is not None
        self.session.state.resumes(pending["step"])
        self._checkpointer.resumed()
        self._stepped = False

    @property
    def is_of_script(self) -> bool:
        """Whether no trainer trains, so that loaders and optimizers run in the script's
        own loop.
        """
        return self._training is None or self._is_plain(self._training)

    def _is_plain(self, training: Any) -> bool:
        return training is self.plain

    def _fetching(self, record: Pass) -> None:
        if self.plain is not None and self.is_of_script:
            self.plain.fetches(record.loader)
        training = self._training
        if training is None or self._pending is not None:
            return
        if not training.owns(record.loader):
            stop = self.session.stop
            limit = self.session.environment.grace_seconds * EVALUATION_SHARE
            late = stop.requested and stop.remaining_seconds() < limit
            # Other processes of a gang may be where they would wait for one that leaves.
            alone = self.gang is None and self._pass is not None
            if late and alone and training.leaves_evaluations:
                self._leave_meanwhile()
            return
        if self._stepped and training.between_batches():
            self._pass = record
            self._safe_point()

    def _leave_meanwhile(self) -> None:
        """Leaves on a stop in an evaluation. The weights are those of the last step."""
        assert self._checkpointer is not None
        self.session.log.note("evaluation", "cut short by the stop")
        self._checkpointer.leave()

    def _safe_point(self) -> None:
        assert self._checkpointer is not None
        assert self._training is not None
        self._stepped = False
        total = self._training.steps_total()
        if total is not None:
            self.session.state.expect_steps(total)
        self._checkpointer.safe_point()

    def after_script_step(self) -> Order:
        """Called when a step of a plain script is over. Returns what to do at its next place."""
        assert self._checkpointer is not None
        now = time.monotonic()
        self._step_seconds, self._passed_at = now - self._passed_at, now
        if self.saved_to_leave:
            assert self.continuation is not None
            in_time = self.gang is not None or self._has_time_for(1)
            return Order.GO_ON if self.continuation.records and in_time else Order.STOP
        return self._checkpointer.ordered()

    def carry_out(self, order: Order) -> None:
        """Carries out the order when a plain script is at a place, between two steps."""
        checkpointer, continuation = self._checkpointer, self.continuation
        assert checkpointer is not None
        committed = self.session.state.checkpoint
        if committed is not None and committed.step >= self.session.state.step and self._stepped:
            # Each checkpoint has its own number.
            self.session.state.stepped_beside()
        self._stepped = False
        if self.saved_to_leave:
            checkpointer.leave(saved=True)
        if order is Order.STOP and continuation is not None and not checkpointer.is_lost:
            self._save_and_record(checkpointer, continuation)
            return
        before = checkpointer.begun
        checkpointer.carry_out(order)
        if continuation is not None and checkpointer.begun > before:
            continuation.record_after(self.session.state.step)

    def _save_and_record(self, checkpointer: Checkpointer, continuation: Continuation) -> None:
        """Saves, makes a few more steps for their facts if there is time, and leaves."""
        step = self.session.state.step
        if not checkpointer.save_last():
            checkpointer.leave(saved=False)
        self.saved_to_leave = True
        if not self._all_have_time():
            checkpointer.leave(saved=True)
        continuation.record_after(step)

    def _all_have_time(self) -> bool:
        """Returns whether there is time for the steps after the save, decided once for all
        processes.
        """
        late = None if self._has_time_for(STEPS) else "late"
        return (late if self.gang is None else self.gang.first_word("time", late)) is None

    def _has_time_for(self, steps: int) -> bool:
        left = self.session.stop.remaining_seconds()
        return STEPS_FOR_A_LOSS * steps * self._step_seconds < left

    def made_step(self) -> None:
        """Called after a step of an optimizer, or a call of a model that only answers."""
        self._stepped = True

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self.made_step()
        if self.plain is not None and self.is_of_script:
            self.plain.stepped(optimizer)

    def _snapshot(self) -> dict[str, Any]:
        training, state = self._training, self.session.state
        assert training is not None
        self._refuse_what_workers_keep()
        tuned, scale = state.tuned, state.loss_scale
        return {
            "kind": training.kind,
            "body": training.snapshot(),
            "pass": None if self._is_plain(training) else self._pass_state(training),
            "tuned": encode(tuned) if tuned is not None else None,
            "scale": scale.saved() if scale is not None else None,
        }

    def _refuse_what_workers_keep(self) -> None:
        """Handles state of worker processes for a trainer. A plain script's loaders are among its
        variables.
        """
        loader = self._boundary if self._boundary is not None else self._pass and self._pass.loader
        why = None if loader is None else memory_refusal(loader)
        if why is None:
            return
        if self.session.environment.settings.resume is ResumeMode.BEST_EFFORT:
            self.session.state.protected(Protection.BEST_EFFORT, why)
            return
        self.session.state.protected(Protection.FROM_BEGINNING, why)
        raise UnsavableError(why)

    def _pass_state(self, training: Training) -> dict[str, Any]:
        if self._boundary is not None:
            return at_boundary(self._boundary)
        assert self._pass is not None
        consumed = training.consumed(self._pass)
        return self._pass.state(consumed) if consumed else at_boundary(self._pass.loader)
