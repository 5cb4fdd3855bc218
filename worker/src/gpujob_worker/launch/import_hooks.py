"""Calls back around the import of a module, so that scripts that never import it are unaffected.

Libraries check whether a module could be imported (`importlib.util.find_spec`) before it is
imported. Such a check is answered and changes nothing: a hook stays until the module was executed
without an error.
"""

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def nothing() -> None:
    """A callback that does nothing."""


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds one module as the later finders would, and makes its loader call back.

    `before` and `after` are called at most once: `before` in the first attempt to execute the
    module, `after` once an attempt has succeeded.
    """

    def __init__(self, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._name = name
        self._before = before
        self._after = after
        self._began = self._done = False
        # Threads that are asking the other finders; one of these may ask all finders again.
        self._asking: set[int] = set()

    @property
    def done(self) -> bool:
        """True if the module was executed under this hook, or existed before it."""
        return self._done

    def install(self) -> None:
        """Waits for the import, or calls back at once for a module that is already imported."""
        if sys.modules.get(self._name) is not None:
            self.begin()
            self.finish()
        else:
            sys.meta_path.insert(0, self)

    def begin(self) -> None:
        if not self._began:
            self._began = True
            self._before()

    def finish(self) -> None:
        """Removes the hook after the module was executed."""
        if self._done:
            return
        self._done = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._after()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        thread = threading.get_ident()
        if fullname != self._name or self._done or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = self._ask_others(path, target)
        finally:
            self._asking.discard(thread)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def _ask_others(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finders in front of this one were asked before it."""
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            spec = find(self._name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """The loader that was found, to everybody who reads it; only executing the module differs."""

    def __init__(self, inner: Any, hook: ImportHook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        # Also before `__init__`, as in a copy or an unpickled loader: that has no inner one yet.
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        specification = module.__spec__
        if specification is not None:
            specification.loader = self._inner
        module.__loader__ = self._inner
        self._hook.begin()
        self._inner.exec_module(module)
        self._hook.finish()


def when_imported(
    name: str, after: Callable[[], None] = nothing, *, before: Callable[[], None] = nothing
) -> ImportHook:
    """Calls `before` and `after` around the import of `name`, at once if it is already imported."""
    hook = ImportHook(name, before, after)
    hook.install()
    return hook
