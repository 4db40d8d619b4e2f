"""The PostgreSQL that `benchmarks/results_store.py` measures: one that is named, or a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def postgresql(url: str | None) -> Iterator[str]:
    """Yield the URL of a server, whose databases may be made at will."""
    if url is not None:
        yield url
        return
    from tests.cluster.postgresql import server

    with server() as own:
        yield own


def database(url: str, name: str) -> str:
    """Make an empty database of a server; return its URL."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return url.replace("/postgres?", f"/{name}?")
