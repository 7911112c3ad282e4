"""Invented exports of FHIR: patients, versions, deletions, statuses and attachments are decided by written rules."""

import json
from pathlib import Path

import pytest

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


def test_a_listed_identifier_of_two_patients_stops(tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    patients = [
        {"resourceType": "Patient", "id": name, "identifier": [{"system": "http://a.example/mrn", "value": "55"}]}
        for name in ("e", "f")
    ]
    document = {
        "resourceType": "DocumentReference",
        "id": "d1",
        "status": "current",
        "subject": {"reference": "Patient/e"},
        "content": [{"attachment": {"contentType": "text/plain", "data": "YSBub3Rl"}}],
    }
    lines = "".join(json.dumps(resource) + "\n" for resource in patients)
    (folder / "Patient.ndjson").write_text(lines, encoding="utf-8")
    (folder / "DocumentReference.ndjson").write_text(json.dumps(document) + "\n", encoding="utf-8")
    objectors = tmp_path / "objectors.txt"
    objectors.write_text("http://a.example/mrn|55\n", encoding="utf-8")
    declared = Declared(str(folder), user_field="patient", exclusions=str(objectors))
    with pytest.raises(ConfigurationError, match="several Patient resources") as refused:
        sources.read(declared)
    assert refused.value.code == "no-exclusions"
