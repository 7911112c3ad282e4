"""The log of a hospital whose people have not decided yet: one line, then one an hour."""

import logging

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.parties import proposal
from tests.doubles.party_home import HashedEmbedder, command, joined
from undersong_client.answering import journaled
from undersong_client.answering.assemble import assemble
from undersong_client.answering.journaled import JournaledParty
from undersong_client.home import PartyHome
from undersong_common.models.embedding import Embedder
from undersong_protocol.agreement.manifest import plan_words


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


@pytest.mark.heavy
def test_a_run_that_waits_for_a_decision_is_logged_once_an_hour(home, tmp_path, caplog):
    manifest, now_s = proposed(home), [1_000_000.0]
    clock = lambda: now_s[0]  # noqa: E731
    assembled = assemble(PartyHome(home), checkpoints=tmp_path / "marks", clock=clock, embedder=HashedEmbedder())
    party = JournaledParty(PartyHome(home), assembled, clock=clock)
    caplog.set_level(logging.INFO, journaled.__name__)

    def lines_of(asks):
        caplog.clear()
        for _ in range(asks):
            now_s[0] += 2.0
            assert party.answer(proposal(manifest)).kind == "pending"
        return sum("with pending" in record.getMessage() for record in caplog.records)

    assert lines_of(20) == 1
    assert lines_of(20) == 0
    now_s[0] += journaled.WAITING_TOLD_S
    assert lines_of(20) == 1
    command("preview", "spring", "--home", home)
    command("approve", "spring", *plan_words(manifest.hash).split(), "--home", home)
    caplog.clear()
    party.answer(proposal(manifest))
    assert any("answered propose with" in record.getMessage() for record in caplog.records)
