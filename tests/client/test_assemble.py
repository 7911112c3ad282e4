"""What a party is put together from."""

import threading

import numpy as np
import pytest

from undersong_client import assemble
from undersong_client.assemble import Embeddings
from undersong_client.state import PartySettings


class Endless:
    """An embedder that is not done with the records before it is let go."""

    dimension = 3

    def __init__(self, *_):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self, texts, _show):
        self.begun.set()
        assert self.go_on.wait(20)
        return np.zeros((len(texts), self.dimension), dtype=np.float32)


class Home:
    def __init__(self, path):
        self.path = path
        self.settings = PartySettings(party="alpha")


@pytest.fixture
def endless(monkeypatch, tmp_path):
    made = Endless()
    monkeypatch.setattr(assemble, "CachedEmbedder", lambda *_: made)
    monkeypatch.setattr(assemble.keys, "secret", lambda *_: bytes(32))
    return made, Embeddings(Home(tmp_path), None, lambda *_: None)


def test_the_size_of_an_embedding_is_told_while_the_records_are_embedded(endless):
    """A sum's opening asks for it and is answered at once: waiting for the records would show how many there are."""
    embedder, embeddings = endless
    computing = threading.Thread(target=embeddings, args=(["a record"],))
    computing.start()
    try:
        assert embedder.begun.wait(20)
        found = []
        asking = threading.Thread(target=lambda: found.append(embeddings(()).shape))
        asking.start()
        asking.join(5)
        assert found == [(0, 3)]
    finally:
        embedder.go_on.set()
        computing.join()
