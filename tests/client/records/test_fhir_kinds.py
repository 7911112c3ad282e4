"""Every resource of a FHIR bulk export is read, or named with a reason: many kinds, and documents of any form."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.records.test_sources import LOINC, attachment, document, report, write_lines
from undersong_client.records import sources
from undersong_client.records.declared import Declared

# Kinds of FHIR R4 that exports hold; two of them are documents.
KINDS = [
    "AllergyIntolerance",
    "Appointment",
    "Binary",
    "Bundle",
    "CarePlan",
    "CareTeam",
    "ClinicalImpression",
    "Claim",
    "Communication",
    "Composition",
    "Condition",
    "Consent",
    "Coverage",
    "Device",
    "DiagnosticReport",
    "DocumentManifest",
    "DocumentReference",
    "Encounter",
    "EpisodeOfCare",
    "ExplanationOfBenefit",
    "FamilyMemberHistory",
    "Flag",
    "Goal",
    "Group",
    "ImagingStudy",
    "Immunization",
    "List",
    "Location",
    "Media",
    "Medication",
    "MedicationAdministration",
    "MedicationDispense",
    "MedicationRequest",
    "MedicationStatement",
    "NutritionOrder",
    "Observation",
    "OperationOutcome",
    "Organization",
    "Patient",
    "Practitioner",
    "PractitionerRole",
    "Procedure",
    "Provenance",
    "QuestionnaireResponse",
    "RelatedPerson",
    "RiskAssessment",
    "Schedule",
    "ServiceRequest",
    "Slot",
    "Specimen",
    "Substance",
    "Task",
    "ViewDefinition",
]
FOUND = document(0, attachment("text/plain", b"always read"))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def look(folder):
    """What was read by the text's own number, and what was named, of a whole folder."""
    declared = Declared(str(folder), label_field=f"type|{LOINC}", user_field="patient", label_map={"": "none"})
    found = sources.read(declared)
    assert all(each.why for each in found.skipped)
    assert found.rows == len(found.table) + len(found.skipped)
    return found


def test_of_fifty_kinds_two_are_read_and_the_others_named(tmp_path):
    for kind in KINDS:
        row = {"resourceType": kind, "id": kind, "status": "final", "subject": {"reference": "Patient/7"}}
        row |= {"content": FOUND["content"], "presentedForm": [attachment("text/plain", b"form")]}
        write_lines(tmp_path / f"{kind}.ndjson", [row, row])
    found = look(tmp_path)
    assert len(found.table) == 4
    named = {each.where for each in found.skipped}
    assert named == {f"{kind}.ndjson:{line}" for kind in KINDS for line in (1, 2)} - {
        f"{kind}.ndjson:{line}" for kind in ("DocumentReference", "DiagnosticReport") for line in (1, 2)
    }


def test_a_report_s_type_is_its_code(tmp_path):
    write_lines(tmp_path / "DiagnosticReport.ndjson", [report(1, conclusion="no finding")])
    assert look(tmp_path).table.labels == ("24323-8",)


@pytest.mark.heavy
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_document_of_any_form_is_read_or_named(tmp_path, data):
    rows = [FOUND]
    for number in range(1, 5):
        plain = attachment("text/plain", b"words", url="files/one.txt")
        row = document(number, plain) if number % 2 else report(number, presentedForm=[plain], conclusion="words")
        rows.append(damaged(data, row))
    write_lines(tmp_path / "DocumentReference.ndjson", rows)
    found = look(tmp_path)
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
