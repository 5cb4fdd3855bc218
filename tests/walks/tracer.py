"""Counts what a piece of work calls in our packages, by Python's own profile function."""

import atexit
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

PACKAGES = ("/gpujob_api/", "/gpujob_operator/", "/gpujob_worker/")
# Which walk the script counts, and where its counts go.
WALK, OUTPUT = "WALK", "WALK_OUTPUT"
WARM_UP_STEP, TUNED_STEP = 6, 40


@dataclass
class Walk:
    """`crossings`: calls from a function of ours to one in another of our files."""

    files: set[str] = field(default_factory=set[str])
    functions: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    crossings: int = 0

    def start(self) -> None:
        """Counts in this thread from now on."""
        sys.setprofile(self._profile)

    def stop(self) -> None:
        sys.setprofile(None)

    def counts(self) -> dict[str, int]:
        return {
            "files": len(self.files),
            "functions": len(self.functions),
            "crossings": self.crossings,
        }

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not _is_ours(code.co_filename):
            return
        self.files.add(code.co_filename)
        self.functions.add((code.co_filename, code.co_firstlineno))
        caller = frame.f_back
        while caller is not None and not _is_ours(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.crossings += 1


def _is_ours(path: str) -> bool:
    # Called until the interpreter has ended, when this module's names may be gone.
    return any(package in path for package in PACKAGES or ())


_WALK = Walk()


def begin() -> None:
    """The script begins."""
    atexit.register(_write)
    if os.environ[WALK] == "resume":
        _WALK.start()


def before_step(step: int) -> None:
    name = os.environ[WALK]
    if (name, step) in (("step", WARM_UP_STEP), ("tuning", WARM_UP_STEP), ("stop", TUNED_STEP)):
        _WALK.start()
    if (name, step) == ("stop", TUNED_STEP):
        os.kill(os.getpid(), signal.SIGTERM)


def is_over(step: int) -> bool:
    """After a step: whether the script may end."""
    last = {"step": WARM_UP_STEP, "tuning": TUNED_STEP, "resume": TUNED_STEP + 1}
    over = step >= last.get(os.environ[WALK], sys.maxsize)
    if over:
        _WALK.stop()
    return over


def _write() -> None:
    _WALK.stop()
    Path(os.environ[OUTPUT]).write_text(json.dumps(_WALK.counts()))
