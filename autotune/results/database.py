"""A database behind a store: its connections and transactions, whatever the tables. Statements mark values by `?`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from autotune.errors import InputError
from autotune.results.store import SCHEMA


class Database(ABC):
    """What a store says its statements to. One connection writes, under a lock; each long read has one of its own."""

    url: str
    """As the user wrote it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.RLock()
        self._connection: Any = None

    @abstractmethod
    def connect(self) -> Any:
        """Return a new connection, in autocommit. Raises StoreError."""

    @abstractmethod
    def failing(self) -> Any:
        """Return a context manager that raises StoreError (or NoDiskSpace) for what the database refuses."""

    @abstractmethod
    def tables(self) -> Iterable[str]:
        """Return the statements that make the tables where there are none, `begin` included."""

    begin = "BEGIN"
    """Begins a transaction that will write."""
    schema_table = ""
    """A query for the name of the table `meta`, if it is there."""

    def prepared(self, statement: str) -> str:
        """Return a statement as this database marks values."""
        return statement

    def execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run one statement; return its cursor."""
        return connection.execute(self.prepared(statement), values)

    def execute_many(self, connection: Any, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Run one statement for many rows."""
        connection.cursor().executemany(self.prepared(statement), list(values))

    def stream(self, connection: Any, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield what a query finds without holding all of it."""
        yield from self.execute(connection, statement, values)

    def open(self, create: bool = True) -> Self:
        """Connect, and make the tables where there are none. Raises InputError where the schema is another one."""
        with self.failing():
            self._connection = self.connect()
            known = self.execute(self._connection, self.schema_table).fetchone()
            if known is None:
                if not create:
                    raise InputError(f"there are no results in {self.url} yet", about="results")
                with self.transaction() as connection:
                    for statement in self.tables():
                        self.execute(connection, statement)
                    self.execute(
                        connection, "INSERT INTO meta (name, value) VALUES ('schema', ?) ON CONFLICT DO NOTHING",
                        (str(SCHEMA),),
                    )  # fmt: skip
            found = self.execute(self._connection, "SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if found is None or found[0] != str(SCHEMA):
            version = "unknown" if found is None else found[0]
            newer = found is not None and found[0].isdecimal() and int(found[0]) > SCHEMA
            what = "install the autotune that wrote it, or a newer one" if newer else "give another place"
            raise InputError(
                f"{self.url}: its schema is version {version}, this autotune reads and writes {SCHEMA}; {what}",
                about="results",
            )
        return self

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Hold the writing connection; all that the body writes is kept, or nothing of it where it raises."""
        with self._lock, self.failing():
            assert self._connection is not None, "the store is open"
            self.revive()
            self.execute(self._connection, self.begin)
            try:
                yield self._connection
            except BaseException:
                self.roll_back()
                raise
            self.execute(self._connection, "COMMIT")

    @abstractmethod
    def revive(self) -> None:
        """Connect anew where the connection was lost."""

    def roll_back(self) -> None:
        """Undo what the open transaction wrote."""
        self.execute(self._connection, "ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Hold a connection that only reads."""
        with self.failing():
            connection = self.connect()
            try:
                yield connection
            finally:
                connection.close()

    def found(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all that a short query finds."""
        with self._lock, self.failing():
            assert self._connection is not None, "the store is open"
            self.revive()
            rows: list[tuple[Any, ...]] = self.execute(self._connection, statement, values).fetchall()
            return rows

    def close(self) -> None:
        """Let go of the connection; safe to call twice."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
