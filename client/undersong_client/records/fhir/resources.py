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
HEAD_BYTES = 1024  # a JSON file of a resource names its type within them
DEEPEST_BUNDLE = 8  # a batch's answer holds the Bundle of a search, and a message another one
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
    match = _ADDRESS.fullmatch(text)
    if match:
        return Address(clean_base(match[1] or ""), match[2], match[3])
    return None


def clean_base(base: str) -> str:
    """Returns the base of a system with its scheme and host in small letters and without a last slash."""
    scheme, slashes, location = base.strip().rstrip("/").partition("://")
    host, slash, path = location.partition("/")
    if slashes:
        return f"{scheme.lower()}{slashes}{host.lower()}{slash}{path}"
    return scheme


@dataclass(eq=False, slots=True)
class ResourceEntry:
    """A resource where it stands: its place, its identity, its version, and what decides about patients and notes.

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
        """Yields the versions of each resource of some kinds."""
        return (entries for key, entries in self.entries.items() if key.kind in kinds)

    def read(self, entry: ResourceEntry) -> dict[str, Any]:
        """Reads a resource again. Raises ConfigurationError if its file has changed meanwhile."""
        bundle_key = (entry.file, entry.offset)
        try:
            if entry.part < 0:
                return dict(parse(self._line(entry)))
            if bundle_key not in self._bundles:
                self._bundles[bundle_key] = [member for member, _ in members_of(parse(self._line(entry)))]
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

    def deleted(self, entry: ResourceEntry) -> bool:
        """True if a DELETE entry removes this version: it is not newer than the Bundle, or has no time."""
        for deletion in self.deletions.get((entry.kind, entry.name), ()):
            # An absolute address may be the export's own if nothing states the system of the export.
            is_same = (deletion.base or deletion.system) == entry.system or not entry.system
            is_older = deletion.at_s is None or entry.updated is None or entry.updated <= deletion.at_s
            if is_same and is_older:
                return True
        return False

    def newest(self, entries: Iterable[ResourceEntry]) -> ResourceEntry | None:
        """Returns the newest version that is not deleted; None if all are. Raises Conflict."""
        versions = list({entry.digest: entry for entry in entries if not self.deleted(entry)}.values())
        if len(versions) < 2:
            if versions:
                return versions[0]
            return None
        if all(entry.updated is not None for entry in versions):
            order = [(entry.updated or 0.0, -1 if entry.version is None else entry.version) for entry in versions]
        elif all(entry.version is not None for entry in versions):
            order = [(0.0, entry.version or 0) for entry in versions]
        else:
            order = [(0.0, 0)] * len(versions)
        latest = [entry for entry, rank in zip(versions, order, strict=True) if rank == max(order)]
        if len(latest) > 1 and not self._are_equal(latest):
            raise Conflict(latest)
        return latest[0]

    def _are_equal(self, entries: list[ResourceEntry]) -> bool:
        """True if nothing that is read of these resources differs."""
        if entries[0].kind in PEOPLE:
            return all(entry.facts == entries[0].facts for entry in entries)
        first = self.read(entries[0])
        return all(self.read(entry) == first for entry in entries[1:])


class _StandsTwice(ValueError):
    """Raised for a JSON object with one key twice, of which a parser would silently take the last."""


def _one_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _StandsTwice
    return members


def parse(line: bytes) -> Any:
    """Parses JSON in which no key stands twice. Raises ValueError or RecursionError."""
    return json.loads(line, object_pairs_hook=_one_of_each)


def seconds(written: Any) -> float | None:
    """Reads a FHIR instant or date as seconds since the epoch; None for anything else."""
    if not isinstance(written, str):
        return None
    try:
        moment = datetime.fromisoformat(written.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Listing:
    """Makes the list of resources of an export; what is no resource is named by ``skip``.

    Args:
        facts: returns what is kept of a resource, by its type; for other types nothing is kept.
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
        lines = [file for file in files if is_lines(file)]
        if not lines:
            raise ConfigurationError(
                f"{path}: holds no .ndjson file",
                "write the resources one a line to an .ndjson file, or name the folder of one table's parts (Parquet,"
                " CSV, TSV, JSON lines)",
                code="no-ndjson",
            )
        other_files = [file for file in files if file not in set(lines)]
        resources.files = [file for file in other_files if not (self._is_manifest(file) or self._is_resource(file))]
        self._declare_systems()
        for file in lines:
            self._list_file(file)
        self._settle_systems()
        return resources

    def _files(self) -> Iterator[Path]:
        """Yields the files of the folder in order. A link is not followed out of it."""
        root = self._resources.root
        real_root = root.resolve()
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names) + [name for name in folders if Path(folder, name).is_symlink()]:
                file = Path(folder, name)
                if file.is_symlink() and (file.is_dir() or not file.resolve().is_relative_to(real_root)):
                    if file.is_dir() or is_lines(file):
                        cause = "lost"
                    else:
                        cause = "resource"
                    self._skip(self._name(file), "it is a link out of the folder, or to a folder", cause)  # type: ignore[arg-type]
                elif file.is_file():
                    yield file

    def _name(self, file: Path) -> str:
        return str(file.relative_to(self._resources.root))

    def _is_resource(self, file: Path) -> bool:
        """True for a JSON file of one resource or Bundle, which is named: only files with one a line are read."""
        if not has_suffix(file, ".json"):
            return False
        try:
            with file.open("rb") as stream:
                is_resource = b'"resourceType"' in stream.read(HEAD_BYTES)
        except OSError:
            return False
        if is_resource:
            # Nobody has counted what it holds, so that no share of lost documents can be stated.
            reason, remedy = (
                "it is JSON of resources, and not one resource a line",
                "write one a line, to an .ndjson file",
            )
            self._skip(self._name(file), reason, "refused", remedy=remedy)
        return is_resource

    def _is_manifest(self, file: Path) -> bool:
        """True for the manifest of a bulk export, whose base is that of its folder."""
        if not has_suffix(file, ".json") or file.stat().st_size > LARGEST_MANIFEST_BYTES:
            return False
        try:
            manifest = parse(file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(manifest, dict) or "transactionTime" not in manifest:
            return False
        request = manifest.get("request")
        if not isinstance(request, str) or (exported := _EXPORT.fullmatch(request)) is None:
            return False
        self._resources.systems[file.parent] = clean_base(exported[1])
        return True

    def _declare_systems(self) -> None:
        for folder, base in self._declared.fhir_systems.items():
            path = self._resources.root / folder
            if not path.is_dir():
                raise ConfigurationError(
                    f"--fhir-system {folder}: the export has no such folder",
                    "name the folder as it lies below the one that is added: --fhir-system FOLDER=BASE",
                    code="no-fhir-system",
                )
            self._resources.systems[path] = clean_base(base)

    def _system_of(self, file: Path) -> str:
        systems = self._resources.systems
        root = self._resources.root
        for folder in folders_above(file, root):
            if folder in systems:
                return systems[folder]
        return ""

    def _list_file(self, file: Path) -> None:
        system = self._system_of(file)
        name = self._name(file)
        offset = 0
        try:
            for number, line in enumerate(file_lines(file), start=1):
                if line.strip():
                    self._list_line(ResourceEntry(file, f"{name}:{number}", offset, len(line), system), line)
                offset += len(line)
        except OSError as error:
            raise ConfigurationError(
                f"{file}: cannot be read: {error.strerror or NO_GZIP}",
                "check the file and its permissions",
                code="unreadable-source",
            ) from None

    def _list_line(self, line: ResourceEntry, written: bytes) -> None:
        try:
            resource = parse(written)
        except _StandsTwice:
            return self._skip(line.place, "a key stands twice in it")
        except (ValueError, RecursionError):
            return self._skip(line.place, "it is not JSON")
        if not (isinstance(resource, dict) and isinstance(resource.get("resourceType"), str)):
            return self._skip(line.place, "it is no FHIR resource")
        entry_count = len(self._resources.entries)
        line.digest = hashlib.blake2b(written.strip(), digest_size=16).digest()
        if resource["resourceType"] == "Bundle":
            is_held = self._list_bundle(resource, line)
        else:
            is_held = self._list_resource(resource, line)
        if has_suffix(line.file, ".gz") and (is_held or len(self._resources.entries) > entry_count):
            # A gzip file cannot be read from the middle. Its lines stay in memory, compressed.
            self._resources.compressed[line.file, line.offset] = zlib.compress(written, 1)
        return None

    def _list_bundle(self, bundle: dict[str, Any], line: ResourceEntry) -> bool:
        members = members_of(bundle)
        uuids: dict[str, tuple[str, str]] = {}
        is_held = False
        if not members:
            self._skip(line.place, "it is a Bundle without entries", "resource")
        for member in objects([member for member, _ in members]):
            resource = member.get("resource")
            url = member.get("fullUrl")
            if isinstance(resource, dict) and isinstance(url, str) and url.lower().startswith("urn:uuid:"):
                name = id_of(resource) or url.lower().removeprefix("urn:uuid:")
                uuids[url.lower().strip()] = (str(resource.get("resourceType")), name)
        for part, (member, at_s) in enumerate(members):
            if not isinstance(member, dict):
                continue
            request = member.get("request")
            if isinstance(request, dict) and request.get("method") == "DELETE":
                address = read_address(str(request.get("url") or ""))
                if address is not None:
                    deletion = _Deletion(line.system, address.base, at_s)
                    self._resources.deletions[address.kind, address.name].append(deletion)
                continue
            if isinstance(resource := member.get("resource"), dict):
                resource_bytes = json.dumps(resource, sort_keys=True).encode()
                digest = hashlib.blake2b(resource_bytes, digest_size=16).digest()
                entry = ResourceEntry(line.file, line.place, line.offset, line.size, line.system, part, uuids=uuids)
                entry.digest = digest
                is_held |= self._list_resource(resource, entry, member.get("fullUrl"))
        return is_held

    def _list_resource(self, resource: dict[str, Any], entry: ResourceEntry, url: Any = None) -> bool:
        kind = resource.get("resourceType")
        if not isinstance(kind, str) or kind not in self._facts:
            if kind == "Bundle":
                reason = f"Bundles stand in it within more than {DEEPEST_BUNDLE} others"
                self._skip(entry.place, reason, "refused", remedy="export the resources without Bundles around them")
            else:
                if isinstance(kind, str) and _KIND.fullmatch(kind):
                    kind_name = kind
                else:
                    kind_name = "this resource"
                self._skip(entry.place, f"{printable(kind_name, 40)} is no kind of document that is read", "resource")
            return False
        if isinstance(url, str):
            url = url.strip()
        else:
            url = ""
        if url.lower().startswith("urn:"):
            address = None
        else:
            address = read_address(url)
        entry.kind = kind
        entry.name = id_of(resource)
        if not entry.name and url.lower().startswith("urn:uuid:"):
            entry.name = url.lower().removeprefix("urn:uuid:")
        entry.name = entry.name or f"\0{entry.digest.hex()}"  # equal resources without an id are one
        entry.base = address.base if address is not None else ""
        entry.updated, entry.version = meta_of(resource)
        entry.facts = self._facts[entry.kind](resource)
        self._resources.entries[entry.key].append(entry)
        if entry.kind in PEOPLE:
            self._skip(entry.place, f"{entry.kind} is no kind of document that is read", "resource")
        return True

    def _settle_systems(self) -> None:
        """Gives resources of a folder without a stated base the base of their own ``fullUrl``, or a single one."""
        resources = self._resources
        everything = [entry for entries in resources.entries.values() for entry in entries]
        bases = {entry.base for entry in everything if not entry.system and entry.base}
        single = ""
        if len(bases) == 1:
            single = next(iter(bases))
        for deletions in resources.deletions.values():
            for deletion in deletions:
                deletion.system = deletion.system or single
        if bases:
            resources.entries.clear()
            for entry in everything:
                entry.system = entry.system or entry.base or single
                resources.entries[entry.key].append(entry)
        resources.bases = {entry.system for entry in everything} | set(resources.systems.values())


def members_of(bundle: Mapping[str, Any], depth: int = 0) -> list[tuple[Any, float | None]]:
    """Returns the entries of a Bundle and of those within it, with their Bundle's time in seconds since the epoch."""
    at_s = seconds(bundle.get("timestamp")) or meta_of(bundle)[0]
    members: list[tuple[Any, float | None]] = []
    entries = bundle.get("entry")
    for member in entries if isinstance(entries, list) else ():
        inner = None
        if isinstance(member, dict):
            inner = member.get("resource")
        if isinstance(inner, dict) and inner.get("resourceType") == "Bundle" and depth < DEEPEST_BUNDLE:
            members += members_of(inner, depth + 1)
        else:
            members.append((member, at_s))
    return members


def is_lines(file: Path) -> bool:
    """True for the name of a file of resources, one a line."""
    return bool({".ndjson", ".jsonl"} & {suffix.lower() for suffix in file.suffixes[-2:]})


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
    name = resource.get("id")
    if isinstance(name, str):
        return clean_text(name)
    if type(name) is int:
        return str(name)
    return ""


def meta_of(resource: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Returns ``meta.lastUpdated`` in seconds since the epoch and ``meta.versionId``; None for what is missing."""
    meta = resource.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    version = str(meta.get("versionId") or "")
    return seconds(meta.get("lastUpdated")), int(version) if re.fullmatch("[0-9]{1,18}", version) else None
