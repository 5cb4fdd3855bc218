"""Makes processes that train together open the checkpoint directory together and keep step."""

import atexit
import os
from typing import Any

import torch

from gpujob_worker.checkpoint.ballot import Ballot
from gpujob_worker.checkpoint.errors import CheckpointError
from gpujob_worker.checkpoint.shared_store import SharedStore
from gpujob_worker.checkpoint.store import Loaded
from gpujob_worker.inject.ddp import group_store, store_within
from gpujob_worker.launch.first_process import is_first_process, is_started_by_first_process
from gpujob_worker.resume.lockstep import Lockstep, StepsAhead
from gpujob_worker.run.session import Session

# Processes step together. They reach a question within the seconds in which one of them evaluates
# or compiles and the others do not.
ANSWER_SECONDS = 60.0


class Gang:
    """The process group of this process, for checkpoints."""

    def __init__(self, session: Session, rank: int, size: int) -> None:
        self._session = session
        self.rank, self.size = rank, size
        self._values: Any = group_store()
        self._trainings = self._questions = 0
        self._refusal: str | None = None
        self._error: CheckpointError | None = None
        self.store: SharedStore | None = None
        self.loaded: Loaded | None = None
        atexit.register(self._release)

    def meet(self, own_refusal: str | None) -> None:
        """Opens the directory right after the group's start, when no process waits for another one
        yet.

        Nothing is raised here. Errors are raised once something is to be saved.
        """
        session = self._session
        environment = session.environment
        assert environment.checkpoint_directory is not None
        ballot = Ballot(self._values, self.rank, self.size)
        try:
            store = SharedStore(
                environment.checkpoint_directory,
                environment.attempt,
                ballot,
                environment.settings.checkpoint_keep,
                own_refusal=own_refusal or _own_refusal(),
            )
            self._refusal = store.refusal
            if self._refusal is None:
                self.loaded = store.load()
                self.store = store
        except CheckpointError as error:
            self._error = error
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            self._error = CheckpointError(f"{type(error).__name__}: {error}"[:1000])

    def open(self) -> str | None:
        """Returns why nothing is saved, or None if `store` is open. Raises `CheckpointError`."""
        if self._error is not None:
            raise self._error
        return self._refusal

    def lockstep(self) -> Lockstep:
        """Returns the lockstep for the next training. All processes begin the same trainings in the
        same order.
        """
        self._trainings += 1
        prefix = f"steps/{self._trainings}"
        device = torch.device(self._session.state.device or "cpu")
        return Lockstep(
            store_within(self._values, prefix),
            leads=self.rank == 0,
            on_stop=self._session.stop_with_others,
            ahead=StepsAhead(device),
        )

    def first_word(self, question: str, word: str | None) -> str | None:
        """Returns the answer of the first process that has any. All processes call it in the same
        order.

        The wait for a process that does not answer is bounded. Whatever blocks it will end the
        others' next exchange.
        """
        self._questions += 1
        ballot = Ballot(self._values, self.rank, self.size)
        key = f"words/{self._questions} {question}"
        try:
            ballot.say(key, {"word": word})
            if ballot.leads:
                words = [each["word"] for each in ballot.hear(key, ANSWER_SECONDS).values()]
                first = next((each for each in words if each is not None), None)
                ballot.decide(key, {"word": first})
            return ballot.decided(key, 2 * ANSWER_SECONDS)["word"]
        except CheckpointError as error:
            self._session.log.note("resume check", str(error))
            return word

    def _release(self) -> None:
        """Drops the store before the interpreter takes the script's process group apart."""
        self._values = None


def _own_refusal() -> str | None:
    """Returns why this process may not write into the job's directory, or None. A job may run other
    processes too.
    """
    if is_first_process() or is_started_by_first_process():
        return None
    return f"process {os.getpid()} was not started by the job's command itself"
