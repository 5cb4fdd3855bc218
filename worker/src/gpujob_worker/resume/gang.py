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


class Gang:
    """The process group of this process, as far as checkpoints go."""

    def __init__(self, session: Session, rank: int, size: int) -> None:
        self._session = session
        self.rank, self.size = rank, size
        self._values: Any = group_store()
        self._trainings = 0
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

    def _release(self) -> None:
        """Before the interpreter takes the script's process group apart."""
        self._values = None


def _own_refusal() -> str | None:
    """Which processes may write into the job's directory: a job may run others beside them."""
    if is_first_process() or is_started_by_first_process():
        return None
    return f"process {os.getpid()} was not started by the job's command itself"
