"""Embedding over a cluster: the same rows as here, kept as they are found, by machines that compute the same bits."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tests.doubles.cluster import PickledCalls
from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, MemoryCache, PublicFileCache
from undersong_server import cluster as spreading
from undersong_server.cluster import Cluster, spread

TEXTS = tuple(f"text {number} " + "word " * (number % 7) for number in range(60))


@pytest.fixture(autouse=True)
def small_calls(monkeypatch):
    monkeypatch.setattr(spreading, "TEXTS_A_CALL", 4)
    monkeypatch.setattr(spreading, "_loaded", {})
    monkeypatch.setattr(embedders, "load", HashedEmbedder)


def spread_over(cluster, cache, fewest=10):
    return spread(HashedEmbedder(), "packaged", cache, cluster, fewest=fewest)


def test_cluster_embedding_equals_local_embedding_row_by_row():
    cluster, seen = PickledCalls(cores=1), []
    found = spread_over(cluster, MemoryCache()).encode(TEXTS, lambda done, total: seen.append((done, total)))
    assert found.tobytes() == CachedEmbedder(HashedEmbedder(), MemoryCache()).encode(TEXTS).tobytes()
    assert cluster.asked == [8, 7]  # two slabs of at most 8 calls a core
    assert seen[-1] == (60, 60)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_few_or_cached_texts_are_embedded_without_the_cluster(tmp_path):
    cluster = PickledCalls()
    embedder = spread_over(cluster, PublicFileCache(tmp_path / "cache"))
    embedder.encode(TEXTS[:50])
    assert len(cluster.asked) == 1
    embedder.encode(TEXTS)  # ten are missing; fewer are embedded here
    assert cluster.asked[1:] == [3]
    embedder.encode([*TEXTS, "one more"])
    assert len(cluster.asked) == 2


def test_stopped_cluster_embedding_repeats_at_most_one_slab(tmp_path):
    class Stopped(PickledCalls):
        def each(self, function, calls):
            if self.asked:
                raise KeyboardInterrupt
            yield from super().each(function, calls)

    with pytest.raises(KeyboardInterrupt):
        spread_over(Stopped(cores=1), PublicFileCache(tmp_path / "cache")).encode(TEXTS)
    again = PickledCalls(cores=1)
    spread_over(again, PublicFileCache(tmp_path / "cache")).encode(TEXTS)
    assert again.asked == [7]


class OtherBits(HashedEmbedder):
    """What another processor computes: the same numbers but for the last bit of one."""

    def encode(self, texts, progress=None):
        rows = super().encode(texts, progress)
        rows[0, 0] = np.nextafter(rows[0, 0], np.float32(2))
        return rows


class AnotherModel(HashedEmbedder):
    def __init__(self, *_):
        super().__init__()
        self.fingerprint = hashlib.sha256(b"another").hexdigest()


@pytest.mark.parametrize(("there", "code"), [(OtherBits, "other-bits"), (AnotherModel, "other-embedder")])
def test_worker_that_embeds_differently_stops_the_run_naming_its_machine(monkeypatch, there, code):
    monkeypatch.setattr(embedders, "load", there)
    monkeypatch.setattr(spreading.socket, "gethostname", lambda: "node-7")
    for _ in range(2):  # its next part is refused too
        with raises(ConfigurationError, code) as refused:
            spread_over(PickledCalls(), MemoryCache()).encode(TEXTS)
        assert refused.value.problem.startswith("node-7: ")
        assert refused.value.remedy


def test_a_part_whose_worker_is_lost_stops_the_embedding():
    class Lost(PickledCalls):
        def each(self, function, calls):
            yield 0, UndersongError("its worker was lost", code="worker-lost")

    with raises(UndersongError, "worker-lost"):
        spread_over(Lost(), MemoryCache()).encode(TEXTS)


@pytest.mark.slow
def test_ray_on_this_machine_embeds_to_the_same_bits(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.undo()
    here = embedders.load("packaged")
    texts = [f"{text} {'and on ' * (number % 9)}" for number, text in enumerate(TEXTS * 3)]
    with Cluster("local", 2) as cluster:
        found = spread(here, "packaged", PublicFileCache(tmp_path / "cache"), cluster, fewest=10).encode(texts)
    assert found.tobytes() == CachedEmbedder(here, MemoryCache()).encode(texts).tobytes()
