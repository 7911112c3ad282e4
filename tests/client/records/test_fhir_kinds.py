"""Every resource of a FHIR bulk export is read, or named with a reason: many kinds, and documents of any form."""

import copy
import gzip
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.records.test_sources import LOINC, SECRET, attachment, document, report, write_lines
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_client.records.fhir.html import shown_text

# Kinds of FHIR R4 that exports hold beside documents; of these the reader knows Binary alone by name.
OTHER_KINDS = ("AllergyIntolerance", "Binary", "Bundle", "Composition", "Condition", "Encounter", "Media", "Patient")
KINDS = (*OTHER_KINDS, "DiagnosticReport", "DocumentReference")
FOUND = document(0, attachment("text/plain", b"always read"))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def look(folder, *, dry=False):
    """What was read by the text's own number, and what was named, of a whole folder."""
    declared = Declared(str(folder), label_field=f"type|{LOINC}", user_field="patient", label_map={"": "none"})
    found = sources.read(declared, dry=dry)
    assert all(each.why for each in found.skipped)
    assert found.rows == len(found.table) + len(found.skipped)
    return found


def test_two_fhir_resource_types_are_read_and_others_named_as_skipped(tmp_path):
    for kind in KINDS:
        status = "current" if kind == "DocumentReference" else "final"
        row = {"resourceType": kind, "id": kind, "status": status, "subject": {"reference": "Patient/7"}}
        row |= {"content": FOUND["content"], "presentedForm": [attachment("text/plain", b"form")]}
        write_lines(tmp_path / f"{kind}.ndjson", [row, {**row, "id": f"{kind}-2"}])
    found = look(tmp_path)
    assert len(found.table) == 4
    named = {each.where for each in found.skipped}
    assert named == {f"{kind}.ndjson:{line}" for kind in OTHER_KINDS for line in (1, 2)}


@pytest.mark.heavy
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_fhir_document_is_read_or_named_as_skipped(tmp_path, data):
    rows = [FOUND]
    for number in range(1, 5):
        plain = attachment("text/plain", b"words", url="files/one.txt")
        row = document(number, plain) if number % 2 else report(number, presentedForm=[plain], conclusion="words")
        rows.append(damaged(data, row))
    write_lines(tmp_path / "DocumentReference.ndjson", rows)
    found = look(tmp_path, dry=True)  # else the first code that is no text, and so no label, ends the reading
    assert found.rows == len(rows)
    assert all(1 < int(each.where.rpartition(":")[2]) <= len(rows) for each in found.skipped)


def damaged(data, row):
    """A row with any JSON value in the place of one of its values."""
    row, path = copy.deepcopy(row), []
    at = row
    while isinstance(at, (dict, list)) and at and (not path or data.draw(st.booleans())):
        path.append((at, data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))))
        at = path[-1][0][path[-1][1]]
    holder, key = path[-1]
    holder[key] = data.draw(ANY)
    return json.loads(json.dumps(row))


DEEP = '{"resourceType": "DocumentReference", "x": ' + "[" * 200_000 + "}"


def test_hostile_fhir_rows_and_attachments_are_named_and_others_read(tmp_path, monkeypatch):
    """Each ended the command with an internal error, or kept it busy for hours."""
    monkeypatch.setattr("undersong_common.text.row_files.INFLATED_BYTES", 1000)
    damaged = bytearray(gzip.compress(SECRET.encode() * 200))
    damaged[30] ^= 255
    (tmp_path / "damaged.txt.gz").write_bytes(damaged)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(bytes(200_000)))
    plain = [attachment("text/plain", url=url) for url in ("a\0b", "x" * 5_000, "damaged.txt.gz", "bomb.txt.gz")]
    charsets = [attachment(f"text/plain; charset={name}", SECRET.encode()) for name in ("undefined", "punycode")]
    html = [attachment("text/html", b"<!--" * 100_000)]
    rows = [document(n, each) for n, each in enumerate([*plain, *charsets, *html])]
    write_lines(tmp_path / "d.ndjson", [*rows, document(9, attachment("text/plain", b"read"))])
    with (tmp_path / "d.ndjson").open("a") as file:
        file.write(DEEP)
    found = sources.read(Declared(str(tmp_path)))
    assert found.table.texts == ("read",)
    assert sorted(each.where for each in found.skipped) == [f"d.ndjson:{n}" for n in (1, 2, 3, 4, 5, 6, 7, 9)]
    assert SECRET not in str(found.skipped)
    assert any("comment that does not end" in each.why for each in found.skipped)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("seen <a " + "<a " * 100_000, "seen"),  # html.parser took time by the square of these
        ('<a "' * 99_999 + ">x", "x"),
        ("pressure < 90 & &lt;5<br/>x<3", "pressure < 90 & <5\nx<3"),
        ('<p title="a > b">one<!-- <p> --><!-->two<td>3<td>4', "onetwo 3 4"),
        ("<head><title>no</title></head><SCRIPT>if (a<b)</script ><style>p{}</style>seen", "seen"),
        ("<html><head><meta charset='utf-8'><p>a\nb<pre>c\nd</pre>", "a b\nc\nd"),
        ("<?xml version='1.0'?><!DOCTYPE html><h1>x</h1></>y", "x\ny"),
    ],
)
def test_html_is_reduced_to_the_text_a_browser_shows_in_linear_time(html, text):
    began = time.process_time()
    assert shown_text(html) == text
    assert time.process_time() - began < 10


@pytest.mark.parametrize("target", ["loop.ndjson", "gone.ndjson"])
def test_circular_or_broken_fhir_link_is_named_and_others_are_read(tmp_path, target):
    write_lines(tmp_path / "DocumentReference.ndjson", [document(1, attachment("text/plain", b"a note"))])
    (tmp_path / "loop.ndjson").symlink_to(target)
    reading = sources.read(Declared(str(tmp_path), user_field="patient"), dry=True)
    assert len(reading.table) == 1
    (skipped,) = reading.skipped
    assert (skipped.where.endswith("loop.ndjson"), skipped.cause) == (True, "lost")
    assert "leads to no file" in skipped.why
