"""The sealed (encrypted) copy of the data set that ``data add`` makes, from which the party answers.

Without the copy, a data file that is edited, cut off or gone would show in the replies or their times. The copy lies in
the party's folder under AES-256-GCM with a key derived from the store key. It is divided into slabs of rows, so that
reading it takes no second copy in memory.
"""

import hmac
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.models.embedding import TextLengths
from undersong_common.program.machine import fault_of
from undersong_common.text.table import Table

MAGIC = b"undersong data set 1\n"
ROWS_A_SLAB = 4096
EMBEDDINGS = "embeddings.sqlite"  # the records' vectors, in the folder of the cache
_NONCE_BYTES = 12
_LENGTH_BYTES = 4
_ID_BYTES = 16
_REMEDY = "add it again: undersong-party data add FILE, with its fields"


@dataclass(frozen=True)
class Facts:
    """The head of a sealed data set, which can be read without decrypting the rows.

    Attributes:
        fingerprint: keyed hash (hex) that names the data set in its ledger.
        checkpoint: file name of the ledger's checkpoint in the user's state folder, a keyed hash of the texts.
        salted: hash (hex) of the salt of the state folder for which ``checkpoint`` was computed.
        rows: number of records.
        embedder: fingerprint of the embedder with which the data set was added.
        long, cut: number of texts that this embedder reads in windows, and of those whose end it does not read.
        read_s: time at which the source was read, seconds since the epoch; 0 in a copy that does not say so.
        left_out: number of rows of the source by the reason for which they were left out.
    """

    fingerprint: str
    checkpoint: str
    salted: str
    rows: int
    embedder: str = ""
    long: int = 0
    cut: int = 0
    read_s: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def lengths(self) -> TextLengths:
        return TextLengths(self.rows, self.long, self.cut)


def seal(home: PartyHome, table: Table, facts: Facts, *, held_out: bool = False) -> None:
    """Writes or replaces the sealed copy of the data set, or of the records held out; it is on the disk on return."""
    snapshot_id = os.urandom(_ID_BYTES)
    slab_starts = range(0, len(table), ROWS_A_SLAB)
    snapshot_head = {
        **asdict(facts),
        "id": snapshot_id.hex(),
        "slabs": len(slab_starts),
        "labels": table.labels is not None,
        "users": table.users is not None,
        "columns": list(table.columns),
    }
    all_columns = (table.texts, table.labels, table.users, *table.columns.values())
    cipher = _cipher(home)
    sealed_parts = [MAGIC, _encrypt_part(cipher, _json(snapshot_head), _associated_data(b"", 0))]
    for slab_number, slab_start in enumerate(slab_starts, start=1):
        columns = [None if column is None else column[slab_start : slab_start + ROWS_A_SLAB] for column in all_columns]
        sealed_parts.append(_encrypt_part(cipher, _json(columns), _associated_data(snapshot_id, slab_number)))
    replace_file(home.held_out if held_out else home.sealed, b"".join(sealed_parts))


def facts(home: PartyHome) -> Facts:
    """Reads the head of the sealed data set. Raises ConfigurationError if it is missing or damaged."""
    snapshot_head = next(_read_parts(home, home.sealed))
    try:
        return Facts(
            **{
                fact_name: snapshot_head[fact_name]
                for fact_name in Facts.__dataclass_fields__
                if fact_name in snapshot_head
            }
        )
    except TypeError:
        raise _damage_error(home) from None


def table(home: PartyHome, *, held_out: bool = False) -> Table:
    """Decrypts the records, or those held out. Raises ConfigurationError if the sealed copy is missing or damaged."""
    opened_parts = _read_parts(home, home.held_out if held_out else home.sealed)
    snapshot_head = next(opened_parts)
    columns: list[list[str]] = [[] for _ in range(3 + len(snapshot_head["columns"]))]
    for slab_columns in opened_parts:
        for column, slab_values in zip(columns, slab_columns, strict=True):
            column += slab_values or ()
    texts, record_labels, users, *further = map(tuple, columns)
    if len(texts) != snapshot_head["rows"]:
        raise _damage_error(home)
    further_columns = dict(zip(snapshot_head["columns"], further, strict=True))
    return Table(
        texts,
        record_labels if snapshot_head["labels"] else None,
        users if snapshot_head["users"] else None,
        further_columns,
    )


def _read_parts(home: PartyHome, sealed_path: Path) -> Iterator[Any]:
    """Yields the head and then each slab, decrypted and verified. Raises ConfigurationError for a damaged copy."""
    from cryptography.exceptions import InvalidTag

    cipher = _cipher(home)
    try:
        with sealed_path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise _damage_error(home)
            snapshot_id = b""
            part_number = 0
            slab_count = 0
            while part_number <= slab_count:
                part_size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                sealed_part = file.read(part_size)
                opened_part = json.loads(
                    cipher.decrypt(
                        sealed_part[:_NONCE_BYTES],
                        sealed_part[_NONCE_BYTES:],
                        _associated_data(snapshot_id, part_number),
                    )
                )
                if part_number == 0:
                    snapshot_id = bytes.fromhex(opened_part["id"])
                    slab_count = int(opened_part["slabs"])
                yield opened_part
                part_number += 1
    except FileNotFoundError:
        raise ConfigurationError(
            f"{sealed_path}: this party holds no sealed data set", _REMEDY, code="no-sealed-data"
        ) from None
    except OSError as error:
        raise fault_of(error, sealed_path) from None
    except (InvalidTag, ValueError, KeyError, TypeError):
        raise _damage_error(home) from None


def _encrypt_part(cipher: Any, plain_bytes: bytes, associated_data: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    sealed_part: bytes = nonce + cipher.encrypt(nonce, plain_bytes, associated_data)
    return len(sealed_part).to_bytes(_LENGTH_BYTES, "little") + sealed_part


def _associated_data(snapshot_id: bytes, part_number: int) -> bytes:
    """Returns a part's associated data, so that a slab of another copy, or in another order, does not decrypt."""
    return MAGIC + snapshot_id + part_number.to_bytes(8, "little")


def _cipher(home: PartyHome) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hmac.digest(keys.secret(home, "store"), b"undersong sealed data set", "sha256"))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _damage_error(home: PartyHome) -> ConfigurationError:
    return ConfigurationError(f"{home.sealed}: the sealed data set is damaged", _REMEDY, code="damaged")
