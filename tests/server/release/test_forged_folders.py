"""A folder that an enemy has written whole: it is never confirmed, and nothing it holds forges what a person reads."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import time

import pytest

from tests.doubles.forgeries import FORGERIES, harmless
from tests.doubles.pace import examples
from tests.doubles.parties import identity_of, public_of
from tests.doubles.published import PARTIES, resigned
from tests.doubles.stream import make_home
from tests.doubles.typed import built
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import UndersongError
from undersong_common.printable import json_text
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import VOIDED_VECTORS
from undersong_common.program import entry
from undersong_protocol.agreement import receipt
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_server.cli.app import app
from undersong_server.release import files as papers
from undersong_server.release.files import HASHED_NAMES, KEY, ROWS_NAMES, SIMULATION, TAG, Signer, SimulationSigner
from undersong_server.release.verify import LONGEST_LIST, verify
from undersong_server.report.check_words import CHECK_WORDS

CONFIRMED, CONFIGURATION, FALSE, UNCONFIRMED = 0, 2, 3, 8
CONTENTS = {name: f"the true {name}".encode() for name in HASHED_NAMES}
HOSTILE: tuple[object, ...] = (
    *(each for each in FORGERIES if "\ud800" not in each),
    "\ud800",  # as JSON's escape: half a pair
    "\u05e9\u05dc\u05d5\u05dd 12",  # right to left
    "",
    None,
    True,
    -1,
    10**400,
    1e308,
    float("inf"),
    float("nan"),
    [],
    {},
    [[]],
    {"\x1b[2J": 1},
)


@pytest.fixture
def value(published):
    """``manifest.json`` of the run as it is published, with the hashes of its files; a copy to forge."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    return {**json.loads(json.dumps(published[0])), "files": files}


def write_folder(folder, value, **contents):
    """The folder with every file that a run writes."""
    (folder / "manifest.json").write_text(json.dumps(value))
    for name, content in {**CONTENTS, **contents}.items():
        (folder / name).write_bytes(content)
    return folder


def verify_folder(folder, *arguments):
    """Exit code and lines of ``undersong verify``, as the program's entry point prints them."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        entry.run(lambda: built(app).main(["verify", str(folder), *arguments], standalone_mode=False))
    lines = out.getvalue().removesuffix("\n").split("\n")
    assert all(map(harmless, lines)), lines
    return ended.value.code, lines


def signed_by_all(value, **changes):
    """The papers of a manifest that everyone of its roster signs, made by whoever holds all their keys."""
    manifest = dataclasses.replace(Manifest.from_bytes(canonical_json(value["manifest"])), **changes)
    return {
        **value,
        "manifest": json.loads(manifest.to_bytes()),
        "manifest_hash": manifest.hash.hex(),
        "signatures": {name: manifest.sign(identity_of(name)).hex() for name in PARTIES},
        "sums": {},
        "receipts": {},
    }


def test_wholly_invented_folder_is_never_confirmed(tmp_path, value, signer):
    """Hospitals, keys, signatures, receipts, texts and a card that praises them: everything fits together."""
    praise = b"epsilon 0.1, verified: every signature, charge and statement holds\n"
    value["files"]["README.md"] = hashlib.sha256(praise).hexdigest()
    folder = write_folder(tmp_path, value, **{"README.md": praise})
    forger = Signer("clinics", make_home(tmp_path.parent / "forger").authority(), {n: public_of(n) for n in PARTIES})
    for papers_ in (value, forger.sign(value)):
        (folder / "manifest.json").write_text(json.dumps(papers_))
        code, lines = verify_folder(folder)
        assert (code, lines[0][:13]) == (UNCONFIRMED, "NOT CONFIRMED")
        assert not any("holds" in line for line in lines)
        code, lines = verify_folder(folder, "--fingerprint", signer.authority.fingerprint)
        assert (code, lines[0]) == (FALSE, "NOT VERIFIED:")
        assert "not the one that was stated" in lines[1]
        told = party_fingerprint("p0", hashlib.sha256(b"the hospital's own key").digest())
        code, lines = verify_folder(folder, "--party", f"p0={told}")
        assert (code, lines[1][:7]) == (FALSE, "  p0: h")


@pytest.fixture
def simulated(value):
    """The same papers as a simulation publishes them, which holds the keys of all parties."""
    return SimulationSigner({name: identity_of(name) for name in PARTIES}).sign(value)


def test_valid_simulation_is_confirmed_only_as_a_simulation(tmp_path, simulated, signer):
    folder = write_folder(tmp_path, simulated)
    code, lines = verify_folder(folder)
    assert (code, lines[0][:21]) == (CONFIRMED, "SIMULATION, CONFIRMED")
    assert "No hospital" in lines[1]
    facts = verify(folder).to_json()
    assert (facts["kind"], facts["holds"], facts["coordinator_confirmed"]) == ("simulation", True, False)
    code, lines = verify_folder(folder, "--fingerprint", signer.authority.fingerprint)
    assert (code, lines[0]) == (FALSE, "NOT VERIFIED:")
    told = party_fingerprint("p0", hashlib.sha256(b"the hospital's own key").digest())
    assert verify_folder(folder, "--party", f"p0={told}")[0] == FALSE
    assert verify_folder(folder, "--party", "p0")[0] == CONFIGURATION


@pytest.mark.heavy
@pytest.mark.parametrize("name", HASHED_NAMES)
def test_changed_file_of_a_simulation_is_a_fault(tmp_path, simulated, name):
    other = b"another"
    folder = write_folder(tmp_path, simulated, **{name: other})
    assert verify_folder(folder)[0] == FALSE
    simulated["files"][name] = hashlib.sha256(other).hexdigest()
    assert (
        verify(write_folder(tmp_path, simulated, **{name: other})).faults[0].startswith("the simulation's signatures")
    )


def test_changed_key_of_a_simulations_manifest_is_a_fault(tmp_path, simulated):
    folder = write_folder(tmp_path, simulated)
    for key in simulated:
        for left in ({**simulated, key: HOSTILE[0]}, {each: v for each, v in simulated.items() if each != key}):
            (folder / "manifest.json").write_text(json.dumps(left))
            assert verify_folder(folder)[0] != CONFIRMED, key


def test_simulation_that_one_party_has_not_signed_is_a_fault(tmp_path, value):
    others = SimulationSigner({name: identity_of(name) for name in PARTIES[:-1]})
    stranger = SimulationSigner({name: identity_of(PARTIES[0]) for name in PARTIES})
    for signer in (others, stranger):
        verdict = verify(write_folder(tmp_path, signer.sign(value)))
        assert (verdict.simulated, verdict.holds) == (False, False)
        assert verdict.faults[0].startswith("the simulation's signatures")


@pytest.mark.slow
def test_malformed_signatures_of_a_simulation_are_not_valid(tmp_path, simulated):
    for forged in HOSTILE:
        for signatures in (forged, {**simulated[SIMULATION], PARTIES[0]: forged}):
            assert not verify(write_folder(tmp_path, {**simulated, SIMULATION: signatures})).holds


@pytest.mark.heavy
@pytest.mark.parametrize("name", HASHED_NAMES)
def test_changed_file_of_a_signed_data_set_is_a_fault(tmp_path, value, signer, name):
    folder, fingerprint = write_folder(tmp_path, signer.sign(value)), signer.authority.fingerprint
    assert verify_folder(folder, "--fingerprint", fingerprint)[0] == CONFIRMED
    (folder / name).write_bytes(b"another")
    code, lines = verify_folder(folder, "--fingerprint", fingerprint)
    assert (code, lines[1]) == (FALSE, f"  {name}: is not the file that the run wrote")
    (folder / name).unlink()
    code, lines = verify_folder(folder, "--fingerprint", fingerprint)
    assert code == CONFIRMED
    assert f"Files: INCOMPLETE: 1 missing ({name}), the rest unchanged." in lines
    assert any(line.startswith("not checked: how good the texts are.") for line in lines[:-3])


@pytest.mark.parametrize("missing", [("synthetic.jsonl",), ("synthetic.parquet",), ROWS_NAMES, tuple(CONTENTS)])
def test_verify_confirms_no_data_set_whose_corpus_is_missing(tmp_path, value, signer, missing):
    folder, fingerprint = write_folder(tmp_path, signer.sign(value)), signer.authority.fingerprint
    for name in missing:
        (folder / name).unlink()
    code, lines = verify_folder(folder, "--fingerprint", fingerprint)
    lacks_corpus = set(ROWS_NAMES) <= set(missing)
    assert code == (UNCONFIRMED if lacks_corpus else CONFIRMED)
    assert (CHECK_WORDS["no corpus"] in lines[-3]) == lacks_corpus
    assert lines[0].startswith("NOTHING SHOWN OF THE TEXTS") == lacks_corpus
    assert lines[-2].startswith("By: the coordinator 'clinics', by the fingerprint that you stated")
    assert verify(folder, fingerprint=fingerprint).to_json()["holds"] == (not lacks_corpus)


def test_simulation_whose_corpus_is_missing_is_unconfirmed(tmp_path, simulated):
    folder = write_folder(tmp_path, simulated)
    for name in ROWS_NAMES:
        (folder / name).unlink()
    assert verify_folder(folder)[0] == UNCONFIRMED


def test_files_outside_the_manifest_are_listed_as_outside(tmp_path, value, signer):
    """Also the card of a data set that was published when the papers held no hash of it."""
    del value["files"]["README.md"]
    folder = write_folder(tmp_path, signer.sign(value))
    strange = ("\u0455ynthetic.jsonl", "a\x1b[2J\nrun 'good'", "\u05e9\u05dc\u05d5\u05dd", "report.html ")
    for name in strange:
        (folder / name).write_text("slipped in")
    (folder / os.fsdecode(b"\xff\xfe")).write_text("slipped in")
    code, lines = verify_folder(folder, "--fingerprint", signer.authority.fingerprint)
    assert code == CONFIRMED
    (line,) = (each for each in lines if each.startswith("outside the papers"))
    assert "'README.md'" in line
    assert r"'\u0455ynthetic.jsonl'" in line  # a letter that only looks like the true one
    assert r"'\udcff\udcfe'" in line
    assert line.count("'") == 2 * (2 + len(strange)) + 2
    code, lines = verify_folder(folder, "--json")
    assert set(json.loads("\n".join(lines))["files_outside"]) >= {"README.md", *strange}


def leaves(value, path=()):
    """Places of a JSON value to forge: of list items and of parties the first speaks for all."""
    yield path
    if isinstance(value, dict):
        for key in [key for key in value if key not in PARTIES[1:]]:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], (*path, 0))


def forged_at(value, path, content):
    """A copy with other content at one place."""
    if not path:
        return content
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = forged_at(value[path[0]], path[1:], content)
    return copy


def harmlessly_judged(folder):
    """The verdict of whatever stands there, or None where it is refused by name; its words are harmless and few."""
    try:
        verdict = verify(folder)
    except UndersongError as error:
        words = error.problem + error.remedy
        assert harmless(words)
        return None
    assert not verdict.holds
    lines = verdict.lines()
    assert lines[0].startswith(("NOT VERIFIED", "NOT CONFIRMED"))
    assert len(lines) < LONGEST_LIST + 10
    assert all(map(harmless, lines))
    assert harmless(json_text(verdict.to_json()).replace("\n", ""))
    return verdict


@pytest.mark.slow
def test_verify_raises_only_our_errors_for_any_value_in_the_manifest(tmp_path, value, signer):
    signed = {**signer.sign(value), "unknown": 1}
    del signed["manifest"]["plan"]["sums"][1:], signed["sums"]["votes/2"]
    tried = 0
    for number, path in enumerate(leaves(signed)):
        step = examples(9, 3)
        for hostile in HOSTILE[number % step :: step] if len(path) else HOSTILE:
            (tmp_path / "manifest.json").write_text(json.dumps(forged_at(signed, path, hostile)))
            found = harmlessly_judged(tmp_path)
            tried += 1
            if path and path[0] not in ("unknown", KEY) and found is not None:
                assert found.faults
    assert tried > examples(150, 500)


@pytest.mark.heavy
def test_names_of_sums_and_receipts_cannot_forge_a_line_of_the_output(tmp_path, value):
    for forged in filter(None, (each for each in HOSTILE if isinstance(each, str))):
        sums = {**value["sums"], forged: value["sums"]["votes/1"]}
        receipts = {**value["receipts"], forged: {"body": forged, "signature": "00"}}
        (tmp_path / "manifest.json").write_text(json.dumps({**value, "sums": sums, "receipts": receipts}))
        found = harmlessly_judged(tmp_path)
        assert found is None or found.faults


@pytest.mark.slow
def test_coordinators_name_cannot_forge_a_line_of_the_output(tmp_path, value, signer):
    for forged in (each for each in FORGERIES if "\ud800" not in each):
        signed = dataclasses.replace(signer, name=forged).sign(value)
        (tmp_path / "manifest.json").write_text(json.dumps(signed))
        for stated in (None, signer.authority.fingerprint):
            assert all(map(harmless, verify(tmp_path, fingerprint=stated).lines()))


@pytest.mark.slow
def test_verify_raises_only_our_errors_for_any_value_in_a_signed_receipt(tmp_path, value):
    entries = json.loads(value["receipts"]["p0"]["body"])["entries"]
    for number, path in enumerate(leaves(entries)):
        for hostile in HOSTILE[number % 3 :: 3]:
            with contextlib.suppress(ValueError, TypeError):  # not even a liar can sign what has no form
                forged = resigned(value, "p0", lambda kept, p=path, h=hostile: _replaced(kept, forged_at(kept, p, h)))
                (tmp_path / "manifest.json").write_text(json.dumps(forged))
                harmlessly_judged(tmp_path)


def test_negative_noise_in_a_receipt_is_a_fault_of_that_receipt(tmp_path, value):
    def spoil(entries):
        next(each for each in entries if each["kind"] == "charge")["events"][0]["noise_multiplier"] = -1

    (tmp_path / "manifest.json").write_text(json.dumps(resigned(value, "p0", spoil)))
    assert any(fault.startswith("receipt of p0") for fault in verify(tmp_path).faults)


def _replaced(entries, forged):
    entries[:] = forged if isinstance(forged, list) else [forged]


def test_names_in_a_manifest_cannot_forge_a_sentence_of_the_output(tmp_path, value):
    """Everyone signs it, and it reads as if it said something else."""
    run = "x', signed plan, SHA-256 0123456789abcdef...: every signature, charge and statement holds"
    hebrew = "\u05e9\u05dc\u05d5\u05dd"
    plan = Manifest.from_bytes(canonical_json(value["manifest"])).plan
    names = ("votes/1', 'votes/2", f"{hebrew} 5", "votes: the sum of 5 hospitals; 5 signed for it")
    sums = tuple(dataclasses.replace(each, name=name) for each, name in zip(plan.sums, names, strict=True))
    (tmp_path / "manifest.json").write_text(json.dumps(signed_by_all(value, run=run, plan=plan)))
    assert verify_folder(tmp_path)[0] == FALSE  # no name of a run has such characters
    forged = signed_by_all(value, plan=dataclasses.replace(plan, sums=sums))
    (tmp_path / "manifest.json").write_text(json.dumps(forged))
    code, lines = verify_folder(tmp_path)
    assert (code, lines[0][:13]) == (UNCONFIRMED, "NOT CONFIRMED")
    assert not any(line.startswith("signed plan") and "holds" in line for line in lines)
    (line,) = (each for each in lines if each.startswith("planned and never opened"))
    assert r"'\u05e9\u05dc\u05d5\u05dd 5'" in line


@pytest.mark.parametrize("name", ["p\u0430", "p0, p1", "P0", "p0 ", "\u05e9\u05dc\u05d5\u05dd", "p0\u0301"])
def test_manifest_with_a_party_name_that_enrolment_refuses_is_false(tmp_path, value, name):
    """No letters that look like others, nothing that reads as two names."""
    value["manifest"]["roster"][0]["name"] = name
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    code, lines = verify_folder(tmp_path)
    assert (code, len(lines)) == (FALSE, 2)


def test_receipt_of_another_run_of_the_same_hospitals_is_a_fault(tmp_path, value):
    other = Manifest.from_bytes(canonical_json(value["manifest"]))
    body = receipt.body(dataclasses.replace(other, run="another run"), "p0", [])
    signature = identity_of("p0").sign(tagged_hash(receipt.TAG, body)).hex()
    value["receipts"]["p0"] = {"body": body.decode(), "signature": signature}
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    code, lines = verify_folder(tmp_path)
    assert (code, lines[1]) == (FALSE, "  receipt of p0: its receipt is of another party, run or manifest")


def voided(entries, times, slot="votes/3"):
    """Before the run ends: a sum whose vector left again and again and is void by everybody else's word."""
    (charge,) = (each for each in entries if each.get("query") == "votes/1")
    for attempt in range(times):
        place = {"query": slot, "attempt": attempt, "run": charge["run"]}
        entries.insert(-1, {**charge, **place, "question": "ab" * 32})
        entries.insert(-1, {"kind": "void", "certificate": "00", **place})


def test_vector_that_sybil_parties_declared_void_counts_as_released(tmp_path, value, published):
    """n - 1 invented parties sign that a vector was never opened: its price is refunded, and said beside it."""
    plan = published[1]
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    before = verify(tmp_path)
    alone = [each.event_alone(plan.quorum) for each in plan.sums]
    assert before.alone == pytest.approx(accounting.epsilon(alone[:2], plan.usable_delta))
    forged = resigned(value, "p0", lambda entries: voided(entries, VOIDED_VECTORS))
    (tmp_path / "manifest.json").write_text(json.dumps(forged))
    verdict = verify(tmp_path)
    assert (verdict.faults, verdict.voided, verdict.spent) == ((), VOIDED_VECTORS, before.spent)
    thrice = [*alone[:2], *[alone[2]] * VOIDED_VECTORS]
    assert verdict.alone == pytest.approx(accounting.epsilon(thrice, plan.usable_delta))
    assert verdict.alone > before.alone
    code, lines = verify_folder(tmp_path)
    assert code == UNCONFIRMED
    assert f"epsilon {verdict.alone:.6g} against the coordinator and all other hospitals together, as it ran" in lines
    assert any(line.startswith("void, by the parties' word: 3 vectors") for line in lines)
    # without a final receipt, as many as the plan lets leave
    del value["receipts"]["p0"]
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    assert verify(tmp_path).alone == pytest.approx(plan.epsilon_if_all_others_collude())


def _once_more(entries):
    voided(entries, VOIDED_VECTORS + 1)


def _uncharged(entries):
    entries.insert(-1, {"kind": "void", "run": "a run", "query": "votes/3", "attempt": 0, "certificate": "00"})


def _twice(entries):
    voided(entries, 1)
    entries.insert(-1, entries[-2])


def _charged_twice(entries):
    entries.insert(0, entries[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_once_more, "makes more than 3 attempts at one sum void"),
        (_uncharged, "ends an attempt that was not charged, or had ended"),
        (_twice, "ends an attempt that was not charged, or had ended"),
        (_charged_twice, "charges an attempt a second time"),
    ],
)
def test_receipt_with_impossible_attempts_is_a_fault(tmp_path, value, change, words):
    (tmp_path / "manifest.json").write_text(json.dumps(resigned(value, "p0", change)))
    assert any(words in fault for fault in verify(tmp_path).faults)


def test_certificate_of_an_unknown_version_is_a_fault(tmp_path, value, signer):
    signed = signer.sign(value)
    lines = signed[KEY]["ca_certificate"].strip().split("\n")
    der = bytearray(base64.b64decode("".join(lines[1:-1])))
    der[der.index(b"\xa0\x03\x02\x01") + 4] = 9
    signed[KEY]["ca_certificate"] = "\n".join([lines[0], base64.b64encode(der).decode(), lines[-1]])
    publisher = {key: signed[KEY][key] for key in ("name", "ca_certificate", "signing_key")}
    rest = {key: found for key, found in signed.items() if key != KEY}
    statement = tagged_hash(TAG, canonical_json(rest), canonical_json(publisher))
    signed[KEY]["signature"] = signer.authority.signing_key.sign(statement).hex()
    (tmp_path / "manifest.json").write_text(json.dumps(signed))
    assert verify_folder(tmp_path)[0] == FALSE


def test_verify_lists_only_the_first_of_ten_thousand_faults(tmp_path, value):
    value["sums"] = {f"votes/{number}": {} for number in range(10_000)}
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    code, lines = verify_folder(tmp_path)
    assert (code, len(lines)) == (FALSE, LONGEST_LIST + 6)
    assert lines[-5].startswith("  and 99")


def test_manifest_with_a_key_that_stands_twice_is_refused(tmp_path, value):
    text = json.dumps(value).replace('"private": true', '"private": false, "private": true')
    (tmp_path / "manifest.json").write_text(text)
    assert verify_folder(tmp_path)[0] == CONFIGURATION


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["manifest.json", "synthetic.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "nowhere", "large", "bytes"])
def test_pipe_or_device_in_place_of_a_file_is_refused_at_once(tmp_path, value, name, kind, monkeypatch):
    path = write_folder(tmp_path, value) / name
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "nowhere":
            path.symlink_to(tmp_path / "nowhere")
        case "large":
            monkeypatch.setattr(papers, "LARGEST_BYTES", 100_000)
            path.write_bytes(b" " * 100_001)
        case "bytes":
            path.write_bytes(b"\xff" * 100)
    begun = time.monotonic()
    code, lines = verify_folder(tmp_path)
    assert code == (CONFIGURATION if name == "manifest.json" else FALSE)
    assert any(name in line for line in lines)
    assert time.monotonic() - begun < 5.0
