"""Adds and opens the data set: counts its records, seals a copy, and binds it to its ledger outside the folder too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from undersong_client import keys
from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import PartyHome, make_folder
from undersong_client.records import cautions, snapshot
from undersong_client.records.private import DataSet
from undersong_client.records.snapshot import Facts
from undersong_client.storage import recovery
from undersong_client.storage.checkpoints import (
    RESTORE,
    LedgerCheckpoints,
    beside,
    budget_of,
    check,
    checkpoint_name,
    salted,
)
from undersong_client.storage.recovery import Recovered, Source
from undersong_common.embedding import Embedder, TextLengths
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.ledger import Ledger
from undersong_common.table import UTF_8, Table, read_table, row_count


@dataclass(frozen=True)
class Survey:
    """Counts that ``data add`` prints on the hospital's own screen.

    Attributes:
        rows: of the file.
        empty: rows without text; they take no part.
        duplicates: records whose text another record has too; they count.
        labels: records by label; empty where there is no label column.
        users: distinct user ids, None where there is no user column.
        largest_user: records of the user who has most.
        lengths: how many texts the embedder reads in several windows, or not to their ends.
    """

    rows: int
    empty: int
    records: int
    duplicates: int
    labels: dict[str, int]
    users: int | None
    largest_user: int | None
    lengths: TextLengths


@dataclass(frozen=True)
class Added:
    """A data set that was declared; ``recovered`` where its ledger was put together anew."""

    survey: Survey
    ledger: Ledger
    recovered: Recovered | None = None


def load(home: PartyHome) -> DataSet:
    """The data set as it was added. Raises ConfigurationError where none was, or its sealed copy is damaged."""
    _check_added(home)
    return DataSet(snapshot.table(home), keys.secret(home, "data"))


def changed_since(home: PartyHome) -> str:
    """Returns in words how the file differs from the added data set; empty if it is the same."""
    settings = home.settings
    try:
        fields = (settings.text_field, settings.label_field, settings.user_field, settings.attribute_fields)
        data = _read(home, Path(settings.data), *fields, settings.encoding)
    except ConfigurationError as error:
        return error.problem
    same = data.fingerprint == snapshot.facts(home).fingerprint
    return "" if same else f"{settings.data}: is not what was added any more"


def _check_added(home: PartyHome) -> None:
    if not home.settings.data:
        raise ConfigurationError(
            "no data set was added", "add one: undersong-party data add FILE --text-field NAME --label-field NAME"
        )


def survey(path: Path, table: Table, encoding: str, lengths: TextLengths) -> Survey:
    users = Counter(table.users or ())
    rows = row_count(path, encoding)
    return Survey(
        rows=rows,
        empty=rows - len(table),
        records=len(table),
        duplicates=len(table) - len(set(table.texts)),
        labels=dict(sorted(Counter(table.labels or ()).items())),
        users=len(users) if table.users is not None else None,
        largest_user=max(users.values()) if users else None,
        lengths=lengths,
    )


def add(
    home: PartyHome,
    path: Path,
    *,
    text: str,
    label: str = "",
    user: str = "",
    attributes: Mapping[str, str] = MappingProxyType({}),
    encoding: str = UTF_8,
    policy: HospitalPolicy,
    checkpoints: Path,
    cache: Path | None = None,
    embedder: Embedder | None = None,
    new_version: bool = False,
    source: Source | None = None,
    confirm: Callable[[Sequence[str]], None] = lambda _cautions: None,
    at: float,
) -> Added:
    """Declares a file as this party's data set and seals a copy, which the party answers from; sends nothing.

    Args:
        attributes: columns by the attribute that they stand for.
        checkpoints: the user's folder for heads of ledgers.
        cache: where embeddings are kept, encrypted; None keeps them beside the data.
        embedder: that the data set is bound to; None in tests, which bind it to none and count no long text.
        new_version: the file replaces the present data set; what was spent stays spent.
        source: what its ledger is put together from, where that is missing or older.
        confirm: called with what speaks against this data set, where something does; may refuse.
        at: seconds since the epoch.

    Raises:
        ConfigurationError: the file, a column, or a second data set without ``new_version``.
        PrivacyRefusal: the data set was released from before and its ledger is not here.
    """
    path = path.absolute()
    data = _read(home, path, text, label, user, attributes, encoding)
    if policy.approval == "standing":
        confirm(cautions.of_standing_consent(policy, data.table, user))
    elif not len(data.table):
        confirm([cautions.EMPTY])
    kept = LedgerCheckpoints(home, path, checkpoint_name(data.table, checkpoints), checkpoints)
    heads = kept.read()
    recovered = None
    if source is not None and source.named:
        recovered = recovery.recover(home, kept, data.fingerprint, policy, source, at=at)
        heads = kept.read()
    known = home.ledger.exists()
    model = "" if embedder is None else embedder.fingerprint
    changed = known and bool(home.settings.data) and Ledger.read(home.ledger).fingerprint != data.fingerprint
    with suppress(ConfigurationError):  # there is no sealed copy, or it is damaged
        changed = changed or snapshot.facts(home).embedder not in ("", model)
    if changed and recovered is None and not new_version:
        raise ConfigurationError(
            "another data set, another version of it, or the same with another embedder, was added before",
            "one party has one data set. If this file replaces it, add --new-version: what was spent stays spent",
            code="another-data-set",
        )
    ledger = Ledger.read(home.ledger) if known else None
    check(heads, ledger)
    if ledger is None:
        ledger = Ledger.open(home.ledger, data.fingerprint, budget_of(policy), at=at)
    else:
        ledger.adopt(data.fingerprint, at=at)
    declare(ledger, policy, at=at)
    earlier = None
    with suppress(ConfigurationError):  # the first data set, or a sealed copy that is damaged
        earlier, _ = _checkpoints(home, checkpoints)
    state_folder = salted(checkpoints)
    texts = data.table.texts
    lengths = TextLengths(len(texts), 0, 0) if embedder is None else embedder.lengths(texts)
    facts = Facts(data.fingerprint, kept.name, state_folder, len(texts), model, lengths.long, lengths.cut)
    snapshot.seal(home, data.table, facts)
    place = (cache or beside(path)).absolute()
    if cache is None and (home.settings.insecure_noise_seed is not None or not _writable(place)):
        place = home.path / "cache"
    make_folder(place)
    fields = {"text_field": text, "label_field": label, "user_field": user, "encoding": encoding}
    home.change(data=str(path), **fields, attribute_fields=dict(attributes), cache=str(place))
    kept.keep(ledger)
    if earlier is not None:
        earlier.leave(ledger, kept, budget_of(policy) if policy.has_budget else None)
    return Added(survey(path, data.table, encoding, lengths), ledger, recovered)


def open_ledger(
    home: PartyHome, policy: HospitalPolicy, checkpoints: Path, *, at: float
) -> tuple[Ledger, LedgerCheckpoints]:
    """The data set's ledger, checked against its checkpoints, with the policy's budget declared. Reads no record.

    Raises:
        ConfigurationError: no data set was added.
        PrivacyRefusal: the ledger is missing, too old, broken, or of another version of the data.
    """
    kept, fingerprint = _checkpoints(home, checkpoints)
    if not home.ledger.exists():
        raise PrivacyRefusal(f"{home.ledger}: the data set's ledger is missing", RESTORE, code="ledger-missing")
    ledger = Ledger.read(home.ledger)
    check(kept.read(), ledger)
    if ledger.fingerprint != fingerprint:
        raise PrivacyRefusal(
            f"{home.sealed}: is another version of the data set than its ledger names",
            "declare the one that counts: undersong-party data add FILE, with --new-version if it differs",
        )
    declare(ledger, policy, at=at)
    kept.keep(ledger)
    return ledger, kept


def restore_ledger(
    home: PartyHome, policy: HospitalPolicy, checkpoints: Path, source: Source, *, at: float
) -> Recovered:
    """Puts the ledger of the data set that was added together anew; see ``storage.recovery.recover``."""
    kept, name = _checkpoints(home, checkpoints)
    recovered = recovery.recover(home, kept, name, policy, source, at=at)
    recovered.ledger.adopt(name, at=at)
    declare(recovered.ledger, policy, at=at)
    kept.keep(recovered.ledger)
    return recovered


def declare(ledger: Ledger, policy: HospitalPolicy, *, at: float) -> None:
    """The policy's budget becomes the ledger's, where they differ."""
    if ledger.budget != budget_of(policy):
        ledger.declare(budget_of(policy), at=at)


def _checkpoints(home: PartyHome, checkpoints: Path) -> tuple[LedgerCheckpoints, str]:
    """Returns the checkpoints of the added data set's ledger, and the data set's fingerprint."""
    _check_added(home)
    facts = snapshot.facts(home)
    name = facts.checkpoint
    if facts.salted != salted(checkpoints):  # the user's state folder is another one than at `data add`
        name = checkpoint_name(snapshot.table(home), checkpoints)
    return LedgerCheckpoints(home, Path(home.settings.data), name, checkpoints), facts.fingerprint


def _read(
    home: PartyHome, path: Path, text: str, label: str, user: str, attributes: Mapping[str, str], encoding: str
) -> DataSet:
    table = read_table(path, text, label or None, user or None, columns=attributes, skip_empty=True, encoding=encoding)
    return DataSet(table, keys.secret(home, "data"))


def _writable(folder: Path) -> bool:
    try:
        make_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
