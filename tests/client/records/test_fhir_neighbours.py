"""Removing one person from a FHIR export changes this person's records only; planted mistakes break that."""

import json

import pytest

from tests.client.records.test_sources import attachment, document, write_lines
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_client.records.fhir import patients, resources

SITES = {"siteA": "https://a.example/fhir", "siteB": "https://b.example/fhir"}


def binary(text):
    return {"resourceType": "Binary", "id": "1", **attachment("text/plain", text)}


def export(folder):
    """One person with two ids, two forms of one id, two versions of a note, and a Binary of a second system."""
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


def test_removing_a_person_changes_one_unit(tmp_path):
    assert changed_units(tmp_path) == (1, 4)


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
    original = resources.Entry.key.fget

    def key(entry):
        return original(entry)._replace(system="https://a.example/fhir") if entry.kind == "Binary" else original(entry)

    monkeypatch.setattr(resources.Entry, "key", property(key))


@pytest.mark.parametrize("plant", [plant_raw_ids, plant_all_versions, plant_ignored_links, plant_bare_ids_of_binaries])
def test_each_planted_mistake_is_noticed(tmp_path, monkeypatch, plant):
    plant(monkeypatch)
    assert changed_units(tmp_path) != (1, 4)
