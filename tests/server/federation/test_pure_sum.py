"""Laplace sums through real parties and real secure aggregation: the noise that was planned, charged as what it is."""

import math

import numpy as np
import pytest

from tests.doubles.lossy import LossyParties
from tests.doubles.pace import heavy_but
from tests.doubles.parties import make_manifest, make_party, make_tables
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram
from undersong_protocol.statistics.terms import TermHistogram
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, encode_texts
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

VOCABULARY = (*(f"unused{number}" for number in range(6000)), "private", "note", "nothing")


@pytest.fixture
def federation(tmp_path):
    def build(reachable=lambda _name, _number: True):
        requests = [
            SumRequest("terms", TermHistogram(len(VOCABULARY), 3), law="laplace", epsilon=1.5),
            SumRequest("labels", LabelHistogram(2)),
        ]
        plan = plan_sums(requests, Privacy(2.0, 1e-6), Quorum(5, 4, 1, 1))
        store = MemoryBlocks()
        tables = make_tables(5, 40, ("x", "y"))
        parties = {name: make_party(tmp_path, name, table, blocks=store) for name, table in tables.items()}
        journal = Journal(tmp_path / "journal.sqlite")
        blocks = PublicBlocks(journal)
        made = Federation(
            LossyParties(parties, reachable=reachable),
            make_manifest(plan, parties, ("x", "y")),
            journal,
            Silent(),
            blocks=blocks,
        )
        made.agree()
        return made, plan, [Input("vocabulary", (Segment(blocks.add(encode_texts(VOCABULARY))),))]

    return build


@pytest.mark.parametrize("lost", heavy_but([None, "p2"], ["p2"]))
def test_laplace_sum_has_its_planned_noise_and_charge(federation, tmp_path, lost):
    away = lost is not None
    made, plan, inputs = federation(lambda name, number: not (away and name == lost and number >= 4))
    opened = made.private_sum("terms", inputs)
    survivors = 4 if away else 5
    assert len(opened.survivors) == survivors
    assert opened.natural[-3:] == pytest.approx([40.0 * survivors] * 3, abs=60)
    noise = opened.natural[:-3]
    # three honest survivors are counted on; what the others bring is not taken back
    assert opened.sigma == pytest.approx(plan["terms"].sigma * math.sqrt(survivors / 3), rel=1e-3)
    assert np.std(noise) == pytest.approx(opened.sigma, rel=0.08)  # 6000 samples of a heavy tail: 4 standard errors
    counted = made.private_sum("labels", [])
    assert len(counted.values) == 2
    entries = [e for e in Ledger.read(tmp_path / "p0.ledger.jsonl").entries() if e["kind"] == "charge"]
    assert [entry["events"][0]["mechanism"] for entry in entries] == ["discrete_laplace", "gaussian"]
    assert accounting.epsilon(plan.charged_events(), 1e-6) == pytest.approx(2.0, rel=1e-4)
