"""The checkpoint directory of one job: commit, fence, fallback, quarantine.

A checkpoint is written under a temporary name, made durable, and renamed to `step-<n>` under a lock
together with a look at the fence. FENCE holds the newest attempt that opened the directory: what an
older attempt still has under way is refused there.
"""

import contextlib
import fcntl
import json
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
    rank_name,
    read_manifest,
    sync_directory,
    verify_rank,
    write_durably,
    write_manifest,
    write_rank_manifest,
)
from gpujob_worker.checkpoint.tensor_file import write_tensors
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree

KEEP_MIN = 2
QUARANTINED_MAX = 3
LOCK_SECONDS_MAX = 10.0
TENSORS_FILE = "state.safetensors"
STATE_FILE = "state.json"
_STEP = re.compile(r"^step-(0|[1-9][0-9]{0,17})$")


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
    """Checkpoints of one job; `attempt` is ours. Raises `FencedError` when a newer one was here.

    `on_point` is called between the stages of a commit; crash tests end the process there.
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

    def steps(self) -> list[int]:
        """Committed steps, the newest first; whether they verify is seen when they are loaded."""
        names = (_STEP.match(path.name) for path in self.directory.iterdir())
        return sorted((int(match[1]) for match in names if match), reverse=True)

    def save(self, step: int, state: Any, about: dict[str, Any] | None = None) -> Commit:
        """Commits `state`. Raises `UnsavableError`, `FencedError` or `OSError`; then nothing is
        committed and what was committed before stays."""
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
        """Commits what `encode_tree` returned; `wrote(bytes)` gets the progress."""
        start = time.monotonic()
        temporary = self.temporary(step, uuid.uuid4().hex)
        try:
            write_rank(temporary, 0, text, tensors, wrote, self._on_point)
            size = size_of(temporary)
            self.commit(temporary, step, 1, about)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return Commit(step, size, time.monotonic() - start)

    def abstain(self, why: str) -> None:
        """A checkpoint that was begun is not written. Others that write their part would wait."""
        del why

    def wait_until_known(self, seconds: float) -> None:
        """Nobody else has to learn what was committed."""
        del seconds

    def temporary(self, step: int, name: str) -> Path:
        """Where a checkpoint is written before it is committed; leftovers go when it is opened."""
        return self.directory / f".step-{step}.tmp-{self.attempt}-{name}"

    def commit(self, temporary: Path, step: int, ranks: int, about: dict[str, Any]) -> None:
        """Names what lies there, with the durable files of so many processes, `step-<n>`."""
        versions = {"torch": torch.__version__}
        known = {"attempt": self.attempt, "versions": versions, "step": step}
        write_manifest(temporary, ranks, {**about, **known})
        self._on_point("manifest")
        self._rename(temporary, step)
        self._remove_old()

    def load(self) -> Loaded | None:
        """The newest checkpoint that verifies; those that do not are set aside and noted.

        Raises `MismatchError` for one of several processes.
        """
        for step in self.steps():
            try:
                return read_rank(self.directory, step, 0, 1)
            except CorruptError as error:
                self.set_aside(step, str(error))
        return None

    def set_aside(self, step: int, why: str) -> None:
        """A checkpoint that does not verify is out of the way of the one before."""
        self.notes.append(f"checkpoint {why}; set aside, falling back")
        self._quarantine(self.directory / f"step-{step}")

    def _rename(self, temporary: Path, step: int) -> None:
        target = self.directory / f"step-{step}"
        with self._locked():
            self._check_fence()
            if target.exists():
                # The same step again after a fallback: the newer one was not good enough to load.
                self._quarantine(target)
            temporary.rename(target)
            sync_directory(self.directory)
        self._on_point("committed")

    def _check_fence(self) -> None:
        path = self.directory / "FENCE"
        try:
            owner = int(json.loads(path.read_text())["attempt"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
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

    def _quarantine(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{path.name}.corrupt-{uuid.uuid4().hex[:8]}"))
        aside = sorted(self.directory.glob("step-*.corrupt-*"), key=lambda p: p.stat().st_mtime)
        for old in aside[:-QUARANTINED_MAX]:
            shutil.rmtree(old, ignore_errors=True)

    def _remove_old(self) -> None:
        for step in self.steps()[self.keep :]:
            path = self.directory / f"step-{step}"
            trash = self.directory / f".trash-{uuid.uuid4().hex}"
            with contextlib.suppress(OSError):
                # Renamed first: half a removed checkpoint must not look like a corrupt one.
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
    """Makes one process's files durable; returns the hash of the list of them."""
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
    """One process's part of a checkpoint. Raises `CorruptError`, and `MismatchError` where another
    number of processes wrote it.
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
        tensors = load_file(folder / TENSORS_FILE)
        text = (folder / STATE_FILE).read_text()
    except (OSError, SafetensorError, UnicodeDecodeError, ValueError) as error:
        raise CorruptError(f"{path.name}: {error}") from None
    return Loaded(step, decode_tree(text, tensors), about)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
