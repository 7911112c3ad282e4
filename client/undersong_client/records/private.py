"""A party's private records, limited per privacy unit and embedded on demand. ``repr`` never shows them."""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from undersong_common.models.embedding import Embed
from undersong_common.text.patient_ids import clean_text
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy


@dataclass(frozen=True, repr=False)
class DataSet:
    """A party's table of records and the secret key (32 bytes) for keyed hashes of them; ``repr`` shows neither."""

    table: Table
    key: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.table, self.key)


class PrivateRecords:
    """The records that take part in a run, as statistics read them (undersong_protocol.statistics.RecordView).

    A unit keeps at most ``max_per_unit`` records, chosen by a keyed hash of their content. So the choice is stable and
    secret, and depends on that unit alone. The party keeps all its units: if some were dropped to reach a total, one
    more unit would displace another, and neighbouring data sets would differ in two units.

    No record raises an error. A label that the task does not list counts as no label. If users are protected, a record
    without user id takes no part. ``records.cautions`` warns the party's people of both.

    Args:
        table: the party's records.
        label_names: the task's labels; a record without a label among them has label -1.
        privacy: the run's privacy guarantee, with unit and cap.
        key: secret key of this data set, 32 bytes.
        embed: returns quantised unit embeddings of texts, float32 [n, d]; called once, when first needed.
        local_model: returns the model for fine-tuning that the party's settings name now.

    Attributes:
        texts: the records' texts, in order.
        columns: further columns by the attribute that they stand for; "" for a missing value.
        labels: indices into the task's labels, int64 [M]; -1 for no label.
        units: the privacy unit of each record, int64 [M] in [0, unit_count).
    """

    def __init__(
        self,
        table: Table,
        label_names: Sequence[str],
        privacy: Privacy,
        *,
        key: bytes,
        embed: Embed,
        local_model: Callable[[], str] = lambda: "",
    ) -> None:
        table = table.take(_capped(table, privacy, key))
        self.texts = table.texts
        self.columns = table.columns
        self.labels = _label_indices(table, label_names)
        self._labelled = table.labels is not None and bool(label_names)
        self.units = _units(table, privacy)
        self._compute_unit_hashes = partial(_unit_hashes, table, privacy, key)
        self._embed = embed
        self._local_model = local_model

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def unit_hashes(self) -> npt.NDArray[np.uint64]:
        """Keyed hash of each record's unit, uint64 [M]; it does not depend on other units."""
        return self._compute_unit_hashes()

    @property
    def local_model(self) -> str:
        """The party's local model for fine-tuning: "packaged", a folder, or "" for no model."""
        return self._local_model()

    @property
    def unit_count(self) -> int:
        if len(self.units):
            return int(self.units.max()) + 1
        return 0

    @property
    def unlisted_labels(self) -> int:
        """Number of records whose label the task does not list, for the party's own people."""
        if self._labelled:
            return int((self.labels < 0).sum())
        return 0

    @cached_property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """Quantised unit embeddings, float32 [M, d]."""
        return self._embed(self.texts)


def hold_out(table: Table, key: bytes, percent: int) -> tuple[Table, Table]:
    """Divides records into those that stay and ``percent`` per cent that are held out.

    A keyed hash of each patient, or of each text without patient ids, decides, so that a patient stays on one side in
    every version of the data set.
    """
    hold_out_key = hmac.digest(key, b"undersong hold out", "sha256")
    unit_names = table.users or table.texts
    unit_digests = (
        hmac.digest(hold_out_key, unit_name.encode("utf-8", "surrogatepass"), "sha256") for unit_name in unit_names
    )
    is_held_out = np.array(
        [int.from_bytes(digest[:4], "big") * 100 < percent * 2**32 for digest in unit_digests], dtype=bool
    )
    return table.take(np.flatnonzero(~is_held_out).tolist()), table.take(np.flatnonzero(is_held_out).tolist())


def unit_count(table: Table, unit: str) -> int:
    """Counts the privacy units: records for "sample", user ids for "user" (0 without any), 1 for "party"."""
    if unit == "user":
        return len(set(table.users or ()))
    if unit == "sample":
        return len(table)
    return 1


def fingerprint(table: Table, key: bytes) -> str:
    """Returns a keyed hash (hex) of a data set's rows in order, which names the data set in its ledger."""
    rows_hash = hmac.new(key, digestmod=hashlib.sha256)
    named_columns = [
        column_part for column_name, column in sorted(table.columns.items()) for column_part in ((column_name,), column)
    ]
    for column in (table.texts, table.labels or (), table.users or (), *named_columns):
        rows_hash.update(len(column).to_bytes(8, "little"))
        for column_value in column:
            encoded_value = column_value.encode("utf-8", "surrogatepass")
            rows_hash.update(len(encoded_value).to_bytes(8, "little") + encoded_value)
    return rows_hash.hexdigest()


def _capped(table: Table, privacy: Privacy, key: bytes) -> list[int]:
    if privacy.unit == "sample":
        return list(range(len(table)))
    if privacy.unit == "user" and table.users is None:
        return []  # a cap on a user's records cannot be kept where nobody knows whose they are
    ranks = [_rank(table, row_number, key) for row_number in range(len(table))]
    unit_numbers = _units(table, privacy)
    unit_counts: dict[int, int] = {}
    capped_rows = []
    for row_number in sorted(range(len(table)), key=ranks.__getitem__):
        unit_number = int(unit_numbers[row_number])
        unit_counts[unit_number] = unit_counts.get(unit_number, 0) + 1
        if unit_counts[unit_number] <= privacy.max_per_unit:
            capped_rows.append(row_number)
    return sorted(capped_rows)


def _rank(table: Table, row_number: int, key: bytes) -> bytes:
    # The row number only tells equal records apart.
    rank_parts = (
        table.texts[row_number],
        table.labels[row_number] if table.labels else "",
        table.users[row_number] if table.users else "",
    )
    message = "\0".join(rank_parts).encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, "sha256") + row_number.to_bytes(8, "big")


def _units(table: Table, privacy: Privacy) -> npt.NDArray[np.int64]:
    if privacy.unit == "party":
        return np.zeros(len(table), dtype=np.int64)
    if privacy.unit == "sample":
        return np.arange(len(table), dtype=np.int64)
    number_by_unit: dict[str, int] = {}
    return np.array(
        [number_by_unit.setdefault(user, len(number_by_unit)) for user in table.users or ()], dtype=np.int64
    )


def _unit_hashes(table: Table, privacy: Privacy, key: bytes) -> npt.NDArray[np.uint64]:
    if privacy.unit == "party":
        return np.zeros(len(table), dtype=np.uint64)
    hash_key = hmac.digest(key, b"undersong unit hashes", "sha256")
    if privacy.unit == "user" and table.users is not None:
        unit_names: Sequence[str] = table.users
    else:  # equal samples share a hash: a row number would change when earlier rows are removed
        columns = (table.texts, table.labels or ("",) * len(table), *table.columns.values())
        unit_names = [repr(column_values) for column_values in zip(*columns, strict=True)]
    name_digests = (
        hmac.digest(hash_key, unit_name.encode("utf-8", "surrogatepass"), "sha256") for unit_name in unit_names
    )
    return np.frombuffer(b"".join(digest[:8] for digest in name_digests), dtype="<u8").astype(np.uint64)


def _label_indices(table: Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    if table.labels is None or not names:
        return np.full(len(table), -1, dtype=np.int64)
    index_by_label = {clean_text(label_name): label_index for label_index, label_name in enumerate(names)}
    return np.array([index_by_label.get(label, -1) for label in table.labels], dtype=np.int64)
