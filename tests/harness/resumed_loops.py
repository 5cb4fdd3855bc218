"""Scripts that are interrupted at a place in a loop and brought back there, in this process.

A script calls `step(what)` for each of its steps. What it passes after the place is compared with
what it passes when it is run again and comes back.
"""

import builtins
import copy
import linecache
import random
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.resume import rerun
from gpujob_worker.resume.loop_headers import rewritten
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.script_objects import ScriptObjects
from gpujob_worker.resume.script_place import NoPlaceError, Place, functions_of
from gpujob_worker.resume.script_variables import ScriptVariables
from gpujob_worker.resume.turn_watch import TurnWatch
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.way_back import NotReachedError, WayBack

_PLAIN = (type(None), bool, int, float, str, bytes)


class ChangedError(Exception):
    """The way back is not taken; the text is the reason."""


@dataclass
class Interruption:
    """A script that wanted a place at one of its steps."""

    steps: list[Any] = field(default_factory=list[Any])
    # The steps that were made before the place.
    before: int | None = None
    refused: str | None = None
    place: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lines: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    variables: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    random: Any = None

    @property
    def rest(self) -> list[Any]:
        assert self.before is not None
        return self.steps[self.before :]


class ResumedLoops:
    """One script of a test."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._path, self._patch = folder / "train.py", patch
        self.library = folder / "site-packages"
        self._iter, self._next = DataLoader.__iter__, _BaseDataLoaderIter.__next__
        patch.setattr(DataLoader, "__iter__", self._iter)
        patch.setattr(_BaseDataLoaderIter, "__next__", self._next)
        patch.setattr(builtins, rerun.LOOP, rerun._loop, raising=False)
        patch.setattr(builtins, rerun.TURN, rerun._turn, raising=False)
        patch.setattr(rerun, "listener", None)

    def write(self, source: str) -> None:
        self._path.write_text(textwrap.dedent(source))
        linecache.checkcache(str(self._path))

    def write_library(self, name: str, source: str) -> None:
        """An installed module."""
        self.library.mkdir(exist_ok=True)
        (self.library / f"{name}.py").write_text(textwrap.dedent(source))
        self._patch.syspath_prepend(str(self.library))
        self._patch.delitem(sys.modules, name, raising=False)

    def _passes(self) -> Passes:
        DataLoader.__iter__ = self._iter
        _BaseDataLoaderIter.__next__ = self._next
        passes = Passes()
        passes.install()
        return passes

    def _run(self, code: Any, step: Any) -> None:
        random.seed(5)
        torch.manual_seed(5)
        names = {"__name__": "__main__", "__file__": str(self._path), "step": step}
        exec(code, names)

    def interrupted(self, at: int) -> Interruption:
        """A place is wanted from the step with this number on, which is counted from 0."""
        found, passes = Interruption(), self._passes()

        def at_turn(frame: FrameType) -> bool:
            try:
                place = Place(frame, passes)
                found.place = copy.deepcopy(place.saved())
            except NoPlaceError as error:
                found.refused = str(error)
                return True
            found.lines, found.before = place.lines(), len(found.steps)
            found.variables = [copied(each.frame.f_locals) for each in place.functions]
            found.random = random.getstate(), torch.get_rng_state()
            return True

        watch = TurnWatch(at_turn)

        def step(what: Any) -> None:
            found.steps.append(copy.deepcopy(what))
            if len(found.steps) == at + 1:
                watch.start(sys._getframe(1))

        code = compile(self._path.read_bytes(), str(self._path), "exec", dont_inherit=True)
        try:
            self._run(code, step)
        finally:
            watch.stop()
        return found

    def resumed(self, saved: Interruption) -> list[Any]:
        """The steps that the script makes from the place on. Raises `ChangedError`."""
        listener = Returns(saved, self._passes())
        self._patch.setattr(rerun, "listener", listener)
        path = str(self._path)
        code = rewritten(self._path.read_bytes(), path, saved.lines.get(path, set()))
        try:
            self._run(code, listener.step)
        finally:
            self._patch.setattr(rerun, "listener", None)
        if not listener.way.reached:
            raise ChangedError("the script ended before its place")
        return listener.steps

    def ways(self, source: str) -> list[str]:
        """How it ended for each step at which a place was wanted: none of them inexactly."""
        self.write(source)
        count = len(self.interrupted(10**9).steps)
        # No loop is around the script, as in life.
        return list(map(self._way, range(count)))

    def _way(self, at: int) -> str:
        saved = self.interrupted(at)
        if saved.refused is not None:
            return "refused"
        if saved.before is None:
            return "none"
        try:
            rest = self.resumed(saved)
        except ChangedError:
            return "late"
        assert repr(rest) == repr(saved.rest), f"at step {at} of {saved.steps}: {saved.place}"
        return "exact"

    def exact(self, source: str) -> None:
        ways = self.ways(source)
        assert set(ways) <= {"exact", "none"}, ways
        assert "exact" in ways

    def refused(self, source: str, why: str = "") -> None:
        """Wherever a place is found, it is refused; one of the reasons has the text."""
        ways = self.ways(source)
        assert set(ways) <= {"refused", "none"}, ways
        assert "refused" in ways
        reasons = list(map(self._refusal, range(len(ways))))
        assert any(why in (reason or "") for reason in reasons), reasons

    def _refusal(self, at: int) -> str | None:
        return self.interrupted(at).refused


class Returns:
    """What the loops of a script ask on its way back."""

    def __init__(self, saved: Interruption, passes: Passes) -> None:
        self._saved = saved
        self.way = WayBack(saved.place, [], passes)
        self._variables = ScriptVariables(ScriptObjects(), Baseline(), passes)
        self.steps: list[Any] = []

    def step(self, what: Any) -> None:
        if not self.way.reached:
            raise ChangedError("a step was made before the place")
        self.steps.append(copy.deepcopy(what))

    def loop(self, file: str, line: int, iterable: Any) -> Any:
        frame = sys._getframe(2)
        if not self.way.expects(line, frame):
            return iterable
        self._put_back(frame, self.way.depth)
        try:
            iterator = self.way.advance(frame, iterable)
        except NotReachedError as error:
            raise ChangedError(str(error)) from None
        self._arrive(frame)
        return iterator

    def turn(self, file: str, line: int) -> bool:
        frame = sys._getframe(2)
        if self.way.expects(line, frame):
            self._put_back(frame, self.way.depth)
            self.way.passes_while()
            self._arrive(frame)
        return True

    def _put_back(self, frame: FrameType, depth: int) -> None:
        scopes = [{"scope": "", "names": each} for each in self._saved.variables]
        self._variables.put_back_early(frame, {"scopes": scopes, "nodes": []}, depth)

    def _arrive(self, frame: FrameType) -> None:
        """As `ScriptState.put_back` does it, for values that tests use."""
        if not self.way.reached:
            return
        for number, at in enumerate(functions_of(frame)):
            self._put_back(at.frame, number)
            for name, value in self._saved.variables[number].items():
                refill(at.frame.f_locals.get(name), value)
        random.setstate(self._saved.random[0])
        torch.set_rng_state(self._saved.random[1])


def copied(names: dict[str, Any]) -> dict[str, Any]:
    kinds = (*_PLAIN, list, dict, set)
    found = {name: value for name, value in names.items() if type(value) in kinds}
    return copy.deepcopy({k: v for k, v in found.items() if not k.startswith("__")})


def refill(existing: Any, value: Any) -> None:
    if type(existing) is not type(value):
        return
    if isinstance(value, list):
        existing[:] = value
    elif isinstance(value, (dict, set)):
        if list(existing) != list(value):
            existing.clear()
        existing.update(value)
