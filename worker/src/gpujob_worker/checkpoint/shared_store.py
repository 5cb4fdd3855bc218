"""The checkpoint directory of processes that train together: each writes a part, and one commits.

There are two phases. Every process makes its own files durable and announces that with the hash of
their list. Once all have, for the same step, the first process writes the manifest with all lists
and renames the directory. A process that dies, fails or gives up in between leaves the last
committed checkpoint intact.
"""

import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gpujob_worker.checkpoint.ballot import POLL_SECONDS, Ballot, named
from gpujob_worker.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    FencedError,
    MismatchError,
    UnreadableError,
)
from gpujob_worker.checkpoint.manifest import rank_manifest_hash
from gpujob_worker.checkpoint.store import (
    Commit,
    Loaded,
    Store,
    read_rank,
    set_aside_note,
    write_rank,
)

# Seconds for all to arrive. They come from the same start of the process group.
HERE_SECONDS = 30.0
# Seconds for reading and verifying, and for writing: the time of a slow volume for one process's
# part.
READ_SECONDS = 900.0
WRITE_SECONDS = 900.0
# Seconds until a file of another node is visible through a network file system.
VISIBLE_SECONDS = 30.0
# A process that waits for the decision waits longer than the one that decides.
LONGER_SECONDS = 60.0
_TOKEN = "OPENED"  # noqa: S105 - a file's name
_ERRORS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind for kind in (FencedError, MismatchError, UnreadableError)
}


def _nothing(point: str) -> None:
    del point


def _no_progress(size: int) -> None:
    del size


class SharedStore:
    """Like `Store`, in each of the processes. All of them call the same methods in the same order.

    `refusal` is why nothing is saved, and the same in all. Raises `FencedError` if a newer attempt
    was here.
    """

    def __init__(
        self,
        directory: Path,
        attempt: int,
        ballot: Ballot,
        keep: int = 3,
        on_point: Callable[[str], None] = _nothing,
        own_refusal: str | None = None,
    ) -> None:
        self.directory = directory
        self.attempt = attempt
        self.notes: list[str] = []
        self._ballot = ballot
        self._on_point = on_point
        self._store: Store | None = None
        self._token = ""
        self._writes = 0
        self.refusal = self._open(keep, own_refusal)

    def load(self) -> Loaded | None:
        """Returns this process's part of the newest checkpoint whose parts all verify, or None.

        Damaged checkpoints above it are set aside and noted. Raises `MismatchError` for one of
        another number of processes, and `UnreadableError` if one process cannot read its part. No
        checkpoint is set aside then.
        """
        damaged: dict[int, str] = {}
        loaded: Loaded | None = None
        for number, step in enumerate(self._listed()):
            loaded, why = self._read_with_others(f"load/{number}", step)
            if why is None:
                break
            damaged[step] = why
        if self._store is not None:
            self._store.set_aside(damaged)
            self._store.notes.clear()
        self.notes += [set_aside_note(why) for why in damaged.values()]
        return loaded

    def write(
        self,
        step: int,
        text: str,
        tensors: Mapping[str, torch.Tensor],
        about: dict[str, Any],
        wrote: Callable[[int], None] = _no_progress,
    ) -> Commit:
        """Writes this process's part, and returns once all parts are committed.

        Raises `CheckpointError` or `OSError`. Then nothing is committed in any process.
        """
        start, question = time.monotonic(), self._next_write()
        temporary = self._temporary(step, question)
        try:
            digest = write_rank(temporary, self._ballot.rank, text, tensors, wrote, self._on_point)
        except BaseException as error:
            self._say_failed(question, _text_of(error))
            self._ballot.say(f"{question}/known", {})
            raise
        self._ballot.say(question, {"step": step, "list": digest})
        self._on_point("said")
        if self._store is not None:
            decision = self._commit(self._store, question, temporary, step, about, wrote)
        else:
            waits = WRITE_SECONDS + LONGER_SECONDS
            decision = self._ballot.decided(question, waits, lambda: wrote(0))
            # It exists only if it was not committed, and only here if its name differed.
            shutil.rmtree(temporary, ignore_errors=True)
        self._ballot.say(f"{question}/known", {})
        _raise_if(decision)
        return Commit(step, int(decision["bytes"]), time.monotonic() - start)

    def abstain(self, why: str) -> None:
        """Announces that this process has nothing to write while the others write their parts."""
        question = self._next_write()
        self._say_failed(question, why)
        self._ballot.say(f"{question}/known", {})

    def wait_until_known(self, seconds: float) -> None:
        """Waits until all have read the decision about the last write.

        The first process may host the store of the group, so it must not leave before.
        """
        question = f"write/{self._writes}/known"
        if self._ballot.leads and self._writes:
            self._ballot.say(question, {})
            self._ballot.hear(question, seconds)

    def _open(self, keep: int, own_refusal: str | None) -> str | None:
        ballot = self._ballot
        ballot.say("here", {"refusal": own_refusal})
        if ballot.leads:
            ballot.decide("open", self._opened(keep))
        decision = ballot.decided("open", HERE_SECONDS + LONGER_SECONDS)
        _raise_if(decision)
        if decision.get("refusal"):
            return str(decision["refusal"])
        self._token = str(decision["token"])
        # If the directory is not the first process's, its file is missing.
        ballot.say("sees", {"sees": self._sees_token()})
        if ballot.leads:
            heard = ballot.hear("sees", VISIBLE_SECONDS + LONGER_SECONDS)
            blind = [rank for rank in range(ballot.size) if not heard.get(rank, {}).get("sees")]
            refusal = f"{named(blind, ballot.size)} do not see the first one's directory"
            shared = f"{refusal}: a volume that all workers share is needed (ReadWriteMany)"
            ballot.decide("sees", {"refusal": shared if blind else None})
        return ballot.decided("sees", VISIBLE_SECONDS + 2 * LONGER_SECONDS).get("refusal")

    def _opened(self, keep: int) -> dict[str, Any]:
        """Opens the directory, in the first process."""
        ballot = self._ballot
        heard = ballot.hear("here", HERE_SECONDS)
        missing = [rank for rank in range(ballot.size) if rank not in heard]
        if missing:
            return {"refusal": f"{named(missing, ballot.size)} do not save with the others"}
        refusals = {rank: word["refusal"] for rank, word in heard.items() if word["refusal"]}
        if refusals:
            rank, why = next(iter(refusals.items()))
            return {"refusal": f"process {rank} of {ballot.size}: {why}"}
        token = uuid.uuid4().hex
        try:
            self._store = Store(self.directory, self.attempt, keep, self._on_point)
            self.notes += self._store.notes
            (self.directory / _TOKEN).write_text(token)
        except (CheckpointError, OSError) as error:
            return _failure(error)
        return {"token": token}

    def _sees_token(self) -> bool:
        ends = time.monotonic() + VISIBLE_SECONDS
        while True:
            try:
                if (self.directory / _TOKEN).read_text() == self._token:
                    return True
            except OSError:
                pass
            if time.monotonic() > ends:
                return False
            time.sleep(POLL_SECONDS)

    def _listed(self) -> list[int]:
        """Returns the checkpoints that all examine, the newest first, as the first process finds
        them.

        Each is judged once.
        """
        if self._store is not None:
            try:
                self._ballot.decide("load", {"steps": self._store.steps()})
            except CheckpointError as error:
                self._ballot.decide("load", _failure(error))
                raise
        decision = self._ballot.decided("load", READ_SECONDS)
        _raise_if(decision)
        return decision["steps"]

    def _read_with_others(self, question: str, step: int) -> tuple[Loaded | None, str | None]:
        """Returns this process's part, or why the checkpoint is damaged. The result is the same in
        all processes.
        """
        ballot = self._ballot
        loaded, word = self._read(step)
        ballot.say(question, word)
        if ballot.leads:
            ballot.decide(f"{question}/fits", self._judge(question, step))
        decision = ballot.decided(f"{question}/fits", READ_SECONDS + LONGER_SECONDS)
        _raise_if(decision)
        damage = decision.get("corrupt")
        return (loaded, None) if damage is None else (None, str(damage))

    def _read(self, step: int) -> tuple[Loaded | None, dict[str, Any]]:
        try:
            return read_rank(self.directory, step, self._ballot.rank, self._ballot.size), {}
        except CorruptError as error:
            return None, {"corrupt": str(error)}
        except Exception as error:
            # The others wait for an answer, whatever went wrong here.
            return None, _failure(error)

    def _judge(self, question: str, step: int) -> dict[str, Any]:
        """Returns the verdict on a checkpoint that all have read."""
        heard = self._ballot.hear(question, READ_SECONDS)
        missing = [rank for rank in range(self._ballot.size) if rank not in heard]
        if missing:
            return {"failed": f"{named(missing, self._ballot.size)} did not read step-{step}"}
        for rank, word in heard.items():
            if "failed" in word:
                return {**word, "failed": f"{word['failed']} (process {rank})"}
        for rank, word in heard.items():
            if "corrupt" in word:
                return {"corrupt": f"{word['corrupt']} (process {rank})"}
        return {}

    def _next_write(self) -> str:
        self._writes += 1
        return f"write/{self._writes}"

    def _temporary(self, step: int, question: str) -> Path:
        """Returns a path that is equal in all processes and is not used by another opening of the
        directory.
        """
        number = question.rpartition("/")[2]
        return self.directory / f".step-{step}.tmp-{self.attempt}-{self._token}-{number}"

    def _say_failed(self, question: str, why: str) -> None:
        word = {"failed": f"process {self._ballot.rank}: {why}"}
        self._ballot.say(question, word)
        if self._ballot.leads:
            self._ballot.decide(question, word)

    def _commit(
        self,
        store: Store,
        question: str,
        temporary: Path,
        step: int,
        about: dict[str, Any],
        wrote: Callable[[int], None],
    ) -> dict[str, Any]:
        """Runs the second phase in the first process, and returns its decision."""
        try:
            heard = self._ballot.hear(question, WRITE_SECONDS, lambda: wrote(0))
            failed = self._why_not(heard, step) or self._not_visible(heard, temporary)
            if failed is None:
                decision = {"bytes": store.commit(temporary, step, self._ballot.size, about)}
            else:
                decision = {"failed": failed}
        except BaseException as error:
            self._ballot.decide(question, _failure(error))
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._ballot.decide(question, decision)
        return decision

    def _why_not(self, heard: dict[int, dict[str, Any]], step: int) -> str | None:
        missing = [rank for rank in range(self._ballot.size) if rank not in heard]
        if missing:
            return f"{named(missing, self._ballot.size)} did not write within {WRITE_SECONDS:.0f} s"
        for rank, word in heard.items():
            if "failed" in word:
                return str(word["failed"])
            if word["step"] != step:
                return f"process {rank} is at step {word['step']} and process 0 at step {step}"
        return None

    def _not_visible(self, heard: dict[int, dict[str, Any]], temporary: Path) -> str | None:
        """Returns why the lists of files read here differ from those announced, or None."""
        ends = time.monotonic() + VISIBLE_SECONDS
        for rank, word in heard.items():
            while _list_hash(temporary, rank) != word["list"]:
                if time.monotonic() > ends:
                    return f"the files of process {rank} are not seen by process 0"
                time.sleep(POLL_SECONDS)
        return None


def _list_hash(temporary: Path, rank: int) -> str | None:
    try:
        return rank_manifest_hash(temporary, rank)
    except (CorruptError, UnreadableError):
        return None


def _text_of(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:1000]


def _failure(error: BaseException) -> dict[str, Any]:
    return {"failed": _text_of(error), "kind": type(error).__name__}


def _raise_if(decision: dict[str, Any]) -> None:
    if "failed" in decision:
        raise _ERRORS.get(str(decision.get("kind")), CheckpointError)(decision["failed"])
