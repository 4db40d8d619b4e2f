import pytest

from autotune.errors import InputError, StoreError
from autotune.results.find import open_store
from autotune.results.sqlite import NAME
from tests.results.stores import StoreContract


class TestSqlite(StoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return tmp_path / "results"


def test_a_file_may_be_named_itself(tmp_path):
    with open_store(tmp_path / "team.sqlite") as store:
        assert store.file == tmp_path / "team.sqlite"
    assert not (tmp_path / "team.sqlite" / NAME).exists()


def test_another_file_is_no_store_and_stays_as_it_is(tmp_path):
    file = tmp_path / "notes.sqlite"
    file.write_text("not a database " * 100)
    with pytest.raises(StoreError):
        open_store(file)
    assert file.read_text() == "not a database " * 100


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        open_store(tmp_path / "file" / "results")
    assert caught.value.about == ("results",)


def test_another_kind_of_url_is_refused():
    with pytest.raises(InputError) as caught:
        open_store("mysql://host/results")
    assert caught.value.about == ("results",)
