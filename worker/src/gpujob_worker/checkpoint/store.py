"""The checkpoint directory of one job: commit, fence, fallback, quarantine.

A checkpoint is written under a temporary name, made durable, and renamed to `step-<n>` under a lock
together with a check of the fence. FENCE holds the newest attempt that opened the directory. Later
writes of an older attempt are refused there.

Only a checkpoint that is proven to be damaged is set aside, and only such ones are removed. A
system error fails the load and changes nothing. A step that is committed and whole stays as it is.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gpujob_worker.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    FencedError,
    MismatchError,
)
from gpujob_worker.checkpoint.manifest import (
    STATE_FILE,
    TENSORS_FILE,
    rank_name,
    read_manifest,
    read_small,
    sync_directory,
    verify,
    verify_rank,
    write_durably,
    write_manifest,
    write_rank_manifest,
)
from gpujob_worker.checkpoint.reading import is_there, names_in, read_file, read_patiently
from gpujob_worker.checkpoint.refusals import Refusals
from gpujob_worker.checkpoint.tensor_file import write_tensors
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree

KEEP_MIN = 2
QUARANTINED_MAX = 3
LOCK_SECONDS_MAX = 10.0
# The reason in a folder that was set aside. Without it the folder is not proven to be damaged.
_PROOF = "CORRUPT"
_STEP = re.compile(r"\Astep-(0|[1-9][0-9]{0,17})\Z")


_HERE = -100  # AT_FDCWD: paths are relative to the current directory
_EXCHANGE = 2  # RENAME_EXCHANGE


def exchange(one: Path, other: Path) -> bool:
    """Returns whether the two names were exchanged. NFS, for example, has no such call."""
    library: Any = ctypes.CDLL(None)
    rename = getattr(library, "renameat2", None)
    if rename is None:
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed checkpoint."""

    step: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that verified."""

    step: int
    state: Any
    about: dict[str, Any]


def _nothing(point: str) -> None:
    del point


def _no_progress(size: int) -> None:
    del size


class Store:
    """Checkpoints of one job; `attempt` is ours. Raises `FencedError` if a newer one was here.

    `on_point` is called between the stages of a commit. Crash tests end the process there.
    """

    def __init__(
        self,
        directory: Path,
        attempt: int,
        keep: int = 3,
        on_point: Callable[[str], None] = _nothing,
    ) -> None:
        self.directory = directory
        self.attempt = attempt
        self.keep = max(KEEP_MIN, keep)
        self.notes: list[str] = []
        self._on_point = on_point
        directory.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._check_fence()
            text = json.dumps({"attempt": attempt})
            write_durably(directory / "FENCE", text.encode())
            self._remove_leftovers()
            note = Refusals(directory).put_aside(self.steps())
            if note is not None:
                self.notes.append(note)

    def steps(self) -> list[int]:
        """Returns committed steps, the newest first. They are verified when they are loaded.

        Raises `UnreadableError`.
        """
        matches = map(_STEP.match, names_in(self.directory))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def save(self, step: int, state: Any, about: dict[str, Any] | None = None) -> Commit:
        """Commits `state`. Raises `CheckpointError` or `OSError`.

        Then nothing is committed, and earlier checkpoints stay.
        """
        text, tensors = encode_tree(state)
        return self.write(step, text, tensors, about or {})

    def write(
        self,
        step: int,
        text: str,
        tensors: Mapping[str, torch.Tensor],
        about: dict[str, Any],
        wrote: Callable[[int], None] = _no_progress,
    ) -> Commit:
        """Commits the output of `encode_tree`. `wrote(bytes)` gets the progress.

        If the step is already committed, that commit is returned and nothing is written.
        """
        start = time.monotonic()
        size = self.committed_bytes(step)
        if size is None:
            temporary = self.temporary(step, uuid.uuid4().hex)
            try:
                write_rank(temporary, 0, text, tensors, wrote, self._on_point)
                size = self.commit(temporary, step, 1, about)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return Commit(step, size, time.monotonic() - start)

    def abstain(self, why: str) -> None:
        """Does nothing for a checkpoint that was begun and is not written, because no other process
        waits.
        """
        del why

    def wait_until_known(self, seconds: float) -> None:
        """Does nothing, because no other process waits for the decision."""
        del seconds

    def temporary(self, step: int, name: str) -> Path:
        """Returns the path of a checkpoint before its commit. Leftovers are removed when the
        directory is opened.
        """
        return self.directory / f".step-{step}.tmp-{self.attempt}-{name}"

    def committed_bytes(self, step: int) -> int | None:
        """Returns the size of the step's checkpoint, or None if none verifies.

        Raises `UnreadableError`, and `FencedError` if a newer attempt may have written it.
        """
        path = self._folder(step)
        try:
            size = size_of(path) if verify(path).get("step") == step else None
        except CorruptError:
            return None
        self._check_fence()
        return size

    def commit(self, temporary: Path, step: int, ranks: int, about: dict[str, Any]) -> int:
        """Renames the durable files of `ranks` processes to `step-<n>`, and returns their size.

        If the step is already committed, that checkpoint stays.
        """
        size = self.committed_bytes(step)
        if size is not None:
            return size
        versions = {"torch": torch.__version__}
        known = {"attempt": self.attempt, "versions": versions, "step": step}
        write_manifest(temporary, ranks, {**about, **known})
        size = size_of(temporary)
        self._on_point("manifest")
        self._rename(temporary, step)
        self._remove_old()
        return size

    def load(self) -> Loaded | None:
        """Returns the newest checkpoint that verifies, or None. Damaged ones above it are set aside
        and noted.

        Raises `MismatchError` for one of several processes, and `UnreadableError`. No checkpoint is
        set aside then.
        """
        damaged: dict[int, str] = {}
        loaded: Loaded | None = None
        for step in self.steps():
            try:
                loaded = read_rank(self.directory, step, 0, 1)
                break
            except CorruptError as error:
                damaged[step] = str(error)
        self.set_aside(damaged)
        return loaded

    def set_aside(self, damaged: Mapping[int, str]) -> None:
        """Sets aside checkpoints that are proven to be damaged, with the proof, in favor of older
        ones.
        """
        for step, why in damaged.items():
            self.notes.append(set_aside_note(why))
            self._quarantine(self._folder(step), step, why)

    def _folder(self, step: int) -> Path:
        return self.directory / f"step-{step}"

    def _rename(self, temporary: Path, step: int) -> None:
        target, why = self._folder(step), "it did not verify, and the step was written again"
        with self._locked():
            self._check_fence()
            if not os.path.lexists(target):
                temporary.rename(target)
            elif exchange(temporary, target):
                self._on_point("exchanged")
                self._quarantine(temporary, step, why)
            else:
                self._quarantine(target, step, why)
                self._on_point("set aside")
                temporary.rename(target)
            sync_directory(self.directory)
        self._on_point("committed")

    def _check_fence(self) -> None:
        path = self.directory / "FENCE"
        if not is_there(path):
            return
        try:
            owner = int(json.loads(read_small(path))["attempt"])
        except (CorruptError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"FENCE cannot be read: {error}") from None
        if owner > self.attempt:
            raise FencedError(
                f"attempt {owner} owns {self.directory}; attempt {self.attempt} may not commit"
            )

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with (self.directory / "LOCK").open("a") as stream:
            deadline = time.monotonic() + LOCK_SECONDS_MAX
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        message = f"another process holds the lock of {self.directory}"
                        raise CheckpointError(message) from None
                    time.sleep(0.02)
            yield

    def _quarantine(self, path: Path, step: int, why: str) -> None:
        aside = self.directory / f"step-{step}.corrupt-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(OSError):
            path.rename(aside)
            (aside / _PROOF).write_text(why)
        with contextlib.suppress(OSError):
            proofs = list(self.directory.glob(f"step-*.corrupt-*/{_PROOF}"))
            proofs.sort(key=lambda proof: proof.stat().st_mtime)
            for proof in proofs[:-QUARANTINED_MAX]:
                shutil.rmtree(proof.parent, ignore_errors=True)

    def _remove_old(self) -> None:
        for step in self.steps()[self.keep :]:
            path = self.directory / f"step-{step}"
            trash = self.directory / f".trash-{uuid.uuid4().hex}"
            with contextlib.suppress(OSError):
                # Renamed first, because half a removed checkpoint must not look like a corrupt one.
                path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for pattern in (".step-*.tmp-*", ".trash-*"):
            for path in self.directory.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)


def write_rank(
    temporary: Path,
    rank: int,
    text: str,
    tensors: Mapping[str, torch.Tensor],
    wrote: Callable[[int], None],
    on_point: Callable[[str], None] = _nothing,
) -> str:
    """Makes one process's files durable, and returns the hash of their list."""
    folder = temporary / rank_name(rank)
    folder.mkdir(parents=True)
    on_point("started")
    known = write_tensors(folder / TENSORS_FILE, tensors, wrote)
    on_point("tensors")
    write_durably(folder / STATE_FILE, text.encode())
    sync_directory(folder)
    digest = write_rank_manifest(temporary, rank, {TENSORS_FILE: known})
    on_point("rank manifest")
    return digest


def read_rank(directory: Path, step: int, rank: int, size: int) -> Loaded:
    """Returns one process's part of a checkpoint. Raises `CorruptError` and `UnreadableError`.

    Raises `MismatchError` if another number of processes wrote it or a value's class is missing.
    """
    path = directory / f"step-{step}"
    about = read_manifest(path)
    if about.get("step") != step:
        raise CorruptError(f"{path.name}: its manifest is of step {about.get('step')!r}")
    if len(about["ranks"]) != size:
        raise MismatchError(
            f"{path.name} was written by {len(about['ranks'])} processes and {size} train now:"
            " order and random numbers are each process's own. Start as many as before, or use"
            " another checkpoint directory"
        )
    folder = verify_rank(path, about, rank)
    try:
        # The hash is right, so a system error from here on is no damage.
        tensors = read_patiently(folder / TENSORS_FILE, lambda: load_file(folder / TENSORS_FILE))
        text = read_file(folder / STATE_FILE, Path.read_bytes).decode()
        return Loaded(step, decode_tree(text, tensors), about)
    except (SafetensorError, UnicodeDecodeError, CorruptError) as error:
        raise CorruptError(f"{path.name}: {error}") from None
    except MismatchError as error:
        raise MismatchError(f"{path.name}: {error}") from None


def set_aside_note(why: str) -> str:
    return f"checkpoint {why}; set aside, falling back"


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
