"""Decides which references and identifiers of a FHIR export name one patient.

Ids are joined by ``Patient.link`` of every type and by ``Person.link``, under an id that no link replaces. A business
identifier stands for the Patient resource that states it. If none does, it counts as an id of its own.

Sources: FHIR R4 (hl7.org/fhir/R4), Patient, Person and Reference.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from undersong_client.records.declared import objects
from undersong_client.records.fhir.resources import Address, ResourceEntry, Resources, read_address
from undersong_common.errors import ConfigurationError
from undersong_common.text.patient_ids import Choice, Pair, PatientId, clean_text, patient_id

# Types, beside Patient, that a subject may have. Another word before a slash may be content, and is not shown.
_OTHER_KINDS = frozenset(
    [
        "CareTeam",
        "Device",
        "Encounter",
        "EpisodeOfCare",
        "Group",
        "HealthcareService",
        "Location",
        "Medication",
        "NutritionProduct",
        "Organization",
        "Person",
        "Practitioner",
        "PractitionerRole",
        "Procedure",
        "RelatedPerson",
        "Specimen",
        "Substance",
    ]
)
_SEARCH = re.compile(r"(?:.*/)?patient/?\?(.*)", re.IGNORECASE)


class NoPatient(Exception):
    """Raised for a subject that is no patient; its message names the kind, and holds no id."""


class Subject(NamedTuple):
    """A FHIR Reference.

    Attributes:
        reference: the literal reference, with its white space and Unicode form made uniform; "" without one.
        kind: the stated type, without the address of its definition.
        identifier: (system, value) of the identifier.
        contained: type and identifiers of the contained resource that it names; None for another reference.
        is_named: True if it has a ``display``, which is a name in words.
    """

    reference: str
    kind: str
    identifier: tuple[str, str]
    contained: tuple[str, tuple[tuple[str, str], ...]] | None
    is_named: bool


class PersonFacts(NamedTuple):
    """Ids that a Patient or a Person resource states.

    Attributes:
        links: type and target of each link.
        identifiers: (system, value) of each identifier.
    """

    links: tuple[tuple[str, Subject], ...]
    identifiers: tuple[tuple[str, str], ...]


def read_subject(value: Any, contained: Any = None) -> Subject:
    """Reads a Reference; anything else names nothing."""
    if isinstance(value, dict):
        subject_members: Mapping[str, Any] = value
    else:
        subject_members = {}
    subject_reference = subject_members.get("reference")
    subject_kind = subject_members.get("type")
    if isinstance(subject_reference, str):
        subject_reference = clean_text(subject_reference)
    elif subject_reference is None:
        subject_reference = ""
    else:
        subject_reference = "/"
    if isinstance(subject_kind, str):
        subject_kind = clean_text(subject_kind).rpartition("/")[2]
    else:
        subject_kind = ""
    contained_target = None
    if subject_reference.startswith("#"):
        contained_resources = [
            resource for resource in objects(contained) if resource.get("id") == subject_reference[1:]
        ]
        contained_kinds = [str(resource.get("resourceType")) for resource in contained_resources]
        if len(contained_resources) == 1:
            contained_target = contained_kinds[0], _identifiers(contained_resources[0].get("identifier"))
        else:
            contained_target = "", ()
    identifiers = _identifiers([subject_members.get("identifier")])
    return Subject(
        subject_reference,
        subject_kind,
        identifiers[0] if identifiers else ("", ""),
        contained_target,
        bool(subject_members.get("display")),
    )


def read_person(resource: Mapping[str, Any]) -> PersonFacts:
    """Reads the links and identifiers of a Patient or a Person."""
    link_targets = [(link, link.get("other", link.get("target"))) for link in objects(resource.get("link"))]
    person_links = tuple((str(link.get("type")), read_subject(target)) for link, target in link_targets)
    return PersonFacts(person_links, _identifiers(resource.get("identifier")))


def _identifiers(value: Any) -> tuple[tuple[str, str], ...]:
    identifiers = []
    for identifier in objects(value):
        system = identifier.get("system")
        try:
            identifier_value = patient_id(identifier.get("value"))
        except ConfigurationError:
            continue
        if identifier_value is not None:
            identifiers.append((clean_text(system) if isinstance(system, str) else "", identifier_value.name))
    return tuple(identifiers)


class Patients:
    """The patients of an export, after every Patient and Person resource was seen.

    Args:
        people: the newest version of each Patient and Person.
        documents: the documents; the base of an absolute reference to a subject counts as a server of the export too.
    """

    def __init__(
        self, resources: Resources, people: list[ResourceEntry], documents: list[ResourceEntry], choice: Choice
    ) -> None:
        self._owners: dict[tuple[str, str], list[PatientId]] = defaultdict(list)  # the key is (system, value)
        self._parent: dict[Hashable, Hashable] = {}  # union-find over the linked ids
        self._replaced: set[PatientId] = set()
        self._joined_ids: dict[
            PatientId, PatientId
        ] = {}  # the patient's id by each joined id; complete once all links are read
        server_addresses = {server_address for server_address in resources.bases if server_address}
        for entry in documents:
            subject_address = read_address(entry.facts.subject.reference)
            if (
                subject_address is not None
                and subject_address.kind.lower() == "patient"
                and "://" in subject_address.base
            ):
                server_addresses.add(subject_address.base)
        # Relative and absolute references with a single base name patients of one system.
        self._is_one_system = len(server_addresses) <= 1 or "bases" in choice.same
        self._places: dict[PatientId, str] = {}
        self._named: set[PatientId] = set()  # patients that a document names
        patient_entries = [entry for entry in people if entry.kind == "Patient"]
        for entry in patient_entries:
            patient_node = self._node(entry.name, entry.system)
            self._places.setdefault(patient_node, entry.place)
            for identifier in entry.facts.identifiers:
                if patient_node not in self._owners[identifier]:
                    self._owners[identifier].append(patient_node)
        for entry in people:
            self._join_links(entry)
        if "identifiers" in choice.same:
            for identifier_owners in self._owners.values():
                for other_owner in identifier_owners[1:]:
                    self._join(identifier_owners[0], other_owner)
        self._joined_ids = self._choose_patient_ids()
        self._patients_by_name: dict[str, set[PatientId]] = defaultdict(set)
        for patient_node in self._places:
            self._patients_by_name[patient_node.name].add(self._joined_ids.get(patient_node, patient_node))

    def subject_of(self, document: ResourceEntry) -> PatientId:
        """Returns the id that a document's subject names. Raises NoPatient if the subject is no known patient."""
        subject_identity = self.resolve(document.facts.subject, document)
        self._named.add(self.patient_of(subject_identity))
        return subject_identity

    def resolve(self, subject: Subject, entry: ResourceEntry) -> PatientId:
        """Returns the patient's id that a reference of a resource names.

        Raises NoPatient if the reference is missing, malformed, or names something else than a patient.
        """
        subject_reference = subject.reference
        if subject.contained is not None:
            return self._resolve_contained(*subject.contained)
        if subject_reference.lower().startswith("urn:uuid:"):
            uuid_kind, resource_name = entry.uuids.get(subject_reference.lower(), ("Patient", subject_reference))
            if uuid_kind != "Patient":
                raise NoPatient(_kind_words(uuid_kind))
            return self._read_node(resource_name, entry.system)
        if search_match := _SEARCH.fullmatch(subject_reference):
            return self._resolve_search(search_match[1])
        if subject_reference:
            subject_address = read_address(subject_reference)
            if subject_address is None and subject.kind == "Patient" and not {"/", ":"} & set(subject_reference):
                subject_address = Address("", "Patient", subject_reference)
            if subject_address is None:
                raise NoPatient("no reference to a resource")
            if subject_address.kind.lower() != "patient":
                raise NoPatient(_kind_words(subject_address.kind))
            return self._read_node(
                subject_address.name, subject_address.base if "://" in subject_address.base else entry.system
            )
        if subject.kind not in ("", "Patient"):
            raise NoPatient(_kind_words(subject.kind))
        if subject.identifier[1]:
            return self._resolve_identifier(*subject.identifier)
        raise NoPatient("a name alone" if subject.is_named else "missing")

    def patient_of(self, identity: PatientId) -> PatientId:
        """Returns the id under which a patient's ids are joined.

        Raises ConfigurationError for an identifier that several Patient resources have, because it names none of them.
        """
        if identity.is_identifier:
            owner_ids = {
                self._joined_ids.get(node, node) for node in self._owners.get((identity.system, identity.name), ())
            }
            if len(owner_ids) > 1:
                raise ConfigurationError(
                    "the list of objections holds an identifier that several Patient resources have",
                    "list the id of each of these patients, or join them with --same-patient identifiers",
                    code="no-exclusions",
                )
            if len(owner_ids) == 1:
                return owner_ids.pop()
            return self._joined_ids.get(identity, identity)
        node = self._node(identity.name, identity.system)
        if node in self._joined_ids or node.system:
            return self._joined_ids.get(node, node)
        patients = self._patients_by_name.get(node.name, set())
        if len(patients) == 1:
            return next(iter(patients))
        return node

    def pairs(self) -> Iterator[Pair]:
        """Yields pairs of patients whose Patient resources share an identifier without being joined.

        Of several such patients the first is paired with each other one, if a document names any of them.
        An objection to the patient without a document may be meant for the other one.
        """
        for identifier_owners in self._owners.values():
            place_by_patient: dict[PatientId, str] = {}
            for node in identifier_owners:
                place_by_patient.setdefault(self._joined_ids.get(node, node), self._places[node])
            first_patient, *further_patients = sorted(place_by_patient.items())
            if not self._named.isdisjoint(place_by_patient):
                yield from ((first_patient, patient) for patient in further_patients)

    def aliases(self) -> Iterator[tuple[PatientId, PatientId]]:
        """Yields each id and identifier of the patients with the id under which it is joined."""
        for node in self._places.keys() | self._joined_ids.keys():
            yield node, self._joined_ids.get(node, node)
        for (system, identifier_value), identifier_owners in self._owners.items():
            for owner in identifier_owners:
                yield PatientId(identifier_value, system, is_identifier=True), self._joined_ids.get(owner, owner)

    def _node(self, name: str, system: str) -> PatientId:
        try:
            patient_identity = patient_id(f"Patient/{name}")
        except ConfigurationError:  # no document can name this Patient
            patient_identity = None
        return PatientId(
            name if patient_identity is None else patient_identity.name, "" if self._is_one_system else system
        )

    def _read_node(self, name: str, system: str) -> PatientId:
        try:
            patient_identity = patient_id(name)
        except ConfigurationError as error:
            raise NoPatient(error.problem) from None
        if patient_identity is None:
            raise NoPatient("missing")
        return self._node(patient_identity.name, system)

    def _resolve_contained(self, kind: str, identifiers: tuple[tuple[str, str], ...]) -> PatientId:
        if kind != "Patient":
            raise NoPatient(_kind_words(kind) if kind else "a contained resource that is not there")
        for identifier in identifiers:
            if identifier in self._owners:
                return self._resolve_identifier(*identifier)
        raise NoPatient("a contained Patient that no Patient resource of the export explains")

    def _resolve_search(self, parameters: str) -> PatientId:
        try:
            patient_identity = patient_id(f"Patient?{parameters}")
        except ConfigurationError:
            patient_identity = None
        if patient_identity is None or not patient_identity.is_identifier:
            raise NoPatient("a search")
        return self._resolve_identifier(clean_text(patient_identity.system), patient_identity.name)

    def _resolve_identifier(self, system: str, value: str) -> PatientId:
        identifier_owners = self._owners.get((system, value), [])
        patients = {self._joined_ids.get(node, node) for node in identifier_owners}
        if len(patients) > 1:
            self._named |= patients
            raise NoPatient("an identifier that two Patient resources have")
        if identifier_owners:
            return identifier_owners[0]
        return PatientId(value, system, is_identifier=True)

    def _join_links(self, entry: ResourceEntry) -> None:
        is_patient = entry.kind == "Patient"
        if is_patient:
            patient_node: Hashable = self._node(entry.name, entry.system)
        else:
            patient_node = entry.key
        for link_kind, link_target in entry.facts.links:
            linked_node: Hashable
            link_address = read_address(link_target.reference)
            if link_address is not None and link_address.kind == "Person":
                linked_node = entry.key._replace(
                    kind="Person", name=link_address.name, system=link_address.base or entry.system
                )
            else:
                linked_node = self._link_target(link_target, entry)
            if linked_node is None:
                continue
            self._join(patient_node, linked_node)
            if link_kind == "replaced-by" and isinstance(patient_node, PatientId):
                self._replaced.add(patient_node)
            elif link_kind == "replaces" and isinstance(linked_node, PatientId):
                self._replaced.add(linked_node)

    def _link_target(self, target: Subject, entry: ResourceEntry) -> PatientId | None:
        """The patient that a link names. A link to a RelatedPerson or to nobody joins nothing."""
        if not target.reference and target.identifier[1]:
            identifier_owners = self._owners.get(target.identifier, [])
            if len(identifier_owners) == 1:
                return identifier_owners[0]
            return PatientId(target.identifier[1], target.identifier[0], True)
        try:
            return self.resolve(target, entry)
        except NoPatient:
            return None

    def _root(self, node: Hashable) -> Hashable:
        while (parent_node := self._parent.setdefault(node, node)) != node:
            self._parent[node] = self._parent[parent_node]
            node = parent_node
        return node

    def _join(self, one_node: Hashable, other_node: Hashable) -> None:
        self._parent[self._root(one_node)] = self._root(other_node)

    def _choose_patient_ids(self) -> dict[PatientId, PatientId]:
        """Returns by each joined id the one under which it is joined: the first in order that no link replaces."""
        ids_by_root: dict[Hashable, list[PatientId]] = defaultdict(list)
        for joined_id in list(self._parent):
            if isinstance(joined_id, PatientId):
                ids_by_root[self._root(joined_id)].append(joined_id)
        chosen_ids = {}
        for nodes in ids_by_root.values():
            ids = [joined_id for joined_id in nodes if not joined_id.is_identifier] or nodes
            chosen_id = min([joined_id for joined_id in ids if joined_id not in self._replaced] or ids)
            chosen_ids.update(dict.fromkeys(nodes, chosen_id))
        return chosen_ids


def _kind_words(kind: str) -> str:
    """The type of a subject in words; a word that is no type may be content."""
    if kind[:1] in ("E", "O"):
        indefinite_article = "an"
    else:
        indefinite_article = "a"
    if kind in _OTHER_KINDS:
        return f"{indefinite_article} {kind}"
    return "another resource"
