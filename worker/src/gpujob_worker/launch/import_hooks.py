"""Calls back around the import of a module, so that scripts that never import it are unaffected.

Libraries check whether a module can be imported (`importlib.util.find_spec`) before they import it.
Such a check succeeds and changes nothing. A hook stays until the module was executed without an
error.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:  # every Python process of a run imports this; few ever use it
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def nothing() -> None:
    """A callback that does nothing."""


class ImportHook:
    """Finds one module as the other finders would, and makes its loader call back.

    `before` and `after` are called at most once: `before` in the first attempt to execute the
    module, `after` once an attempt has succeeded.
    """

    def __init__(self, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._name = name
        self._before = before
        self._after = after
        self._began = self._done = False
        # Threads that are calling the other finders. One of these may call all finders again.
        self._asking: set[int] = set()

    @property
    def done(self) -> bool:
        """True if the module was executed under this hook, or existed before it."""
        return self._done

    def install(self) -> None:
        """Waits for the import, or calls back at once if the module is already imported."""
        if sys.modules.get(self._name) is not None:
            self.begin()
            self.finish()
        else:
            sys.meta_path.insert(0, self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

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
    ) -> ModuleSpec | None:
        thread = get_ident()
        if fullname != self._name or self._done or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = self._ask_others(path, target)
        finally:
            self._asking.discard(thread)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)  # pyright: ignore[reportAttributeAccessIssue]
        return spec

    def _ask_others(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Returns the spec of the finders behind this one. Those in front were called before."""
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            spec = find(self._name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


class _Loader:
    """Looks like the loader that was found. Only executing the module differs."""

    def __init__(self, inner: Any, hook: ImportHook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        # A copy or an unpickled loader may be read before `__init__`, when it has no inner one yet.
        if name == "_inner":
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return self._load_module if name == "load_module" else found

    def _load_module(self, fullname: str) -> ModuleType:
        """The old way to import, by which the loader itself would bypass the hook."""
        import importlib.abc

        load: Any = importlib.abc.Loader.load_module
        return load(self, fullname)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
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
