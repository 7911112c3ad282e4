"""What a run of five parties leaves behind, made in a moment: every paper of it is a test's own to forge."""

import json

import numpy as np

from tests.doubles.lossy import LossyParties
from tests.doubles.parties import embed, identity_of, make_manifest, make_party, make_tables
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_protocol.agreement import receipt
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import defaults
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, encode_embeddings
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

LABELS = ("x", "y")
PARTIES = tuple(f"p{number}" for number in range(5))


def federated(folder, epsilon, *, rate=1.0):
    """What a run of five parties leaves behind, and its plan; p2 is silent in the second sum."""
    tables = make_tables(5, 10, LABELS)
    store = MemoryBlocks()
    parties = {name: make_party(folder, name, table, blocks=store) for name, table in tables.items()}
    threshold, dropouts, colluders = defaults(5)
    statistic = TopQVotes(q=3, candidates=10, labels=2)
    plan = plan_sums(
        [SumRequest(f"votes/{t}", statistic, sampling_rate=rate) for t in (1, 2, 3)],
        Privacy(epsilon, 1e-5),
        Quorum(5, threshold, dropouts, colluders),
    )
    manifest = make_manifest(plan, parties, LABELS)
    data = encode_embeddings(embed([f"c{i}" for i in range(10)]), np.arange(10) % 2)
    journal = Journal(folder / "journal.sqlite")
    blocks = PublicBlocks(journal)
    asked = {"second": False}
    federation = Federation(
        LossyParties(parties, reachable=lambda name, _number: not (asked["second"] and name == "p2")),
        manifest,
        journal,
        Silent(),
        blocks=blocks,
    )
    signatures = federation.agree()
    inputs = [Input("candidates", (Segment(blocks.add(data)),))]
    federation.private_sum("votes/1", inputs)
    asked["second"] = True
    federation.private_sum("votes/2", inputs)
    asked["second"] = False
    receipts = federation.receipts()
    return {
        "private": True,
        "manifest": json.loads(manifest.to_bytes()),
        "manifest_hash": manifest.hash.hex(),
        "signatures": {party: value.hex() for party, value in signatures.items()},
        "sums": {name: federation.opened_facts(name) for name in ("votes/1", "votes/2")},
        "receipts": {
            party: {"body": receipt.body.decode(), "signature": receipt.signature.hex()}
            for party, receipt in receipts.items()
        },
    }, plan


def resigned(value, party, change):
    """``value`` in which a party signs other entries than it charged: the lie is its own, its signature holds."""
    manifest = Manifest.from_bytes(canonical_json(value["manifest"]))
    entries = json.loads(value["receipts"][party]["body"])["entries"]
    change(entries)
    forged = receipt.body(manifest, party, entries)
    signature = identity_of(party).sign(tagged_hash(receipt.TAG, forged)).hex()
    return {**value, "receipts": {**value["receipts"], party: {"body": forged.decode(), "signature": signature}}}
