"""The sealed copy of a data set: whole or named as damaged, for its party only, and what the party answers from."""

import logging

import pytest

from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder, command, joined, write_notes
from undersong_client import keys
from undersong_client.answering.computation import HospitalComputation, VectorRequest
from undersong_client.consent import policy
from undersong_client.home import PartyHome, PartySettings
from undersong_client.records import snapshot
from undersong_client.storage import checkpoints, datasets
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram, PublicInputs

FACTS = snapshot.Facts("ab" * 32, "cd" * 20, "ef" * 32, 0)
MANY = snapshot.ROWS_A_SLAB + 1


def home_at(path):
    home = PartyHome.create(path, PartySettings(party="alpha"))
    keys.create(home)
    return home


@pytest.fixture
def home(tmp_path):
    return home_at(tmp_path / "home")


def seal(home, table):
    snapshot.seal(home, table, snapshot.Facts(FACTS.fingerprint, FACTS.checkpoint, FACTS.salted, len(table)))


@pytest.mark.parametrize(
    "table",
    [
        Table(("héllo", "\ud800 alone", "a\0b", "🏥"), ("x", "ÿ", "", "x"), ("1", "2", "2", "\n")),
        Table(("a",), None, None),
        Table((), (), None),
        Table(tuple(f"note {n}" for n in range(2 * MANY)), None, tuple(str(n % 7) for n in range(2 * MANY))),
    ],
    ids=["odd texts", "no columns", "empty", "several slabs"],
)
def test_sealed_records_are_read_back_unchanged(home, table):
    seal(home, table)
    assert snapshot.table(home) == table
    assert snapshot.facts(home).rows == len(table)


def test_sealed_file_shows_neither_text_nor_label(home):
    seal(home, Table(("a private note",), ("rare disease",), ("patient 7",)))
    data = home.sealed.read_bytes()
    assert not any(word in data for word in (b"private", b"rare", b"patient", b"texts"))
    assert home.sealed.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("where", [3, 40, 500, -1])
def test_damaged_sealed_copy_of_the_records_is_refused(home, where):
    seal(home, Table(tuple(f"note {n}" for n in range(MANY)), None, None))
    data = bytearray(home.sealed.read_bytes())
    data[where] ^= 1
    home.sealed.write_bytes(data)
    with raises(ConfigurationError, "damaged"):
        snapshot.table(home)


def test_truncated_or_mixed_sealed_copy_of_the_records_is_refused(home, tmp_path):
    table = Table(tuple(f"note {n}" for n in range(MANY)), None, None)
    seal(home, table)
    first = home.sealed.read_bytes()
    seal(home, table)
    second = home.sealed.read_bytes()
    home.sealed.write_bytes(first[:-30])
    with raises(ConfigurationError, "damaged"):
        snapshot.table(home)
    home.sealed.write_bytes(first[:-60] + second[-60:])
    with raises(ConfigurationError, "damaged"):
        snapshot.table(home)
    home.sealed.unlink()
    with pytest.raises(ConfigurationError, match=r"no sealed data set[\s\S]*data add FILE"):
        snapshot.facts(home)


def computation(home, **named):
    return HospitalComputation(PartyHome(home), HashedEmbedder(), **named)


@pytest.fixture
def hospital(tmp_path, authority, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return joined(tmp_path, authority)


@pytest.mark.heavy
@pytest.mark.parametrize("happens", ["changed", "broken", "gone"])
def test_party_answers_from_sealed_records_after_its_file_changed(hospital, tmp_path, happens):
    before = computation(hospital).data.table
    notes = tmp_path / "alpha.jsonl"
    if happens == "changed":
        write_notes(notes, records=3, labels=("other",))
    elif happens == "broken":
        notes.write_bytes(b"\xff{")
    else:
        notes.unlink()
    assert computation(hospital).data.table == before
    findings = command("check", "--offline", "--home", hospital, code=None)
    assert "nobody else is told" in findings


def test_damaged_sealed_copy_counts_as_empty_and_is_logged_locally(hospital, tmp_path, caplog):
    path = PartyHome(hospital).sealed
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        assert len(computation(hospital).data.table) == 0
    assert "answers with zeros" in caplog.text
    assert "the sealed data set is damaged" in command("check", "--offline", "--home", hospital, code=None)


def test_checkpoint_name_in_another_state_folder_follows_from_content(hospital, tmp_path):
    home = PartyHome(hospital)
    _, kept = datasets.open_ledger(home, policy.read(home), tmp_path / "another", at=1.0)
    assert kept.name == checkpoints.checkpoint_name(datasets.load(home).table, tmp_path / "another")
    assert kept.name != snapshot.facts(home).checkpoint


def test_empty_file_is_sealed_only_with_despite_cautions(hospital, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": "  ", "label": "good", "patient": "1"}\n')
    add = ("data", "add", empty, "--label-field", "label", "--user-field", "patient", "--new-version")
    assert "would answer with zeros" in command(*add, "--home", hospital, code=2)
    command(*add, "--despite-cautions", "--home", hospital)
    assert datasets.load(PartyHome(hospital)).table == Table((), (), ())


def test_embeddings_are_computed_anew_where_their_cache_is_gone(hospital, tmp_path, caplog):
    home = PartyHome(hospital)
    texts = datasets.load(home).table.texts
    first = computation(hospital).embed(texts)
    folder = tmp_path / "no folder"
    folder.write_text("a file stands where the folder was")
    home.change(cache=str(folder))
    assert (computation(hospital).embed(texts) == first).all()
    assert "computed anew" in caplog.text


def test_failed_vector_is_zeros_and_its_error_stays_in_the_party(hospital, caplog):
    def failing(*_given, **_named):
        raise KeyError("a private note")

    statistic = LabelHistogram(3)
    planned = plan_sums([SumRequest("labels", statistic)], Privacy(1.0, 1e-5), Quorum(1, 1, 0, 0))["labels"]
    with caplog.at_level(logging.ERROR):
        request = VectorRequest("run", ("good", "bad"), planned, Privacy(1.0, 1e-5), PublicInputs(), b"")
        found = computation(hospital, contribution=failing).vector(request)
    assert found.vector.values.tolist() == [0, 0, 0]
    assert "answers with zeros" in caplog.text
    assert "KeyError" in caplog.text
    assert "private note" not in caplog.text
