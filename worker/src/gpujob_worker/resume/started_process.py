"""A process that trains alone and that a shell started, as the container's first process.

One process of a run is saved, in its own folder: the first that trains. The next run recognizes it
by its command line and by the folder in which the shell started it. A process that a Python program
starts is not saved, because the program may start the same command for another purpose each time,
as a search does.
"""

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.folder_claim import FolderClaim
from gpujob_worker.launch.first_process import (
    first_is_no_python,
    first_pid,
    is_started_by_first_process,
)
from gpujob_worker.run.process_tree import start_of
from gpujob_worker.run.session import Session

FOLDER = "started-by-shell"


class StartedProcess:
    """This process, which is not the container's first one."""

    def __init__(self, session: Session) -> None:
        environment = session.environment
        assert environment.checkpoint_directory is not None
        self.directory: Path = environment.checkpoint_directory / FOLDER
        first = first_pid()
        run = f"{environment.attempt} {first} {start_of(first)}"
        command = [os.environ.get("PWD", ""), *sys.orig_argv]
        self._claim = FolderClaim(self.directory, command, run, environment.attempt)
        if self._refusal() is None:
            with contextlib.suppress(OSError, CorruptError):
                self._claim.meet()

    def is_known(self) -> bool:
        """Returns whether an earlier run saved it. If not, no checkpoint is used before
        it trains.
        """
        return self._refusal() is None and self._claim.is_known()

    def claim(self) -> str | None:
        """Returns why it is not saved, or None if it is the only one of its run that is."""
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        try:
            return self._claim.take()
        except (OSError, CorruptError) as error:
            return f"its folder cannot be claimed: {error}"

    def _refusal(self) -> str | None:
        by_shell = is_started_by_first_process() and first_is_no_python()
        if not by_shell or multiprocessing.parent_process() is not None:
            return (
                "of processes that train alone the first one is saved, or one that a shell starts"
            )
        return None
