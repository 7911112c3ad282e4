"""Invented exports of FHIR: patients, versions, deletions, statuses and attachments are decided by written rules."""

import base64
import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.records.test_record_cases import dry
from tests.client.records.test_sources import attachment, document, write_lines
from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder, command, set_up
from undersong_client.home import Declared, PartyHome
from undersong_client.records import sources
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder

CASES = Path(__file__).parent / "fhir_cases"
SITES = {"siteA": "https://sitea.example/fhir", "siteB": "https://siteb.example/fhir"}


PATIENTS = ("--user-field", "patient")
NO_PATIENT = "its subject is no patient: "


def read_case(name, **choices):
    return sources.read(Declared(str(CASES / name), user_field="patient", **choices), dry=True)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    set_up(tmp_path / "home", ("init", "alpha"))
    return tmp_path / "home"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "texts", "patients", "reasons"),
    [
        ("fhir_urn_uuid", {"note 1", "no finding"}, 1, {}),
        ("fhir_patient_link", {"note 1", "note 2", "note 3"}, 1, {}),
        ("fhir_group_identifier", set(), 0, {f"{NO_PATIENT}a Group": 1, f"{NO_PATIENT}a Device": 1}),
        ("fhir_versions", {"final report"}, 1, {"its status is entered-in-error": 1}),
        ("fhir_deleted", set(), 0, {"it was deleted": 1}),
        (
            "fhir_docstatus",
            {"final", "amended"},
            1,
            {f"its docStatus is {code}": 1 for code in ("entered-in-error", "preliminary", "cancelled", "deprecated")},
        ),
        ("fhir_same_note_twice", {"CT of the chest: no finding"}, 1, {}),
        ("fhir_two_systems", set(), 0, {"its attachment lies on another server": 2}),
        ("fhir_subfolder", {"text in a file"}, 1, {}),
        ("fhir_subfolder2", {"January text of patient 7", "February text of patient 8"}, 2, {}),
        ("fhir_stu3_binary", {"stu3 text"}, 1, {}),
    ],
)
def test_each_fhir_example_gives_its_expected_records_and_skip_reasons(home, name, texts, patients, reasons):
    code, value, error = dry(home, CASES / name, *PATIENTS)
    lost = [row["why"] for row in value["skipped"] if row["cause"] == "lost"]
    assert (value["records"], value["users"], Counter(lost)) == (len(texts), patients, reasons)
    assert (code, "are not read" in error) == ((2, True) if reasons else (0, False))
    assert set(read_case(name).table.texts) == texts


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["fhir_versions", "fhir_docstatus", "fhir_two_systems", "fhir_group_identifier"])
def test_an_export_with_lost_documents_is_sealed_after_a_person_confirms(home, name):
    add = ("data", "add", CASES / name, *PATIENTS, "--home", home)
    assert "are not read" in command(*add, code=2)
    assert not PartyHome(home).sealed.exists()
    command(*add, "--despite-cautions")
    assert set(datasets.load(PartyHome(home)).table.texts) == set(read_case(name).table.texts)


def test_folders_of_two_fhir_systems_are_sealed_each_with_its_own_texts(home):
    systems = [option for folder, base in SITES.items() for option in ("--fhir-system", f"{folder}={base}")]
    command("data", "add", CASES / "fhir_two_systems", *PATIENTS, *systems, "--home", home)
    table = datasets.load(PartyHome(home)).table
    assert sorted(zip(table.users, table.texts, strict=True)) == [
        (f"{base}/Patient/{site}-1", f"text of the patient of {site.upper()}")
        for site, base in zip("ab", SITES.values(), strict=True)
    ]


def test_mixture_of_fhir_references_and_identifiers_stops_data_add(home):
    code, value, error = dry(home, CASES / "fhir_reference_forms", *PATIENTS)
    assert (code, value["lost"]) == (2, 6)
    assert "3 ids are identifiers, and other ids are those of Patient resources" in error
    named = {row["why"].removeprefix(NO_PATIENT) for row in value["skipped"]}
    assert {"a Group", "a Device", "a name alone", "no reference to a resource"} < named
    add = ("data", "add", CASES / "fhir_reference_forms", *PATIENTS, "--despite-cautions", "--home", home)
    assert "--same-patient" in command(*add, code=2)


@pytest.mark.parametrize("second", ["Patient/child", "Group/1"])
def test_attachment_named_by_two_patients_documents_is_not_read(home, tmp_path, second):
    folder = tmp_path / "export"
    folder.mkdir()
    references = (
        ("Patient/mother", "Binary/1"),
        (second, "Binary/1"),
        ("Patient/other", "DocumentReference.ndjson"),
    )
    rows = [
        document(n, attachment("text/plain", url=url), patient=subject) for n, (subject, url) in enumerate(references)
    ]
    write_lines(folder / "DocumentReference.ndjson", rows)
    write_lines(
        folder / "Binary.ndjson", [{"resourceType": "Binary", "id": "1", **attachment("text/plain", b"a note")}]
    )
    code, value, _ = dry(home, folder, *PATIENTS)
    assert (code, value["records"], value["lost"]) == (2, 0, 3)
    reasons = Counter(row["why"] for row in value["skipped"])
    assert reasons["its attachment is a file of resources"] == 1
    assert reasons["documents of two patients name its attachment"] == (2 if second == "Patient/child" else 1)


FORMS = (
    ("text/html", b'<html><head><meta charset="utf-8"><body><p>Note of a ward', "Note of a ward"),
    (
        "application/rtf",
        "{\\rtf1\\ansi\\ansicpg1251 Больной на отделении\\par}".encode("cp1251"),
        "Больной на отделении",
    ),
    ("application/rtf", rb"{\rtf1\ansi shown {\v hidden comment }more\par}", "shown more"),
    ("application/rtf", rb"{\rtf1\ansi keep {\deleted gone }stay\par}", "keep stay"),
    ("text/rtf", rb"{\rtf1\ansi first report\par}{\rtf1\ansi second report\par}", "first report second report"),
    ("text/rtf", rb"{\rtf1\mac caf\'8e\par}", "café"),
    ("text/rtf", rb"{\rtf1\pc caf\'82\par}", "café"),
    ("text/rtf", b"{\\rtf1\\ansi\\ansicpg932 \x93\xfa\x96{\\par}", "日本"),
    ("text/rtf", rb"{\rtf1\ansi\uc1 \u8364?5 \uc0\u-10179\u-8704 end\par}", "€5 \N{GRINNING FACE}end"),
    ("text/rtf", rb"{\rtf1{\fonttbl{\f0\fcharset204 Arial;}}\f0 \'c4\'e0\par}", "Да"),
    ("text/rtf", rb"{\rtf1 a{\*\generator Word}{\field{\*\fldinst HYPERLINK x}{\fldrslt link}} b\par}", "alink b"),
    ("text/rtf", rb"{\rtf1 before\bin5 }{}{\ after\par}", "before after"),
)


@pytest.mark.parametrize(("kind", "content", "text"), FORMS)
def test_html_and_rtf_attachments_give_the_text_that_programs_display(tmp_path, kind, content, text):
    write_lines(tmp_path / "d.ndjson", [document(1, attachment(kind, content))])
    (shown,) = sources.read(Declared(str(tmp_path), user_field="patient")).table.texts
    assert " ".join(shown.split()) == text


def test_all_forms_of_a_fhir_reference_are_one_patient():
    users = read_case("fhir_reference_forms").table.users
    assert set(users[:11]) == {"0f2c6f2e-6e0b-4f53-9d6f-2f6f6f6f6f6f"}


def test_documents_of_a_status_named_by_the_hospital_count():
    assert set(read_case("fhir_docstatus", also_status=("preliminary",)).table.texts) == {
        "final",
        "amended",
        "preliminary",
    }


@pytest.mark.heavy
def test_accepted_share_of_skipped_documents_is_asked_about_if_exceeded(home, tmp_path):
    def write(final, preliminary, unreadable=0):
        contents = [("text/plain", f"note {number}".encode()) for number in range(final)]
        contents += [("text/plain", b"a draft")] * preliminary + [("application/pdf", b"%PDF")] * unreadable
        rows = [document(number, attachment(*content)) for number, content in enumerate(contents)]
        for row in rows[final : final + preliminary]:
            row["docStatus"] = "preliminary"
        write_lines(tmp_path / "export" / "DocumentReference.ndjson", rows)

    (tmp_path / "export").mkdir()
    write(16, 4)
    add = ("data", "add", tmp_path / "export", *PATIENTS, "--home", home)
    said = command(*add, code=2)
    assert "4 of 20 rows or documents are not read (4: its docStatus is preliminary (" in said
    assert "if it counts: --also-status preliminary" in said
    assert "--despite-cautions accepts for every refresh, up to this share" in said
    command(*add, "--despite-cautions")
    write(32, 8)
    command("data", "refresh", "--home", home)
    write(30, 10)
    command("data", "refresh", "--home", home)  # two of 40 more are one in twenty
    for figures in ((29, 11), (34, 3, 3)):  # more of these, or others in their place
        write(*figures)
        assert "are not read" in command("data", "refresh", "--home", home, code=2)
    (tmp_path / "export").rename(tmp_path / "other")
    other = ("data", "add", tmp_path / "other", *PATIENTS, "--new-version", "--home", home)
    assert "are not read" in command(*other, code=2)


@pytest.mark.parametrize("column", ["text", "patient"])
def test_column_of_notes_or_patients_is_refused_as_label(column):
    with raises(ConfigurationError, "no-label-column") as caught:
        read_case("fhir_versions", label_field=column)
    assert "--label-field type" in caught.value.remedy


MRN = {"system": "http://a.example/mrn", "value": "55"}


@pytest.fixture
def shared(tmp_path):
    """An export of two Patients with one identifier, of whom one has a note."""
    folder = tmp_path / "export"
    folder.mkdir()
    patients = [{"resourceType": "Patient", "id": name, "identifier": [MRN]} for name in ("e", "f")]
    write_lines(folder / "Patient.ndjson", patients)
    note = attachment("text/plain", b"a note")
    write_lines(folder / "DocumentReference.ndjson", [document(1, note, patient="Patient/e")])
    return folder


def test_objection_to_an_identifier_of_two_patients_stops_the_seal(tmp_path, shared):
    (tmp_path / "objectors.txt").write_text("http://a.example/mrn|55\n", encoding="utf-8")
    declared = Declared(str(shared), user_field="patient", exclusions=str(tmp_path / "objectors.txt"))
    with raises(ConfigurationError, "no-exclusions"):
        sources.read(declared)


@pytest.mark.parametrize("subject", [{"reference": "Patient/e"}, {"identifier": MRN}])
def test_patients_who_share_an_identifier_need_an_answer_if_one_has_a_note(shared, subject):
    note = document(1, attachment("text/plain", b"a note")) | {"subject": subject}
    write_lines(shared / "DocumentReference.ndjson", [note])
    declared = Declared(str(shared), user_field="patient")
    (found,) = sources.read(declared).look_alikes
    assert (found.kinds, found.is_shared) == (("identifiers",), True)
    assert found.places[0][1] == "Patient.ndjson:2"
    for choice in ("same_patient", "other_patient"):
        assert sources.read(replace(declared, **{choice: ["identifiers"]})).look_alikes == ()


def test_patients_who_share_an_identifier_need_no_answer_without_notes(shared):
    other = document(1, attachment("text/plain", b"a note"), patient="Patient/g")
    write_lines(shared / "DocumentReference.ndjson", [other])
    assert sources.read(Declared(str(shared), user_field="patient")).look_alikes == ()


def test_objection_to_one_of_two_joined_patients_removes_both(tmp_path, shared):
    (tmp_path / "objectors.txt").write_text("f\n", encoding="utf-8")
    declared = Declared(str(shared), user_field="patient", exclusions=str(tmp_path / "objectors.txt"))
    assert len(sources.read(replace(declared, other_patient=["identifiers"])).table) == 1
    assert len(sources.read(replace(declared, same_patient=["identifiers"])).table) == 0


@pytest.fixture
def merged(tmp_path):
    """An export of two joined Patients, of whom one has an identifier and the other one a note, and of a third."""
    folder = tmp_path / "export"
    folder.mkdir()
    old = {"resourceType": "Patient", "id": "p-Old", "identifier": [{"system": "http://a.example/mrn", "value": "M-7"}]}
    link = {"other": {"reference": "Patient/new"}, "type": "replaced-by"}
    write_lines(folder / "Patient.ndjson", [old | {"link": [link]}, {"resourceType": "Patient", "id": "new"}])
    notes = [
        document(number, attachment("text/plain", b"note %d" % number), patient=f"Patient/{patient}")
        for number, patient in enumerate(("new", "third"))
    ]
    write_lines(folder / "DocumentReference.ndjson", notes)
    return folder


@pytest.mark.parametrize(
    ("line", "words", "kinds"),
    [
        ("p-old", "capital letters, or ß for ss", "case"),
        ("\uff50-Old", "the width or form of letters or digits", "width"),
        ("http://a.example/mrn|m-7", "capital letters, or ß for ss", "case"),
        ("http://a.example/mrn|M7", "spaces or hyphens", "spaces"),
        ("HTTP://A.example/mrn|m 7", "spaces or hyphens and capital letters, or ß for ss", "spaces,case"),
        ("M-7", "being an identifier", "identifiers"),
    ],
)
def test_objector_s_id_that_resembles_a_patient_s_id_stops_data_add(tmp_path, merged, line, words, kinds):
    (tmp_path / "objectors.txt").write_text(f"third\n{line}\n", encoding="utf-8")
    declared = Declared(str(merged), user_field="patient", exclusions=str(tmp_path / "objectors.txt"))
    for other in ([], kinds.split(",")):
        reading = sources.read(replace(declared, other_patient=other))
        assert reading.table.users == ("new",)
        (caution,) = reading.cautions(None)
        assert caution.startswith(
            f"1 identifier on the list matches an id of the source but for {words} ({tmp_path}/objectors.txt: line 2"
        )
        assert f"if they are the same patient: --same-patient {kinds}" in caution.remedy
    reading = sources.read(replace(declared, same_patient=kinds.split(",")))
    assert (reading.table.users, reading.cautions(None)) == ((), [])
    assert (len(reading.objections.units), reading.objections.present) == (2, 2)


@pytest.mark.parametrize("line", ["p-Old", "http://a.example/mrn|M-7", "Patient?identifier=http://a.example/mrn|M-7"])
def test_objection_by_any_id_or_identifier_removes_the_patient(tmp_path, merged, line):
    (tmp_path / "objectors.txt").write_text(f"{line}\n", encoding="utf-8")
    declared = Declared(str(merged), user_field="patient", exclusions=str(tmp_path / "objectors.txt"))
    reading = sources.read(declared)
    assert (reading.table.users, reading.cautions(None)) == (("third",), [])


@pytest.mark.parametrize("later", ["no Patient resources", "no link"])
def test_refresh_stops_if_the_ids_of_an_objector_are_no_longer_joined(tmp_path, home, merged, later):
    (tmp_path / "objectors.txt").write_text("p-Old\n")
    old = document(2, attachment("text/plain", b"an older note"), patient="Patient/p-Old")
    with (merged / "DocumentReference.ndjson").open("a") as file:
        file.write(json.dumps(old) + "\n")
    command("data", "add", merged, *PATIENTS, "--exclude", tmp_path / "objectors.txt", "--home", home)
    people = [] if later == "no Patient resources" else [{"resourceType": "Patient", "id": "p-Old"}]
    write_lines(merged / "Patient.ndjson", people)
    said = command("data", "refresh", "--home", home, code=2)
    assert "patient of the source has records and an id or identifier that was kept out at the last seal" in said
    assert ("DocumentReference.ndjson:1)" in said) or ("DocumentReference.ndjson:1, " in said)
    assert "list an id of theirs, or export again what joined their ids" in said
    assert datasets.load(PartyHome(home)).table.users == ("third",)


def test_a_dry_run_stops_where_every_patient_objects(tmp_path, home, merged):
    (tmp_path / "objectors.txt").write_text("new\nthird\n")
    add = ("data", "add", merged, *PATIENTS, "--exclude", tmp_path / "objectors.txt", "--home", home)
    assert "the data set has no record" in command(*add, "--dry-run", code=2)
    assert "the data set has no record" in command(*add, code=2)


def test_second_text_of_a_document_counts_as_lost_unless_it_says_the_same(tmp_path):
    forms = (attachment("text/plain", b"One note."), attachment("text/html", b"<p>One  <b>note</b>.</p>"))
    texts = (attachment("text/plain", b"first part"), attachment("text/plain", b"second part"))
    pdf = (attachment("application/pdf", b"%PDF"), attachment("text/plain", b"a text"))
    rows = [document(number, *attachments) for number, attachments in enumerate((forms, texts, pdf))]
    write_lines(tmp_path / "a.ndjson", rows)
    reading = sources.read(Declared(str(tmp_path / "a.ndjson"), user_field="patient"))
    assert reading.table.texts == ("One note.", "first part", "a text")
    ((where, why),) = [(skipped.where, skipped.why) for skipped in reading.skipped]
    assert where == "a.ndjson:2"
    assert why.startswith("a further attachment of it holds another text")
    assert reading.lost == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("#bin", "its attachment is a resource within the document, which is not read"),
        ("file:///C:/notes/1.txt", "its attachment's address is a file of the machine that wrote it"),
        ("https://other.example/Binary/1", "its attachment lies on another server"),
        ("none.txt", "its attachment is not in the folder"),
    ],
)
def test_unread_attachment_is_reported_with_its_reason(tmp_path, url, why):
    write_lines(tmp_path / "a.ndjson", [document(1, attachment("text/plain", url=url))])
    (skipped,) = sources.read(Declared(str(tmp_path), user_field="patient")).skipped
    assert skipped.why == why


def test_attachment_address_with_backslashes_is_found(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "1.txt").write_text("a note")
    write_lines(tmp_path / "a.ndjson", [document(1, attachment("text/plain", url="texts\\1.txt"))])
    assert sources.read(Declared(str(tmp_path), user_field="patient")).table.texts == ("a note",)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.ndjson"])
def test_empty_fhir_source_is_reported_as_empty(home, tmp_path, name):
    (tmp_path / name).write_text("text,patient\n" if name == "a.csv" else "")
    for options in ((), ("--dry-run",)):
        said = command("data", "add", tmp_path / name, *PATIENTS, *options, "--home", home, code=2)
        assert "the source holds no row" in said


def test_a_bundle_that_is_not_on_one_line_is_refused(tmp_path):
    note = document(1, attachment("text/plain", b"a note"))
    write_lines(tmp_path / "a.ndjson", [note])
    bundle = {"resourceType": "Bundle", "entry": [{"resource": note}]}
    (tmp_path / "bundle.json").write_text(json.dumps(bundle, indent=2))
    (skipped,) = sources.read(Declared(str(tmp_path), user_field="patient"), dry=True).skipped
    assert (skipped.where, skipped.cause) == ("bundle.json", "refused")
    with raises(ConfigurationError, "refused-row"):
        sources.read(Declared(str(tmp_path), user_field="patient"))


@pytest.mark.parametrize("name", ["more.NDJSON", "more.JSONL", "more.ndjson.GZ", "More.Ndjson.Gz"])
def test_fhir_file_with_a_suffix_in_capitals_is_read(tmp_path, name):
    """The newer version, which is withdrawn, stands in the file with capitals."""
    rows = [
        document(1, attachment("text/plain", b"a note"), meta={"versionId": "1"}),
        document(1, attachment("text/plain", b"a note"), meta={"versionId": "2"}, status="entered-in-error"),
    ]
    write_lines(tmp_path / "a.ndjson", rows[:1])
    written = json.dumps(rows[1]).encode() + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(written) if name.lower().endswith("gz") else written)
    reading = sources.read(Declared(str(tmp_path), user_field="patient"))
    assert (len(reading.table), {row.why for row in reading.skipped}) == (
        0,
        {"its status is entered-in-error", "a newer version counts"},
    )


@pytest.mark.parametrize(
    ("kind", "stated"),
    [
        ("text/plain", "text/plain; charset=iso-8859-1"),
        (None, "text/plain; charset=iso-8859-1"),
        ("text/plain; charset=iso-8859-1", "text/plain"),
    ],
)
def test_fhir_binary_is_decoded_by_the_charset_that_it_states(tmp_path, kind, stated):
    data = base64.b64encode("Süße".encode("latin-1")).decode()
    binary = {"resourceType": "Binary", "id": "b", "contentType": stated, "data": data}
    named = {"url": "Binary/b"} | ({"contentType": kind} if kind else {})
    write_lines(tmp_path / "a.ndjson", [document(1, named), binary])
    assert sources.read(Declared(str(tmp_path), user_field="patient")).table.texts == ("Süße",)


def nested(resources, depth):
    bundle = {"resourceType": "Bundle", "entry": [{"resource": resource} for resource in resources]}
    for _ in range(depth):
        bundle = {"resourceType": "Bundle", "entry": [{"resource": bundle}]}
    return bundle


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_bundles_within_bundles_are_read(tmp_path, depth):
    """Documents, a withdrawal and a link count wherever they stand."""
    withdrawn = attachment("text/plain", b"withdrawn")
    note = document(2, attachment("text/plain", b"note 2"), patient="Patient/a")
    rows = [
        document(1, withdrawn, meta={"versionId": "1"}),
        document(3, attachment("text/plain", b"note 3"), patient="Patient/b"),
    ]
    link = {"other": {"reference": "Patient/b"}, "type": "replaced-by"}
    inner = [document(1, withdrawn, meta={"versionId": "2"}, status="entered-in-error"), note]
    inner.append({"resourceType": "Patient", "id": "a", "link": [link]})
    write_lines(tmp_path / "a.ndjson", [*rows, nested(inner, depth)])
    reading = sources.read(Declared(str(tmp_path), user_field="patient"))
    assert sorted(reading.table.texts) == ["note 2", "note 3"]
    assert len(set(reading.table.users)) == 1


def test_bundles_that_are_too_deep_are_refused(tmp_path):
    write_lines(tmp_path / "a.ndjson", [nested([document(1, attachment("text/plain", b"a note"))], 9)])
    with raises(ConfigurationError, "refused-row"):
        sources.read(Declared(str(tmp_path), user_field="patient"))


def test_older_fhir_version_is_skipped_naming_the_place_of_the_newer_one(tmp_path):
    rows = [document(1, attachment("text/plain", b"a note"), meta={"versionId": str(n)}) for n in (1, 2)]
    write_lines(tmp_path / "a.ndjson", rows)
    (skipped,) = sources.read(Declared(str(tmp_path), user_field="patient")).skipped
    assert (skipped.where, skipped.beside) == ("a.ndjson:1", "a.ndjson:2")


def test_fhir_resources_of_one_id_without_version_are_refused_with_lines(tmp_path):
    rows = [document(1, attachment("text/plain", text)) for text in (b"a note", b"another")]
    write_lines(tmp_path / "a.ndjson", rows)
    declared = Declared(str(tmp_path), user_field="patient")
    with raises(ConfigurationError, "refused-row") as refused:
        sources.read(declared)
    assert refused.value.problem.startswith("a.ndjson:1 (a.ndjson:2): another resource has its id")
    ((reason, remedy),) = sources.read(declared, dry=True).refusals
    assert reason.startswith("2 rows: another resource has its id, and neither has a version (a.ndjson:1 (a.ndjson:2),")
    assert "meta.versionId" in remedy
