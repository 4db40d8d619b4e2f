"""The embedded store: one SQLite file, which any number of processes of one machine write to.

It keeps a rollback journal instead of SQLite's WAL, which does not work on network file systems
(sqlite.org/wal.html, section 1); where a file system's locks do not work either, use PostgreSQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune.errors import InputError, NoDiskSpace, StoreError
from autotune.results.sql import SqlStore
from autotune.results.tables import statements

NAME = "results.sqlite"
"""The file, in the folder that a user names."""
WAIT = 600.0
"""Seconds that a writer waits for others: each holds the file for milliseconds, a long query for seconds."""


class SqliteStore(SqlStore):
    """Results in a file."""

    begin = "BEGIN IMMEDIATE"
    schema_table = "SELECT name FROM sqlite_master WHERE name = 'meta'"

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file

    @classmethod
    def at(cls, path: Path) -> SqliteStore:
        """Return the store in a folder, or in a file whose name ends in .sqlite."""
        return cls(path if path.suffix == ".sqlite" else path / NAME)

    def open(self, create: bool = True) -> SqliteStore:
        """Open the file, which is made where there is none. Raises InputError where that cannot be."""
        if not create and not self.file.exists():
            raise InputError(
                f"there are no results in {self.file.parent} yet: no {self.file.name}", about="results"
            )
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"results cannot be kept in {self.file.parent}: {error.strerror}", about="results"
            ) from None
        super().open(create)
        return self

    def connect(self) -> Any:
        """Return a new connection."""
        connection = sqlite3.connect(
            self.file, timeout=WAIT, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def tables(self) -> Iterable[str]:
        """Return the statements that make the tables."""
        return statements(text="TEXT", real="REAL", id="INTEGER PRIMARY KEY", clustered=" WITHOUT ROWID")

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise what the database refuses as an error of ours."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL:
                raise NoDiskSpace(f"{self.file} cannot be written: the disk is full") from error
            if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
                raise StoreError(
                    f"{self.file} is no store of results, or damaged ({error}); restore it from a copy, or give "
                    "another place"
                ) from error
            raise StoreError(f"{self.file} cannot be used: {error}") from error

    def revive(self) -> None:
        """Do nothing: a file does not end a connection."""

    def roll_back(self) -> None:
        """Undo what the open transaction wrote, if SQLite has not done so itself."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
