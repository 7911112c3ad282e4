"""The private records of a simulation's parties: one file that is dealt, or one file per party."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from undersong.partition import deal, subsample
from undersong_client.records.private import unit_count
from undersong_common.errors import ConfigurationError
from undersong_common.table import Table
from undersong_protocol.agreement.plan import Privacy
from undersong_server.runs.tables import read_private_files
from undersong_server.runs.task import Task


def private_tables(task: Task, seed: int) -> dict[str, Table]:
    """Each party's records by its name, read now. Raises ConfigurationError that names file and row."""
    return dealt(task, read_private_files(task), seed)


def dealt(task: Task, tables: Sequence[Table], seed: int) -> dict[str, Table]:
    """The records of each party by its name, as ``read_private_files`` gave them: a file each, or one dealt."""
    if task.one_file_per_party:
        names = [path.stem for path in task.files]
        if len(set(names)) != len(names):
            raise ConfigurationError("two files of data.path have the same name", "a party is named after its file")
        return dict(zip(names, tables, strict=True))
    table = tables[0]
    if task.data.records is not None and task.data.file_records is not None:
        table = subsample(table, task.data.records / task.data.file_records, seed)
    rows_of = deal(table, task.parties, task.federation.alpha, seed, unit=task.privacy.unit)
    digits = len(str(task.parties))
    return {f"party-{number + 1:0{digits}}": table.take(rows) for number, rows in enumerate(rows_of)}


def check_units(privacy: Privacy, tables: Mapping[str, Table]) -> None:
    """Raises ConfigurationError if delta is not below one over the number of privacy units of a party.

    A real hospital only warns its own people (``records.cautions``), because a reply must not depend on the records.
    Here one owner holds all records.
    """
    for name, table in tables.items():
        units = unit_count(table, privacy.unit)
        if privacy.unit != "party" and math.isfinite(privacy.epsilon) and privacy.delta * units >= 1:
            raise ConfigurationError(
                f"privacy.delta {privacy.delta:g} is not below 1 / {units}, one over the privacy units of {name}",
                "choose a smaller privacy.delta",
            )
