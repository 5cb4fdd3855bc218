"""The place of a script's generators that are halted in the middle and held by a variable.

A loop that repeats a loader endlessly is often one. A new generator is started, its loops begin at
the turn at which they were, and it halts at the same `yield`.
"""

import inspect
from types import FrameType, GeneratorType
from typing import Any

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume import rerun
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.script_place import NoPlaceError, current_frame, function_key, turn_of
from gpujob_worker.resume.script_source import loops_around
from gpujob_worker.resume.way_back import NotReachedError, advanced
from gpujob_worker.run.installed_files import is_script_file

# Maximum turns of a loop without a `for` until a generator halts.
TURNS_MAX = 10_000


def described(generator: Any, passes: Passes, path: str) -> dict[str, Any] | None:
    """Returns where a generator is halted, or None for one that has not begun or is over.

    Raises `UnsavableError`.
    """
    frame: FrameType | None = generator.gi_frame
    if frame is None or inspect.getgeneratorstate(generator) == inspect.GEN_CREATED:
        return None
    code = frame.f_code
    if not is_script_file(code.co_filename) or generator.gi_yieldfrom is not None:
        raise UnsavableError(f"{path} is the generator {code.co_name}, which is halted elsewhere")
    try:
        loops = loops_around(code, frame.f_lineno)
        turns = [
            {
                "line": loop.line,
                **turn_of(frame, loop, passes, innermost=False, outermost=False),
            }
            for loop in loops
        ]
        for loop in loops:
            if loop.refusal is not None:
                raise NoPlaceError(loop.refusal)
    except (LookupError, NoPlaceError) as error:
        raise UnsavableError(f"{path} is a generator: {error}") from None
    return {
        "file": code.co_filename,
        "code": code.co_name,
        "first": code.co_firstlineno,
        "at": frame.f_lineno,
        "loops": turns,
    }


class HaltedAgain:
    """Runs a generator up to the `yield` at which another one was halted."""

    def __init__(self, saved: dict[str, Any], passes: Passes, path: str) -> None:
        self._saved, self._passes, self._path = saved, passes, path
        self._left = list(saved["loops"])
        self._turns = 0

    def run(self, generator: Any) -> None:
        """Runs the generator. Raises `MismatchError`."""
        saved, path = self._saved, self._path
        frame = generator.gi_frame if isinstance(generator, GeneratorType) else None
        key = function_key(saved["file"], saved["code"], saved["first"])
        if frame is None or inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
            raise MismatchError(f"{path} is no generator that can be begun")
        code = frame.f_code
        if function_key(code.co_filename, code.co_name, code.co_firstlineno) != key:
            raise MismatchError(f"{path} is another generator")
        before, rerun.listener = rerun.listener, self
        try:
            next(generator)
        except (NotReachedError, StopIteration) as error:
            raise MismatchError(f"{path} does not halt where it did: {error}") from None
        finally:
            rerun.listener = before
        if generator.gi_frame is None or generator.gi_frame.f_lineno != saved["at"] or self._left:
            raise MismatchError(f"{path} halts at another place")

    def loop(self, file: str, line: int, iterable: Any) -> Any:
        """Called when a `for` begins in the generator or in a function that it calls."""
        del file
        if not self._left or self._left[0]["line"] != line:
            return iterable
        saved = self._left.pop(0)
        return advanced(current_frame(2), saved, iterable, self._passes, innermost=False)

    def turn(self, file: str, line: int) -> bool:
        del file
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise NotReachedError(f"the loop in line {line} made {TURNS_MAX} turns")
        if self._left and self._left[0]["line"] == line:
            self._left.pop(0)
        return True
