"""A round's Poisson subsample: fresh for every round and party, and seen by nobody, in no file and no message."""

import shutil
import sqlite3

import numpy as np
import pytest

from tests.doubles.parties import make_manifest, make_party
from undersong.run.simulation import InProcess
from undersong_client.answering.grid_vectors import poisson_subsample
from undersong_client.storage.attempts import COINS_BYTES
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import defaults
from undersong_protocol.statistics import LabelHistogram
from undersong_protocol.wire.public import MemoryBlocks
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

LABELS = tuple(f"label {number}" for number in range(64))


class Wire(InProcess):
    """Keeps every byte that passes."""

    def __init__(self, parties):
        super().__init__(parties)
        self.passed = []

    def exchange(self, requests, timeout_s):
        replies = super().exchange(requests, timeout_s=timeout_s)
        self.passed += [*requests.values(), *replies.values()]
        return replies


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two rounds of three parties, each with one record per label, at rate one half and without noise."""
    drawn = []

    def spied(units, rate, coins):
        kept = poisson_subsample(units, rate, coins)
        drawn.append((coins, kept))
        return kept

    monkeypatch.setattr("undersong_client.answering.grid_vectors.poisson_subsample", spied)
    # no noise, so that what was opened can be laid beside the subsamples
    tables = {
        f"p{n}": Table(tuple(f"note {n} {label}" for label in LABELS), LABELS, tuple(f"u{n}{x}" for x in LABELS))
        for n in range(3)
    }
    threshold, dropouts, colluders = defaults(3)
    requests = [SumRequest(f"votes/{t}", LabelHistogram(len(LABELS)), sampling_rate=0.5) for t in (1, 2)]
    plan = plan_sums(requests, Privacy(float("inf"), 1e-5), Quorum(3, threshold, dropouts, colluders))
    blocks = MemoryBlocks()
    parties = {name: make_party(tmp_path, name, table, blocks=blocks) for name, table in tables.items()}
    wire = Wire(parties)
    manifest = make_manifest(plan, parties, LABELS)
    journal = Journal(tmp_path / "journal.sqlite")
    federation = Federation(wire, manifest, journal, Silent(), blocks=PublicBlocks(journal))
    federation.agree()
    opened = [federation.private_sum(name, []) for name in ("votes/1", "votes/2")]
    return tmp_path, wire, drawn, opened


@pytest.mark.heavy
def test_poisson_subsample_is_drawn_anew_per_round_and_party(world):
    _, _, drawn, opened = world
    assert len(drawn) == 6
    assert len({coins for coins, _ in drawn}) == 6
    assert len({kept.tobytes() for _, kept in drawn}) == 6  # two of 2^64 subsets are never equal by chance
    for round_, one in enumerate(opened):
        expected = np.sum([kept for _, kept in drawn[3 * round_ : 3 * round_ + 3]], axis=0)
        assert one.natural.tolist() == expected.tolist()
        assert 0 < expected.sum() < 3 * len(LABELS)


@pytest.mark.heavy
def test_subsampling_coins_are_in_no_message_and_in_no_plaintext_file(world):
    folder, wire, drawn, _ = world
    places = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    places |= {f"message {number}": data for number, data in enumerate(wire.passed)}
    assert sum(name.endswith(".sqlite") for name in places) == 4  # three parties' stores and the journal
    copies = shutil.copytree(folder, folder.parent / "copies")  # whoever writes a file has it locked
    stored = [
        value
        for path in copies.glob("*.sqlite")
        for (table,) in sqlite3.connect(path).execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for row in sqlite3.connect(path).execute(f"SELECT * FROM {table}")
        for value in row
        if isinstance(value, bytes)
    ]
    assert stored
    for coins, kept in drawn:
        assert len(coins) == COINS_BYTES
        for secret in (coins, coins.hex().encode(), np.packbits(kept).tobytes(), kept.tobytes()):
            assert not [name for name, data in places.items() if secret in data]
            assert not [value for value in stored if secret in value]
