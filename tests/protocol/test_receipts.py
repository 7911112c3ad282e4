"""A receipt tells charges that were withdrawn, that are void, and that count."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_common.canonical import tagged_hash
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_protocol.agreement import receipt
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram


def test_receipt_lists_no_withdrawn_vector_as_sent_and_counts_no_void_one(tmp_path: Path) -> None:
    identity = Ed25519PrivateKey.generate()
    roster = (Member("alpha", identity.public_key().public_bytes_raw()),)
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(4.0, 1e-5), Quorum(1, 1, 0, 0))
    manifest = Manifest("spring", {"name": "t", "labels": ["a", "b"]}, "test", "00" * 32, roster, plan)
    ledger = Ledger.open(tmp_path / "ledger.jsonl", "data")
    for attempt in range(3):
        charge = Charge("spring", manifest.hash.hex(), "labels", attempt, (plan.sums[0].event(),))
        ledger.charge(charge, spare_attempts=5)
        if attempt == 0:
            ledger.withdraw(charge)
            continue
        ledger.send(charge, "aa" * 32)
        if attempt == 1:
            ledger.void(charge, "bb" * 32)
    ledger.close("spring", manifest.hash.hex())
    body = receipt.body(manifest, "alpha", ledger.run_entries("spring"))
    read = receipt.check_receipt(manifest, "alpha", body, identity.sign(tagged_hash(receipt.TAG, body)))
    assert (read.party, read.closed) == ("alpha", True)
    assert (read.withdrawn, read.voided) == ({("labels", 0)}, {("labels", 1)})
    assert [charge.attempt for charge in read.charges] == [0, 1, 2]
    assert [charge.attempt for charge in read.left] == [1, 2]
    assert [charge.attempt for charge in read.counted] == [2]
