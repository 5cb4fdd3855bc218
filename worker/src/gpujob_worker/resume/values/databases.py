"""Connections and cursors of `sqlite3`: the script makes them again. Rows that only they have are
lost.
"""

import contextlib
import sys
from typing import Any

from gpujob_worker.checkpoint.errors import UnsavableError

TYPES = ("sqlite3.Connection", "sqlite3.Cursor")
# Of the rows of `PRAGMA database_list`.
_FILE = 2


def check_database(value: Any, path: str) -> None:
    """Raises `UnsavableError` if rows would be lost: those of a transaction, or in memory."""
    connection = getattr(value, "connection", value)
    try:
        rows = connection.total_changes
        cursor = connection.cursor()
        cursor.row_factory = None
        file = cursor.execute("PRAGMA database_list").fetchone()[_FILE]
        is_open = connection.in_transaction
        # With this mode of Python 3.12, a transaction without rows is always open.
        if is_open and file and getattr(connection, "autocommit", True) is False:
            is_open = _is_written(file)
    except Exception:  # closed, of another thread, or of a class of the script
        return
    if is_open:
        raise UnsavableError(
            f"{path} is a database with rows that are not committed: commit in each turn"
        )
    if rows and not file:
        raise UnsavableError(f"{path} is a database in memory, whose rows are lost with it")


def _is_written(file: str) -> bool:
    """Returns whether a transaction holds the lock for writing."""
    sqlite3: Any = sys.modules["sqlite3"]
    with contextlib.closing(sqlite3.connect(file, timeout=0.0)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        other.rollback()
        return False
