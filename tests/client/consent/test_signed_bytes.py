"""The bytes that people and parties sign, compared with files that an earlier version wrote.

No command writes these files anew: a change of them breaks the signatures of sheets, receipts and ledgers that exist.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.party_home import HashedEmbedder, command, joined
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.models.embedding import Embedder
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge, PlanPrice
from undersong_protocol.agreement import receipt
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest, plan_words

GOLDEN = Path(__file__).parent / "golden"
PLAN = GOLDEN / "manifest.json"
READ_DAY = re.compile(r"read \d{4}-\d\d-\d\d")


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


def comparable(sheet: Any) -> Any:
    """A sheet's JSON with floats at nine digits, because an accountant's last bits depend on the machine."""
    if isinstance(sheet, dict):
        return {key: comparable(part) for key, part in sheet.items()}
    if isinstance(sheet, list):
        return [comparable(part) for part in sheet]
    return f"{sheet:.9g}" if isinstance(sheet, float) else sheet


def stored_sheet(home: Path, manifest: Manifest) -> str:
    """The text of the signed sheet, without the keys and days of this test's run."""
    text = (home / f"requests/{manifest.hash.hex()}.sheet").read_text(encoding="utf-8")
    own_fingerprint = party_fingerprint("alpha", manifest.roster[0].identity)
    text = text.replace(manifest.hash.hex(), "HASH").replace(plan_words(manifest.hash), "WORDS")
    text = text.replace(own_fingerprint, "OWN")
    coordinator = json.loads(text)["coordinator"]
    text = text.replace(coordinator["fingerprint"], "COORDINATOR") if coordinator else text
    return READ_DAY.sub("read DAY", text)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["pending", "revised"])
def test_signed_sheet_has_the_bytes_of_its_golden_file(home, name):
    if name == "revised":
        PartyHome(home).change(user_is="case")
        beta = f"beta={party_fingerprint('beta', bytes([2]) * 32)}"
        command("policy", "set", "--require-party", beta, "--home", home)
        proposed(home, epsilon=1.0)
    changes = {"unit": "sample", "max_per_unit": 1} if name == "revised" else {}
    manifest = proposed(home, **changes)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--despite-cautions", "--home", home)
    text = stored_sheet(home, manifest)
    golden = (GOLDEN / f"sheet_{name}.json").read_text(encoding="utf-8")
    assert comparable(json.loads(text)) == comparable(json.loads(golden))
    lines, golden_lines = ([line.partition(":")[0] for line in content.splitlines()] for content in (text, golden))
    assert lines == golden_lines  # the order of the keys in the file too
    stored = json.loads((home / f"requests/{manifest.hash.hex()}.sheet").read_text(encoding="utf-8"))
    people = stored.pop("people")
    assert people == []
    request = Proposals(PartyHome(home)).find("spring")
    assert request.sheet == tagged_hash("undersong sheet", canonical_json(stored)).hex()


def test_manifest_has_the_bytes_and_hash_of_its_golden_file():
    content = PLAN.read_bytes()
    manifest = Manifest.from_bytes(content)
    assert manifest.to_bytes() == content
    assert manifest.hash.hex() == (GOLDEN / "manifest.hash").read_text(encoding="ascii").strip()


def test_ledger_and_receipt_have_the_bytes_of_their_golden_files(tmp_path):
    manifest = Manifest.from_bytes(PLAN.read_bytes())
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, "ab" * 32, None, at=1.0)
    price = PlanPrice(tuple(manifest.plan.charged_events()), tuple(manifest.plan.alone_events()))
    for number, planned in enumerate(manifest.plan.sums):
        alone = (planned.event_alone(manifest.plan.quorum),)
        charge = Charge(manifest.run, manifest.hash.hex(), planned.name, 0, (planned.event(),), "", alone)
        ledger.begin(charge, price, at=2.0)
        ledger.charge(charge, at=3.0)
        if number:
            ledger.send(charge, "cd" * 32, at=4.0)
        else:
            ledger.withdraw(charge, at=4.0)
    ledger.close(manifest.run, manifest.hash.hex(), at=5.0)
    body = receipt.body(manifest, "alpha", ledger.run_entries(manifest.run))
    assert path.read_bytes() == (GOLDEN / "ledger.jsonl").read_bytes()
    assert body == (GOLDEN / "receipt.json").read_bytes()
