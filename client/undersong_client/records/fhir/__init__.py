"""Reads FHIR Bulk Data as a source: DocumentReference and DiagnosticReport in NDJSON, with their attachments.

An index by (system, type, id) is made before the first row (:mod:`resources`). From it the
reader learns whose a document is (:mod:`patients`), which documents count (:mod:`documents`), which attachments they
name (:mod:`attachments`), and what text these hold (:mod:`text`). Every resource is read, or named with the reason why
not; nothing is fetched.
"""

from undersong_client.home import Declared
from undersong_client.records.declared import OpenedSource, Skip
from undersong_client.records.fhir.attachments import Attachments
from undersong_client.records.fhir.documents import ONE_VERSION, Documents, read_document
from undersong_client.records.fhir.patients import Patients, read_person
from undersong_client.records.fhir.resources import DOCUMENTS, PEOPLE, Conflict, Listing, ResourceEntry
from undersong_common.errors import ConfigurationError
from undersong_common.text.patient_ids import Choice

# By the type of a resource, the function that reads what the index keeps of it.
FACT_READERS = {
    **dict.fromkeys(DOCUMENTS, read_document),
    **dict.fromkeys(PEOPLE, read_person),
    "Binary": lambda _resource: None,
}


def open_export(declared: Declared, choice: Choice, skip: Skip) -> OpenedSource:
    """Opens a folder or a file of FHIR resources; calls ``skip`` for each resource that is not read.

    Raises ConfigurationError if the folder holds no resources or a file cannot be read.
    """
    for column, column_words in (("text", "the note itself"), ("patient", "the patient")):
        if declared.label_field == column:
            raise ConfigurationError(
                f"{declared.data}: the label column {column!r} of a FHIR export is {column_words}, which is no label",
                "name the kind of document: --label-field type, category, type.text or type|SYSTEM",
                code="no-label-column",
            )
    resources = Listing(declared, skip, FACT_READERS).make()
    people: list[ResourceEntry] = []
    for person_versions in resources.of_kind(*PEOPLE):
        try:
            # The last line of a deleted patient still says which ids were one person's.
            newest_person = resources.newest(person_versions) or person_versions[-1]
            people.append(newest_person)
        except Conflict as conflict:
            first_entry, second_entry, *_ = conflict.entries
            reason = "its links or identifiers have no newest version"
            skip(first_entry.place, reason, "refused", beside=second_entry.place, remedy=ONE_VERSION)
            people += conflict.entries
    document_rows = Documents(declared, resources, skip)
    patients = Patients(resources, people, document_rows.newest, choice)
    return OpenedSource(
        document_rows.rows(patients, Attachments(resources)),
        patients.patient_of,
        patients.pairs,
        patients.aliases,
        has_identifiers=True,
    )
