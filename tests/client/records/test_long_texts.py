"""Long texts of a party: they are embedded when they are added, counted for its own people, and never embedded anew."""

import json
from pathlib import Path

import pytest

from tests.doubles.party_home import HashedEmbedder, command, set_up
from undersong_client.answering.assemble import embedder_of
from undersong_client.answering.computation import HospitalComputation, VectorRequest
from undersong_client.home import Declared, PartyHome
from undersong_client.operations import data
from undersong_client.records import snapshot
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder, TextLengths
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.embedding_sum import EmbeddingSum

PRIVACY = Privacy(1.0, 1e-5)

# Of the window and the bound of HashedEmbedder.
ONE_OF_EACH = ["short", "word " * 50, "word " * 51, "word " * 400, "word " * 401]
LENGTHS = TextLengths(texts=5, long=3, cut=1)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    path = tmp_path / "home"
    set_up(path, ("init", "alpha"))
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ONE_OF_EACH))
    return path


def add_notes(home, *options):
    return command("data", "add", home.parent / "notes.jsonl", "--home", home, *options)


def test_party_shows_counts_of_long_texts_and_those_read_only_in_part(home):
    assert LENGTHS.words in add_notes(home)
    assert snapshot.facts(PartyHome(home)).lengths == LENGTHS
    assert json.loads(add_notes(home, "--json"))["lengths"] == {"texts": 5, "long": 3, "cut": 1}
    assert LENGTHS.words in command("check", "--offline", "--home", home, code=None)
    assert LENGTHS.words in add_notes(home, "--dry-run")


def test_all_records_are_embedded_and_cached_before_any_sum(home, monkeypatch):
    asked: list[int] = []
    embed = data.embed
    monkeypatch.setattr(data, "embed", lambda *given: asked.append(1) or embed(*given))
    add_notes(home)
    embedder = HashedEmbedder()
    data.embed(PartyHome(home), embedder, lambda _done, _total: None)
    assert asked
    assert not embedder.asked, "every vector was in the cache"


def test_vector_embeds_records_only_if_the_cache_of_embeddings_is_lost(home):
    """What the ladder times is the computation's ``vector``, so it covers the windows that are embedded there."""
    add_notes(home)
    opened, embedder = PartyHome(home), HashedEmbedder()
    plan = plan_sums([SumRequest("sum", EmbeddingSum(embedder.dimension))], PRIVACY, Quorum(1, 1, 0, 0))
    request = VectorRequest("a run", (), plan["sum"], PRIVACY, PublicInputs(), bytes(32))
    vector = HospitalComputation(opened, embedder).vector(request).vector.values
    assert vector.any()
    assert not embedder.asked
    (Path(opened.settings.cache) / snapshot.EMBEDDINGS).unlink()
    assert (HospitalComputation(opened, embedder).vector(request).vector.values == vector).all()
    assert embedder.asked == [len(ONE_OF_EACH)]


def test_changing_the_encoder_needs_a_new_version_of_the_data_set(home, monkeypatch):
    add_notes(home)
    opened = PartyHome(home)
    assert embedder_of(opened).fingerprint == HashedEmbedder().fingerprint
    other = HashedEmbedder()
    other.fingerprint = "cd" * 32
    monkeypatch.setattr(Embedder, "load", lambda *_: other)
    with pytest.raises(ConfigurationError):
        embedder_of(opened)
    with pytest.raises(ConfigurationError):
        data.add(home, Declared(str(home.parent / "notes.jsonl")), checkpoints=home.parent / "marks")
    add_notes(home, "--new-version")
    assert embedder_of(opened) is other


def test_max_windows_option_of_init_sets_the_windows_of_a_text(tmp_path):
    home = tmp_path / "home"
    command("init", "alpha", "--max-windows", 3, "--home", home)
    settings = PartyHome(home).settings
    assert settings.load_embedder().max_windows == 3
    assert settings.load_embedder().fingerprint != Embedder.load().fingerprint
    assert command("init", "beta", "--max-windows", 65, "--home", tmp_path / "beta", code=None)
    assert not (tmp_path / "beta").exists()
