"""Decides which documents of a FHIR export count, and yields one row for each.

A row is one note: ``text``, ``patient``, ``type`` and ``category`` (the first code), ``date``, ``id``, ``resource``.
Another column is a path into the resource (``type.coding.display``), or ``type|SYSTEM``: the code of that element in
one code system.

Sources: FHIR R4 (hl7.org/fhir/R4), DocumentReference and DiagnosticReport.
"""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from undersong_client.home import Declared
from undersong_client.records.declared import NO_LABEL_REMEDY, Cause, Skip, objects
from undersong_client.records.fhir.attachments import Attachments
from undersong_client.records.fhir.patients import NoPatient, Patients, Subject, read_subject
from undersong_client.records.fhir.resources import DOCUMENTS, Conflict, ResourceEntry, Resources
from undersong_client.records.fhir.text import plain_text
from undersong_client.records.fhir.unreadable import Unreadable
from undersong_common.printable import printable
from undersong_common.text.patient_ids import PatientId
from undersong_common.text.row_files import Row, value_at

FINISHED = frozenset(("final", "amended", "corrected", "appended"))
IN_ERROR = "entered-in-error"
# Codes of statuses that FHIR has had; another word in their place may be content, and is not shown.
STATUSES = frozenset(
    [
        "current",
        "superseded",
        "entered-in-error",
        "registered",
        "partial",
        "preliminary",
        "modified",
        "final",
        "amended",
        "corrected",
        "appended",
        "cancelled",
        "deprecated",
        "unknown",
    ]
)
_DATES = ("date", "context.period.start", "effectiveDateTime", "effectivePeriod.start", "issued", "created", "indexed")


class DocumentFacts(NamedTuple):
    """Facts that decide about a document before its text is read.

    Attributes:
        subject: its subject.
        urls: addresses of its attachments.
        status, doc_status: codes of its ``status`` and ``docStatus``; "" for a missing one, "?" for what is no code.
    """

    subject: Subject
    urls: tuple[str, ...]
    status: str
    doc_status: str


def read_document(resource: Mapping[str, Any]) -> DocumentFacts:
    """Reads the facts that decide whether a document counts."""
    attachment_urls = tuple(
        str(url).strip()
        for attachment in _attachments(resource)
        if (url := attachment.get("url")) and not attachment.get("data")
    )
    status = _status_code(resource.get("status"))
    doc_status = _status_code(resource.get("docStatus"))
    return DocumentFacts(
        read_subject(resource.get("subject"), resource.get("contained")), attachment_urls, status, doc_status
    )


def _status_code(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str) and value in STATUSES:
        return value
    return "?"


def _attachments(resource: Mapping[str, Any]) -> list[dict[str, Any]]:
    if resource.get("resourceType") == "DocumentReference":
        return objects([content_element.get("attachment") for content_element in objects(resource.get("content"))])
    return objects(resource.get("presentedForm"))


class NoteRegister:
    """Notes of one kind (read, or entered in error), which it finds by stored attachment, and by text and day."""

    def __init__(self) -> None:
        self._attachments: dict[tuple[PatientId, Hashable], str] = {}
        self._texts: dict[tuple[PatientId, bytes], list[tuple[str, frozenset[str], str]]] = defaultdict(list)

    def add(
        self, patient: PatientId, targets: set[Hashable], entry: ResourceEntry, text: str, days: frozenset[str]
    ) -> None:
        for target in targets:
            self._attachments.setdefault((patient, target), entry.place)
        if text:
            self._texts[patient, _digest(text)].append((entry.kind, days, entry.place))

    def with_attachment(self, patient: PatientId, targets: set[Hashable]) -> str:
        """Returns the place of a patient's note with one of these attachments; "" if there is none."""
        return next((note_place for target in targets if (note_place := self._attachments.get((patient, target)))), "")

    def with_text(self, patient: PatientId, kind: str, text: str, days: frozenset[str]) -> str:
        """Returns the place of a patient's note of another type with this text and day; "" if there is none."""
        notes_of_text = self._texts.get((patient, _digest(text)), ())
        return next(
            (
                note_place
                for note_kind, note_days, note_place in notes_of_text
                if note_kind != kind and note_days & days
            ),
            "",
        )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=16).digest()


class Documents:
    """The documents of an export, of each of which only the newest version counts."""

    def __init__(self, declared: Declared, resources: Resources, skip: Skip) -> None:
        self._declared = declared
        self._resources = resources
        self._skip = skip
        self._allowed = FINISHED | set(declared.also_status)
        self._conflicts: dict[int, list[ResourceEntry]] = {}
        self.newest: list[ResourceEntry] = []
        for document_versions in resources.of_kind(*DOCUMENTS):
            self._choose(document_versions)
        self.newest.sort(key=lambda entry: DOCUMENTS.index(entry.kind))
        self._patients: dict[int, PatientId] = {}
        self._faults: dict[int, str] = {}
        self._notes, self._withdrawn = NoteRegister(), NoteRegister()

    def _choose(self, versions: list[ResourceEntry]) -> None:
        """Keeps the newest version of a document, and skips the others with the place of the newest."""
        try:
            newest_document = self._resources.newest(versions)
        except Conflict as conflict:
            for entry in conflict.entries:
                self._conflicts[id(entry)] = conflict.entries
            self.newest += conflict.entries
            newest_document = None
            versions = [entry for entry in versions if id(entry) not in self._conflicts]
        else:
            if newest_document is None:
                self._skip(versions[0].place, "it was deleted")
                versions = versions[1:]
            else:
                self.newest.append(newest_document)
        for entry in versions:
            if entry is newest_document:
                continue
            if newest_document is not None and entry.digest == newest_document.digest:
                self._skip(entry.place, "the same line stands twice", "resource", beside=newest_document.place)
            elif newest_document is not None:
                self._skip(entry.place, "a newer version counts", "resource", beside=newest_document.place)
            else:
                self._skip(entry.place, "it is an older version of a document that does not count", "resource")

    def rows(self, patients: Patients, attachments: Attachments) -> Iterator[Row]:
        """Yields one row per note; names every document that is not read."""
        for entry in self.newest:
            try:
                subject_identity = patients.subject_of(entry)
                note_owner: Hashable = patients.patient_of(subject_identity)
                self._patients[id(entry)] = subject_identity
            except NoPatient as error:
                note_owner = None  # Nobody knows whose its attachments are.
                self._faults[id(entry)] = f"its subject is no patient: {error}"
            attachments.add_owner(entry, note_owner)
        for entry in self.newest:
            if IN_ERROR in (entry.facts.status, entry.facts.doc_status) and id(entry) in self._patients:
                self._withdraw(entry, patients, attachments)
        for entry in self.newest:
            if (document_row := self._row(entry, patients, attachments)) is not None:
                yield document_row
        for unused_place, unused_kind in attachments.unused():
            self._skip(unused_place, f"no document that was read names this {unused_kind}", "resource")

    def _withdraw(self, entry: ResourceEntry, patients: Patients, attachments: Attachments) -> None:
        """Notes a document that was entered in error: the same note in another resource does not count either."""
        resource = self._resources.read(entry)
        try:
            note_text = _texts(resource, entry, attachments)[0]
        except Unreadable:
            note_text = ""
        patient = patients.patient_of(self._patients[id(entry)])
        self._withdrawn.add(patient, attachments.targets(entry), entry, note_text, _days(resource))

    def _row(self, entry: ResourceEntry, patients: Patients, attachments: Attachments) -> Row | None:
        """Returns the row of a document; None for one that does not count, after ``skip`` has named it."""
        if status_problem := self._status_fault(entry.facts, entry.kind):
            status_name, status = status_problem
            status_remedy = ""
            if status in STATUSES - {IN_ERROR}:
                status_remedy = f"if it counts: --also-status {status}"
            self._skip(entry.place, f"its {status_name} is {_status_words(status)}", remedy=status_remedy)
            return None
        if reason := self._faults.get(id(entry)):
            self._skip(entry.place, reason)
            return None
        resource = self._resources.read(entry)
        row_values = self._values(resource, entry)
        label_column = self._declared.label_field
        if label_column and row_values.get(label_column) is None and "" not in self._declared.label_map:
            self._skip(entry.place, f"it has no {printable(label_column, 80)}", remedy=NO_LABEL_REMEDY)
            return None
        patient = patients.patient_of(self._patients[id(entry)])
        attachment_targets = attachments.targets(entry)
        document_days = _days(resource)
        try:
            for note_register, repeat_reason in ((self._withdrawn, WITHDRAWN), (self._notes, SAME_NOTE)):
                if repeat_place := note_register.with_attachment(patient, attachment_targets):
                    raise _Repeated(repeat_place, repeat_reason)
            note_text, *further_texts = _texts(resource, entry, attachments)
            for note_register, repeat_reason in ((self._withdrawn, WITHDRAWN), (self._notes, SAME_NOTE)):
                if repeat_place := note_register.with_text(patient, entry.kind, note_text, document_days):
                    raise _Repeated(repeat_place, repeat_reason)
        except Unreadable as error:
            self._skip(entry.place, str(error))
            return None
        except _Repeated as repeated:
            skip_cause: Cause = "resource" if repeated.why == SAME_NOTE else "lost"
            self._skip(entry.place, repeated.why, skip_cause, beside=repeated.place)
            return None
        if id(entry) in self._conflicts:
            conflict_places = [version.place for version in self._conflicts[id(entry)] if version is not entry]
            self._skip(entry.place, TWO_VERSIONS, "refused", beside=conflict_places[0], remedy=ONE_VERSION)
            return None
        for _ in further_texts:
            self._skip(entry.place, FURTHER_TEXT)
        self._notes.add(patient, attachment_targets, entry, note_text, document_days)
        row_values |= {"text": note_text, "patient": self._patients[id(entry)]}
        return Row(entry.place, {**dict.fromkeys(self._declared.columns), **row_values})

    def _status_fault(self, facts: DocumentFacts, kind: str) -> tuple[str, str] | None:
        """The name and the code of the status that keeps a document out; None if none does."""
        if kind == "DiagnosticReport":
            if facts.status in self._allowed:
                return None
            return ("status", facts.status)
        if facts.status != "current" and facts.status not in self._declared.also_status:
            return "status", facts.status
        if facts.doc_status in self._allowed | {""}:
            return None
        return ("docStatus", facts.doc_status)

    def _values(self, resource: dict[str, Any], entry: ResourceEntry) -> dict[str, Any]:
        column_values = {
            "type": value_at(resource, [("type" if entry.kind == "DocumentReference" else "code"), "coding", "code"]),
            "category": value_at(resource, ["category", "coding", "code"]),
            "date": next(
                (
                    document_date
                    for path in _DATES
                    if (document_date := value_at(resource, path.split("."))) is not None
                ),
                None,
            ),
            "id": resource.get("id"),
            "resource": entry.kind,
        }
        for column in self._declared.columns:
            if (
                column not in (*column_values, "text", "patient")
                and (column_value := _value(resource, column)) is not None
            ):
                column_values[column] = column_value
        return column_values


SAME_NOTE = "the same note stands in another resource"
WITHDRAWN = "the same note was entered in error in another resource"
FURTHER_TEXT = "a further attachment of it holds another text: of a document the first text is read"
TWO_VERSIONS = "another resource has its id, and neither has a version"
ONE_VERSION = "export versions (meta.lastUpdated or meta.versionId), or leave the line out that does not count"


class _Repeated(Exception):
    """Raised for a note that another resource holds too, at ``place``."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__()
        self.place = place
        self.why = why


def _status_words(status: str) -> str:
    return {"": "missing", "?": "no code of FHIR"}.get(status, status)


def _days(resource: Mapping[str, Any]) -> frozenset[str]:
    """The days that a document states: two resources of one note need not state the same moment."""
    stated_dates = (value_at(resource, path.split(".")) for path in _DATES)
    return frozenset(
        stated_date[:10] for stated_date in stated_dates if isinstance(stated_date, str) and len(stated_date) >= 10
    )


def _texts(resource: dict[str, Any], entry: ResourceEntry, attachments: Attachments) -> list[str]:
    """The texts of a document's attachments. Raises Unreadable if none can be read.

    Several attachments are often forms of one text: those with the same letters and digits count as one. If no
    attachment of a report can be read, its text is its conclusion.
    """
    empty_reasons: list[str] = []
    text_by_words: dict[str, str] = {}  # texts by their letters and digits, so that equal ones count once
    for attachment in _attachments(resource):
        attachment_target: Hashable = None
        try:
            content_kind, attachment_content, attachment_target = attachments.content(attachment, entry)
            shown_text = plain_text(content_kind, attachment_content)
            text_by_words.setdefault("".join(filter(str.isalnum, shown_text)).casefold(), shown_text)
        except Unreadable as error:
            attachments.note_fault(attachment_target, str(error))
            empty_reasons.append(str(error))
    report_conclusion = resource.get("conclusion")
    if not text_by_words and isinstance(report_conclusion, str) and report_conclusion.strip():
        return [report_conclusion]
    if not text_by_words:
        raise Unreadable(empty_reasons[0] if empty_reasons else "it has no attachment")
    return list(text_by_words.values())


def _value(resource: dict[str, Any], column: str) -> Any:
    element, separator, system = column.partition("|")
    if element == "type" and resource["resourceType"] == "DiagnosticReport":
        element = "code"  # a report states its type in this element
    element_value = value_at(resource, element.split("."))
    if not separator:
        if isinstance(element_value, dict | list):
            return None
        return element_value
    if isinstance(element_value, list):
        concept_list = element_value
    else:
        concept_list = [element_value]
    codings = [coding for concept in objects(concept_list) for coding in objects(concept.get("coding"))]
    return next((coding.get("code") for coding in codings if coding.get("system") == system), None)
