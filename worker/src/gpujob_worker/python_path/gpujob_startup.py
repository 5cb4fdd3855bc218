"""Finds the worker's packages next to this folder, and starts the watch for a training library.

They are found by their own names only. Nothing else in their folder can be imported through this,
so the user's packages stay unaffected. Python 3.9 gets translated sources.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGES = ("gpujob_api", "gpujob_worker")
# The folder that contains `gpujob_worker`. `gpujob_api` is there too, or is installed.
BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class Packages:
    """A finder for the worker's packages and the modules in them."""

    def __init__(self, translating: type[SourceFileLoader] | None) -> None:
        self._translating = translating

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        where = [BESIDE] if path is None else path
        spec = PathFinder.find_spec(fullname, where, target)
        if spec is None and path is None:
            spec = PathFinder.find_spec(fullname, None, target)
        if self._translating is not None and spec is not None:
            loader = spec.loader
            if type(loader) is SourceFileLoader:
                spec.loader = self._translating(fullname, loader.path)
        return spec


def start() -> None:
    """Starts the watch. Raises any error, which the caller keeps from the program."""
    if any(isinstance(finder, Packages) for finder in sys.meta_path):
        return
    translating = None
    if sys.version_info < (3, 10):
        from gpujob_translation import TranslatingLoader

        translating = TranslatingLoader
    sys.meta_path.insert(0, Packages(translating))  # type: ignore[arg-type]
    from gpujob_worker.activation import start as watch

    watch()
