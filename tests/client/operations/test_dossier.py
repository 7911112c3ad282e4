"""A hospital's dossier of a run: what left with its hashes, what it cost, what is kept; escaped, and nothing sent."""

import hashlib
import json

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.party_home import command, joined
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_client.keys import secret
from undersong_client.operations.runs import others_part, own_part, stages
from undersong_client.storage.attempts import agreed_key
from undersong_client.storage.outbox import Outbox
from undersong_client.storage.store import Store
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_protocol.agreement.manifest import plan_words

pytestmark = pytest.mark.heavy
AUDIT = {
    "task": "triage",
    "method": "wasp",
    "epsilon": 1.5,
    "runs": 3,
    "canaries": 16,
    "confidence": 0.95,
    "faults": [],
    "played": [{"messages": 700, "examples": 60, "vectors": 20, "found": "", "body": "sums"}],
    "verdicts": [
        {
            "attack": "opened sums",
            "epsilon": 0.41,
            "detection": {"hits": 14, "present": 24, "false_alarms": 3, "absent": 24},
        }
    ],
}


@pytest.fixture
def home(tmp_path, authority):
    return joined(tmp_path, authority)


def test_dossier_describes_a_run_on_one_page(home, tmp_path):
    manifest = proposed(home, task={"purpose": "<script>alert(1)</script>"})
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    outbox = Outbox(PartyHome(home))
    outbox.record(b"masked", at=9.0, kind="sum_reply", answer_to="sum_step", run="spring", query="votes/1", attempt=0)
    outbox.record(b"another run's", at=9.0, kind="sum_reply", run="autumn", query="votes/1", attempt=0)
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps(AUDIT))
    page = tmp_path / "dossier.html"
    sent = outbox.entries()
    assert f"wrote {page}" in command("dossier", "spring", "--out", page, "--audit", audit, "--home", home)
    assert outbox.entries() == sent
    written = page.read_text()
    for part in (
        hashlib.sha256(b"masked").hexdigest(),
        "votes/1, 0",
        "1 message of 6 bytes",
        "approved",
        f"nine words: {plan_words(manifest.hash)}. Filed for alpha:",
        "epsilon 1.5 at delta 1e-05",
        "one patient",
        "14 of 24",
        "proves epsilon of at least",
        "ledger.jsonl",
        "until the sum has ended",
        "Article 35(7)",
        "undersong-party ledger --verify",
    ):
        assert part in written, part
    assert hashlib.sha256(b"another run's").hexdigest() not in written
    assert "<script" not in written
    assert "exists already" in command("dossier", "spring", "--out", page, "--home", home, code=2)


def test_file_that_is_no_audit_is_refused_before_a_dossier_is_written(home, tmp_path):
    proposed(home)
    audit, page = tmp_path / "audit.json", tmp_path / "dossier.html"
    for text in ("[]", "{", '{"confidence": "x"}', json.dumps({**AUDIT, "verdicts": [{}]})):
        audit.write_text(text)
        said = command("dossier", "spring", "--out", page, "--audit", audit, "--home", home, code=2)
        assert "is not the result of an audit" in said
    assert not page.exists()


def test_dossier_of_a_withdrawal_says_until_which_sum_it_took_part(home, tmp_path):
    manifest = proposed(home)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    ledger = Ledger.read(home / "ledger.jsonl")
    for number, name in enumerate(("labels", "votes/1", "votes/2")):
        charge = Charge("spring", manifest.hash.hex(), name, 0, (Gaussian(40.0),), alone=(Gaussian(20.0),))
        ledger.charge(charge, at=5.0)
        if number < 2:  # the third was charged, and its vector never left
            ledger.send(charge, "aa" * 32, at=5.0)
    request = Proposals(PartyHome(home)).find("spring")
    not_begun = "This run has not begun, as far as this software has been told. Your numbers have left for 2 of 4 sums."
    assert own_part(home, request) == not_begun
    command("revoke", "spring", "--home", home)
    request = Proposals(PartyHome(home)).find("spring")
    assert "took part until sum 2 of 4 ('votes/1')" in own_part(home, request)
    assert "took part until sum 2 of 4" in " ".join(command("preview", "spring", "--home", home).split())
    page = tmp_path / "dossier.html"
    command("dossier", "spring", "--out", page, "--home", home)
    assert "numbers left for 2 sums" in page.read_text()


def test_requests_show_if_an_approved_run_has_begun(home):
    manifest = proposed(home)
    proposals = Proposals(PartyHome(home))
    assert (stages(home, proposals.all()), own_part(home, proposals.find("spring"))) == ({}, "")
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    assert stages(home, proposals.all()) == {manifest.hash.hex(): "not begun yet"}
    assert "approved; not begun yet" in command("requests", "--home", home)
    store = Store(PartyHome(home).journal, "alpha", secret(PartyHome(home), "store"))
    store.put(agreed_key(manifest.hash), manifest.to_bytes())
    assert stages(home, proposals.all()) == {manifest.hash.hex(): "begun"}
    assert "approved; begun" in command("requests", "--home", home)
    assert own_part(home, proposals.find("spring")) == "This run has begun. None of your numbers has left."
    command("revoke", "spring", "--home", home)
    assert stages(home, proposals.all()) == {}


def test_withdrawal_before_the_first_sum_is_recorded_as_such(home):
    manifest = proposed(home)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    command("revoke", "spring", "--home", home)
    assert "took part in no sum" in own_part(home, Proposals(PartyHome(home)).find("spring"))


def test_dossier_says_until_which_sum_another_hospital_took_part(home, tmp_path):
    manifest = proposed(home)
    request = Proposals(PartyHome(home)).find("spring")
    assert others_part(home, request) == ()
    store = Store(PartyHome(home).journal, "alpha", secret(PartyHome(home), "store"))
    everybody = tuple(member.name for member in manifest.roster)
    lost = next(name for name in everybody if name != "alpha")
    for name, parties in (("labels", everybody), ("votes/1", [name for name in everybody if name != lost])):
        store.put(f"survivors/{manifest.hash.hex()}/{name}", json.dumps(parties).encode())
    [sentence] = others_part(home, request)
    assert sentence.startswith(f"{lost} took part until sum 1 of 2 ('labels'); the 1 sum after it was opened without")
    shown = " ".join(command("preview", "spring", "--home", home).split())
    assert sentence in shown
    page = tmp_path / "dossier.html"
    command("dossier", "spring", "--out", page, "--home", home)
    assert f"{lost} took part until sum 1 of 2" in page.read_text()
