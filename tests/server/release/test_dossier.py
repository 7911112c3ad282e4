"""A data set's dossier says what `verify` finds, escaped, with what was opened, spent and published."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from dataclasses import replace

import pyarrow.parquet
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.coded import raises
from tests.doubles.parties import public_of
from tests.doubles.published import PARTIES
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from tests.doubles.typed import typed
from tests.server.report.test_report import run as reported
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.manifest import plan_words
from undersong_server.cli.app import app
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import curation, releases, runs
from undersong_server.pool import Sample
from undersong_server.release.files import (
    ARCHIVE_PURPOSES,
    OUTPUT_NAMES,
    PURPOSES,
    LeftOut,
    Signer,
    card_of_archive,
    corpus_files,
    sha256_of,
    sign_archive,
    write_files,
)
from undersong_server.release.verify import verify
from undersong_server.report.answers import IN_BROWSER
from undersong_server.report.html import render_card
from undersong_server.report.rows import EXAMPLES
from undersong_server.runs.folder import RunStatus


@pytest.fixture
def folder(tmp_path, published, signer):
    made = tmp_path / "data set"
    made.mkdir()
    write_signed(made, signer, published[0])
    return made


def write_signed(folder, signer, value):
    """Writes a corpus, and the papers under whose signature it stands."""
    (folder / "synthetic.jsonl").write_text("{}\n")
    files = {"synthetic.jsonl": sha256_of(folder / "synthetic.jsonl")}
    (folder / "manifest.json").write_text(json.dumps(signer.sign({**value, "files": files})))


def dossier(folder, *options, code):
    page = folder.parent / "dossier.html"
    page.unlink(missing_ok=True)
    ended = typed(app, "dossier", folder, "--out", page, *options)
    assert ended.exit_code == code, ended.output
    return page.read_text() if page.exists() else ended.output


@pytest.mark.heavy
def test_dossier_of_a_confirmed_data_set_states_sums_epsilon_and_parties(folder, signer):
    page = dossier(folder, "--fingerprint", signer.authority.fingerprint, code=0)
    verdict = verify(folder, fingerprint=signer.authority.fingerprint)
    spent = verdict.epsilon
    for part in (
        *PARTIES,
        f"nine words: {plan_words(verdict.manifest.hash)}. Filed for:",
        "votes/1",
        "4 of 5",
        "p2 took part until sum 1 of 2",
        "certified by the coordinator",
        f"epsilon {spent:.6g}",
        "signed",
        "Article 35(7)",
        "holds.",
    ):
        assert part in page, part
    assert "never opened" in page  # the third sum
    assert "only its name is known" not in page


def test_archive_holds_every_published_file_and_the_dossier(folder, tmp_path):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    run = home.run("first")
    run.write_status(RunStatus("finished"))
    shutil.copytree(folder, run.output)
    releases.export(home.path, "first", tmp_path / "first.zip")
    with zipfile.ZipFile(tmp_path / "first.zip") as packed:
        names = {f"first/{name}" for name in ("manifest.json", "synthetic.jsonl", "dossier.html", "archive.json")}
        assert set(packed.namelist()) == names
        assert packed.read("first/synthetic.jsonl") == b"{}\n"
        assert b"Article 35(7)" in packed.read("first/dossier.html")


def archived(tmp_path, published):
    """The unpacked archive of a console's run, and the coordinator's fingerprint."""
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    run = home.run("first")
    run.write_status(RunStatus("finished"))
    run.output.mkdir()
    authority = home.authority()
    write_signed(run.output, Signer("clinics", authority, {name: public_of(name) for name in PARTIES}), published)
    with zipfile.ZipFile(io.BytesIO(releases.archive(home.path, "first"))) as packed:
        packed.extractall(tmp_path)
    return tmp_path / "first", authority.fingerprint


def test_verify_compares_every_file_of_an_archive_with_its_listed_hash(tmp_path, published):
    unpacked, fingerprint = archived(tmp_path, published[0])
    verdict = verify(unpacked, fingerprint=fingerprint)
    assert (verdict.faults, verdict.outside, verdict.holds) == ((), (), True)
    (unpacked / "dossier.html").write_text("praise")
    assert verify(unpacked, fingerprint=fingerprint).faults == (
        "dossier.html: is not the file that the coordinator put into the archive",
    )


def test_an_export_without_marked_texts_says_how_many_are_missing(tmp_path, published):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    run = home.run("first")
    run.write_status(RunStatus("finished"))
    samples = [Sample(text, "a", "g", 1, "new") for text in ("a hotel", "left\u2028wrist", "fever")]
    card = "---\nlicense: mit\n---\n\n# 3 texts\n\nSee set-aside.jsonl.\n"
    aside = json.dumps({"text": "late check-in", "reason": "subject"}) + "\n"
    files = {**corpus_files(samples), "README.md": card, "report.html": "a hotel", "set-aside.jsonl": aside}
    write_files(run.output, files)
    hashes = {name: sha256_of(run.output / name) for name in files}
    signed = Signer("clinics", home.authority(), {name: public_of(name) for name in PARTIES})
    (run.output / "manifest.json").write_text(json.dumps(signed.sign({**published[0], "files": hashes})))
    archive_file = tmp_path / "shorter.zip"
    whole_file = tmp_path / "whole.zip"
    with raises(ConfigurationError, "no-archive"):
        releases.export(home.path, "first", tmp_path / "folder", without_aside=True)
    releases.export(home.path, "first", whole_file, without_aside=True)
    with zipfile.ZipFile(whole_file) as packed:
        assert not any(b"late check-in" in packed.read(name) for name in packed.namelist())
        assert b"lacks set-aside.jsonl" in packed.read("first/README.md")
        packed.extractall(tmp_path / "unmarked")
    whole_verdict = verify(tmp_path / "unmarked" / "first", fingerprint=home.authority().fingerprint)
    assert whole_verdict.holds
    assert whole_verdict.missing == ()
    assert whole_verdict.to_json()["files_left_out"] == ["set-aside.jsonl"]
    assert "left out by the operator: set-aside.jsonl" in whole_verdict.lines()
    assert whole_verdict.conclusion()[0] == "Files: whole: every file here is as it was written."
    with raises(ConfigurationError, "no-marks"):
        releases.export(home.path, "first", archive_file, without_marked=True)
    curation.mark_texts(home.path, "first", [1])
    with raises(ConfigurationError, "no-archive"):
        releases.export(home.path, "first", tmp_path / "folder", without_marked=True)
    assert releases.export(home.path, "first", tmp_path / "whole").marked == 1
    assert releases.count_marks(home.path, "first").included_words == "1 marked text of 3 included"
    assert releases.export(home.path, "first", archive_file, without_marked=True).marked == 0
    with zipfile.ZipFile(archive_file) as packed:
        assert not any(b"a hotel" in packed.read(name) for name in packed.namelist())
        packed.extractall(tmp_path)
    unpacked = tmp_path / "first"
    rows = [json.loads(line)["text"] for line in (unpacked / "synthetic.jsonl").read_bytes().split(b"\n") if line]
    assert rows == ["left\u2028wrist", "fever"]
    assert pyarrow.parquet.read_table(unpacked / "synthetic.parquet")["text"].to_pylist() == rows
    card = (unpacked / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\n\n> This archive has 2 texts. Its makers left out 1 of 3 after")
    verdict = verify(unpacked, fingerprint=home.authority().fingerprint)
    assert (verdict.faults, verdict.outside, verdict.left_out) == ((), (), LeftOut(1, 3))
    assert verdict.conclusion()[0].startswith("Files: whole, but for 1 of 3 texts that the coordinator left out")
    (unpacked / "synthetic.jsonl").write_bytes(files["synthetic.jsonl"])
    assert verify(unpacked, fingerprint=home.authority().fingerprint).faults == (
        "synthetic.jsonl: is not the file that the coordinator put into the archive",
    )
    curation.mark_texts(home.path, "first", [2, 3])
    with raises(ConfigurationError, "no-text-left"):
        releases.archive_without_marked(home.path, "first")


def write_run(home, folder, published):
    """A finished run whose card, of a receiver's questions and counts, names each of the published files."""
    runs.plan(home.path, make_task(folder / "task"), RunOptions(name="first"))
    run = home.run("first")
    run.write_status(RunStatus("finished"))
    data = reported(12, files=tuple(PURPOSES.items()), publisher=("clinics", "ab12"))
    files = {name: f"of {name}" for name in OUTPUT_NAMES if name not in ("sequences.jsonl", "adapters.zip")}
    named = tuple((name, purpose) for name, purpose in PURPOSES.items() if name in files)
    files |= {**corpus_files(data.samples), "README.md": render_card(replace(data, files=named))}
    del files["manifest.json"]
    write_files(run.output, files)
    hashes = {name: sha256_of(run.output / name) for name in files}
    signed = Signer("clinics", home.authority(), {name: public_of(name) for name in PARTIES})
    (run.output / "manifest.json").write_text(json.dumps(signed.sign({**published, "files": hashes})))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["folder", "archive", "archive without marked texts"])
def test_card_of_each_export_names_exactly_its_files_and_texts(tmp_path, published, kind):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    write_run(home, tmp_path, published[0])
    curation.mark_texts(home.path, "first", [1, 2, 6])
    target = tmp_path / ("first" if kind == "folder" else "first.zip")
    releases.export(home.path, "first", target, without_marked="without" in kind)
    if kind != "folder":
        with zipfile.ZipFile(target) as packed:
            packed.extractall(tmp_path)
    unpacked = tmp_path / "first"
    card = (unpacked / "README.md").read_text().replace("\\", "")
    names = {name for name in (*PURPOSES, *ARCHIVE_PURPOSES) if re.search(rf"(?<![\w.-]){re.escape(name)}", card)}
    assert names == {path.name for path in unpacked.iterdir()}
    listed = card.partition("## The files")[2].partition("## ")[0]
    assert set(re.findall(r"^- ([^:]+):", listed, re.MULTILINE)) == names
    has_report = "report.html" in names
    assert (f"\n{IN_BROWSER}" in card, EXAMPLES in card) == (has_report, has_report)
    assert has_report == ("without" not in kind)
    texts = len((unpacked / "synthetic.jsonl").read_bytes().splitlines())
    assert f"## What it is\n\n{texts} synthetic texts with 2 labels" in card
    (total,) = re.findall(r"^\| all \|.* (\d+) \|$", card, re.MULTILINE)
    assert (texts, int(total)) == ((9, 9) if "without" in kind else (12, 12))
    assert card.count("> Counted before the makers left out 3 of 12 texts.") == (4 if "without" in kind else 0)
    verdict = verify(unpacked, fingerprint=home.authority().fingerprint)
    assert (verdict.faults, verdict.outside, verdict.missing) == ((), (), ())
    assert "INCOMPLETE" not in verdict.conclusion()[0]
    assert ("with lineage.jsonl and report.html" in "".join(verdict.lines())) == ("without" in kind)
    (unpacked / "rounds.csv").unlink()
    assert verify(unpacked, fingerprint=home.authority().fingerprint).missing == ("rounds.csv",)


def test_archived_card_says_which_file_it_names_is_missing():
    card = card_of_archive("# A card of an earlier version\n\nSee report.html for more.\n", ["synthetic.jsonl"])
    assert b"This archive lacks report.html, which the text above names." in card
    assert b"lacks" not in card_of_archive("# A card\n", ["synthetic.jsonl"])


def test_archive_list_signed_by_another_key_is_a_fault(tmp_path, published):
    unpacked, fingerprint = archived(tmp_path, published[0])
    (unpacked / "dossier.html").write_text("praise")
    key = Ed25519PrivateKey.generate()
    forged = sign_archive(key, (unpacked / "manifest.json").read_bytes(), {"dossier.html": "praise"})
    (unpacked / "archive.json").write_text(forged)
    verdict = verify(unpacked, fingerprint=fingerprint)
    assert verdict.faults[0].startswith("archive.json: the archive is not signed by this coordinator")
    assert set(verdict.outside) == {"archive.json", "dossier.html"}


def test_archive_list_of_another_manifest_is_a_fault(tmp_path, published):
    unpacked, fingerprint = archived(tmp_path, published[0])
    contents = {"dossier.html": (unpacked / "dossier.html").read_bytes()}
    key = CoordinatorHome(tmp_path / "home").authority().signing_key
    for manifest, is_sound in (((unpacked / "manifest.json").read_bytes(), True), (b"{}", False)):
        (unpacked / "archive.json").write_text(sign_archive(key, manifest, contents))
        faults = verify(unpacked, fingerprint=fingerprint).faults
        assert any(fault.startswith("archive.json: the archive is not signed") for fault in faults) is not is_sound


def test_archive_that_leaves_out_a_file_it_must_have_is_a_fault(tmp_path, published):
    unpacked, fingerprint = archived(tmp_path, published[0])
    (unpacked / "synthetic.jsonl").unlink()
    contents = {"dossier.html": (unpacked / "dossier.html").read_bytes()}
    key = CoordinatorHome(tmp_path / "home").authority().signing_key
    manifest = (unpacked / "manifest.json").read_bytes()
    (unpacked / "archive.json").write_text(sign_archive(key, manifest, contents, left_out_files=["synthetic.jsonl"]))
    verdict = verify(unpacked, fingerprint=fingerprint)
    assert verdict.faults == ("archive.json: archive.json leaves files out that an archive must have",)
    assert (verdict.holds, verdict.left_out_files) == (False, ())


def test_dossier_of_an_unconfirmed_data_set_ends_with_verifys_exit_code(folder):
    page = dossier(folder, code=8)
    assert "only its name is known" not in page.partition("Who took part")[0]
    assert "nothing shows whose it is" in page


def test_dossier_shows_faults_first_and_escapes_markup_in_them(folder):
    value = json.loads((folder / "manifest.json").read_text())
    value["receipts"]["<b>p9</b>"] = {"body": "{}", "signature": "00"}
    (folder / "manifest.json").write_text(json.dumps(value))
    page = dossier(folder, code=3)
    assert page.index("NOT VERIFIED") < page.index("What it is")
    assert "<b>p9" not in page


def test_dossier_of_an_unknown_run_is_refused_by_name(tmp_path):
    ended = typed(app, "dossier", "spring", "--out", tmp_path / "page.html", "--home", tmp_path)
    assert isinstance(ended.exception, ConfigurationError)
    assert not (tmp_path / "page.html").exists()
