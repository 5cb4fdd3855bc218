"""Processes that train together: they open the checkpoint directory together, and keep step."""

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

# Processes step together: they come to a question within the seconds in which one of them evaluates
# or compiles and the others do not.
ANSWER_SECONDS = 60.0


class Gang:
    """The process group of this process, as far as checkpoints go."""

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
        """Right after the group's start, where no process waits for another one yet.

        Nothing is raised here: what went wrong is known once something is to be saved.
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
        """Why nothing is saved; None where `store` is open. Raises `CheckpointError`."""
        if self._error is not None:
            raise self._error
        return self._refusal

    def lockstep(self) -> Lockstep:
        """For the next training; all processes begin the same ones in the same order."""
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
        """Asked by all processes in the same order: what the first of them says that says anything.

        A process that does not answer is not waited for without end; what it is stuck in ends the
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
        """Before the interpreter takes the script's process group apart."""
        self._values = None


def _own_refusal() -> str | None:
    """Which processes may write into the job's directory: a job may run others beside them."""
    if is_first_process() or is_started_by_first_process():
        return None
    return f"process {os.getpid()} was not started by the job's command itself"
