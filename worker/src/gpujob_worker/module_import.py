"""Calls back around the import of a module, so that scripts that never import it are left alone."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def nothing() -> None:
    """The callback of those who need only the other one."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would and lets its loader call back."""

    def __init__(self, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._name = name
        self._before = before
        self._after = after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._before, self._after)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(
        self, inner: importlib.abc.Loader, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._before = before
        self._after = after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        specification = module.__spec__
        if specification is not None:
            specification.loader = self._inner
        module.__loader__ = self._inner
        self._before()
        self._inner.exec_module(module)
        self._after()


def when_imported(
    name: str, after: Callable[[], None] = nothing, *, before: Callable[[], None] = nothing
) -> None:
    """Calls `before` and `after` around the import of `name`, at once when it is there already."""
    if name in sys.modules:
        before()
        after()
    else:
        sys.meta_path.insert(0, _Finder(name, before, after))
