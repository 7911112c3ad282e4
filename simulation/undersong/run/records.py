"""The private records of a simulation's parties: one file that is dealt, or one file per party.

A file is dealt unit by unit: no unit's party depends on another unit. Whoever adds or removes a unit moves no other
one, so the opened sums of two neighbouring files differ by that unit's own contribution (docs/privacy.md). The same
holds for the units that a smaller file keeps.
"""

import hmac
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from undersong_client.records.private import unit_count
from undersong_common.arrays import Float64
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable, repeated
from undersong_common.text.table import Table, concatenate
from undersong_protocol.agreement.plan import Privacy
from undersong_server.operations.tasks import read_private_files
from undersong_server.runs.task import Task


def private_tables(task: Task, seed: int) -> dict[str, Table]:
    """Reads each party's records, by its name. Raises ConfigurationError that names the file and row at fault."""
    return dealt(task, read_private_files(task), seed)


def dealt(task: Task, tables: Sequence[Table], seed: int) -> dict[str, Table]:
    """Returns each party's records by its name: one of ``tables`` per party, or all records dealt to the parties."""
    if task.one_file_per_party:
        party_names = [path.stem for path in task.files]
        if repeated_names := repeated(party_names):
            raise ConfigurationError(
                f"two files of data.path have the same name, {printable(repeated_names[0])}",
                "rename one: a party is named after its file",
            )
        return dict(zip(party_names, tables, strict=True))
    all_records = concatenate(tables)
    if task.data.records is not None and task.data.file_records is not None:
        all_records = subsample(all_records, task.data.records / task.data.file_records, seed)
    if task.data.curated:
        rows_by_party = curated(all_records, task, seed)
    else:
        rows_by_party = deal(all_records, task.parties, task.federation.alpha, seed, unit=task.privacy.unit)
    digit_count = len(str(task.parties))
    return {
        f"party-{party_number + 1:0{digit_count}}": all_records.take(row_numbers)
        for party_number, row_numbers in enumerate(rows_by_party)
    }


def curated(table: Table, task: Task, seed: int) -> list[list[int]]:
    """Deals rows as one curator would, who removes repeated records and divides a shuffle; returns rows per party.

    A record more or less moves others across every cut, so raises ConfigurationError for a task that promises privacy.
    """
    if math.isfinite(task.privacy.epsilon):
        raise ConfigurationError(
            "data.curated is set for a private run, and with it a record's party depends on all other records",
            "set privacy.epsilon = inf, or leave data.curated out",
            code="not-private",
        )
    record_labels = table.labels or ("",) * len(table)
    first_row_numbers: dict[tuple[str, str], int] = {}
    for row_number, key in enumerate(zip(table.texts, record_labels, strict=True)):
        first_row_numbers.setdefault(key, row_number)
    record_order = np.random.default_rng([seed, 0x50E6]).permutation(list(first_row_numbers.values()))
    return [sorted(part.tolist()) for part in np.array_split(record_order, task.parties)]


def check_units(privacy: Privacy, tables: Mapping[str, Table]) -> None:
    """Raises ConfigurationError if a party's number of privacy units times delta is not below 1, in a private run.

    A real hospital only warns its own people (``records.cautions``), because a reply must not depend on the records.
    Here one owner holds all records.
    """
    for name, table in tables.items():
        unit_total = unit_count(table, privacy.unit)
        if privacy.unit != "party" and math.isfinite(privacy.epsilon) and privacy.delta * unit_total >= 1:
            raise ConfigurationError(
                f"privacy.delta {privacy.delta:g} is not below 1 / {unit_total}, one over the privacy units of {name}",
                "choose a smaller privacy.delta",
                code="delta-too-large",
            )


def deal(table: Table, party_count: int, alpha: float, seed: int, *, unit: str) -> list[list[int]]:
    """Deals rows to parties: row numbers of each, sorted. Every row goes to exactly one party; a party may get no row.

    A label's shares are drawn from Dirichlet(alpha) over the parties (Hsu, Qi, Brown 2019; Yurochkin et al. 2019), by
    ``seed`` and the label alone; ``alpha`` inf gives every party the same share. A record's party is then drawn from
    the shares of its label by a hash of its user id, or of its text and label where there are no users, keyed by
    ``seed``; equal records go together. Deviation from those papers: they divide a shuffle of each label's rows, where
    one row less moves others across every cut.

    Args:
        unit: "sample" draws by each record's own label. Else a user's records go together, by the label that most of
            them have (the first in alphabetical order of several).
    """
    record_labels = table.labels or ("",) * len(table)
    if unit != "sample" and table.users is not None:
        record_labels = _find_main_labels(table.users, record_labels)
    unit_positions = _unit_positions(table, tagged_hash("units dealt to parties", str(seed).encode()))
    cumulative_shares = {
        label: np.cumsum(_deal_shares(label, party_count, alpha, seed)) for label in set(record_labels)
    }
    rows_by_party: list[list[int]] = [[] for _ in range(party_count)]
    for row_number, label in enumerate(record_labels):
        # Rounding may leave the last cumulative share a little below 1.
        party_index = min(
            int(np.searchsorted(cumulative_shares[label], unit_positions[row_number], side="right")), party_count - 1
        )
        rows_by_party[party_index].append(row_number)
    return rows_by_party


def subsample(table: Table, rate: float, seed: int) -> Table:
    """Keeps the records whose own keyed hash, as a number in [0, 1), is below ``rate``; of a user all or none.

    ``rate`` must not come from the file: one unit more would lower everybody's.
    """
    unit_draws = _unit_positions(table, tagged_hash("units of a smaller file", str(seed).encode()))
    return table.take(np.flatnonzero(unit_draws < rate).tolist())


def _deal_shares(label: str, party_count: int, alpha: float, seed: int) -> Float64:
    if math.isinf(alpha):
        return np.full(party_count, 1.0 / party_count)
    digest = tagged_hash("shares of a label", str(seed).encode(), label.encode("utf-8", "surrogatepass"))
    return np.random.default_rng(np.frombuffer(digest, dtype="<u4")).dirichlet(np.full(party_count, alpha))


def _find_main_labels(users: tuple[str, ...], labels: tuple[str, ...]) -> tuple[str, ...]:
    labels_of_user: dict[str, Counter[str]] = {}
    for user, label in zip(users, labels, strict=True):
        labels_of_user.setdefault(user, Counter())[label] += 1
    main_labels = {
        user: min(label_counts, key=lambda label: (-label_counts[label], label))
        for user, label_counts in labels_of_user.items()
    }
    return tuple(main_labels[user] for user in users)


def _unit_positions(table: Table, key: bytes) -> Float64:
    """Returns a number in [0, 1) for each row, float64 [M]: equal for all records of a user, and for equal records."""
    if table.users is not None:
        unit_names = [user.encode("utf-8", "surrogatepass") for user in table.users]
    else:
        record_labels = table.labels or ("",) * len(table)
        unit_names = [
            f"{len(label)} {label}{text}".encode("utf-8", "surrogatepass")
            for label, text in zip(record_labels, table.texts, strict=True)
        ]
    unit_digests = b"".join(hmac.digest(key, name, "sha256")[:8] for name in unit_names)
    return (np.frombuffer(unit_digests, dtype="<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53
