"""Connections and cursors of `sqlite3`: the script makes them again. Rows that only they have are
lost.
"""

from typing import Any

from gpujob_worker.checkpoint.errors import UnsavableError

TYPES = ("sqlite3.Connection", "sqlite3.Cursor")
# Of the rows of `PRAGMA database_list`.
_FILE = 2


def check_database(value: Any, path: str) -> None:
    """Raises `UnsavableError` if rows would be lost: those of a transaction, or in memory."""
    connection = getattr(value, "connection", value)
    try:
        is_open, rows = connection.in_transaction, connection.total_changes
        cursor = connection.cursor()
        cursor.row_factory = None
        in_memory = rows and not cursor.execute("PRAGMA database_list").fetchone()[_FILE]
    except Exception:  # closed, of another thread, or of a class of the script
        return
    if is_open:
        raise UnsavableError(
            f"{path} is a database with rows that are not committed: commit in each turn"
        )
    if in_memory:
        raise UnsavableError(f"{path} is a database in memory, whose rows are lost with it")
