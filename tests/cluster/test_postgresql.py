import itertools

import pytest

from autotune.errors import StoreError
from autotune.results.find import open_store
from autotune.results.postgresql import without_password
from autotune.results.row import RunRows
from autotune.results.store import Query
from tests.cluster.postgresql import server
from tests.results.stores import OOM, StoreContract, cell, trial

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def running():
    with server() as url:
        yield url


@pytest.fixture
def place(running):
    """Return the URL of an empty database."""
    import psycopg

    name = f"results{next(_NUMBERS)}"
    with psycopg.connect(running, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return running.replace("/postgres?", f"/{name}?")


class TestPostgresql(StoreContract):
    pass


def test_a_connection_that_the_server_ended_is_made_anew(place):
    import psycopg

    with open_store(place) as store, psycopg.connect(place, autocommit=True) as other:
        store.add(RunRows(cell=cell(), trials=(trial(),)))
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with pytest.raises(StoreError):
            store.count()
        assert store.count() == 1
        store.add(RunRows(cell=cell(name="next"), trials=(trial(),)))
        assert store.count() == 2


def test_the_embedded_store_gives_the_same_answers(place, tmp_path):
    nights = [f"2026110{day}T000000Z" for day in range(1, 6)]
    with open_store(place) as team, open_store(tmp_path) as embedded:
        for store in (team, embedded):
            for night, name in itertools.product(nights, ("b", "a", "Z", "ä", "a-b")):
                rows = (trial(1), trial(2, 8, OOM), trial(1, kind="proof", turn=1, passed=False))
                store.add(RunRows(cell=cell(night, name), trials=rows))
        asked = [
            lambda store: store.sweeps(), lambda store: store.nights("nightly"), lambda store: store.cells("nightly"),
            lambda store: store.cells("nightly", nights[:1], ["proven"]),
            lambda store: store.good("nightly", nights[-1], 2), lambda store: list(store.fits("nightly", nights[1:3])),
            lambda store: list(store.query(Query())), lambda store: list(store.query(Query(limit=7))),
            lambda store: list(store.query(Query(outcome=("oom",), cell=("ä",)))),
            lambda store: store.find_trial("key1", nights[0]), lambda store: store.count(),
            lambda store: store.past(cell(nights[-1], "ä"), 3), lambda store: store.reusable("2026-10-01"),
        ]  # fmt: skip
        for question in asked:
            assert question(team) == question(embedded)


def test_a_server_that_does_not_answer_is_told_without_the_password():
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://me:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)
    assert "me:***@127.0.0.1:1" in str(caught.value)
    assert without_password("postgresql://host/name") == "postgresql://host/name"
