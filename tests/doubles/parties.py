"""Real parties over made-up records; only the embedding model is replaced, by hashed directions without weights."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.word_embedding import direction_of
from undersong_client.answering.computation import RecordComputation
from undersong_client.answering.party import Party, PartyRules, PartyStorage
from undersong_client.consent.approvals import Consent
from undersong_client.keys import from_system, insecure
from undersong_client.records.private import DataSet
from undersong_client.storage.attempts import PartyKeys
from undersong_client.storage.store import Store
from undersong_common.models.embedding import publishable
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget
from undersong_common.text.table import Table
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import BlockStore, MemoryBlocks

EMBEDDER = hashlib.sha256(b"hashed directions").hexdigest()
DIMENSION = 48


def embed(texts: Sequence[str]) -> np.ndarray:
    """Quantised unit vectors, float32 [n, 48]: equal texts have equal ones, different texts unrelated ones."""
    directions = (direction_of(text, DIMENSION) for text in texts)
    rows = [vector / np.linalg.norm(vector) for vector in directions]
    return publishable(np.array(rows, dtype=np.float32).reshape(-1, DIMENSION))


def identity_of(name: str) -> Ed25519PrivateKey:
    """The identity key of the party of that name."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"identity of {name}".encode()).digest())


def public_of(name: str) -> bytes:
    """The identity that others know the party by."""
    return identity_of(name).public_key().public_bytes_raw()


def make_party(
    folder: Path,
    name: str,
    table: Table,
    *,
    noise_seed: int | None = None,
    blocks: BlockStore | None = None,
    policy: Policy | None = None,
    budget: Budget | None = None,
    teacher_model: str = "",
    consent: Consent | None = None,
    address: str = "",
) -> Party:
    """One party with its state below ``folder``; made again over the same folder, it goes on where it was."""
    key = hashlib.sha256(f"data set of {name}".encode()).digest()
    data = DataSet(table, key)
    ledger = Ledger.open(folder / f"{name}.ledger.jsonl", data.fingerprint, budget)
    keys = PartyKeys(identity_of(name), from_system if noise_seed is None else insecure(noise_seed, name))
    journal_key = hashlib.sha256(f"store of {name}".encode()).digest()
    journal = Store(folder / f"{name}.sqlite", name, journal_key, folder / f"{name}.attempts")
    storage = PartyStorage(ledger, journal, blocks if blocks is not None else MemoryBlocks())
    rules = PartyRules(
        policy or Policy(largest_epsilon=math.inf),
        SimpleNamespace(fingerprint=EMBEDDER, dimension=DIMENSION),
        consent or Consent(),
        lambda: teacher_model,
        address,
    )
    computation = RecordComputation(name, data, embed, teacher_model=lambda: teacher_model)
    return Party(name, keys, storage, rules, computation, time.time)


def make_manifest(plan: Plan, parties: Mapping[str, Party], labels: Sequence[str], run: str = "a run") -> Manifest:
    """The manifest those parties would be asked to sign."""
    return Manifest(
        run=run,
        task={"name": "test", "description": "a note", "labels": list(labels)},
        method="test",
        embedder=EMBEDDER,
        roster=tuple(Member(name, parties[name].public_identity) for name in sorted(parties)),
        plan=plan,
    )


def proposal(manifest: Manifest) -> bytes:
    """The request to sign a manifest."""
    request = wire.Request(version=codec.VERSION, propose=wire.ProposeManifest(manifest=manifest.to_bytes()))
    return request.SerializeToString()


def propose(party: Party, manifest: Manifest) -> wire.Reply:
    """What the party answers to a manifest that it is asked to sign."""
    return codec.decode_reply(party.handle(proposal(manifest)), party.name)


def make_tables(parties: int, records: int, labels: Sequence[str]) -> dict[str, Table]:
    """``records`` made-up records a party, labels in turn, two records a user."""
    return {
        f"p{party}": Table(
            tuple(f"private note {party}-{row} about nothing" for row in range(records)),
            tuple(labels[row % len(labels)] for row in range(records)) if labels else None,
            tuple(f"user {party}-{row // 2}" for row in range(records)),
        )
        for party in range(parties)
    }
