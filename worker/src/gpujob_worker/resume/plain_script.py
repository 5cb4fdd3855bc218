"""Scripts without any code for checkpoints: brought back to their place, or refused beforehand.

A script is saved at the beginning of a loop's turn, between two steps: its variables, the state of
its models and optimizers, random numbers, the position of its loaders, and its files. To come back
it runs as written up to its first training loop. Loops on the way to its place begin at the turn at
which they were, and everything is restored at the place. Values that cannot be read are found at
the first step. Such a script is not saved, and an interruption starts it from the beginning.

`docs/design/0025-exact-resume-of-plain-scripts.md` explains why this is sound, and what it cannot
see.
"""

import functools
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpujob_api.report import Protection
from gpujob_api.settings import ResumeMode
from gpujob_worker.checkpoint.errors import CheckpointError, MismatchError, UnsavableError
from gpujob_worker.checkpoint.manifest import write_durably
from gpujob_worker.checkpoint.refusals import Refusals
from gpujob_worker.checkpoint.tree import encode_tree
from gpujob_worker.inject.call_inputs import tensor_leaves
from gpujob_worker.resume import rerun
from gpujob_worker.resume.cycle import replace_cycle
from gpujob_worker.resume.lockstep import Order
from gpujob_worker.resume.passes import AHEAD, Pass
from gpujob_worker.resume.script_place import (
    NoPlaceError,
    Place,
    begins_turn,
    current_frame,
    script_frame,
)
from gpujob_worker.resume.script_return import ScriptReturn
from gpujob_worker.resume.script_source import loops_around
from gpujob_worker.resume.script_state import ScriptState, watch_processes
from gpujob_worker.resume.started_process import FOLDER
from gpujob_worker.resume.training_loops import outermost_loop
from gpujob_worker.resume.turn_watch import TurnWatch
from gpujob_worker.resume.unmodified import Unmodified
from gpujob_worker.run.call_listener import CallListener
from gpujob_worker.run.graceful_stop import Interrupted

KIND = "plain script"
# Exists if an attempt ended with an error on its way.
FAILED_FILE = "failed-on-the-way"
_ITEM = "resume"


class PlainScript:
    """The script as the only training of the process."""

    kind = KIND
    leaves_evaluations = False

    def __init__(self, unmodified: Unmodified) -> None:
        self._unmodified = unmodified
        self._session = unmodified.session
        self._state = ScriptState(unmodified.passes)
        self._return = ScriptReturn(
            self._state, unmodified.passes, self._look, self._arrived, self._leave_for_beginning
        )
        self._watch = TurnWatch(self._at_turn)
        self._order: Order | None = None
        self._place: Place | None = None
        self._looked = self._refused = self._judged = self._asks_others = False
        # Loops without steps in whose turns the script could not be saved.
        self._hopeless: set[tuple[CodeType, int]] = set()
        # Whether gradients were added at the place since the last step.
        self._in_step = False
        # Backward passes when the last step ended. More passes since then mean that a step is
        # running.
        self._passes_at_step = 0
        # The outermost loop of the last call of a model before which variables were read.
        self._seen_in: tuple[int, int] | None = None
        # What a resume does not bring back, as last reported.
        self._left: list[str] | None = None
        # Why the last attempt to save failed.
        self._unsavable: str | None = None

    def install(self) -> None:
        environment, state = self._session.environment, self._state
        state.variables.accepts_less = environment.settings.resume is ResumeMode.BEST_EFFORT
        state.objects.install(self._made)
        state.gradients.install()
        state.files.leaves = self._leave_for_beginning
        state.files.install()
        watch_processes()
        replace_cycle()
        directory = environment.checkpoint_directory
        if directory is not None:
            state.files.exclude(directory)
        if rerun.is_active() and _has_checkpoint(directory):
            state.hold_files()
        self._unmodified.plain = self
        self._session.stop.heard = self._hears_stop
        register_optimizer_step_pre_hook(self._before_step)
        rerun.listener = self._return
        self._session.listen_to_calls(_Calls(self))

    # The interface of a training for `Unmodified`. A script's safe points are its own.

    def owns(self, loader: Any) -> bool:
        del loader
        return False

    def consumed(self, record: Pass) -> int:
        return record.consumed

    def between_batches(self) -> bool:
        return True

    def steps_total(self) -> int | None:
        return None

    # The script's objects, loaders and steps.

    def _made(self) -> None:
        """Called when the script makes a model or an optimizer. Settings of the earlier run apply
        from now on.
        """
        if self._session.environment.world_size == 1:
            try:
                self._look()
            except MismatchError:
                # A trainer may start the other processes of a gang later, so the first pass looks
                # again.
                self._looked = False

    def begins(self, loader: Any) -> None:
        """Called when a pass of any loader begins."""
        del loader
        self._look()

    def fetches(self, loader: Any) -> None:
        """Called when a batch is requested, even in an evaluation."""
        del loader
        if self._asks_others:
            self._ask_others()
        elif self._session.stop.requested:
            self._hears_stop()

    def met(self) -> None:
        """Called when the process group started and nothing was taken from the directory before."""
        self._looked = False

    def _ask_others(self) -> None:
        """Makes all processes of a gang ask at the same place: before the next batch, or after the
        next step.
        """
        self._asks_others = False
        self._ask()
        frame = script_frame(current_frame(1))
        if self._order is None or frame is None:
            return
        try:
            turn = begins_turn(frame, loops_around(frame.f_code, frame.f_lineno))
        except LookupError:
            turn = False
        if not (turn and self._at_turn(frame)):
            self._watch.start(frame)

    def _ask(self) -> None:
        order = self._unmodified.after_script_step()
        self._order = order if order is not Order.GO_ON else None

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if self._off:
            return
        self._state.gradients.before_step(optimizer)
        if not (self._state.loops.began or self._refused or self._return.under_way):
            self._see_variables(current_frame(1))

    def _see_variables(self, frame: FrameType) -> None:
        try:
            self._state.variables.see_before_first_step(frame)
        except Exception as error:  # the script's objects may raise anything
            self._refuse(f"its variables cannot be read: {type(error).__name__}: {error}")

    # A script that only answers: each call of its model is a step.

    @property
    def returns(self) -> bool:
        """Whether the script is on its way back to a checkpoint."""
        return self._return.under_way

    def before_call(self) -> None:
        """Called before each of the first calls of a model. Its loop may begin with any of them."""
        if self._off or self._refused or self._state.loops.began:
            return
        frame = current_frame(1)
        loop = outermost_loop(frame)
        if self._seen_in is None or loop != self._seen_in:
            self._seen_in = loop
            self._see_variables(frame)

    def answered(self, output: Any) -> None:
        """Called after a call of the model, outside of a trainer."""
        if self._off or self._refused:
            return
        self._unmodified.made_step()
        continuation = self._unmodified.continuation
        compared = continuation is not None and (continuation.compares or continuation.records)
        self._made_step(current_frame(1), _number_of(output) if compared else None, None)

    @property
    def _off(self) -> bool:
        return self._unmodified.plain is not self or not self._unmodified.is_of_script

    def stepped(self, optimizer: Any) -> None:
        """Called when an optimizer made a step outside of a trainer."""
        self._state.gradients.after_step(optimizer)
        self._passes_at_step = self._session.state.backward_passes
        loss = self._session.state.optimizer_stepped()
        if self._refused:
            return
        if self._return.under_way:
            self._leave_for_beginning("a step was made before the place was reached")
        self._made_step(current_frame(1), loss, optimizer)

    def _made_step(self, frame: FrameType, loss: Any, optimizer: Any) -> None:
        if self._unmodified.training is None and not self._first_step():
            return
        try:
            self._state.loops.step_in(frame)
            self._state.objects.random.innermost = self._state.loops.innermost
        except NoPlaceError as error:
            self._refuse(str(error))
            return
        self._after_step(frame, loss, optimizer)

    def _first_step(self) -> bool:
        """Returns whether the script can be saved, as far as its objects show."""
        if self._session.script_owns_safe_points:
            # `gpujob_worker.prepare` was called after the directory was read.
            self._refused = True
            text = f"{KIND}: the script saves by itself, with gpujob_worker.prepare"
            self._session.log.skipped(_ITEM, text, aloud=False)
            return False
        why = self._state.objects.refusal() or self._state.objects.spread()
        if not self._looked:
            size = self._session.environment.world_size
            why = f"its loop began before the process group of its {size} processes"
        why = why or self._closed()
        if why is not None:
            self._refuse(why)
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        store = self._unmodified.store
        assert store is not None
        self._state.keep_journal(store.directory / self._journal_name, anew=True)
        self._unmodified.passes.training_began()
        self._unmodified.begin(self)

    @property
    def _journal_name(self) -> str:
        gang = self._unmodified.gang
        return f"appended-{0 if gang is None else gang.rank}"

    def _after_step(self, frame: FrameType, loss: Any, optimizer: Any) -> None:
        continuation = self._unmodified.continuation
        if continuation is not None:
            differs = continuation.passes(loss, optimizer)
            if differs is not None:
                text = f"this is not the continuation of the run before: {differs}"
                self._leave_for_beginning(text)
        if self._unmodified.saved_to_leave:
            if self._unmodified.after_script_step() is Order.STOP:
                self._unmodified.carry_out(Order.STOP)
            return
        compares = continuation is not None and continuation.compares
        if self._unmodified.gang is not None:
            if self._asks_others:
                self._ask()
            self._asks_others = self._order is None and not compares
        elif self._order is None and not compares:
            self._ask()
        if self._order is not None or not self._judged:
            self._watch.looks_everywhere = self._session.stop.requested
            self._watch.start(frame)

    # Saving.

    def _hears_stop(self) -> None:
        """Called on a stop, wherever the script is. It is saved at the next turn of a loop."""
        ready = self._unmodified.training is self and self._unmodified.gang is None
        if not ready or self._refused or self._return.under_way:
            return
        continuation = self._unmodified.continuation
        if continuation is not None and (continuation.compares or continuation.records):
            return
        self._order = Order.STOP
        self._watch.looks_everywhere = True
        self._watch.start(current_frame(1))

    def _at_turn(self, frame: FrameType) -> bool:
        """Called when a turn of a loop begins. Returns whether no further turn is wanted."""
        if self._refused:
            return True
        in_step = self._session.state.backward_passes != self._passes_at_step
        if self._unmodified.saved_to_leave or (in_step and self._state.loops.is_innermost(frame)):
            # Around the innermost loop a step may be running in each turn, as in an epoch whose
            # last batches are too few for one.
            return False
        try:
            place = Place(frame, self._unmodified.passes)
            why = self._state.loops.refusal(place.functions)
            if why is not None:
                raise NoPlaceError(why)
            place.saved()
            if not self._is_worth_trying(frame, place):
                return False
        except NoPlaceError as error:
            # A loop around it may still have places.
            if self._state.loops.begins_turn(frame):
                self._refuse(str(error))
            return self._refused
        self._place, self._in_step = place, in_step
        try:
            self._carry_out()
        finally:
            self._place = None
        if not self._unmodified.saved_to_leave:
            return True
        # Code after the loop is left to the next attempt, because it may write files.
        self._watch.keep_to(place.functions, lambda: self._unmodified.carry_out(Order.STOP))
        return False

    def _is_worth_trying(self, frame: FrameType, place: Place) -> bool:
        """Returns whether to try to save in this loop.

        In a loop without steps, such as one over the results at a script's end, a failure is waited
        out.
        """
        if self._state.loops.makes_steps(frame):
            return True
        loop = frame.f_code, frame.f_lineno
        if loop in self._hopeless:
            return False
        try:
            encode_tree(self._state.read(place))
        except CheckpointError:
            self._hopeless.add(loop)
            return False
        return True

    def _carry_out(self) -> None:
        if not self._judged:
            self._judge()
        order, self._order = self._order, None
        if order is not None and not self._refused:
            self._unmodified.carry_out(order)
        if self._unsavable is not None and not self._refused:
            self._refuse(self._unsavable)

    def _judge(self) -> None:
        """Finds out whether the script can be saved, before the first checkpoint."""
        self._judged = True
        assert self._place is not None
        try:
            encode_tree(self._state.read(self._place, in_step=self._in_step))
        except CheckpointError as error:
            self._refuse(str(error))
            return
        self._say_protection()

    def _say_protection(self) -> None:
        files = self._state.files
        left = [*self._state.variables.left, *files.databases.written(), *files.lost()]
        if left == self._left:
            return
        self._left = left
        kind, reason = Protection.BEST_EFFORT if left else Protection.EXACT, "; ".join(left)
        self._session.state.protected(kind, reason or None)
        self._session.log.note("protection", ": ".join(filter(None, (KIND, kind.value, reason))))

    def snapshot(self) -> dict[str, Any]:
        """Returns the state at the place. Raises `UnsavableError`."""
        if self._place is None:
            raise UnsavableError("the script is not at the beginning of a turn")
        try:
            body = self._state.read(self._place, in_step=self._in_step)
        except UnsavableError as error:
            self._unsavable = str(error)
            self._session.state.protected(Protection.FROM_BEGINNING, self._unsavable)
            raise
        self._say_protection()
        loss = self._session.state.since_step
        body["loss"] = None if loss is None else loss.detach()
        store, gang = self._unmodified.store, self._unmodified.gang
        if store is not None and (gang is None or gang.rank == 0):
            self._state.note_loops(self._place, store.directory)
        return body

    # Coming back.

    def _look(self) -> None:
        """Looks once, before the script trains, whether there is a checkpoint to come back to."""
        unmodified = self._unmodified
        if self._looked or unmodified.waits_for_group or self._off:
            return
        self._looked = True
        if unmodified.opens_when_it_trains or self._closed() is not None:
            return
        loaded = unmodified.loaded
        if loaded is None or loaded.state.get("kind") != KIND:
            if self._state.holds_files:
                self._leave_for_beginning("no checkpoint of the script can be read")
            return
        # Among several processes the one that trains is known, and it reports even if it makes no
        # step.
        self._session.start()
        self._return.start(loaded)
        assert unmodified.store is not None
        self._state.keep_journal(unmodified.store.directory / self._journal_name, anew=False)
        unmodified.adopts(loaded)
        self._session.log.note(_ITEM, f"{KIND}: on the way to step {loaded.step}")

    def _arrived(self, what: str, loss: Any) -> None:
        self._session.state.goes_on_in_step(loss)
        step, store = self._unmodified.loaded_step, self._unmodified.store
        assert store is not None
        (store.directory / FAILED_FILE).unlink(missing_ok=True)
        self._begin()
        self._unmodified.arrived(step)
        self._session.log.note(_ITEM, f"{KIND}: from step {step}: {what}")

    def ended(self, well: bool) -> None:
        """Handles the script's end on the way. The next attempt starts as written.

        After an error, which may be temporary, the next attempt tries to come back once more.
        """
        store = self._unmodified.store
        if not self._return.under_way or store is None:
            return
        failed = store.directory / FAILED_FILE
        if not well and not failed.exists():
            write_durably(failed, str(self._unmodified.loaded_step).encode())
            return
        self._give_up("the script ended before it came to the place at which it had stopped")
        if well:
            self._session.leaves_unfinished()

    # Giving up.

    def _closed(self) -> str | None:
        """Returns why nothing is saved, or None if the directory is open.

        Raises `CheckpointError` for a directory that must not be ignored, such as one of another
        number of processes. Starting from the beginning there would lose its content.
        """
        return self._unmodified.open_store() or self._given_up_before()

    def _refuse(self, why: str) -> None:
        """Saves nothing from now on. A resume continues from what is already committed."""
        self._refused = True
        self._order = None
        self._session.log.skipped(_ITEM, f"{KIND}: {why}")
        self._session.state.protected(Protection.FROM_BEGINNING, why)
        self._session.reporter.wake()
        if self._unmodified.training is self:
            self._unmodified.end()

    def _leave_for_beginning(self, why: str) -> NoReturn:
        """Leaves a process whose state is mixed with another run's. The next attempt starts from
        the beginning.
        """
        self._give_up(why)
        self._session.leaves_unfinished()
        raise Interrupted(saved=False) from None

    def _give_up(self, why: str) -> None:
        store = self._unmodified.store
        assert store is not None
        self._return.end()
        Refusals(store.directory).add(why, self._session.environment.attempt)
        self._session.state.refused_resume(self._unmodified.loaded_step, why)
        self._refuse(f"{why}; the next attempt starts from the beginning")

    def _given_up_before(self) -> str | None:
        store = self._unmodified.store
        return None if store is None else Refusals(store.directory).reason()


class _Calls(CallListener):
    """Passes the calls of a model that only answers on to the script's training."""

    def __init__(self, script: PlainScript) -> None:
        self._script = script

    @property
    def returns(self) -> bool:
        return self._script.returns

    def before_call(self) -> None:
        self._script.before_call()

    def answered(self, output: Any) -> None:
        self._script.answered(output)


def _number_of(output: Any) -> torch.Tensor | None:
    """Returns one number that depends on every entry of the answer, or None without any."""
    leaves = [leaf for leaf in tensor_leaves(output) if leaf.layout is torch.strided]
    sums = [leaf.detach().double().abs().sum().cpu() for leaf in leaves if not leaf.is_complex()]
    return torch.stack(sums).sum() if sums else None


def _has_checkpoint(directory: Path | None) -> bool:
    """Returns whether there is a checkpoint to come back to, as far as names show."""
    if directory is None:
        return False
    folders = [folder for folder in (directory, directory / FOLDER) if folder.is_dir()]
    return any(
        next(folder.glob("step-*"), None) is not None and not Refusals(folder).awaits
        for folder in folders
    )


def adapt_accelerate(module: Any) -> None:
    """Marks Accelerate's loaders, which are one batch ahead of the loop."""
    kind = module.DataLoaderAdapter
    plain = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
        plain(self, *arguments, **keywords)
        vars(self.base_dataloader)[AHEAD] = 1

    kind.__init__ = __init__
