"""The party's folder: nobody else reads it, and no file in it is ever half written."""

import os
import stat

import pytest

from tests.doubles.coded import raises
from undersong_client import home as state
from undersong_client import keys
from undersong_client.home import Declared, PartyHome, PartySettings
from undersong_common.errors import ConfigurationError, MachineFault


@pytest.fixture
def home(tmp_path):
    made = PartyHome.create(tmp_path / "home", PartySettings(party="alpha"))
    keys.create(made)
    return made


def modes(path):
    return {each.relative_to(path).as_posix(): stat.S_IMODE(each.stat().st_mode) for each in [path, *path.rglob("*")]}


def test_party_files_are_readable_by_their_owner_only(home):
    old = os.umask(0)
    try:
        state.write_json(home.path / "more.json", {})
        state.make_folder(home.path / "cache")
    finally:
        os.umask(old)
    for name, mode in modes(home.path).items():
        assert mode == (0o700 if (home.path / name).is_dir() else 0o600), name


@pytest.mark.parametrize(("name", "mode"), [(".", 0o750), ("keys", 0o705), ("keys/identity.key", 0o640)])
def test_looser_file_modes_are_refused_with_the_mending_command(home, name, mode):
    path = (home.path / name).resolve()
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode {mode:04o}") as raised:
        PartyHome(home.path)
    assert raised.value.remedy == f"chmod {'600' if path.is_file() else '700'} {path}"


def test_symbolic_link_in_the_party_folder_is_refused(home, tmp_path):
    (tmp_path / "elsewhere").write_text("x")
    (home.path / "policy.json").symlink_to(tmp_path / "elsewhere")
    with raises(ConfigurationError, "is-a-link"):
        PartyHome(home.path)


def test_party_folder_is_not_made_in_a_folder_that_is_not_empty(home, tmp_path):
    with raises(ConfigurationError, "folder-not-empty"):
        PartyHome.create(home.path, PartySettings(party="beta"))
    with raises(ConfigurationError, "no-party"):
        PartyHome(tmp_path / "nowhere")


def test_a_replacement_that_fails_leaves_the_old_file(home, monkeypatch):
    path = home.path / "settings.json"
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with raises(MachineFault, "enospc"):
        home.change(data="x")
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [each.name for each in home.path.glob(".*")] == []


def test_one_folder_runs_one_daemon_only(home):
    assert not home.is_running
    with home.running():
        assert home.is_running
        with raises(ConfigurationError, "daemon-runs"), PartyHome(home.path).running():
            pass
    assert not home.is_running


def test_party_keys_are_made_once_and_a_damaged_key_is_refused(home):
    identity = keys.secret(home, "identity")
    with pytest.raises(FileExistsError):
        keys.create(home)
    assert keys.secret(home, "identity") == identity
    (home.keys / "store.key").write_text("00")
    with raises(ConfigurationError, "key-missing"):
        keys.secret(home, "store")
    with raises(ConfigurationError, "no-certificate"):
        keys.credential(home)


def test_party_with_a_noise_seed_has_the_keys_of_the_simulation(tmp_path):
    from undersong_client.keys import insecure

    made = PartyHome.create(tmp_path / "test", PartySettings(party="alpha", insecure_noise_seed=7))
    keys.create(made)
    assert keys.secret(made, "identity") == insecure(7, "alpha")("identity")(32)
    assert keys.secret(made, "data") == insecure(7, "alpha")("data")(32)


@pytest.mark.parametrize(
    ("names", "is_files"),
    [
        ({"data": "notes.csv"}, True),
        ({"data": "query.sql"}, False),
        ({"data": "QUERY.SQL"}, False),
        ({"data": "notes.csv", "exclusions": "LIST.Sql"}, False),
    ],
)
def test_sql_source_counts_as_a_query_whatever_the_case_of_its_suffix(names, is_files):
    assert Declared(text_field="text", **names).is_files == is_files
