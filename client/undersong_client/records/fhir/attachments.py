"""Finds the attachment that an address in a document names: a Binary of the same system, or a file near the document's.

An attachment belongs to one patient. If documents of two patients name it, it is read for neither.
"""

import base64
import binascii
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from undersong_client.records.fhir.resources import (
    Conflict,
    Key,
    ResourceEntry,
    Resources,
    folders_above,
    is_lines,
    read_address,
)
from undersong_client.records.fhir.unreadable import Unreadable
from undersong_common.text.row_files import gzip_lines, has_suffix

LARGEST_BYTES = 32 * 2**20  # HTML around a text of 4 MiB, the largest that is read, may be several times as long
ELSEWHERE = "its attachment lies on another server"
NOT_THERE = "its attachment is not in the folder"
CONTAINED = "its attachment is a resource within the document, which is not read"
OTHER_MACHINE = "its attachment's address is a file of the machine that wrote it"
SHARED = "documents of two patients name its attachment"
_SEVERAL = object()  # owner of an attachment that documents of several patients name


class Attachments:
    """The attachments of an export and their owners."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._owners: dict[Hashable, Hashable] = {}
        self._faults: dict[Hashable, str] = {}
        self._used: set[Hashable] = set()

    def add_owner(self, entry: ResourceEntry, owner: Hashable) -> None:
        """Notes that a document of ``owner`` names its attachments."""
        for target in self.targets(entry):
            if self._owners.setdefault(target, owner) != owner:
                self._owners[target] = _SEVERAL

    def targets(self, entry: ResourceEntry) -> set[Hashable]:
        """Returns the keys of a document's stored attachments, without those that the export does not hold."""
        target_keys = set()
        for url in entry.facts.urls:
            try:
                target_keys.add(self._locate(url, entry)[0])
            except Unreadable:
                continue
        return target_keys

    def content(self, attachment: dict[str, Any], entry: ResourceEntry) -> tuple[str, bytes, Hashable]:
        """Returns an attachment's content type, its bytes, and the key under which the export stores it.

        The key is None for an attachment within the document.

        Raises Unreadable if the attachment is missing, several patients' documents name it, or it cannot be decoded.
        """
        content_type = attachment.get("contentType")
        content_type = content_type if isinstance(content_type, str) else ""
        if attachment.get("data"):
            return content_type, _decode(attachment["data"]), None
        if not (url := str(attachment.get("url") or "").strip()):
            raise Unreadable("its attachment has neither data nor an address")
        target_key, binary_entry = self._locate(url, entry)
        self._used.add(target_key)
        if self._owners.get(target_key) is _SEVERAL:
            raise Unreadable(SHARED)
        if target_key in self._faults:
            raise Unreadable(self._faults[target_key])
        if isinstance(binary_entry, Path):
            return content_type, _file_content(binary_entry), target_key
        binary_resource = self._resources.read(binary_entry)
        binary_type = binary_resource.get("contentType")
        # Binary.content is STU3's name of the data.
        decoded_data = _decode(binary_resource.get("data") or binary_resource.get("content") or "")
        binary_type = binary_type if isinstance(binary_type, str) else ""
        # A Binary states the character set of its own bytes, which the document that names it may leave out.
        is_same_type = content_type.partition(";")[0].strip().lower() == binary_type.partition(";")[0].strip().lower()
        return (
            binary_type if not content_type or (is_same_type and ";" not in content_type) else content_type,
            decoded_data,
            target_key,
        )

    def note_fault(self, target: Hashable, reason: str) -> None:
        """Notes that a stored attachment cannot be read, so that it is not decoded again."""
        if target is not None:
            self._faults[target] = reason

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yields (place, kind) of each file and Binary that no document names."""
        for file in self._resources.files:
            if _file_key(file) not in self._used:
                yield str(file.relative_to(self._resources.root)), "file"
        for binary_versions in self._resources.of_kind("Binary"):
            for binary_entry in binary_versions:
                if ("Binary", id(binary_entry)) not in self._used:
                    yield binary_entry.place, "Binary"

    def _locate(self, url: str, entry: ResourceEntry) -> tuple[Hashable, ResourceEntry | Path]:
        """Returns the key of the attachment at an address, and its file or Binary.

        Raises Unreadable if the export does not hold it.
        """
        if url.lower().startswith("urn:uuid:"):
            uuid_kind, resource_name = entry.uuids.get(url.lower(), ("", ""))
            if uuid_kind != "Binary":
                raise Unreadable(NOT_THERE)
            return self._binary(Key(entry.system, uuid_kind, resource_name), [])
        if url.startswith("#"):
            raise Unreadable(CONTAINED)
        url_address = read_address(url)
        if "://" in url:
            if url.lower().startswith("file:"):
                raise Unreadable(OTHER_MACHINE)
            if url_address is not None and url_address.kind == "Binary" and url_address.base in self._resources.bases:
                return self._binary(Key(url_address.base, "Binary", url_address.name), [])
            if not (entry.system and url.startswith(f"{entry.system}/")):
                raise Unreadable(ELSEWHERE)
            url = url.removeprefix(f"{entry.system}/")
        folders_above_entry = list(folders_above(entry.file, self._resources.root))
        if url_address is not None and (url_address.kind, url_address.base) == ("Binary", ""):
            try:
                return self._binary(Key(entry.system, "Binary", url_address.name), folders_above_entry)
            except Unreadable:
                if not (attachment_file := self._file(url, folders_above_entry)):
                    raise
                return attachment_file
        if attachment_file := self._file(url, folders_above_entry):
            return attachment_file
        raise Unreadable(NOT_THERE)

    def _binary(self, key: Key, folders: list[Path]) -> tuple[Hashable, ResourceEntry]:
        """Returns the key and the newest version of a Binary; it lies in the first of ``folders`` that has one.

        Without folders, the Binary may lie anywhere in the export.
        """
        binary_entries = self._resources.entries.get(key, [])
        versions_by_folder = [
            [version for version in binary_entries if version.file.parent == folder] for folder in folders
        ]
        if folders:
            binary_versions = next(filter(None, versions_by_folder), [])
        else:
            binary_versions = binary_entries
        if not binary_versions:
            raise Unreadable(NOT_THERE)
        try:
            newest_binary = self._resources.newest(binary_versions)
        except Conflict:
            raise Unreadable("its attachment has two contents and no version") from None
        if newest_binary is None:
            raise Unreadable("its attachment was deleted")
        self._used.update(("Binary", id(version)) for version in binary_versions)
        return ("Binary", id(newest_binary)), newest_binary

    def _file(self, url: str, folders: list[Path]) -> tuple[Hashable, Path] | None:
        """Returns the key and path of the file at a relative address, in the nearest folder that has one, or None.

        Raises Unreadable if the file holds resources or cannot be read.
        """
        for folder in folders:
            real_folder = folder.resolve()
            plain_path = unquote(url).replace("\\", "/")  # Windows writes an address with backslashes
            for file_name in dict.fromkeys((url, plain_path, f"{plain_path}.gz")):
                try:
                    file = (real_folder / file_name).resolve()
                    if not (file.is_relative_to(real_folder) and file.is_file()):
                        continue
                    if is_lines(file):
                        raise Unreadable("its attachment is a file of resources")
                    return _file_key(file), file
                except (OSError, ValueError, RuntimeError):
                    # The name holds a zero byte, is too long, or is a link in a circle.
                    raise Unreadable("its attachment's file cannot be read") from None
        return None


def _file_key(file: Path) -> Hashable:
    """Returns the device and inode of a file, which stay the same if a link gives the file another name."""
    file_status = file.stat()
    return "file", file_status.st_dev, file_status.st_ino


def _file_content(file: Path) -> bytes:
    try:
        if not has_suffix(file, ".gz"):
            if file.stat().st_size > LARGEST_BYTES:
                raise Unreadable("its attachment is longer than 32 MiB")
            return file.read_bytes()
        content_parts, content_size = [], 0
        for content_line in gzip_lines(file):
            content_parts.append(content_line)
            content_size += len(content_line)
            if content_size > LARGEST_BYTES:
                raise Unreadable("its attachment is longer than 32 MiB")
    except OSError:
        raise Unreadable("its attachment's file cannot be read") from None
    return b"".join(content_parts)


def _decode(data: Any) -> bytes:
    if not isinstance(data, str):
        raise Unreadable("its attachment is not base64")
    if len(data) * 3 // 4 > LARGEST_BYTES:
        raise Unreadable("its attachment is longer than 32 MiB")
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Unreadable("its attachment is not base64") from None
