"""Databases of `sqlite3` that a script writes. Their rows are neither held nor cut on a resume.

A transaction that is open at a save is refused by `values/databases.py`.
"""

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.resume.held_files import wrap
from gpujob_worker.resume.written_files import stamp

_MODULE = "sqlite3"
DATABASES_MAX = 100
# A transaction may be in a file beside the database.
_SUFFIXES = ("", "-wal")


class Databases:
    """The databases that the script connected to, as they were at the first connection."""

    def __init__(self, absolute: Callable[[Any], str | None], is_asked: Callable[[], bool]) -> None:
        """`is_asked` returns whether the script itself calls `connect`."""
        self._absolute, self._is_asked = absolute, is_asked
        self._before: dict[str, list[tuple[int, int] | None]] = {}

    def install(self) -> None:
        when_imported(_MODULE, lambda: self.watch(sys.modules[_MODULE]))

    def watch(self, module: Any) -> None:
        wrap(module, "connect", self._connects, self._is_asked)

    def written(self) -> list[str]:
        """Returns the effect of a resume on each database that was written since its connection."""
        return [
            f"{path} is a database: rows after the last checkpoint are written twice, and "
            "statements before the loop are executed again (INSERT OR REPLACE with a key)"
            for path, before in self._before.items()
            if _stamps(path) != before
        ]

    def _connects(self, plain: Any, database: Any, *arguments: Any, **keywords: Any) -> Any:
        path = self._absolute(_file_of(database))
        if path is not None and len(self._before) < DATABASES_MAX:
            self._before.setdefault(path, _stamps(path))
        return plain(database, *arguments, **keywords)


def _file_of(database: Any) -> Any:
    """Returns the path, also of a URI. That of a database in memory is the path of no file."""
    is_uri = isinstance(database, str) and database.startswith("file:")
    return unquote(urlsplit(database).path) if is_uri else database


def _stamps(path: str) -> list[tuple[int, int] | None]:
    return [stamp(path + suffix) for suffix in _SUFFIXES]
