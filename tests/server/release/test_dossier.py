"""A data set's dossier says what `verify` finds, escaped, with what was opened, spent and published."""

from __future__ import annotations

import json

import pytest

from tests.doubles.published import PARTIES
from tests.doubles.typed import typed
from undersong_common.errors import ConfigurationError
from undersong_server.cli.app import app
from undersong_server.release.verify import verify


@pytest.fixture
def folder(tmp_path, published, signer):
    made = tmp_path / "data set"
    made.mkdir()
    (made / "manifest.json").write_text(json.dumps(signer.sign({**published[0], "files": {}})))
    return made


def dossier(folder, *options, code):
    page = folder.parent / "dossier.html"
    page.unlink(missing_ok=True)
    ended = typed(app, "dossier", folder, "--out", page, *options)
    assert ended.exit_code == code, ended.output
    return page.read_text() if page.exists() else ended.output


def test_a_confirmed_data_set_says_what_was_opened_spent_and_by_whom(folder, signer):
    page = dossier(folder, "--fingerprint", signer.authority.fingerprint, code=0)
    spent = verify(folder, fingerprint=signer.authority.fingerprint).epsilon
    for part in (
        *PARTIES,
        "votes/1",
        "4 of 5",
        "confirmed",
        f"epsilon {spent:.6g}",
        "signed",
        "Article 35(7)",
        "holds.",
    ):
        assert part in page, part
    assert "never opened" in page  # the third sum
    assert "only its name is known" not in page


def test_what_nothing_confirms_says_so_and_has_verifys_exit_code(folder):
    page = dossier(folder, code=8)
    assert "only its name is known" not in page.partition("Who took part")[0]
    assert "nothing shows whose it is" in page


def test_a_fault_stands_first_and_escaped(folder):
    value = json.loads((folder / "manifest.json").read_text())
    value["receipts"]["<b>p9</b>"] = {"body": "{}", "signature": "00"}
    (folder / "manifest.json").write_text(json.dumps(value))
    page = dossier(folder, code=3)
    assert page.index("NOT VERIFIED") < page.index("What it is")
    assert "<b>p9" not in page


def test_a_run_that_is_nowhere_is_named(tmp_path):
    ended = typed(app, "dossier", "spring", "--out", tmp_path / "page.html", "--home", tmp_path)
    assert isinstance(ended.exception, ConfigurationError)
    assert not (tmp_path / "page.html").exists()
