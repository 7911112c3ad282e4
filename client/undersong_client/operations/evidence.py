"""One file with the evidence of a party: decisions, sheets as signed, dossiers, hashes of the outbox, the log.

It holds no secret, no record and no part of the ledger, and is signed by the party's key. What it brings back is shown,
and a refusal counts again. It consents to nothing: an approval may have been withdrawn after the file was saved.
"""

import hashlib
import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from undersong_client import keys
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome, read_input
from undersong_client.operations import dossier, joining
from undersong_client.storage.outbox import Entry, Outbox
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.files import replace_file
from undersong_common.pages.store import FILE_NAME, AuditLog

TAG = "undersong evidence 1"
INDEX, OUTBOX, LOG, REQUESTS, DOSSIERS = "evidence.json", "outbox.json", "log.jsonl", "requests/", "dossiers/"
REQUEST_NAME = re.compile(r"requests/[0-9a-f]{64}\.(json|manifest|sheet)")
LARGEST_BYTES = 2**30  # the limit holds for the file, and for its unpacked contents


@dataclass(frozen=True)
class RestoredCounts:
    """Numbers of what a saved file has brought back."""

    requests: int
    messages: int
    log_entries: int


def save(home: Path, *, format_local_time: Callable[[float], str]) -> bytes:
    """Returns the evidence of this party as one ZIP file. Raises PrivacyRefusal if the log was changed.

    Args:
        format_local_time: writes seconds since the epoch in words, for the dossiers.
    """
    party_home = PartyHome(home)
    now_s = time.time()
    page_log = AuditLog(party_home.page / FILE_NAME)
    page_log.entries()  # checks the chain before anybody relies on the copy
    files = {
        OUTBOX: json.dumps([asdict(outbox_entry) for outbox_entry in Outbox(party_home).entries()], indent=1).encode(),
        LOG: page_log.saved(),
        **{
            f"{REQUESTS}{file_name}": file_bytes
            for file_name, file_bytes in Proposals(party_home).saved_files().items()
        },
        **dict(_dossiers(party_home, now_s, format_local_time)),
    }
    evidence_index = {
        "party": party_home.settings.party,
        "fingerprint": joining.own_fingerprint(party_home),
        "saved_s": now_s,
        "files": {file_name: hashlib.sha256(file_bytes).hexdigest() for file_name, file_bytes in files.items()},
    }
    signature = keys.identity(party_home).sign(tagged_hash(TAG, canonical_json(evidence_index))).hex()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INDEX, json.dumps({**evidence_index, "signature": signature}, indent=1))
        for file_name, file_bytes in files.items():
            archive.writestr(file_name, file_bytes)
    return buffer.getvalue()


def save_file(home: Path, file: Path, *, format_local_time: Callable[[float], str]) -> None:
    """Writes the evidence to ``file``. Raises ConfigurationError if that file exists already."""
    if file.exists():
        raise ConfigurationError(f"{file}: exists already", "name another file", code="file-exists")
    replace_file(file, save(home, format_local_time=format_local_time))


def _dossiers(home: PartyHome, at: float, format_local_time: Callable[[float], str]) -> Iterator[tuple[str, bytes]]:
    for decided_proposal in Proposals(home).all():
        if decided_proposal.people or decided_proposal.decided_s:
            with suppress(UndersongError):  # The plan may not be stored any more. Its decision is saved.
                page = dossier.dossier(
                    home.path, decided_proposal.manifest, audit=None, format_local_time=format_local_time
                )
                yield f"{DOSSIERS}{decided_proposal.manifest}.html", page.html(at=format_local_time(at)).encode()


def restore(home: Path, file: Path) -> RestoredCounts:
    """Brings back what a saved file holds and this folder lacks. What is here stays as it is.

    Raises:
        ConfigurationError: the file is damaged or is no evidence, or another party's key has signed it.
        PrivacyRefusal: its log was changed.
    """
    party_home = PartyHome(home)
    files = _read_signed_files(party_home, file)
    requests = {
        file_name.removeprefix(REQUESTS): file_bytes
        for file_name, file_bytes in files.items()
        if REQUEST_NAME.fullmatch(file_name)
    }
    outbox_entries = [Entry(**outbox_entry_json) for outbox_entry_json in json.loads(files[OUTBOX])]
    page_log = AuditLog(party_home.page / FILE_NAME)
    log_entries = page_log.bring_back(files[LOG])  # The log comes first, because this refuses a changed one.
    restored_counts = RestoredCounts(
        Proposals(party_home).bring_back(requests, at=time.time()),
        Outbox(party_home).bring_back(outbox_entries),
        log_entries,
    )
    if restored_counts != RestoredCounts(0, 0, 0):
        page_log.note(
            "terminal", "evidence restored", f"{restored_counts.requests} requests, {restored_counts.messages} messages"
        )
    return restored_counts


def _read_signed_files(home: PartyHome, file: Path) -> dict[str, bytes]:
    """Reads the files of the archive, after checking that this party's key has signed their hashes."""
    archive_bytes = read_input(file, LARGEST_BYTES)
    damaged_archive = ConfigurationError(
        f"{file}: is damaged, or was not written by `undersong-party evidence`",
        "take another copy of the file",
        code="no-evidence",
    )
    try:
        with zipfile.ZipFile(io.BytesIO(archive_bytes)) as archive:
            if sum(archive_member.file_size for archive_member in archive.infolist()) > LARGEST_BYTES:
                raise damaged_archive
            files = {file_name: archive.read(file_name) for file_name in archive.namelist()}
        evidence_index: Mapping[str, Any] = json.loads(files.pop(INDEX))
        signed_index = {
            index_key: index_value for index_key, index_value in evidence_index.items() if index_key != "signature"
        }
        hashes = {file_name: hashlib.sha256(file_bytes).hexdigest() for file_name, file_bytes in files.items()}
        is_complete = evidence_index["files"] == hashes and {OUTBOX, LOG} <= files.keys()
        signature = bytes.fromhex(evidence_index["signature"])
        index_hash = tagged_hash(TAG, canonical_json(signed_index))
        party = str(evidence_index["party"])
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError, EOFError):
        raise damaged_archive from None
    if not is_complete:
        raise damaged_archive
    try:
        keys.identity(home).public_key().verify(signature, index_hash)
    except InvalidSignature:
        raise ConfigurationError(
            f"{file}: is not signed by the key of this folder",
            "put back the keys of the party that saved it first (keys/ of the backup)"
            if party == home.settings.party
            else "restore it in the folder of the party that saved it",
            code="other-key",
        ) from None
    return files
