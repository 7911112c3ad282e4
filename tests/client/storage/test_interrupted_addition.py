"""A new version of the data set is added; the machine stops in a step, and the same command is given again."""

import shutil

import pytest

from tests.client.storage.test_datasets import POLICY, declare_and_add, make_home, release
from tests.doubles.coded import raises
from tests.doubles.party_home import write_notes
from undersong_client.home import PartyHome
from undersong_client.records import snapshot
from undersong_client.storage import addition, datasets
from undersong_client.storage.addition import Addition
from undersong_client.storage.checkpoints import LedgerCheckpoints
from undersong_common.errors import PrivacyRefusal
from undersong_common.privacy.ledger import Ledger


class MachineStops(BaseException):
    """Nothing in the product catches it, as nothing survives a power cut."""


def stop(*_arguments: object, **_options: object) -> None:
    raise MachineStops


# Each place stands directly after something was written.
STOPS = {
    "before the ledger is bound": (Addition, "bind"),
    "before the ledger adopts": (Ledger, "adopt"),
    "before the budget is declared": (addition, "declare"),
    "before the former checkpoints end": (LedgerCheckpoints, "leave"),
    "before the records are sealed": (Addition, "seal"),
    "in the seal, before the records": (snapshot, "seal"),
    "in the seal, before the settings": (Addition, "_make_cache"),
    "before the checkpoint": (Addition, "publish_checkpoint"),
}


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home")


def versions(tmp_path):
    older = write_notes(tmp_path / "older.jsonl")
    return older, write_notes(tmp_path / "newer.jsonl", records=14)


@pytest.mark.heavy
@pytest.mark.parametrize("place", STOPS)
def test_interrupted_data_add_gives_the_same_state_when_repeated(home, tmp_path, monkeypatch, place):
    older, newer = versions(tmp_path)
    declare_and_add(home, older, tmp_path)
    spent = release(home, tmp_path).spent(1e-4)
    with monkeypatch.context() as stopped:
        stopped.setattr(*STOPS[place], stop)
        with pytest.raises(MachineStops):
            declare_and_add(home, newer, tmp_path, new_version=True, abandon=True)
    again = PartyHome(home.path)
    survey, _ = declare_and_add(again, newer, tmp_path, new_version=True, abandon=True)
    assert survey.records == len(datasets.load(again).table) == 14
    assert again.settings.data == str(newer)
    ledger, _ = datasets.open_ledger(again, POLICY, tmp_path / "marks", at=3.0)
    assert ledger.spent(1e-4) == spent
    assert [total.closed for total in ledger.totals()] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("place", STOPS)
def test_interrupted_data_add_returns_no_budget_of_the_older_file(home, tmp_path, monkeypatch, place):
    """The attack: what the newer version released is in no checkpoint of the older file, whose ledger has a backup."""
    older, newer = versions(tmp_path)
    declare_and_add(home, older, tmp_path)
    release(home, tmp_path)
    backup = tmp_path / "backup.jsonl"
    shutil.copyfile(home.ledger, backup)
    with monkeypatch.context() as stopped:
        stopped.setattr(*STOPS[place], stop)
        with pytest.raises(MachineStops):
            declare_and_add(home, newer, tmp_path, new_version=True, abandon=True)
    declare_and_add(PartyHome(home.path), newer, tmp_path, new_version=True, abandon=True)
    release(home, tmp_path, run="later")
    shutil.rmtree(home.path)
    fresh = make_home(home.path)
    shutil.copyfile(backup, fresh.ledger)
    with raises(PrivacyRefusal, "ledger-too-old"):
        declare_and_add(fresh, older, tmp_path)
