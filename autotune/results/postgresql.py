"""The store of a team: a PostgreSQL database, through psycopg, which is imported when such a URL is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from autotune.errors import InputError, StoreError
from autotune.results.sql import SqlStore
from autotune.results.tables import statements

SCHEMES = ("postgresql://", "postgres://")
FETCHED = 10_000
"""Rows of a long query that are held at a time."""
OPTIONS = "-c search_path=autotune -c cursor_tuple_fraction=1.0"
"""Of each connection. A cursor's query is planned for all of its rows, not for the first tenth."""
_LOCK = 0x6175746F74756E65
"""Of who makes the tables ("autotune" in ASCII): PostgreSQL's IF NOT EXISTS does not stand two at the same moment."""


class PostgresqlStore(SqlStore):
    """Results in the schema `autotune` of a database."""

    schema_table = "SELECT to_regclass('autotune.meta') WHERE to_regclass('autotune.meta') IS NOT NULL"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InputError(
                f"{without_password(url)}: PostgreSQL needs psycopg; install it: pip install 'autotune[postgresql]'",
                about="results",
            ) from None
        super().__init__(without_password(url))
        self._psycopg = psycopg
        self._address = url

    def connect(self) -> Any:
        """Return a new connection."""
        try:
            return self._psycopg.connect(self._address, autocommit=True, options=OPTIONS, connect_timeout=30)
        except self._psycopg.Error as error:
            raise StoreError(f"{self.url} cannot be reached: {_first_line(error)}") from error

    def prepared(self, statement: str) -> str:
        """Return a statement with values as psycopg marks them."""
        return statement.replace("%", "%%").replace("?", "%s")

    def execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run one statement; return its cursor."""
        return connection.execute(self.prepared(statement), values)

    def stream(self, connection: Any, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield what a query finds, with a cursor on the server's side."""
        with connection.transaction(), connection.cursor(name="results") as cursor:
            cursor.itersize = FETCHED
            cursor.execute(self.prepared(statement), values)
            yield from cursor

    def tables(self) -> Iterable[str]:
        """Return the statements that make the tables, one process at a time."""
        return [
            f"SELECT pg_advisory_xact_lock({_LOCK})",
            "CREATE SCHEMA IF NOT EXISTS autotune",
            # By code point, as SQLite compares, so that both sort alike.
            *statements(
                text='TEXT COLLATE "C"', real="DOUBLE PRECISION", clustered="",
                id="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            ),
        ]  # fmt: skip

    def revive(self) -> None:
        """Connect anew where the server ended the connection."""
        if self._connection.closed:
            self._connection = self.connect()

    def roll_back(self) -> None:
        """Undo what the open transaction wrote; a lost connection has undone it."""
        if not self._connection.closed:
            self._connection.execute("ROLLBACK")

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise what the database refuses as an error of ours."""
        try:
            yield
        except self._psycopg.Error as error:
            raise StoreError(f"{self.url} cannot be used: {_first_line(error)}") from error


def without_password(url: str) -> str:
    """Return a URL as it may be shown: messages and logs are read by others."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
