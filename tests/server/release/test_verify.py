"""A published data set proves what it cost, and every kind of tampering is named."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.doubles.hospitals import operator
from tests.doubles.parties import embed, identity_of, public_of
from tests.doubles.published import federated, resigned
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PrivacyRefusal
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.agreement import receipt, words
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_server.cli.run_commands import UNCONFIRMED
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import releases
from undersong_server.release.files import Signer, sha256_of
from undersong_server.release.own_score import OwnScore
from undersong_server.release.verify import CHECKED_ON_TEST, NOT_CHECKED, dossier_page, verify
from undersong_server.report.card_facts import RIGHT_ON, TEST_FILE_HASH
from undersong_server.report.check_words import CHECK_WORDS
from undersong_server.report.data import UNIT_WORDS


def verdict_of(folder, value):
    (folder / "manifest.json").write_text(json.dumps(value))
    return verify(folder)


@pytest.mark.heavy
def test_verify_computes_epsilon_of_each_party_from_the_manifest_alone(tmp_path, published):
    value, plan = published
    verdict = verdict_of(tmp_path, value)
    assert verdict.faults == ()
    two = accounting.epsilon([plan.sums[0].event(), plan.sums[1].event()], 1e-5)
    one = accounting.epsilon([plan.sums[0].event()], 1e-5)
    assert verdict.epsilon == pytest.approx(two)
    assert verdict.spent == pytest.approx({"p0": two, "p1": two, "p2": one, "p3": two, "p4": two})
    assert verdict.unopened == ("votes/3",)
    charged = [plan.sums[0].event(), plan.sums[1].event()]
    assert verdict.guess == pytest.approx(accounting.best_guess(charged))
    assert verdict.guess < verdict.guess_alone
    assert [len(opened.by.survivors) for opened in verdict.opened.values()] == [5, 4]
    shown = "\n".join(verdict.lines())
    assert f"each hospital was asked {words.asked(words.questions(plan), 'its')}" in shown
    alone = accounting.best_guess(plan.alone_events())
    certainty = impact.certainty(plan.privacy.epsilon, plan.privacy.delta)
    chances = [verdict.guess, certainty, alone, verdict.guess_alone]
    assert [right.partition(" ")[0] for _, right in verdict.guesses.rows] == list(map(impact.cases, chances))
    assert all(f"  {whose}: right in at most {right} of 100 cases" in shown for whose, right in verdict.guesses.rows)
    assert [guess["right_at_most"] for guess in verdict.to_json()["best_guesses"]] == chances
    assert f"epsilon {plan.epsilon_if_all_others_collude():.6g} against the coordinator" in shown
    assert "without p2" in shown
    titles = words.sum_titles(plan.sums)
    for name in verdict.opened:
        assert f"signed for it: '{name}', {titles[name]}" in shown
    assert "p2 took part until sum 1 of 2 ('votes/1'); the 1 sum after it was opened without it." in shown
    assert "Opened: 1 sum of 4 hospitals, 1 sum of 5 hospitals." in shown


def test_party_without_a_receipt_is_charged_the_whole_plan(tmp_path, published):
    """The attack: whoever publishes leaves sums and receipts out, and the data set looks cheaper than it was."""
    value, plan = json.loads(json.dumps(published[0])), published[1]
    whole = accounting.epsilon(plan.charged_events(), 1e-5)
    del value["receipts"]["p1"]
    verdict = verdict_of(tmp_path, value)
    assert verdict.faults == ()
    assert verdict.without_receipt == ("p1",)
    assert verdict.spent["p1"] == pytest.approx(whole)
    assert verdict.epsilon == pytest.approx(whole)
    assert any("priced as if the whole plan was spent" in line for line in verdict.lines())
    value["receipts"], value["sums"] = {}, {}
    verdict = verdict_of(tmp_path, value)
    assert verdict.faults == ()
    assert verdict.spent == pytest.approx(dict.fromkeys(("p0", "p1", "p2", "p3", "p4"), whole))


def test_receipt_signed_before_the_end_of_the_run_counts_as_missing(tmp_path, published):
    """The attack: receipts are collected early, more sums are opened, and the early receipts are published."""
    value, whole = json.loads(json.dumps(published[0])), accounting.epsilon(published[1].charged_events(), 1e-5)
    manifest = Manifest.from_bytes(canonical_json(value["manifest"]))
    entries = json.loads(value["receipts"]["p1"]["body"])["entries"]
    assert entries[-1]["kind"] == "close"
    body = receipt.body(manifest, "p1", entries[:1])
    signature = identity_of("p1").sign(tagged_hash(receipt.TAG, body)).hex()
    value["receipts"]["p1"] = {"body": body.decode(), "signature": signature}
    verdict = verdict_of(tmp_path, value)
    assert verdict.faults == ()
    assert verdict.without_receipt == ("p1",)
    assert verdict.spent["p1"] == pytest.approx(whole)


@pytest.mark.slow
def test_subsampled_run_that_stopped_is_charged_its_whole_plan(tmp_path):
    value, plan = federated(tmp_path, 3.0, rate=0.5)
    verdict = verdict_of(tmp_path, value)
    assert verdict.faults == ()
    assert verdict.without_receipt == ()
    whole = accounting.epsilon(plan.charged_events(), 1e-5)
    assert verdict.spent == pytest.approx(dict.fromkeys(("p0", "p1", "p2", "p3", "p4"), whole))
    assert verdict.alone == pytest.approx(plan.epsilon_if_all_others_collude())
    assert Ledger.read(tmp_path / "p2.ledger.jsonl").spent(1e-5) == pytest.approx(whole)  # it made one sum of three


def test_party_with_an_invalid_receipt_is_charged_the_whole_plan(tmp_path, published):
    value = json.loads(json.dumps(published[0]))
    value["receipts"]["p2"]["signature"] = "00" * 64
    verdict = verdict_of(tmp_path, value)
    assert verdict.without_receipt == ("p2",)
    assert verdict.spent["p2"] == pytest.approx(accounting.epsilon(published[1].charged_events(), 1e-5))


def _less_noise(value):
    value["manifest"]["plan"]["sums"][0]["sigma_integer"] *= 0.5


def _smaller_promise(value):
    value["manifest"]["plan"]["privacy"]["epsilon"] = 1.0


def _lower_sensitivity(value):
    value["manifest"]["plan"]["sums"][0]["l2"] *= 0.5


def _another_roster(value):
    value["manifest"]["roster"][1]["identity"] = "02" * 32


def _signature(value):
    value["signatures"]["p3"] = value["signatures"]["p2"]


def _survivors(value):
    value["sums"]["votes/2"]["survivors"].append("p2")


def _evidence(value):
    evidence = bytearray(bytes.fromhex(value["sums"]["votes/1"]["evidence"]))
    evidence[-1] ^= 1
    value["sums"]["votes/1"]["evidence"] = evidence.hex()


def _evidence_of_another_sum(value):
    value["sums"]["votes/1"]["evidence"] = value["sums"]["votes/2"]["evidence"]


def _variance(value):
    value["sums"]["votes/1"]["variance"] *= 2


def _foreign_sum(value):
    value["sums"]["votes/9"] = value["sums"]["votes/1"]


def _hidden_charge(value):
    body = json.loads(value["receipts"]["p0"]["body"])
    body["entries"].pop()
    value["receipts"]["p0"]["body"] = json.dumps(body, sort_keys=True, separators=(",", ":"))


def _exchanged_receipts(value):
    value["receipts"]["p0"], value["receipts"]["p1"] = value["receipts"]["p1"], value["receipts"]["p0"]


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (_another_roster, "p1"),
        (_signature, "p3"),
        (_survivors, "votes/2"),
        (_evidence, "votes/1"),
        (_evidence_of_another_sum, "votes/1"),
        (_variance, "votes/1"),
        (_foreign_sum, "votes/9"),
        (_hidden_charge, "p0"),
        (_exchanged_receipts, "p0"),
    ],
)
def test_verify_names_what_was_tampered_with_in_a_data_set(tmp_path, published, tamper, named):
    value = json.loads(json.dumps(published[0]))
    tamper(value)
    verdict = verdict_of(tmp_path, value)
    assert any(named in fault for fault in verdict.faults), verdict.faults
    assert verdict.lines()[0].startswith("NOT VERIFIED")


@pytest.mark.parametrize("tamper", [_less_noise, _smaller_promise, _lower_sensitivity])
def test_verify_refuses_a_manifest_whose_plan_is_invalid(tmp_path, published, tamper):
    value = json.loads(json.dumps(published[0]))
    tamper(value)
    with pytest.raises(PrivacyRefusal, match="the plan"):
        verdict_of(tmp_path, value)


def _without_a_charge(entries):
    entries.remove(next(entry for entry in entries if entry.get("query") == "votes/2"))


def _another_question(entries):
    entries[0]["question"] = "ab" * 32


def _refunded(entries):
    entries.insert(1, {"kind": "withdrawn", "run": "a run", "query": "votes/1", "attempt": 0})


def _cheaper(entries):
    entries[0]["events"][0]["noise_multiplier"] *= 2


def _after_the_end(entries):
    entries.append(entries[0])


def _of_another_run(entries):
    entries[0]["run"] = "another run"


def _unknown(entries):
    entries[0]["kind"] = "gift"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_a_charge, "p0: no charge for votes/2"),
        (_another_question, "for the question that the sum answers"),
        (_refunded, "p0: no charge for votes/1"),
        (_cheaper, "p0: charged votes/1 at another price"),
        (_after_the_end, "p0: entry 4 of its receipt follows the end of the run"),
        (_of_another_run, "p0: entry 1 of its receipt is of another run"),
        (_unknown, "p0: entry 1 of its receipt is of an unknown kind"),
    ],
)
def test_verify_names_a_party_that_signed_a_false_receipt(tmp_path, published, change, words):
    verdict = verdict_of(tmp_path, resigned(json.loads(json.dumps(published[0])), "p0", change))
    assert any(words in fault for fault in verdict.faults), verdict.faults


def test_published_receipt_has_no_time_and_no_ledger_position(published):
    """Its chain begins at the manifest and runs over the run's own entries; no time, no place in the ledger."""
    for party, found in published[0]["receipts"].items():
        body = json.loads(found["body"])
        assert set(body) == {"version", "party", "run", "manifest", "entries", "chain"}, party
        assert [entry["kind"] for entry in body["entries"]][-1] == "close"
        for entry in body["entries"]:
            assert set(entry) <= {"kind", "run", "manifest", "query", "attempt", "question", "events"}, party


def test_a_receipt_of_an_earlier_version_is_refused_by_name(tmp_path, published):
    value = json.loads(json.dumps(published[0]))
    old = json.loads((Path(__file__).parents[2] / "client" / "storage" / "formats" / "version1.json").read_text())[
        "receipt"
    ]
    value["receipts"]["p0"] = old
    manifest = Manifest.from_bytes(canonical_json(value["manifest"]))
    body = json.loads(old["body"])
    body |= {"manifest": manifest.hash.hex(), "run": manifest.run}
    forged = canonical_json(body)
    signature = identity_of("p0").sign(tagged_hash(receipt.TAG, forged)).hex()
    value["receipts"]["p0"] = {"body": forged.decode(), "signature": signature}
    assert any(
        "its receipt has version 1, this program reads 2" in fault for fault in verdict_of(tmp_path, value).faults
    )


def other_signer(folder, identities):
    from tests.doubles.stream import make_home

    return Signer("clinics", make_home(folder / "other").authority(), identities)


def test_coordinator_s_signature_and_fingerprint_are_checked(tmp_path, published, signer):
    signed = signer.sign({**published[0], "files": {"synthetic.jsonl": hashlib.sha256(b"the corpus").hexdigest()}})
    (tmp_path / "manifest.json").write_text(json.dumps(signed, indent=2))
    assert verify(tmp_path, fingerprint=signer.authority.fingerprint).unchecked == ("synthetic.jsonl",)
    (tmp_path / "synthetic.jsonl").write_bytes(b"the corpus")
    verdict = verify(tmp_path, fingerprint=signer.authority.fingerprint.upper())
    assert verdict.faults == ()
    assert verdict.holds
    assert any("every signature, charge and statement holds" in line for line in verdict.lines())
    assert (verdict.signature.name, verdict.signature.fingerprint) == ("clinics", signer.authority.fingerprint)
    unsure = verify(tmp_path)
    assert (unsure.faults, unsure.holds, unsure.known) == ((), False, ())
    assert unsure.lines()[0].startswith("NOT CONFIRMED")
    assert any(signer.authority.fingerprint in line for line in unsure.lines())
    assert f"  {CHECK_WORDS['copied']}" in unsure.lines()
    assert f"  {CHECK_WORDS['copied']}" not in verdict.lines()
    assert not any("holds" in line for line in unsure.lines())
    another = verify(tmp_path, fingerprint="1234-5678")
    assert "not the one that was stated" in another.faults[0]
    assert not another.confirmed
    assert another.conclusion() == [
        "Files: they fit together, but are not by the coordinator that you stated.",
        "By: ANOTHER: the coordinator 'clinics', by its own word.",
        "Promise: none that counts.",
    ]
    assert not any("CHANGED" in line or "get a fresh copy" in line for line in another.lines())
    (tmp_path / "synthetic.jsonl").write_bytes(b"another corpus")
    assert "CHANGED: 2 faults" in verify(tmp_path, fingerprint="1234-5678").conclusion()[0]


@pytest.mark.parametrize(
    ("stated", "changed", "ends"),
    [
        (
            True,
            False,
            (
                "Files: whole",
                "By: the coordinator 'clinics', by the fingerprint that you stated; its 5 hospitals by its word",
                "Promise: epsilon ",
            ),
        ),
        (False, False, ("Files: whole", "By: NOT SHOWN: the coordinator 'clinics' signed", "Promise: epsilon ")),
        (True, True, ("Files: CHANGED: 1 fault", "By: nobody", "Promise: none that counts")),
    ],
)
def test_last_three_lines_of_verify_state_completeness_signer_and_promise(
    tmp_path, published, signer, stated, changed, ends
):
    signed = signer.sign({**published[0], "files": {"synthetic.jsonl": hashlib.sha256(b"the corpus").hexdigest()}})
    (tmp_path / "manifest.json").write_text(json.dumps(signed))
    (tmp_path / "synthetic.jsonl").write_bytes(b"another" if changed else b"the corpus")
    lines = verify(tmp_path, fingerprint=signer.authority.fingerprint if stated else None).lines()
    assert [line.startswith(end) for line, end in zip(lines[-3:], ends, strict=True)] == [True, True, True], lines


def test_promise_line_says_if_genuine_unless_the_fingerprint_is_stated(tmp_path, published, signer):
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign(published[0])))
    for fingerprint, depends in ((None, True), (signer.authority.fingerprint, False)):
        promise_line = verify(tmp_path, fingerprint=fingerprint).conclusion()[2]
        assert promise_line.endswith(", as it ran, if genuine.") is depends


def test_signer_line_says_what_a_stated_party_fingerprint_confirms(tmp_path, published, signer):
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign(published[0])))
    plain = verify(tmp_path).conclusion()[1].removesuffix(".")
    for names, says in ((("p0",), "p0 has signed the plan"), (("p0", "p3"), "p0 and p3 have signed the plan")):
        parties = {name: party_fingerprint(name, public_of(name)) for name in names}
        stated = verify(tmp_path, parties=parties).conclusion()[1]
        assert stated.startswith(f"{plain}; {says}, by the fingerprint that you stated, and no text")


def test_verify_states_one_hash_of_the_plan_and_one_of_the_manifest_file(tmp_path, published):
    verdict = verdict_of(tmp_path, published[0])
    file_hash = hashlib.sha256((tmp_path / "manifest.json").read_bytes()).hexdigest()
    hashes = [verdict.to_json()[key] for key in ("signed_plan_sha256", "manifest_json_sha256")]
    assert hashes == [published[0]["manifest_hash"], file_hash]
    shown = "\n".join(verdict.lines())
    assert f"{words.SIGNED_PLAN} {hashes[0][:16]}" in shown
    assert f"manifest.json, SHA-256 {hashes[1][:16]}" in shown


def test_json_verdict_names_the_privacy_unit_like_the_card(tmp_path, published):
    changed = json.loads(json.dumps(published[0]))
    assert verdict_of(tmp_path, changed).to_json()["unit"] == UNIT_WORDS[published[1].privacy.unit] == "record"


def test_verify_and_dossier_name_operator_and_place_of_publication(tmp_path, published, signer):
    fingerprint = signed_by(tmp_path, signer, published[0])
    silent = verify(tmp_path, fingerprint=fingerprint)
    assert not any("run by" in line for line in silent.lines())
    task = {"operator": "Nordbrook", "contact": "+44 20\x1b[2J", "publication": "A page.; made by: five clinics"}
    stated = replace(silent, manifest=replace(silent.manifest, task={**silent.manifest.task, **task}))
    told = ("Nordbrook (contact: +44 20\\x1b[2J)", "A page; published in the name of: five clinics")
    assert {f"run by {told[0]}", f"where it is published: {told[1]}"} <= set(stated.lines())
    dossier = dossier_page(tmp_path, stated, fingerprint=fingerprint, audit=None)
    figures = next(section.figures for section in dossier.sections if section.title == "What it is")
    assert {("run by", told[0]), ("where it is published", told[1])} <= set(figures)
    files = next(section.sentences for section in dossier.sections if section.title == "What was published")
    assert files[0] == stated.conclusion()[0]


def test_verify_and_dossier_name_hospitals_in_full_where_the_plan_does(tmp_path, published, signer):
    fingerprint = signed_by(tmp_path, signer, published[0])
    verdict = verify(tmp_path, fingerprint=fingerprint)
    task = {**verdict.manifest.task, "full_names": {"p1": "One Hospital, Porto"}}
    named = replace(verdict, manifest=replace(verdict.manifest, task=task))
    assert any(line.startswith("took part: p0, p1 (One Hospital, Porto), p2") for line in named.lines())
    dossier = dossier_page(tmp_path, named, fingerprint=fingerprint, audit=None)
    table = next(section.table for section in dossier.sections if section.title == "Who took part")
    assert [row[0] for row in table[1:4]] == ["p0", "p1 (One Hospital, Porto)", "p2"]


def test_signatures_line_says_who_confirms_each_hospitals_key(tmp_path, published, signer):
    fingerprint = signed_by(tmp_path, signer, published[0])
    own = {name: party_fingerprint(name, public_of(name)) for name in ("p0", "p1", "p2", "p3", "p4")}
    lines = [
        verify(tmp_path, fingerprint=fingerprint, parties=parties).conclusion()[1]
        for parties in ({}, {"p1": own["p1"]}, own)
    ]
    start = "By: the coordinator 'clinics', by the fingerprint that you stated; its 5 hospitals by "
    assert lines == [
        f"{start}its word (--party checks one by the hospital's own).",
        f"{start}its word, but for p1, by the fingerprint that you stated.",
        f"{start}the fingerprints that you stated.",
    ]


@pytest.mark.parametrize("stated", [(), ("p1",)])
def test_json_verdict_confirms_a_party_only_by_a_stated_fingerprint(tmp_path, published, signer, stated):
    fingerprint = signed_by(tmp_path, signer, published[0])
    parties = {name: party_fingerprint(name, public_of(name)) for name in stated}
    facts = verify(tmp_path, fingerprint=fingerprint, parties=parties).to_json()
    assert facts["parties_confirmed"] == list(stated)
    assert facts["parties_certified_by_coordinator"] == ["p0", "p1", "p2", "p3", "p4"]
    assert verify(tmp_path, parties=parties).to_json()["parties_certified_by_coordinator"] == []


def test_unsigned_data_set_is_reported_as_unsigned(tmp_path, published):
    verdict = verdict_of(tmp_path, published[0])
    assert verdict.signature is None
    assert verdict.to_json()["coordinator"] is None
    assert (verdict.papers_hold, verdict.to_json()["holds"], verdict.to_json()["consistent"]) == (False, False, True)
    assert verdict.lines()[0].startswith("NOT CONFIRMED")
    assert any("may have invented" in line for line in verdict.lines())
    assert "nobody signed manifest.json" in verify(tmp_path, fingerprint="1234-5678").faults[0]


def signed_by(folder, signer, value):
    (folder / "manifest.json").write_text(json.dumps(signer.sign(value)))
    return signer.authority.fingerprint


def test_party_fingerprints_confirm_parties_but_not_an_unsigned_corpus(tmp_path, published):
    (tmp_path / "manifest.json").write_text(json.dumps(published[0]))
    own = {name: party_fingerprint(name, public_of(name)) for name in ("p0", "p1", "p2", "p3", "p4")}
    verdict = verify(tmp_path, parties={"p1": own["p1"]})
    assert (verdict.faults, verdict.known, verdict.strangers) == ((), ("p1",), ("p0", "p2", "p3", "p4"))
    assert any("By their fingerprints these are who they are called: p1." in line for line in verdict.lines())
    verdict = verify(tmp_path, parties=own)
    assert (verdict.strangers, verdict.papers_hold) == ((), False)  # nobody has signed for the corpus
    assert "p9: takes no part" in verify(tmp_path, parties={"p9": own["p0"]}).faults[0]


@pytest.mark.parametrize("enrolled", ["another key", "nobody"])
def test_key_that_differs_from_the_enrolled_one_is_a_fault(tmp_path, published, signer, enrolled):
    identities = {**signer.identities, "p3": hashlib.sha256(b"the enrolled key").digest()}
    if enrolled == "nobody":
        del identities["p3"]
    other = other_signer(tmp_path, identities)
    fingerprint = signed_by(tmp_path, other, published[0])
    verdict = verify(tmp_path, fingerprint=fingerprint)
    assert not verdict.papers_hold
    if enrolled == "nobody":
        assert (verdict.faults, verdict.strangers) == ((), ("p3",))
        own = {"p3": party_fingerprint("p3", public_of("p3"))}
        assert verify(tmp_path, fingerprint=fingerprint, parties=own).papers_hold
    else:
        assert "p3: has signed with another key" in verdict.faults[0]
        assert "that the coordinator has enrolled" in verdict.faults[0]


@pytest.mark.heavy
def test_run_without_noise_is_not_private_even_if_sums_are_removed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    value = federated(folder, math.inf)[0]
    for sums in (value["sums"], {}):
        verdict = verdict_of(tmp_path, {**value, "sums": sums, "receipts": {}})
        assert math.isinf(verdict.epsilon)
        assert verdict.to_json()["private"] is False


def test_json_verdict_of_a_run_with_fixed_noise_seed_is_not_private(tmp_path, published):
    assert verdict_of(tmp_path, published[0]).to_json()["private"] is True
    verdict = verdict_of(tmp_path, {**published[0], "private": False})
    assert verdict.insecure
    assert math.isfinite(verdict.epsilon)
    assert verdict.to_json()["private"] is False


def test_verify_names_files_that_the_manifest_does_not_list(tmp_path, published):
    (tmp_path / "synthetic.jsonl").write_bytes(b"slipped in")
    assert "manifest.json names no such file" in verdict_of(tmp_path, published[0]).faults[0]
    for files in ([], {"../../etc/passwd": "00"}, {"synthetic.jsonl": 5}):
        assert verdict_of(tmp_path, {**published[0], "files": files}).faults


def _other_corpus(value):
    value["files"]["synthetic.jsonl"] = hashlib.sha256(b"another corpus").hexdigest()


def _no_receipt(value):
    del value["receipts"]["p1"]


def _other_name(value):
    value["coordinator"]["name"] = "somebody"


def _other_authority(value):
    value["coordinator"]["ca_certificate"] = value["coordinator"]["ca_certificate"][:-40] + "\n"


def _no_key(value):
    del value["coordinator"]["signing_key"]


@pytest.mark.parametrize("tamper", [_other_corpus, _no_receipt, _other_name, _other_authority, _no_key])
def test_verify_reports_a_change_after_the_signature_as_a_fault(tmp_path, published, signer, tamper):
    value = signer.sign({**json.loads(json.dumps(published[0])), "files": {"synthetic.jsonl": "00"}})
    tamper(value)
    assert [fault for fault in verdict_of(tmp_path, value).faults if fault.startswith("the coordinator's signature")]


@pytest.mark.slow
@pytest.mark.parametrize(("flipped", "share"), [(False, "100.0 %"), (True, "0.0 %")])
def test_verify_scores_the_corpus_on_the_receivers_test_file(tmp_path, monkeypatch, flipped, share):
    kinds = {"x": "fever and a cough", "y": "a broken ankle"}
    rows = [{"text": f"{kinds[label]} {number}", "label": label} for number in range(30) for label in kinds]
    other = {"x": "y", "y": "x"} if flipped else {"x": "x", "y": "y"}
    own = [{**row, "label": other[row["label"]]} for row in rows]
    for name, content in (("synthetic.jsonl", rows), ("own.jsonl", own)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    monkeypatch.setattr(releases, "embedder", lambda *_: embed)
    said = releases.own_score(tmp_path, EvaluationOptions(test=tmp_path / "own.jsonl")).sentence
    assert said.startswith("on own.jsonl: small models")
    assert f"words {share}" in said
    assert said.endswith("60 of these texts stand in the corpus, so the score says too much")


HASH, OTHER_HASH = "68" * 32, "69" * 32
CARD = f"75.2 % (71.1 to 79.0) {RIGHT_ON} test.jsonl (480 public texts): so many.\n\n{TEST_FILE_HASH.format(HASH)}\n"


@pytest.mark.parametrize(
    ("card", "test_hash", "score", "is_same", "agrees", "says"),
    [
        (CARD, HASH, 75.4, True, True, "and the score agrees with the card's 75.2 %"),
        (CARD, HASH, 71.0, True, False, "and the score does NOT agree with the card's 75.2 %"),
        (CARD, OTHER_HASH, 75.2, False, None, "This is not the test file that the card names"),
        ("", HASH, 75.2, None, None, "README.md is not here"),
        ("A card of no test file.", HASH, 75.2, None, None, "The card names no test file"),
    ],
)
def test_verify_compares_its_score_on_a_test_file_with_the_cards(
    tmp_path, published, signer, card, test_hash, score, is_same, agrees, says
):
    value = published[0]
    if card:
        (tmp_path / "README.md").write_text(card)
        value = {**value, "files": {"README.md": hashlib.sha256(card.encode()).hexdigest()}}
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign(value)))
    verdict = verify(tmp_path)
    own_score = OwnScore("own.jsonl", test_hash, "on own.jsonl: 75 %", score, {"x": 0.5}, card=verdict.card)
    assert (own_score.is_card_test_file, own_score.agrees_with_card) == (is_same, agrees)
    shown = "\n".join(verdict.lines(own_score))
    assert says in shown
    assert "By label: x 50 %." in shown
    assert (CHECKED_ON_TEST in shown, NOT_CHECKED in shown) == (True, False)
    assert NOT_CHECKED in "\n".join(verdict.lines())
    shorter = replace(own_score, card_is_of_these_texts=False)
    assert shorter.agrees_with_card is None


def test_verify_ignores_a_card_whose_hash_is_not_the_signed_one(tmp_path, published, signer):
    (tmp_path / "README.md").write_text(CARD)
    for files, is_read in (({}, False), ({"README.md": hashlib.sha256(CARD.encode()).hexdigest()}, True)):
        (tmp_path / "manifest.json").write_text(json.dumps(signer.sign({**published[0], "files": files})))
        assert (verify(tmp_path).card.test_hash == HASH) is is_read
    (tmp_path / "README.md").write_text(f"{CARD} ")
    assert not verify(tmp_path).card.is_here


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("fever and cough", "a"), ("a broken ankle", "b")] * 30 + [("fever", "b")], "1 of 61 rows (1.6 %) read like"),
        ([("fever and cough", "a"), ("a broken ankle", "b")], "than their own: not measured"),
        ([("fever and cough", "")] * 60, "than their own: not measured"),
        (None, "than their own: not measured"),
    ],
)
def test_verify_counts_the_rows_that_read_like_another_label(tmp_path, rows, words):
    content = (
        "no JSON" if rows is None else "\n".join(json.dumps({"text": text, "label": label}) for text, label in rows)
    )
    (tmp_path / "synthetic.jsonl").write_text(content)
    assert words in releases.count_mismatches(tmp_path).sentence
    assert "than their own: not measured" in releases.count_mismatches(tmp_path / "nowhere").sentence


@pytest.mark.heavy
def test_corpus_of_which_only_the_parquet_file_is_here_is_read(tmp_path, published, signer):
    rows = [("fever and cough", "a", "good"), ("a broken ankle", "b", "good")] * 30
    columns = dict(zip(("text", "label", "generator"), map(list, zip(*rows, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "synthetic.parquet")
    files = {"synthetic.parquet": hashlib.sha256((tmp_path / "synthetic.parquet").read_bytes()).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign({**published[0], "files": files})))
    assert "0 of 60 rows (0.0 %) read like" in releases.count_mismatches(tmp_path).sentence
    verdict = verify(tmp_path)
    assert verdict.authors == ("good",)
    assert not verdict.lacks_corpus


@pytest.mark.heavy
def test_verify_names_mismatched_rows_only_of_an_unchanged_corpus(tmp_path, published, signer):
    rows = [("fever and cough", "a"), ("a broken ankle", "b")] * 30 + [("fever", "b")]
    corpus = tmp_path / "synthetic.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    hashes = {corpus.name: sha256_of(corpus)}
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign({**published[0], "files": hashes})))
    counted = json.loads(operator("verify", tmp_path, "--json", code=UNCONFIRMED))
    assert counted["label_mismatches"] == {"rows": 61, "label_by_row": {"61": "a"}}
    assert "1 of 61 rows (1.6 %) read like another label" in operator("verify", tmp_path, code=UNCONFIRMED)
    corpus.write_text("changed")
    assert json.loads(operator("verify", tmp_path, "--json", code=3))["label_mismatches"] is None
