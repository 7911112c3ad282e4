"""Removing one person from a FHIR export changes this person's records only; planted mistakes break that."""

import json

import numpy as np
import pytest

from tests.client.records.test_sources import attachment, document, report, write_lines
from undersong_client.answering.grid_vectors import grid_vector
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_client.records.fhir import attachments, documents, patients, resources
from undersong_client.records.private import PrivateRecords
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.embedding_sum import EmbeddingSum

PRIVACY = Privacy(1.0, 1e-5, "user", 8)
PLANNED = plan_sums([SumRequest("sum", EmbeddingSum(2))], PRIVACY, Quorum(1, 1, 0, 0))["sum"]
UNCHANGED = (1, 6)  # units that the person's leaving changes, and records of them
SITES = {"siteA": "https://a.example/fhir", "siteB": "https://b.example/fhir"}


def binary(text):
    return {"resourceType": "Binary", "id": "1", **attachment("text/plain", text)}


def export(folder):
    """One person with two ids, in two forms, and two persons of a second system.

    A note has two versions, one was moved from another patient, one stands in two resources, two documents name one
    attachment, and both systems number their Binaries from 1.
    """
    for site in SITES:
        (folder / site).mkdir(parents=True)
    link = [{"type": "replaced-by", "other": {"reference": "Patient/new"}}]
    old = {"resourceType": "Patient", "id": "old", "link": link}
    meta = [{"meta": {"versionId": version}} for version in ("1", "2")]
    rows = [
        old,
        document(1, attachment("text/plain", b"one"), patient="Patient/old", **meta[0]),
        document(1, attachment("text/plain", b"one, mended"), patient="Patient/new", **meta[1]),
        document(2, attachment("text/plain", b"two"), patient="https://a.example/fhir/Patient/new/_history/3"),
        document(3, attachment("text/plain", b"three"), patient="Patient/old"),
        document(4, attachment("text/plain", url="https://a.example/fhir/Binary/1"), patient="Patient/new"),
        document(5, attachment("text/plain", url="Binary/1"), patient="Patient/old"),
        document(6, attachment("text/plain", b"moved"), patient="Patient/mistaken", **meta[0]),
        document(6, attachment("text/plain", b"moved"), patient="Patient/new", **meta[1]),
        document(7, attachment("text/plain", b"in two resources"), patient="Patient/new"),
        {**report(8), "subject": {"reference": "Patient/old"}, "effectiveDateTime": "2024-02-03"}
        | {"presentedForm": [attachment("text/plain", b"in two  resources")]},
    ]
    write_lines(folder / "siteA" / "all.ndjson", [*rows, binary(b"of A")])
    other = document(4, attachment("text/plain", url="Binary/1"), patient="Patient/b")
    write_lines(folder / "siteB" / "all.ndjson", [other, binary(b"of B")])


def units(folder):
    table = sources.read(Declared(str(folder), user_field="patient", fhir_systems=SITES), dry=True).table
    by_user = {}
    for user, text in zip(table.users, table.texts, strict=True):
        by_user.setdefault(user, set()).add(text)
    return by_user


def changed_units(tmp_path):
    """Number of units, and number of records of them, that removing the person of siteA changes."""
    export(tmp_path / "with")
    export(tmp_path / "without")
    (tmp_path / "without" / "siteA" / "all.ndjson").write_text(json.dumps({"resourceType": "Basic"}) + "\n")
    before, after = units(tmp_path / "with"), units(tmp_path / "without")
    changed = [user for user in before.keys() | after.keys() if before.get(user) != after.get(user)]
    return len(changed), sum(len(before.get(user, ())) for user in changed)


def opened_vector(folder):
    """The sum of a party with this export, before noise. All notes but that of siteB have one direction."""
    table = sources.read(Declared(str(folder), user_field="patient", fhir_systems=SITES), dry=True).table

    def embed(texts):
        return np.array([[0, 1] if text == "of B" else [1, 0] for text in texts], dtype=np.float32).reshape(-1, 2)

    records = PrivateRecords(table, (), PRIVACY, key=bytes(32), embed=embed)
    return grid_vector(PLANNED, records, PublicInputs(), PRIVACY, coins=bytes(32), memory={}).values


def moved_by(tmp_path):
    """Norm of the change of the sum when the person leaves, in multiples of the declared bound."""
    changed = opened_vector(tmp_path / "with") - opened_vector(tmp_path / "without")
    return float(np.linalg.norm(changed)) / (PLANNED.scale * PLANNED.l2)


def test_removing_a_person_changes_one_unit_and_the_sum_by_its_bound(tmp_path):
    assert changed_units(tmp_path) == UNCHANGED
    assert moved_by(tmp_path) == pytest.approx(1.0, abs=1e-3)  # the bound is reached: all notes have one direction


def plant_raw_ids(monkeypatch):
    monkeypatch.setattr(
        patients.Patients, "resolve", lambda self, subject, entry: patients.PatientId(subject.reference)
    )
    monkeypatch.setattr(patients.Patients, "patient_of", lambda self, identity: identity)


def plant_all_versions(monkeypatch):
    original = resources.id_of
    monkeypatch.setattr(resources, "id_of", lambda resource: original(resource) + str(resource.get("meta", "")))


def plant_ignored_links(monkeypatch):
    monkeypatch.setattr(patients.Patients, "_join_links", lambda self, entry: None)


def plant_bare_ids_of_binaries(monkeypatch):
    def first_of_name(self, key, _folders):
        found = (versions[0] for other, versions in self._resources.entries.items() if other[1:] == key[1:])
        entry = next(found)
        return ("Binary", id(entry)), entry

    monkeypatch.setattr(attachments.Attachments, "_binary", first_of_name)


@pytest.mark.parametrize("plant", [plant_raw_ids, plant_all_versions, plant_ignored_links, plant_bare_ids_of_binaries])
def test_each_planted_fhir_mistake_moves_the_sum_beyond_its_bound(tmp_path, monkeypatch, plant):
    plant(monkeypatch)
    assert changed_units(tmp_path) != UNCHANGED
    assert moved_by(tmp_path) > 1.1


def test_tests_notice_if_a_note_in_two_resources_is_counted_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(documents.NoteRegister, "with_text", lambda *_: "")
    assert changed_units(tmp_path) == (1, 7)  # the texts differ by a space, so that they count here
