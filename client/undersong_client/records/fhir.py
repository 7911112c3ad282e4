"""Reads FHIR Bulk Data as a source: DocumentReference and DiagnosticReport in NDJSON, with their attachments.

A row is one document: ``text``, ``patient``, ``type`` and ``category`` (the first code), ``date``, ``id`` and
``resource``. Another column is a path into the resource (``type.coding.display``), or ``type|SYSTEM``: the code of that
element in one code system. Every resource of a folder is read, or named with the reason; nothing is fetched.

Sources: FHIR R4 (hl7.org/fhir/R4), DocumentReference, DiagnosticReport and Binary; FHIR Bulk Data Access 2.0, 3.3.
"""

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from undersong_client.home import Declared
from undersong_client.records.declared import Skip, json_lines, value_at
from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_common.row_files import Row, gzip_lines

DOCUMENTS = ("DocumentReference", "DiagnosticReport")
NOT_VALID = ("entered-in-error", "superseded", "cancelled")
_PATIENT = re.compile(r"(?:^|/)Patient/([A-Za-z0-9.-]{1,64})(?:/_history/[^/]+)?$|^(urn:uuid:[0-9a-fA-F-]{36})$")
_BINARY = re.compile(r"(?:^|/)Binary/([A-Za-z0-9.-]{1,64})(?:/_history/[^/]+)?$")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")  # codecs of Python alone
_BLOCKS = frozenset(
    ("p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "section", "article", "pre", "dt", "dd")
)
_RAW = {tag: re.compile(f"</{tag}", re.IGNORECASE) for tag in ("script", "style")}  # what ends a text that is no HTML
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>"']*+)[^"'>]*+(?:(?:"[^"]*+"|'[^']*+')[^"'>]*+)*+>""")
_ANY_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*+)[^>]*+>")


class Unreadable(Exception):
    """Raised for an attachment without text that this program can read; its message holds nothing of the attachment."""


def rows(declared: Declared, skip: Skip) -> Iterator[Row]:
    """Yields one row per document in a folder or a file; calls ``skip`` for each resource that is not read."""
    path = declared.path
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    lines = [each for each in files if {".ndjson", ".jsonl"} & set(each.suffixes)]
    if not lines:
        raise ConfigurationError(f"{path}: holds no .ndjson file", "name the folder of a bulk export", code="no-ndjson")
    folder = _Folder(path if path.is_dir() else path.parent, lines)
    for file in lines:
        name = str(file.relative_to(folder.path))
        for number, line in json_lines(file):
            where = f"{name}:{number}"
            try:
                resource = json.loads(line)
            except (ValueError, RecursionError):
                skip(where, "it is not JSON")
                continue
            if (row := _row(resource, declared, folder, where, skip)) is not None:
                yield Row(where, row)
    for file in files:
        if file not in lines and file not in folder.used:
            skip(str(file.relative_to(folder.path)), "no document that was read names this file", "resource")
    for where in folder.unused_binaries:
        skip(where, "no document that was read names this Binary", "resource")


class _Folder:
    """Attachments that lie beside the documents: files, and Binary resources by their id."""

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path = path
        self.used: set[Path] = set()
        self._binaries: dict[str, tuple[str, dict[str, Any]]] = {}
        self._named: set[str] = set()
        for file in files:
            for number, line in json_lines(file):
                if b'"Binary"' in line:
                    try:
                        found = json.loads(line)
                    except (ValueError, RecursionError):
                        continue
                    if isinstance(found, dict) and found.get("resourceType") == "Binary":
                        self._binaries[str(found.get("id"))] = (f"{file.relative_to(path)}:{number}", found)

    @property
    def unused_binaries(self) -> list[str]:
        return [where for name, (where, _) in self._binaries.items() if name not in self._named]

    def holds(self, where: str) -> bool:
        return any(where == place for place, _ in self._binaries.values())

    def content(self, attachment: dict[str, Any]) -> tuple[str, bytes]:
        """Content type and bytes of an attachment. Raises Unreadable."""
        kind = str(attachment.get("contentType") or "")
        if attachment.get("data"):
            return kind, _decoded(attachment["data"])
        if not (url := str(attachment.get("url") or "")):
            raise Unreadable("its attachment has neither data nor an address")
        if (found := _BINARY.search(url)) and found[1] in self._binaries:
            binary = self._binaries[found[1]][1]
            content = _decoded(binary.get("data") or "")
            self._named.add(found[1])
            return kind or str(binary.get("contentType") or ""), content
        root = self.path.resolve()
        for name in (unquote(url), unquote(url) + ".gz"):
            try:
                file = (root / name).resolve()
                if file.is_relative_to(root) and file.is_file():
                    self.used.add(self.path / file.relative_to(root))
                    return kind, b"".join(gzip_lines(file)) if file.suffix == ".gz" else file.read_bytes()
            except (OSError, ValueError):  # a name with a zero byte, or a longer one than there can be
                raise Unreadable("its attachment's file cannot be read") from None
        raise Unreadable("its attachment is not in the folder")


def _row(resource: Any, declared: Declared, folder: _Folder, where: str, skip: Skip) -> dict[str, Any] | None:
    kind = resource.get("resourceType") if isinstance(resource, dict) else None
    if kind == "Binary" and folder.holds(where):
        return None  # read with the document that names it, or named at the end
    reason, text = "", ""
    patient = _patient(resource.get("subject")) if isinstance(resource, dict) else ""
    if kind not in DOCUMENTS:
        reason = f"{printable(str(kind), 40)} is no kind of document that is read"
    elif resource.get("status") in NOT_VALID:
        reason = f"its status is {resource['status']}"
    elif not patient:
        reason = "its subject is no patient"
    else:
        try:
            text = _text(resource, folder)
        except Unreadable as error:
            reason = str(error)
    if reason:
        skip(where, reason, "lost" if kind in DOCUMENTS else "resource")
        return None
    row = {
        "text": text,
        "patient": patient,
        "type": value_at(resource, [("type" if kind == "DocumentReference" else "code"), "coding", "code"]),
        "category": value_at(resource, ["category", "coding", "code"]),
        "date": _date(resource),
        "id": resource.get("id"),
        "resource": kind,
    }
    for column in declared.columns:
        if column not in row and (found := _value(resource, column)) is not None and not isinstance(found, dict | list):
            row[column] = found
    label = declared.label_field
    if label and row.get(label) is None and "" not in declared.label_map:
        skip(where, f"it has no {printable(label, 80)}")
        return None
    return {**dict.fromkeys(declared.columns), **row}


def _value(resource: dict[str, Any], column: str) -> Any:
    element, bar, system = column.partition("|")
    if element == "type" and resource["resourceType"] == "DiagnosticReport":
        element = "code"  # which is what a report calls its type
    found = value_at(resource, element.split("."))
    if not bar:
        return None if isinstance(found, (dict, list)) else found
    concepts = found if isinstance(found, list) else [found]
    codings = [coding for each in _objects(concepts) for coding in _objects(each.get("coding"))]
    return next((each.get("code") for each in codings if each.get("system") == system), None)


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; [] for anything else, for an export may hold any JSON in any place."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _patient(subject: Any) -> str:
    if found := _PATIENT.search(str(value_at(subject, ["reference"]) or "")):
        return found[1] or found[2]
    kind = value_at(subject, ["type"])
    return str(value_at(subject, ["identifier", "value"]) or "") if kind in (None, "Patient") else ""


def _date(resource: dict[str, Any]) -> Any:
    paths = ("date", "context.period.start", "effectiveDateTime", "effectivePeriod.start", "issued")
    return next((found for path in paths if (found := value_at(resource, path.split("."))) is not None), None)


def _text(resource: dict[str, Any], folder: _Folder) -> str:
    """Text of the first attachment that can be read; several of one document are forms of the same. Raises Unreadable.

    A report without a form that can be read is its conclusion.
    """
    reasons: list[str] = []
    if resource["resourceType"] == "DocumentReference":
        attachments = _objects([each.get("attachment") for each in _objects(resource.get("content"))])
    else:
        attachments = _objects(resource.get("presentedForm"))
    for attachment in attachments:
        try:
            text = _plain(*folder.content(attachment))
        except Unreadable as error:
            reasons.append(str(error))
            continue
        if text.strip():
            return text
        reasons.append("its attachment has no text")
    conclusion = resource.get("conclusion")
    if isinstance(conclusion, str) and conclusion.strip():
        return conclusion
    raise Unreadable(reasons[0] if reasons else "it has no attachment")


def _plain(kind: str, content: bytes) -> str:
    name, _, parameters = kind.partition(";")
    name = name.strip().lower()
    charset = _CHARSET.search(parameters[:1024])
    named = charset[1] if charset else ""
    if name == "text/plain":
        return _characters(content, named)
    if name in ("text/html", "application/xhtml+xml"):
        stated = _CHARSET.search(content[:1024].decode("ascii", "replace"))
        return _html(_characters(content, named or (stated[1] if stated else "")))
    if name in ("text/rtf", "application/rtf"):
        return _rtf(content)
    raise Unreadable(f"{printable(name, 60)} is not read" if name else "its attachment states no content type")


def _characters(content: bytes, charset: str) -> str:
    try:
        if codecs.lookup(charset or "utf-8-sig").name in _NO_CHARSETS:
            raise LookupError
        return content.decode(charset or "utf-8-sig")
    except (UnicodeError, LookupError):
        raise Unreadable("its attachment is not in the character set that it states, or in UTF-8") from None


def _decoded(data: Any) -> bytes:
    try:
        return base64.b64decode("".join(str(data).split()), validate=True)
    except (binascii.Error, ValueError):
        raise Unreadable("its attachment is not base64") from None


def _html(text: str) -> str:
    """The text that a browser shows, a block a line. Raises Unreadable where a comment never ends.

    Each step moves on, and no search that failed is made again, so the time is linear: ``html.parser`` took minutes for
    100 kB of tags that never end.
    """
    parts: list[str] = []
    unseen, at, last, tag_of = 0, 0, text.rfind(">"), _TAG

    def show(until: int) -> None:
        if not unseen:
            parts.append(unescape(text[at:until]))

    while 0 <= (start := text.find("<", at)) < last:
        follows = text[start + 1]
        if not (follows in "/!?" or (follows.isascii() and follows.isalpha())):
            show(start + 1)
            at = start + 1
            continue
        show(start)
        at = start
        if text.startswith("<!--", start):
            end = text.find("-->", start + 2)
            if end < 0:
                break
            at = end + 3
            continue
        found = tag_of.match(text, start)
        if found is None and follows not in "!?" and tag_of is _TAG:  # a quote that never ends: none counts any more
            tag_of = _ANY_TAG
            found = tag_of.match(text, start)
        if found is None:  # a declaration, or an end without a name
            at = text.index(">", start) + 1
            continue
        at = found.end()
        tag, ends = found[2].lower(), bool(found[1])
        parts.append("\n" if tag in _BLOCKS else " " if tag in ("td", "th") and not ends else "")
        if tag in _RAW and not ends and text[at - 2] != "/":
            closing = _RAW[tag].search(text, at)
            at = closing.start() if closing else len(text)
        elif tag == "head":
            unseen = max(0, unseen + (-1 if ends else 1))
    if text.find("<!--", at) >= 0:
        raise Unreadable("its HTML has a comment that does not end")
    show(len(text))
    lines = (" ".join(line.split()) for line in "".join(parts).splitlines())
    return "\n".join(line for line in lines if line)


def _rtf(content: bytes) -> str:
    from striprtf.striprtf import rtf_to_text

    if not content.lstrip().startswith(b"{\\rtf"):
        raise Unreadable("its attachment is not RTF")
    try:
        return str(rtf_to_text(content.decode("cp1252", "replace"), errors="replace"))
    except Exception:  # noqa: BLE001 - whatever its parser raises may hold a piece of the document
        raise Unreadable("its RTF cannot be read") from None
