"""The whole state of a plain script at a place, read for a checkpoint and restored."""

import functools
import json
import multiprocessing
import multiprocessing.process
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.checkpoint.manifest import write_durably
from gpujob_worker.resume import rerun
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.random_numbers import random_state
from gpujob_worker.resume.script_files import ScriptFiles
from gpujob_worker.resume.script_gradients import ScriptGradients
from gpujob_worker.resume.script_objects import ScriptObjects
from gpujob_worker.resume.script_place import At, NoPlaceError, Place, function_key
from gpujob_worker.resume.script_source import file_hash, is_of_script
from gpujob_worker.resume.script_variables import ScriptVariables
from gpujob_worker.resume.training_loops import TrainingLoops
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.table import restorer_of
from gpujob_worker.run.installed_files import is_script_file

FORMAT = 5
_OF_SCRIPT = "_gpujob_of_script"


class ScriptState:
    """Reads and restores objects, variables, gradients, random numbers and files."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.objects = ScriptObjects()
        self.gradients = ScriptGradients()
        self.files = ScriptFiles()
        self.loops = TrainingLoops()
        self.variables = ScriptVariables(self.objects, Baseline(), passes)
        self._holds = self._keeps_journal = False
        self._lines: dict[str, set[int]] = {}

    def hold_files(self) -> None:
        """Holds the script's files unchanged on the way back."""
        self._holds = True
        self.files.hold()

    @property
    def holds_files(self) -> bool:
        return self._holds

    def read(self, place: Place, *, in_step: bool = False) -> dict[str, Any]:
        """Returns plain values and tensors, which are the script's own and no copies.

        With `in_step`, there are gradients of the next step. Raises `UnsavableError`.
        """
        try:
            return self._read(place, in_step)
        except (UnsavableError, MemoryError):
            raise
        except Exception as error:  # the script's objects may raise anything
            text = f"its state cannot be read: {type(error).__name__}: {error}"
            raise UnsavableError(text[:500]) from error

    def _read(self, place: Place, in_step: bool) -> dict[str, Any]:
        beside = _beside()
        if beside is not None:
            raise UnsavableError(beside)
        made, lost = self.objects.made_again(place.functions)
        wrong = self.files.conflicts()
        if wrong:
            raise UnsavableError("; ".join(wrong))
        try:
            described = place.saved()
        except NoPlaceError as error:
            raise UnsavableError(str(error)) from None
        return {
            "format": FORMAT,
            "folder": os.getcwd(),
            "place": described,
            "over": self.loops.ended(place.functions),
            "objects": self.objects.states(made),
            "drawn": self.objects.random.saved(place.functions),
            "values": self.variables.read(place.functions, made, lost, self.loops.read_after),
            "gradients": self.gradients.saved(made, in_step=in_step),
            "random": random_state(),
            "files": self.files.snapshot(),
        }

    def put_back(self, body: dict[str, Any], functions: Sequence[At]) -> None:
        """Restores everything except random numbers, which the caller restores last.

        Raises `MismatchError`; then some of it may be restored.
        """
        try:
            self._put_back(body, functions)
        except (MismatchError, MemoryError):
            raise
        except Exception as error:  # the script's objects may raise anything
            text = f"its state cannot be put back: {type(error).__name__}: {error}"
            raise MismatchError(text[:500]) from error

    def _put_back(self, body: dict[str, Any], functions: Sequence[At]) -> None:
        if [at.key for at in functions] != [_key(each) for each in body["place"]]:
            raise MismatchError("the script came to its place by another way")
        made = self.objects.restore(body["objects"])
        moved = (body["folder"], os.getcwd())
        nodes = body["values"]["nodes"]
        restorer = restorer_of(nodes, made, self._passes, moved, self.objects.adopt)
        self.variables.put_back(functions, body["values"], restorer)
        try:
            self.gradients.restore(made, body["gradients"])
        except LookupError as error:
            raise MismatchError(f"a gradient has no parameter: {error}") from None
        wrong = self.files.release(_moved(body["files"], *moved)) if self._holds else []
        if wrong:
            raise MismatchError("; ".join(wrong))
        self._holds = False
        self.loops.adopt(body["over"], functions)

    def note_loops(self, place: Place, directory: Path) -> None:
        """Records the loops that the next attempt has to begin elsewhere, durably before the
        checkpoint.
        """
        lines = place.lines()
        for file, line in (*self.loops.lines(), *self.variables.lines):
            lines.setdefault(file, set()).add(line)
        if all(found <= self._lines.get(file, set()) for file, found in lines.items()):
            return
        path = directory / rerun.PLACES_FILE
        for file, found in (*_listed(path).items(), *lines.items()):
            self._lines.setdefault(file, set()).update(found)
        files = {
            file: {"sha256": file_hash(file), "loops": sorted(found)}
            for file, found in self._lines.items()
        }
        write_durably(path, json.dumps({"format": rerun.FORMAT, "files": files}).encode())

    def keep_journal(self, path: Path, *, anew: bool) -> None:
        """Records the script's appends to files, so that they are not there twice after a kill."""
        if self._keeps_journal:
            return
        self._keeps_journal = True
        if anew:
            path.unlink(missing_ok=True)
        self.files.journal.keep(path)


def watch_processes() -> None:
    """Records which processes run functions of the script, because a started one does not show
    that.
    """
    kind = multiprocessing.process.BaseProcess
    plain = kind.start

    @functools.wraps(plain)
    def start(self: Any) -> None:
        setattr(self, _OF_SCRIPT, _runs_script(self))
        plain(self)

    kind.start = start


def _runs_script(runs: Any) -> bool:
    """Returns whether a thread, or a process that is not started, runs the script's code.

    A timer runs a function of the script later.
    """
    targets = (getattr(runs, "_target", None), getattr(runs, "function", None))
    return is_of_script(type(runs)) or any(
        target is not None and is_of_script(target) for target in targets
    )


def _is_in_script(thread: threading.Thread) -> bool:
    """Returns whether a thread of a library, such as one of a pool, calls the script's code now."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    frame = frames.get(thread.ident or 0)
    while frame is not None:
        if is_script_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _beside() -> str | None:
    """Returns what runs next to the script's main thread, because the place of that
    cannot be read.
    """
    main = (threading.main_thread(), threading.current_thread())
    for each in (*threading.enumerate(), *multiprocessing.active_children()):
        if _runs_script(each) or getattr(each, _OF_SCRIPT, False):
            return f"{each.name} of the script runs beside it"
        if isinstance(each, threading.Thread) and each not in main and _is_in_script(each):
            return f"{each.name} runs functions of the script beside it"
    return None


def _listed(path: Path) -> dict[str, set[int]]:
    """Returns the loops of files that are unchanged, because older checkpoints need them."""
    try:
        files = json.loads(path.read_bytes())["files"]
        return {
            str(file): {int(line) for line in entry["loops"]}
            for file, entry in files.items()
            if entry["sha256"] == file_hash(file)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _key(described: dict[str, Any]) -> tuple[str, str, int]:
    return function_key(described["file"], described["code"], described["first"])


def _moved(files: dict[str, Any], before: str, now: str) -> dict[str, Any]:
    """Moves paths in the folder in which the script ran to the one in which it runs."""

    def moved(path: str) -> str:
        return now + path.removeprefix(before) if path.startswith(before + "/") else path

    found = {moved(path): entry for path, entry in files["files"].items()}
    return {**files, "files": found, "folders": [moved(path) for path in files["folders"]]}
