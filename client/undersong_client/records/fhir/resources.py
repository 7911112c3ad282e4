"""Lists the resources of a FHIR export before the first row is read: by system, type and id, in their newest version.

A resource's identity is (system, type, id). The system of a folder is the base that ``--fhir-system`` or the export's
manifest states, or else the one base of its Bundles' ``fullUrl``. It is "" where nothing states it.

Sources: FHIR R4 (hl7.org/fhir/R4), Resource, Bundle and references; FHIR Bulk Data Access 2.0, 3.3.
"""

import hashlib
import json
import os
import re
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from undersong_client.home import Declared
from undersong_client.records.declared import Skip, objects
from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_common.text.patient_ids import clean_text
from undersong_common.text.row_files import NO_GZIP, file_lines, has_suffix

DOCUMENTS = ("DocumentReference", "DiagnosticReport")
PEOPLE = ("Patient", "Person")
LARGEST_MANIFEST_BYTES = 16 * 2**20
HEAD_BYTES = 1024  # largest number of bytes before the type's name in a JSON file of a resource
DEEPEST_BUNDLE = 8  # levels of Bundles within Bundles, such as a search's Bundle in a batch's response
BUNDLES_HELD = 4  # parsed lines of Bundles in memory, so that one is not parsed anew for each of its entries
_ADDRESS = re.compile(r"(?:(.*)/)?([A-Za-z]{1,64})/([^/?#]{1,256})(?:/_history(?:/[^/?#]*)?)?/?(?:[?#].*)?")
_EXPORT = re.compile(r"(.*?)(?:/Patient|/Group/[^/]+)?/\$[a-z-]+(?:[?#].*)?")
_KIND = re.compile(r"[A-Z][A-Za-z]{1,39}")


class Key(NamedTuple):
    """Identity of a resource."""

    system: str
    kind: str
    name: str


class Address(NamedTuple):
    """A reference to a resource: its base ("" for a relative one), type and id."""

    base: str
    kind: str
    name: str


def read_address(text: str) -> Address | None:
    """Reads ``[BASE/]Type/id``, with or without a version; None for anything else."""
    address_match = _ADDRESS.fullmatch(text)
    if address_match:
        return Address(clean_base(address_match[1] or ""), address_match[2], address_match[3])
    return None


def clean_base(base: str) -> str:
    """Returns the base of a system with its scheme and host in small letters and without a last slash."""
    scheme, double_slash, location = base.strip().rstrip("/").partition("://")
    host, single_slash, path = location.partition("/")
    if double_slash:
        return f"{scheme.lower()}{double_slash}{host.lower()}{single_slash}{path}"
    return scheme


@dataclass(eq=False, slots=True)
class ResourceEntry:
    """A resource's entry in the list: its place, its identity, its version, and what decides about patients and notes.

    Attributes:
        offset, size: bytes of its line in the file.
        part: number among the entries of the line's Bundle; -1 for a line that is the resource.
        base: the base of its ``fullUrl``; "" without one.
        updated: ``meta.lastUpdated`` in seconds since the epoch; None without one.
        version: ``meta.versionId``; None if it is no whole number.
        uuids: (type, id) by ``fullUrl`` of its Bundle.
        facts: what :mod:`patients` and :mod:`documents` need of the resource.
    """

    file: Path
    place: str
    offset: int
    size: int
    system: str
    part: int = -1
    kind: str = ""
    name: str = ""
    base: str = ""
    updated: float | None = None
    version: int | None = None
    digest: bytes = b""
    uuids: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    facts: Any = None

    @property
    def key(self) -> Key:
        return Key(self.system, self.kind, self.name)


class Conflict(Exception):
    """Raised for different resources of one identity of which none is the newest; ``entries`` are these."""

    def __init__(self, entries: list[ResourceEntry]) -> None:
        super().__init__()
        self.entries = entries


@dataclass
class _Deletion:
    """A DELETE entry: its system, the base that it names, and the time of its Bundle in seconds; None without one."""

    system: str
    base: str
    at_s: float | None


@dataclass
class Resources:
    """The resources of an export.

    Attributes:
        root: the named folder, or the folder of the named file.
        files: files that hold no resources, which documents may name as attachments.
        entries: the versions of each resource.
        bases: the systems that the export states.
        systems: the stated system of a folder and of those below it.
        deletions: the DELETE entries by type and id of what they delete.
        compressed: the lines of compressed files by file and offset, compressed anew.
    """

    root: Path
    files: list[Path] = field(default_factory=list)
    entries: dict[Key, list[ResourceEntry]] = field(default_factory=lambda: defaultdict(list))
    bases: set[str] = field(default_factory=set)
    systems: dict[Path, str] = field(default_factory=dict)
    deletions: dict[tuple[str, str], list[_Deletion]] = field(default_factory=lambda: defaultdict(list))
    compressed: dict[tuple[Path, int], bytes] = field(default_factory=dict)
    _bundles: OrderedDict[tuple[Path, int], list[Any]] = field(default_factory=OrderedDict)

    def of_kind(self, *kinds: str) -> Iterator[list[ResourceEntry]]:
        """Yields the versions of each resource of these types."""
        return (
            resource_entries for resource_key, resource_entries in self.entries.items() if resource_key.kind in kinds
        )

    def read(self, entry: ResourceEntry) -> dict[str, Any]:
        """Reads a resource again. Raises ConfigurationError if its file has changed meanwhile."""
        bundle_key = (entry.file, entry.offset)
        try:
            if entry.part < 0:
                return dict(parse(self._line(entry)))
            if bundle_key not in self._bundles:
                self._bundles[bundle_key] = [bundle_member for bundle_member, _ in members_of(parse(self._line(entry)))]
                if len(self._bundles) > BUNDLES_HELD:
                    self._bundles.popitem(last=False)
            self._bundles.move_to_end(bundle_key)
            return dict(self._bundles[bundle_key][entry.part]["resource"])
        except (OSError, ValueError, LookupError, TypeError, zlib.error, RecursionError):
            raise ConfigurationError(
                f"{entry.place}: has changed while it was read", "read the export when it is complete", code="changed"
            ) from None

    def _line(self, entry: ResourceEntry) -> bytes:
        if has_suffix(entry.file, ".gz"):
            return zlib.decompress(self.compressed[entry.file, entry.offset])
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.offset)
            return file.read(entry.size)

    def is_deleted(self, entry: ResourceEntry) -> bool:
        """True if a DELETE entry removes this version.

        That is so if the version is not newer than the entry's Bundle, or if one of the two has no time.
        """
        for deletion in self.deletions.get((entry.kind, entry.name), ()):
            # An absolute address may be the export's own if nothing states the system of the export.
            is_same_system = (deletion.base or deletion.system) == entry.system or not entry.system
            is_older = deletion.at_s is None or entry.updated is None or entry.updated <= deletion.at_s
            if is_same_system and is_older:
                return True
        return False

    def newest(self, entries: Iterable[ResourceEntry]) -> ResourceEntry | None:
        """Returns the newest version that is not deleted; None if all are deleted.

        Raises Conflict if nothing tells which of several versions with different contents is the newest.
        """
        distinct_versions = list({entry.digest: entry for entry in entries if not self.is_deleted(entry)}.values())
        if len(distinct_versions) < 2:
            if distinct_versions:
                return distinct_versions[0]
            return None
        if all(entry.updated is not None for entry in distinct_versions):
            version_ranks = [
                (entry.updated or 0.0, -1 if entry.version is None else entry.version) for entry in distinct_versions
            ]
        elif all(entry.version is not None for entry in distinct_versions):
            version_ranks = [(0.0, entry.version or 0) for entry in distinct_versions]
        else:
            version_ranks = [(0.0, 0)] * len(distinct_versions)
        latest_versions = [
            entry for entry, rank in zip(distinct_versions, version_ranks, strict=True) if rank == max(version_ranks)
        ]
        if len(latest_versions) > 1 and not self._are_equal(latest_versions):
            raise Conflict(latest_versions)
        return latest_versions[0]

    def _are_equal(self, entries: list[ResourceEntry]) -> bool:
        """True if nothing that is read of these resources differs."""
        if entries[0].kind in PEOPLE:
            return all(entry.facts == entries[0].facts for entry in entries)
        first_resource = self.read(entries[0])
        return all(self.read(entry) == first_resource for entry in entries[1:])


class _StandsTwice(ValueError):
    """Raised for a JSON object with one key twice, of which a parser would silently take the last."""


def _check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    member_by_key = dict(pairs)
    if len(member_by_key) != len(pairs):
        raise _StandsTwice
    return member_by_key


def parse(line: bytes) -> Any:
    """Parses one JSON value.

    Raises ValueError for text that is no JSON or in which an object has one key twice, and RecursionError for one that
    is nested too deeply.
    """
    return json.loads(line, object_pairs_hook=_check_keys)


def seconds(date_text: Any) -> float | None:
    """Reads a FHIR instant or date as seconds since the epoch; None for anything else."""
    if not isinstance(date_text, str):
        return None
    try:
        written_moment = datetime.fromisoformat(date_text.strip())
    except ValueError:
        return None
    return (written_moment if written_moment.tzinfo else written_moment.replace(tzinfo=UTC)).timestamp()


class Listing:
    """Makes the list of an export's resources, and calls ``skip`` for what is no resource.

    Args:
        facts: by type, the function that returns what the list keeps of a resource; other types are skipped.
    """

    def __init__(self, declared: Declared, skip: Skip, facts: Mapping[str, Any]) -> None:
        path = declared.path
        self._declared = declared
        self._skip = skip
        self._facts = facts
        self._resources = Resources(path if path.is_dir() else path.parent)

    def make(self) -> Resources:
        """Reads all files once. Raises ConfigurationError without any file of resources."""
        path = self._declared.path
        resources = self._resources
        if path.is_dir():
            files = list(self._files())
        else:
            files = [path]
        line_files = [file for file in files if is_lines(file)]
        if not line_files:
            raise ConfigurationError(
                f"{path}: holds no .ndjson file",
                "write the resources one a line to an .ndjson file, or name the folder of one table's parts (Parquet,"
                " CSV, TSV, JSON lines)",
                code="no-ndjson",
            )
        other_files = [file for file in files if file not in set(line_files)]
        resources.files = [file for file in other_files if not (self._is_manifest(file) or self._is_resource(file))]
        self._declare_systems()
        for file in line_files:
            self._list_file(file)
        self._settle_systems()
        return resources

    def _files(self) -> Iterator[Path]:
        """Yields the files of the folder in order. A link is not followed out of it."""
        root = self._resources.root
        real_root = root.resolve()
        for folder, folders, file_names in os.walk(root):
            folders.sort()
            for file_name in sorted(file_names) + [
                file_name for file_name in folders if Path(folder, file_name).is_symlink()
            ]:
                file = Path(folder, file_name)
                if reason := _unread_reason(file, real_root):
                    holds_documents = file.is_dir() or is_lines(file)
                    self._skip(self._name(file), reason, "lost" if holds_documents else "resource")
                else:
                    yield file

    def _name(self, file: Path) -> str:
        return str(file.relative_to(self._resources.root))

    def _is_resource(self, file: Path) -> bool:
        """True for a JSON file of one resource or Bundle, which ``skip`` names.

        Only files with one resource a line are read.
        """
        if not has_suffix(file, ".json"):
            return False
        try:
            with file.open("rb") as stream:
                is_resource = b'"resourceType"' in stream.read(HEAD_BYTES)
        except OSError:
            return False
        if is_resource:
            # Nobody has counted its documents. So it is refused, because no share of lost documents can be stated.
            reason, skip_remedy = (
                "it is JSON of resources, and not one resource a line",
                "write one a line, to an .ndjson file",
            )
            self._skip(self._name(file), reason, "refused", remedy=skip_remedy)
        return is_resource

    def _is_manifest(self, file: Path) -> bool:
        """True for the manifest of a bulk export; notes the base that it states as the one of its folder."""
        if not has_suffix(file, ".json") or file.stat().st_size > LARGEST_MANIFEST_BYTES:
            return False
        try:
            manifest = parse(file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(manifest, dict) or "transactionTime" not in manifest:
            return False
        export_request = manifest.get("request")
        if not isinstance(export_request, str) or (export_match := _EXPORT.fullmatch(export_request)) is None:
            return False
        self._resources.systems[file.parent] = clean_base(export_match[1])
        return True

    def _declare_systems(self) -> None:
        for folder, server_address in self._declared.fhir_systems.items():
            path = self._resources.root / folder
            if not path.is_dir():
                raise ConfigurationError(
                    f"--fhir-system {folder}: the export has no such folder",
                    "name the folder as it lies below the one that is added: --fhir-system FOLDER=BASE",
                    code="no-fhir-system",
                )
            self._resources.systems[path] = clean_base(server_address)

    def _system_of(self, file: Path) -> str:
        system_by_folder = self._resources.systems
        root = self._resources.root
        for folder in folders_above(file, root):
            if folder in system_by_folder:
                return system_by_folder[folder]
        return ""

    def _list_file(self, file: Path) -> None:
        system = self._system_of(file)
        file_name = self._name(file)
        line_offset = 0
        try:
            for line_number, text_line in enumerate(file_lines(file), start=1):
                if text_line.strip():
                    self._list_line(
                        ResourceEntry(file, f"{file_name}:{line_number}", line_offset, len(text_line), system),
                        text_line,
                    )
                line_offset += len(text_line)
        except OSError as error:
            raise ConfigurationError(
                f"{file}: cannot be read: {error.strerror or NO_GZIP}",
                "check the file and its permissions",
                code="unreadable-source",
            ) from None

    def _list_line(self, line_entry: ResourceEntry, line_bytes: bytes) -> None:
        try:
            resource = parse(line_bytes)
        except _StandsTwice:
            return self._skip(line_entry.place, "a key stands twice in it")
        except (ValueError, RecursionError):
            return self._skip(line_entry.place, "it is not JSON")
        if not (isinstance(resource, dict) and isinstance(resource.get("resourceType"), str)):
            return self._skip(line_entry.place, "it is no FHIR resource")
        entry_count = len(self._resources.entries)
        line_entry.digest = hashlib.blake2b(line_bytes.strip(), digest_size=16).digest()
        if resource["resourceType"] == "Bundle":
            has_entries = self._list_bundle(resource, line_entry)
        else:
            has_entries = self._list_resource(resource, line_entry)
        if has_suffix(line_entry.file, ".gz") and (has_entries or len(self._resources.entries) > entry_count):
            # A gzip file cannot be read from the middle. Its lines stay in memory, compressed.
            self._resources.compressed[line_entry.file, line_entry.offset] = zlib.compress(line_bytes, 1)
        return None

    def _list_bundle(self, bundle: dict[str, Any], line_entry: ResourceEntry) -> bool:
        bundle_members = members_of(bundle)
        name_by_uuid: dict[str, tuple[str, str]] = {}
        has_entries = False
        if not bundle_members:
            self._skip(line_entry.place, "it is a Bundle without entries", "resource")
        for bundle_member in objects([bundle_member for bundle_member, _ in bundle_members]):
            resource = bundle_member.get("resource")
            full_url = bundle_member.get("fullUrl")
            if isinstance(resource, dict) and isinstance(full_url, str) and full_url.lower().startswith("urn:uuid:"):
                resource_name = id_of(resource) or full_url.lower().removeprefix("urn:uuid:")
                name_by_uuid[full_url.lower().strip()] = (str(resource.get("resourceType")), resource_name)
        for part_number, (bundle_member, at_s) in enumerate(bundle_members):
            if not isinstance(bundle_member, dict):
                continue
            member_request = bundle_member.get("request")
            if isinstance(member_request, dict) and member_request.get("method") == "DELETE":
                deleted_address = read_address(str(member_request.get("url") or ""))
                if deleted_address is not None:
                    deletion = _Deletion(line_entry.system, deleted_address.base, at_s)
                    self._resources.deletions[deleted_address.kind, deleted_address.name].append(deletion)
                continue
            if isinstance(resource := bundle_member.get("resource"), dict):
                resource_bytes = json.dumps(resource, sort_keys=True).encode()
                resource_digest = hashlib.blake2b(resource_bytes, digest_size=16).digest()
                member_entry = ResourceEntry(
                    line_entry.file,
                    line_entry.place,
                    line_entry.offset,
                    line_entry.size,
                    line_entry.system,
                    part_number,
                    uuids=name_by_uuid,
                )
                member_entry.digest = resource_digest
                has_entries |= self._list_resource(resource, member_entry, bundle_member.get("fullUrl"))
        return has_entries

    def _list_resource(self, resource: dict[str, Any], entry: ResourceEntry, full_url: Any = None) -> bool:
        resource_kind = resource.get("resourceType")
        if not isinstance(resource_kind, str) or resource_kind not in self._facts:
            if resource_kind == "Bundle":
                skip_reason = f"Bundles stand in it within more than {DEEPEST_BUNDLE} others"
                self._skip(
                    entry.place, skip_reason, "refused", remedy="export the resources without Bundles around them"
                )
            else:
                if isinstance(resource_kind, str) and _KIND.fullmatch(resource_kind):
                    kind_name = resource_kind
                else:
                    kind_name = "this resource"
                self._skip(entry.place, f"{printable(kind_name, 40)} is no kind of document that is read", "resource")
            return False
        if isinstance(full_url, str):
            full_url = full_url.strip()
        else:
            full_url = ""
        if full_url.lower().startswith("urn:"):
            resource_address = None
        else:
            resource_address = read_address(full_url)
        entry.kind = resource_kind
        entry.name = id_of(resource)
        if not entry.name and full_url.lower().startswith("urn:uuid:"):
            entry.name = full_url.lower().removeprefix("urn:uuid:")
        entry.name = entry.name or f"\0{entry.digest.hex()}"  # equal resources without an id are one
        entry.base = resource_address.base if resource_address is not None else ""
        entry.updated, entry.version = meta_of(resource)
        entry.facts = self._facts[entry.kind](resource)
        self._resources.entries[entry.key].append(entry)
        if entry.kind in PEOPLE:
            self._skip(entry.place, f"{entry.kind} is no kind of document that is read", "resource")
        return True

    def _settle_systems(self) -> None:
        """Gives resources of a folder without a stated base the base of their ``fullUrl``, or else the only one."""
        resources = self._resources
        all_entries = [entry for entries in resources.entries.values() for entry in entries]
        server_addresses = {entry.base for entry in all_entries if not entry.system and entry.base}
        single_address = ""
        if len(server_addresses) == 1:
            single_address = next(iter(server_addresses))
        for deletion_entries in resources.deletions.values():
            for deletion in deletion_entries:
                deletion.system = deletion.system or single_address
        if server_addresses:
            resources.entries.clear()
            for entry in all_entries:
                entry.system = entry.system or entry.base or single_address
                resources.entries[entry.key].append(entry)
        resources.bases = {entry.system for entry in all_entries} | set(resources.systems.values())


def members_of(bundle: Mapping[str, Any], depth: int = 0) -> list[tuple[Any, float | None]]:
    """Returns the entries of a Bundle and of Bundles within it, with their Bundle's time in seconds since the epoch."""
    at_s = seconds(bundle.get("timestamp")) or meta_of(bundle)[0]
    bundle_members: list[tuple[Any, float | None]] = []
    bundle_entries = bundle.get("entry")
    for member in bundle_entries if isinstance(bundle_entries, list) else ():
        inner_bundle = None
        if isinstance(member, dict):
            inner_bundle = member.get("resource")
        if isinstance(inner_bundle, dict) and inner_bundle.get("resourceType") == "Bundle" and depth < DEEPEST_BUNDLE:
            bundle_members += members_of(inner_bundle, depth + 1)
        else:
            bundle_members.append((member, at_s))
    return bundle_members


def _unread_reason(file: Path, real_root: Path) -> str:
    """Returns the reason why a file of an export is not read; "" for a file that is."""
    # `Path.resolve` raises an error for links in a circle, and `os.path.realpath` does not.
    if file.is_symlink() and (file.is_dir() or not Path(os.path.realpath(file)).is_relative_to(real_root)):
        return "it is a link out of the folder, or to a folder"
    if not file.is_file():
        return "it is a link that leads to no file, or no regular file"
    return ""


def is_lines(file: Path) -> bool:
    """True if a file's name says that it holds one resource a line."""
    return bool({".ndjson", ".jsonl"} & {file_suffix.lower() for file_suffix in file.suffixes[-2:]})


def folders_above(file: Path, root: Path) -> Iterator[Path]:
    """Yields the folder of a file and those above it, up to ``root``."""
    folder = file.parent
    while True:
        yield folder
        if folder == root or folder == folder.parent:
            return
        folder = folder.parent


def id_of(resource: Mapping[str, Any]) -> str:
    """Returns a resource's id; "" without one."""
    resource_id = resource.get("id")
    if isinstance(resource_id, str):
        return clean_text(resource_id)
    if type(resource_id) is int:
        return str(resource_id)
    return ""


def meta_of(resource: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Returns ``meta.lastUpdated`` in seconds since the epoch and ``meta.versionId``; None for what is missing."""
    resource_meta = resource.get("meta")
    resource_meta = resource_meta if isinstance(resource_meta, dict) else {}
    version = str(resource_meta.get("versionId") or "")
    return seconds(resource_meta.get("lastUpdated")), int(version) if re.fullmatch("[0-9]{1,18}", version) else None
