"""A file of texts reaches a generator's field by an upload, or by a copy into the folder that the form names."""

from __future__ import annotations

import html

import pytest

from tests.doubles.coded import raises
from tests.doubles.forms import fields_of
from tests.doubles.stream import make_home
from undersong_common.errors import ConfigurationError
from undersong_server.operations import drafts, form, permissions, uploads

pytestmark = pytest.mark.heavy

ROWS = b'{"text": "one", "label": "kitchen"}\n'
FIELD = "generators.0.corpus"


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home").path


@pytest.fixture
def console(home, entered):
    return entered(home)


@pytest.fixture
def address(console):
    """A new draft from a template, with an n-gram generator that has no file yet."""
    address = console.led(console.post("/runs/new", source=f"template {form.templates()[0]}"))
    console.post(address, {**fields_of(console.get(address).text), "do": "add generators", "kind": "ngram"})
    return address


def upload(console, address, name, content, field=FIELD):
    sent = {**fields_of(console.get(address).text), **console.hidden(address), "do": f"upload {field}"}
    return console.client.post(address, data=sent, files={f"file {field}": (name, content)})


def test_form_names_the_existing_uploads_folder_and_offers_its_files(console, home, address):
    folder = uploads.uploads_folder(home)
    assert folder.is_dir()
    shown = console.get(address).text
    assert f"<code>{folder}</code>" in shown
    assert 'formenctype="multipart/form-data"' in shown
    (folder / "copied.jsonl").write_bytes(ROWS)
    assert '<option value="copied.jsonl">copied.jsonl (1 row' in console.get(address).text


def test_upload_fills_its_form_field_and_keeps_typed_values(console, home, address):
    sent = {**fields_of(console.get(address).text), "key task.name": "pantry"}
    console.post(address, {**sent, "do": "check"})
    answer = upload(console, address, "C:\\notes\\my corpus.jsonl", ROWS)
    assert console.led(answer) == f"{address}#key-generators-0-corpus"
    fields = fields_of(console.get(address).text)
    assert (fields["key generators.0.corpus"], fields["key task.name"]) == (["my_corpus.jsonl"], ["pantry"])
    assert (uploads.uploads_folder(home) / "my_corpus.jsonl").read_bytes() == ROWS
    assert console.site.audit.entries()[-1].what == "upload"
    assert "outside the operator" not in console.get(address).text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("", b"", "no file was chosen"),
        ("empty.jsonl", b"", "no file was chosen"),
        ("task.toml", b"[task]\n", "is no table"),
        ("../../signing.key", b"x", "is no table"),
    ],
)
def test_upload_that_is_no_table_is_refused_and_not_stored(console, home, address, name, content, words):
    answer = upload(console, address, name, content)
    assert words in html.unescape(answer.text).casefold()
    assert list(uploads.uploads_folder(home).iterdir()) == []


def test_upload_to_a_field_that_takes_no_file_is_refused(console, home, address):
    assert "is not a key that names a file" in html.unescape(
        upload(console, address, "a.jsonl", ROWS, "task.name").text
    )
    assert list(uploads.uploads_folder(home).iterdir()) == []


def test_upload_never_replaces_a_file_and_identical_uploads_share_one(home):
    first = uploads.keep_upload(home, "../corpus.jsonl", ROWS)
    assert first == uploads.uploads_folder(home) / "corpus.jsonl"
    assert uploads.keep_upload(home, "corpus.jsonl", ROWS) == first
    other = uploads.keep_upload(home, "corpus.jsonl", ROWS * 2)
    assert (other.name, first.read_bytes()) == ("corpus-2.jsonl", ROWS)
    for name in (".hidden.csv", "..csv", "a\0b\n.csv.gz", "n" * 300 + ".jsonl"):
        path = uploads.keep_upload(home, name, ROWS)
        assert path.parent == first.parent
        assert not path.name.startswith(".")


def test_upload_is_named_by_its_path_where_task_folders_exist(home, tmp_path):
    draft = drafts.from_template(home, form.templates()[0], (tmp_path / "tasks",))
    draft = drafts.name_upload(home, drafts.add_table(draft, "generators", "ngram"), FIELD, "a.jsonl", ROWS)
    path = str(uploads.uploads_folder(home) / "a.jsonl")
    assert draft.data["generators"][0]["corpus"] == path
    assert path in permissions.files(draft, drafts.task_folders(home, (tmp_path / "tasks",)))


def test_error_for_a_file_outside_lists_the_allowed_folders(home, tmp_path):
    draft = drafts.from_template(home, form.templates()[0], (tmp_path,))
    generator = {"name": "new", "kind": "ngram", "corpus": "/etc/passwd"}
    check = permissions.FilePermissions(home, drafts.replace(draft, data={"generators": [generator]}), (tmp_path,), ())

    class Located:
        generators = ()

        def locate(self, _):
            return tmp_path

    with raises(ConfigurationError, "not-from-the-console") as caught:
        check(Located())
    assert f"({tmp_path}, {uploads.uploads_folder(home)})" in caught.value.problem
    assert str(uploads.uploads_folder(home)) in caught.value.remedy
