"""Invented exports of FHIR: patients, versions, deletions, statuses and attachments are decided by written rules."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.records.test_sources import attachment, document, write_lines
from tests.doubles.coded import raises
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_common.errors import ConfigurationError

CASES = Path(__file__).parent / "fhir_cases"
SITES = {"siteA": "https://sitea.example/fhir", "siteB": "https://siteb.example/fhir"}


def read(name, **choices):
    return sources.read(Declared(str(CASES / name), user_field="patient", **choices), dry=True)


def lost(reading):
    return {each.why for each in reading.skipped if each.cause == "lost"}


@pytest.mark.parametrize(
    ("name", "texts", "patients", "reasons"),
    [
        ("fhir_urn_uuid", {"note 1", "no finding"}, 1, set()),
        ("fhir_patient_link", {"note 1", "note 2", "note 3"}, 1, set()),
        (
            "fhir_group_identifier",
            set(),
            0,
            {"its subject is no patient: a Group", "its subject is no patient: a Device"},
        ),
        ("fhir_versions", {"final report"}, 1, {"its status is entered-in-error"}),
        ("fhir_deleted", set(), 0, {"it was deleted"}),
        (
            "fhir_docstatus",
            {"final", "amended"},
            1,
            {f"its docStatus is {code}" for code in ("entered-in-error", "preliminary", "cancelled", "deprecated")},
        ),
        ("fhir_same_note_twice", {"CT of the chest: no finding"}, 1, set()),
        ("fhir_two_systems", set(), 0, {"its attachment lies on another server"}),
        ("fhir_subfolder", {"text in a file"}, 1, set()),
        ("fhir_subfolder2", {"January text of patient 7", "February text of patient 8"}, 2, set()),
        ("fhir_stu3_binary", {"stu3 text"}, 1, set()),
    ],
)
def test_each_export_gives_its_records_and_reasons(name, texts, patients, reasons):
    reading = read(name)
    assert set(reading.table.texts) == texts
    assert len(reading.table) == len(texts)
    assert len(set(reading.table.users)) == patients
    assert lost(reading) == reasons


def test_two_named_systems_have_each_their_own_text():
    reading = read("fhir_two_systems", fhir_systems=SITES)
    texts = dict(zip(reading.table.users, reading.table.texts, strict=True))
    assert texts == {
        "https://sitea.example/fhir/Patient/a-1": "text of the patient of A",
        "https://siteb.example/fhir/Patient/b-1": "text of the patient of B",
    }


def test_references_are_one_patient_and_identifiers_are_asked_about():
    reading = read("fhir_reference_forms")
    users = reading.table.users
    assert set(users[:11]) == {"0f2c6f2e-6e0b-4f53-9d6f-2f6f6f6f6f6f"}
    assert "identifiers" in {kind for alike in reading.look_alikes for kind in alike.kinds}
    assert len(lost(reading)) == 5


def test_one_more_status_counts_where_it_is_named():
    assert set(read("fhir_docstatus", also_status=("preliminary",)).table.texts) == {"final", "amended", "preliminary"}


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


def test_a_listed_identifier_of_two_patients_stops(tmp_path, shared):
    (tmp_path / "objectors.txt").write_text("http://a.example/mrn|55\n", encoding="utf-8")
    declared = Declared(str(shared), user_field="patient", exclusions=str(tmp_path / "objectors.txt"))
    with raises(ConfigurationError, "no-exclusions"):
        sources.read(declared)


@pytest.mark.parametrize("subject", [{"reference": "Patient/e"}, {"identifier": MRN}])
def test_patients_with_one_identifier_are_asked_about_where_one_has_a_note(shared, subject):
    note = document(1, attachment("text/plain", b"a note")) | {"subject": subject}
    write_lines(shared / "DocumentReference.ndjson", [note])
    declared = Declared(str(shared), user_field="patient")
    (found,) = sources.read(declared).look_alikes
    assert (found.kinds, found.is_shared) == (("identifiers",), True)
    assert found.places[0][1] == "Patient.ndjson:2"
    for choice in ("same_patient", "other_patient"):
        assert sources.read(replace(declared, **{choice: ["identifiers"]})).look_alikes == ()


def test_patients_with_one_identifier_and_no_note_are_not_asked_about(shared):
    other = document(1, attachment("text/plain", b"a note"), patient="Patient/g")
    write_lines(shared / "DocumentReference.ndjson", [other])
    assert sources.read(Declared(str(shared), user_field="patient")).look_alikes == ()


def test_an_objection_to_one_of_two_joined_patients_keeps_out_the_other(tmp_path, shared):
    (tmp_path / "objectors.txt").write_text("f\n", encoding="utf-8")
    declared = Declared(str(shared), user_field="patient", exclusions=str(tmp_path / "objectors.txt"))
    assert len(sources.read(replace(declared, other_patient=["identifiers"])).table) == 1
    assert len(sources.read(replace(declared, same_patient=["identifiers"])).table) == 0


def test_a_version_that_does_not_count_is_named_beside_the_newer_one(tmp_path):
    rows = [document(1, attachment("text/plain", b"a note"), meta={"versionId": str(n)}) for n in (1, 2)]
    write_lines(tmp_path / "a.ndjson", rows)
    (skipped,) = sources.read(Declared(str(tmp_path), user_field="patient")).skipped
    assert (skipped.where, skipped.beside) == ("a.ndjson:1", "a.ndjson:2")


def test_different_lines_without_a_version_stop_with_both_places(tmp_path):
    rows = [document(1, attachment("text/plain", text)) for text in (b"a note", b"another")]
    write_lines(tmp_path / "a.ndjson", rows)
    declared = Declared(str(tmp_path), user_field="patient")
    with raises(ConfigurationError, "refused-row") as refused:
        sources.read(declared)
    assert refused.value.problem.startswith("a.ndjson:1 (a.ndjson:2): another resource has its id")
    ((reason, remedy),) = sources.read(declared, dry=True).refusals
    assert reason.startswith("2 rows: another resource has its id, and neither has a version (a.ndjson:1 (a.ndjson:2),")
    assert "meta.versionId" in remedy
