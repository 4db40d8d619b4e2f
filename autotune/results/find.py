"""Which store a place means."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import InputError
from autotune.printable import quoted
from autotune.results.store import Store
from autotune.user_files import user_path


def open_store(place: str | Path, create: bool = True) -> Store:
    """Open the store at a place: a folder (or a file that ends in .sqlite), or a URL `postgresql://...`.

    It is made where there is none, unless `create` is false. Raises InputError where it cannot be, is missing, or has a
    schema of another version, StoreError where the database does not answer.
    """
    from autotune.results.postgresql import SCHEMES

    text = str(place)
    if text.startswith(SCHEMES):
        from autotune.results.postgresql import PostgresqlStore

        return PostgresqlStore(text).open(create)
    if "://" in text:
        raise InputError(f"results: {quoted(text)} is neither a folder nor postgresql://...", about="results")
    from autotune.results.sqlite import SqliteStore

    return SqliteStore.at(user_path(text, "results")).open(create)
