"""Calls back once `torch` has been imported, so that scripts without torch are left alone."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `torch` as the others would and lets its loader call back afterwards."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._callback)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, callback: Callable[[], None]) -> None:
        self._inner = inner
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        specification = module.__spec__
        if specification is not None:
            specification.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._callback()


def when_torch_is_imported(callback: Callable[[], None]) -> None:
    """Calls `callback` after the import of torch, at once when it is there already."""
    if "torch" in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _Finder(callback))
