"""The variables of a script: those of its functions on the way to a loop, and of its modules."""

import ast
import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.frame_variables import set_variables
from gpujob_worker.resume.live_names import live_names
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.script_objects import ScriptObjects
from gpujob_worker.resume.script_place import At, NoPlaceError, functions_of
from gpujob_worker.resume.script_source import script_modules
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.loaders import early_loaders
from gpujob_worker.resume.values.modules_and_optimizers import (
    check_structures,
    read_kept,
    read_stepped,
    restore_kept,
    restore_stepped,
)
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer, deep_calls
from gpujob_worker.resume.values.table import (
    is_self_contained,
    reader_of,
    restorer_of,
    see_kept,
)
from gpujob_worker.resume.values.tensors_and_arrays import check_overlaps

# Maximum number of reported reasons, for an inexact resume that the user requested.
_LEFT_MAX = 5
_PLAIN = (type(None), bool, int, float, str, bytes)


class ScriptVariables:
    """Reads the values of all names of the script, and restores them."""

    def __init__(self, objects: ScriptObjects, baseline: Baseline, passes: Passes) -> None:
        self._objects, self._baseline, self._passes = objects, baseline, passes
        # Values that could not be read, if the user accepts an inexact resume.
        self.left: list[str] = []
        # Loops of halted generators.
        self.lines: list[tuple[str, int]] = []
        self.accepts_less = False

    def see_before_first_step(self, frame: FrameType) -> None:
        """Records large values as they are before anything is trained, which need not be saved."""
        try:
            functions = functions_of(frame)
        except NoPlaceError:
            return
        self._see(functions)

    def _see(self, functions: Sequence[At]) -> None:
        made = self._objects.all()
        for each in made:
            self._baseline.sees_structure(each)
        see_kept(made, self._baseline)
        reader = reader_of(made, self._baseline, first=True)
        for scope, names in self._scopes(functions, all_names=True):
            for name, value in names.items():
                try:
                    reader.names(scope, {name: value})
                except (UnsavableError, RecursionError):
                    continue  # the first check of the saved values gives the reason

    def read(
        self,
        functions: Sequence[At],
        made: Sequence[Any],
        lost: Sequence[Any],
        read_between: Callable[[At], set[str]] = lambda at: set(),
    ) -> dict[str, Any]:
        """Returns all of it as plain values and tensors.

        Raises `UnsavableError`, even for an object that is `lost` and that a variable still has.
        `read_between` returns names that a function on the way reads before its place, after loops
        that a resume leaves out.
        """
        reader = reader_of(made, self._baseline, lost, passes=self._passes)
        self.left = []
        scopes: list[dict[str, Any]] = []
        for scope, names in self._scopes(functions):
            scopes.append({"scope": scope, "names": self._names(reader, scope, names)})
        for at, described in zip(functions, scopes, strict=False):
            described["between"] = self._between(reader, at, read_between(at), described["names"])
        check_structures(reader, made)
        modules, stepped = read_kept(reader, made), read_stepped(reader, made)
        self.lines = reader.lines
        return {
            "scopes": scopes,
            "modules": modules,
            "stepped": stepped,
            "nodes": reader.nodes,
            "overlaps": reader.memories.overlaps(),
        }

    def _names(self, reader: Reader, scope: str, names: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in names.items():
            try:
                found |= reader.names(scope, {name: value})
            except UnsavableError as error:
                if not self.accepts_less:
                    raise
                self.left = [*self.left, str(error)][:_LEFT_MAX]
        return found

    def _between(
        self, reader: Reader, at: At, wanted: set[str], known: dict[str, Any]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in _without_own(at.frame.f_locals).items():
            if name in wanted and name in known:
                found[name] = known[name]
            elif name in wanted:
                with contextlib.suppress(UnsavableError):
                    found |= reader.names("", {name: value})
        return found

    def _scopes(
        self, functions: Sequence[At], *, all_names: bool = False
    ) -> list[tuple[str, dict[str, Any]]]:
        found = [
            (
                f"function {number}",
                _without_own(at.frame.f_locals) if all_names else _variables(at, functions),
            )
            for number, at in enumerate(functions)
        ]
        for name in script_modules():
            module = sys.modules.get(name)
            if module is not None and vars(module) is not functions[0].frame.f_globals:
                found.append((f"module {name}", _without_own(vars(module))))
        return found

    def put_back(self, functions: Sequence[At], saved: dict[str, Any], restorer: Restorer) -> None:
        """Restores the variables. Raises `MismatchError`."""
        self._see(functions)  # a later checkpoint need not have what the script made again
        with deep_calls(saved["nodes"]):
            self._put_back(functions, saved, restorer)

    def _put_back(self, functions: Sequence[At], saved: dict[str, Any], restorer: Restorer) -> None:
        restore_stepped(restorer, saved["stepped"])
        for described in saved["scopes"]:
            kind, _, which = described["scope"].partition(" ")
            names = described["names"]
            if kind == "module":
                module = sys.modules.get(which)
                if module is None:
                    raise MismatchError(f"the script did not import {which}")
                vars(module).update(_values(names, vars(module), restorer))
                continue
            frame = functions[int(which)].frame
            set_variables(frame, _values(names, frame.f_locals, restorer))
        restore_kept(restorer, saved["modules"])
        check_overlaps(restorer, saved["overlaps"])

    def put_back_early(self, frame: FrameType, saved: dict[str, Any], depth: int) -> None:
        """Restores plain values of a function on the way, and later loaders, because the way
        depends on them.
        """
        names = saved["scopes"][depth]["names"]
        found = {name: value for name, value in names.items() if type(value) in _PLAIN}
        found |= _put_loaders(early_loaders(names, saved["nodes"], frame.f_locals))
        set_variables(frame, found)
        outermost = saved["scopes"][0]
        if depth > 0 and outermost["scope"] == "function 0":
            # The module's variables are restored too, because a function may train with global
            # ones.
            early = early_loaders(outermost["names"], saved["nodes"], frame.f_globals)
            frame.f_globals.update(_put_loaders(early))

    def put_back_between(self, frame: FrameType, saved: dict[str, Any]) -> None:
        """Restores plain values that the script reads after a loop that is left out.

        The numbers are those of the place.
        """
        try:
            depth = len(functions_of(frame, strict=False)) - 1
        except NoPlaceError:
            return
        names = saved["scopes"][depth]["between"] if depth < len(saved["scopes"]) else {}
        nodes = saved["nodes"]
        found = {name: each for name, each in names.items() if is_self_contained(each, nodes)}
        restorer = restorer_of(nodes, (), self._passes)
        try:
            set_variables(frame, _values(found, frame.f_locals, restorer))
        except MismatchError:
            return  # the script then finds its own value


def _put_loaders(found: Iterable[tuple[Any, str, Any]]) -> dict[str, Any]:
    """Sets the loaders that belong to objects, and returns those that belong to names."""
    named: dict[str, Any] = {}
    for owner, name, loader in found:
        if owner is None:
            named[name] = loader
        else:
            setattr(owner, name, loader)
    return named


def _variables(at: At, functions: Sequence[At]) -> dict[str, Any]:
    """Returns the variables that a function may read again, and all plain values of those on the
    way.

    The way may depend on them. A loop reads its list even if no later code names that.
    """
    names = _without_own(at.frame.f_locals)
    live = live_names(at.frame.f_code, at.frame.f_lasti) | {
        each.id
        for loop in at.loops
        if isinstance(loop.node, ast.For)
        for each in ast.walk(loop.node.iter)
        if isinstance(each, ast.Name)
    }
    on_the_way = at is not functions[-1]
    return {
        name: value
        for name, value in names.items()
        if name in live or (on_the_way and type(value) in _PLAIN)
    }


def _without_own(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in names.items()
        if not (name.startswith("__") and name.endswith("__")) and name != "_"
    }


def _values(names: dict[str, Any], now: dict[str, Any], restorer: Restorer) -> dict[str, Any]:
    return {name: restorer.value(each, now.get(name), name) for name, each in names.items()}
