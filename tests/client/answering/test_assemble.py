"""What a party is put together from."""

import threading
from types import SimpleNamespace

from tests.doubles.party_home import HashedEmbedder, joined
from undersong_client.answering.assemble import assemble
from undersong_client.answering.computation import Computation
from undersong_client.home import PartyHome
from undersong_common.models import embedding
from undersong_common.models.embedding import Embedder


class Unasked(Computation):
    def vector(self, request, *, start_s):
        raise AssertionError("a record was read")


def test_embedding_size_is_answered_while_texts_are_still_embedded(monkeypatch):
    """A sum's opening asks for it and is answered at once: waiting for the records would show how many there are."""
    begun, go_on = threading.Event(), threading.Event()

    def endless(_batch):
        begun.set()
        assert go_on.wait(20)
        raise MemoryError  # of whatever else a model raises, its text counts as zero

    embedder = Embedder.load()
    monkeypatch.setattr(embedder, "_load_encoder", lambda: SimpleNamespace(batches=lambda _: [[0]]))
    monkeypatch.setattr(embedder, "_tokens_of_each", lambda *_: iter(()))
    monkeypatch.setattr(embedding, "in_order", lambda work, items: map(endless, items))
    done = []

    def embed():
        try:
            embedder.encode(["a record"])
        except MemoryError:
            done.append(True)

    computing = threading.Thread(target=embed)
    computing.start()
    try:
        assert begun.wait(20)
        found = []
        asking = threading.Thread(target=lambda: found.append(embedder.dimension))
        asking.start()
        asking.join(5)
        assert found == [384]
    finally:
        go_on.set()
        computing.join()
    assert done


def test_embedding_size_is_taken_from_the_embedder_without_a_record(tmp_path, authority, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = PartyHome(joined(tmp_path, authority))
    embedder = HashedEmbedder()
    made = assemble(home, checkpoints=tmp_path / "marks", clock=lambda: 0.0, embedder=embedder, computation=Unasked())
    assert made.party._rules.embedder.dimension == embedder.dimension
    assert not embedder.asked
