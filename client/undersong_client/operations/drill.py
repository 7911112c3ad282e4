"""A rehearsal's party: a folder of its own, keys of its own, records that this program invents. All else is real."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

from undersong_client.home import PartyHome, make_folder
from undersong_client.operations import data, joining, rules
from undersong_common import drill
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file

RECORDS = 120
EPSILON, DELTA = 8.0, 1e-4  # of the throw-away budget


def create(home: Path, name: str, *, checkpoints: Path, records: int = RECORDS) -> PartyHome:
    """Makes the folder of a drill: keys, invented records as its data set, and a budget to spend.

    Args:
        checkpoints: the user's folder for heads of ledgers.

    Raises ConfigurationError for an invalid name, or where the folder holds anything.
    """
    made = joining.create(home, name, drill=True)
    file = made.drill_records
    make_folder(file.parent)
    lines = (
        json.dumps({"text": record.text, "label": record.label, "keeper": record.person})
        for record in drill.invented(records, random.SystemRandom())
    )
    written = "".join(f"{line}\n" for line in lines).encode("utf-8")
    replace_file(file, written)
    made.change(drill_sha256=hashlib.sha256(written).hexdigest())
    data.add(home, file, text="text", label="label", user="keeper", checkpoints=checkpoints)
    rules.set_budget(home, epsilon=EPSILON, delta=DELTA)
    return made


def remove(home: Path) -> None:
    """Removes the folder of a drill with everything in it.

    Raises ConfigurationError for a folder that is no drill's, or whose daemon runs; for one that holds another data
    set than invented records too, whatever its settings say.
    """
    opened = PartyHome(home)
    settings = opened.settings
    if not settings.drill or (settings.data and not data.invented(opened, opened.drill_records)):
        raise ConfigurationError(
            f"{home}: is no drill's", "nothing was removed; a real party's folder is yours to keep"
        )
    with opened.running():
        shutil.rmtree(opened.path)
