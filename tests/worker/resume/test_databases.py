"""Which databases of `sqlite3` a script writes, and which of its connections cannot be saved."""

import contextlib
import sqlite3
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume.databases import DATABASES_MAX, Databases
from gpujob_worker.resume.script_files import _absolute  # pyright: ignore[reportPrivateUsage]
from gpujob_worker.resume.values.databases import check_database

pytestmark = pytest.mark.any_torch


class Watched:
    """A `sqlite3` of its own, whose connections a script or somebody else makes."""

    def __init__(self) -> None:
        self.module: Any = types.SimpleNamespace(connect=sqlite3.connect)
        self.asked = True
        self.databases = Databases(_absolute, lambda: self.asked)
        self.databases.watch(self.module)

    @contextlib.contextmanager
    def connected(self, *arguments: Any, **keywords: Any) -> Generator[sqlite3.Connection]:
        with contextlib.closing(self.module.connect(*arguments, **keywords)) as connection:
            yield connection


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (value REAL)")
        connection.commit()
    return path


def insert(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO rows VALUES (1.0)")
    connection.commit()


def test_a_database_that_is_only_read_is_as_it_was(file: Path) -> None:
    watched = Watched()
    with watched.connected(file) as connection:
        connection.execute("SELECT * FROM rows").fetchall()
        assert watched.databases.written() == []
    assert watched.databases.written() == []


@pytest.mark.parametrize("kind", ["path", "text", "uri"])
def test_a_written_one_is_named_also_once_it_is_closed(file: Path, kind: str) -> None:
    watched = Watched()
    given: Any = {"path": file, "text": str(file), "uri": f"file:{file}?mode=rw"}[kind]
    with watched.connected(given, uri=kind == "uri") as connection:
        insert(connection)
    [reason] = watched.databases.written()
    assert reason.startswith(f"{file} is a database: rows after the last checkpoint")


def test_a_transaction_in_a_file_beside_it_counts(file: Path) -> None:
    watched = Watched()
    with watched.connected(file) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    watched = Watched()
    with watched.connected(file) as connection:
        insert(connection)
        assert len(watched.databases.written()) == 1


def test_a_new_one_counts(tmp_path: Path) -> None:
    watched = Watched()
    with watched.connected(tmp_path / "new.db") as connection:
        connection.execute("CREATE TABLE rows (value REAL)")
        connection.commit()
    assert len(watched.databases.written()) == 1


def test_those_of_libraries_do_not_count_nor_does_memory(file: Path) -> None:
    watched = Watched()
    with watched.connected(":memory:") as connection:
        connection.execute("CREATE TABLE rows (value REAL)")
        insert(connection)
    watched.asked = False
    with watched.connected(file) as connection:
        insert(connection)
    assert watched.databases.written() == []


def test_the_number_of_databases_is_bounded(tmp_path: Path) -> None:
    watched = Watched()
    for number in range(DATABASES_MAX + 1):
        path = tmp_path / f"{number}.db"
        with watched.connected(path):
            path.write_text("rows")
    assert len(watched.databases.written()) == DATABASES_MAX


def test_an_open_transaction_cannot_be_saved(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        check_database(connection, "rows")
        cursor = connection.execute("INSERT INTO rows VALUES (1.0)")
        for value in (connection, cursor):
            with pytest.raises(UnsavableError, match="rows is a database with rows that are not"):
                check_database(value, "rows")
        connection.commit()
        check_database(connection, "rows")
        check_database(cursor, "rows")


def test_a_transaction_that_is_always_open_counts_once_it_has_rows(file: Path) -> None:
    """`autocommit=False` of Python 3.12."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        always_open: Any = types.SimpleNamespace(
            autocommit=False,
            in_transaction=True,
            total_changes=1,
            cursor=connection.cursor,
        )
        check_database(always_open, "rows")
        connection.execute("INSERT INTO rows VALUES (1.0)")
        with pytest.raises(UnsavableError, match="not committed"):
            check_database(always_open, "rows")
        connection.commit()
        check_database(always_open, "rows")


def test_rows_in_memory_cannot_be_saved() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = lambda cursor, row: dict(enumerate(row))
        connection.execute("CREATE TABLE rows (value REAL)")
        check_database(connection, "rows")
        insert(connection)
        with pytest.raises(UnsavableError, match="in memory"):
            check_database(connection, "rows")


def test_a_closed_connection_has_nothing_to_lose() -> None:
    connection = sqlite3.connect(":memory:")
    connection.close()
    check_database(connection, "rows")
