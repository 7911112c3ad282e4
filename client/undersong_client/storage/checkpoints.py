"""Keeps the heads of a data set's ledger twice outside the party's folder: beside the data and in the state folder.

Whoever deletes the party's folder, or restores an old copy of it, must not get a fresh budget. A ledger that does not
contain these heads is missing or too old; :mod:`undersong_client.storage.recovery` says how it goes on.

The files are ``mark.json`` beside the data, and one in the state folder, named by the set of the data set's texts. So a
copied or renamed file is known, also with its rows in another order, other spacing or other columns; a file with one
text more, less or changed is not. Each is replaced as a whole: a crash leaves the one before.
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import FILE_MODE, PartyHome, make_folder, read_json
from undersong_client.records.private import fingerprint
from undersong_common.errors import PrivacyRefusal
from undersong_common.files import replace_where_possible
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget, Statement
from undersong_common.table import Table

RESTORE = (
    "put a backup back: undersong-party restore-ledger BACKUP (in a new folder: undersong-party data add FILE"
    " --restore-ledger BACKUP); without one, --charge-missing instead of BACKUP counts as spent all that may be missing"
)
UNSET_EPSILON = 1e-12
_START = "0" * 64


@dataclass(frozen=True)
class Spending:
    """Spent and remaining epsilon at one delta. ``budget`` and ``left`` are None if no budget is set; inf: no limit."""

    delta: float
    spent: float
    budget: float | None
    left: float | None

    @classmethod
    def of(cls, ledger: Ledger, delta: float | None = None) -> "Spending":
        """At ``delta``; None: at that of the ledger's budget."""
        budget = ledger.budget
        delta = delta or (1e-5 if budget is None else budget.delta)
        spent = ledger.spent(delta)
        if budget is None or not is_set(budget):
            return cls(delta, spent, None, None)
        return cls(delta, spent, budget.epsilon, max(0.0, budget.epsilon - spent))


def beside(path: Path) -> Path:
    """The folder beside a data file for its mark and its encrypted embeddings."""
    return path.parent / f".{path.name}.undersong"


class LedgerCheckpoints:
    """The heads of a data set's ledger that are kept outside the party's folder.

    ``former`` is the name that 0.2.0 gave the file in the state folder; it is read and never written.
    """

    def __init__(self, home: PartyHome, path: Path, name: str, checkpoints: Path, former: str = "") -> None:
        self.name = name
        self._home = home
        # A test's reproducible party has no privacy that a checkpoint could protect.
        tested = home.settings.insecure_noise_seed is not None
        self._paths = [] if tested else [beside(path) / "mark.json", checkpoints / f"{name}.json"]
        self._former = [] if tested or not former else [checkpoints / f"{former}.json"]
        self._last = ""

    def read(self) -> list[str]:
        """Heads of the ledger at releases; before the first there is nothing that a lost ledger could hide."""
        return [str(mark.get("ledger_head", "")) for mark in self._marks() if mark.get("released", True)]

    def statements(self) -> list[Statement]:
        """The ledger's statements that the checkpoint files hold."""
        found = []
        for mark in self._marks():
            with suppress(ValueError, KeyError, TypeError):
                found.append(Statement.from_json(mark))
        return found

    def _marks(self) -> list[dict[str, Any]]:
        return [mark for path in (*self._paths, *self._former) if path.exists() for mark in _marks(path)]

    def keep(self, ledger: Ledger) -> None:
        """Writes the present head; before a reply leaves. Raises PrivacyRefusal if no path can be written."""
        if not self._paths or ledger.head == self._last:
            return
        with ledger.locked():  # whoever writes holds the newest head
            said = ledger.statement()
            for path in self._paths:
                with suppress(OSError):
                    if not path.parent.exists():
                        make_folder(path.parent)
            # One is enough: the data folder may be mounted read-only.
            if not replace_where_possible(self._paths, self._mark(said)):
                raise PrivacyRefusal(
                    f"the ledger's head cannot be kept outside {self._home.path}",
                    f"make {self._paths[0].parent} or {self._paths[1].parent} writable, and look at the free space",
                    code="no-checkpoint",
                )
            self._last = said.head

    def leave(self, ledger: Ledger, newer: "LedgerCheckpoints", whole: Budget | None) -> None:
        """The data set has a newer version, with checkpoints of its own, and these are not kept up any more.

        What is released from the newer version is not seen here. So whoever adds the old file anew, without the ledger,
        finds the whole budget (``whole``; None: more than any) spent.
        """
        said = ledger.statement()
        data = self._mark(replace(said, lost_budgets=(*said.lost_budgets, whole)))
        replace_where_possible([path for path in self._paths if path not in newer._paths and path.exists()], data)

    def _mark(self, said: Statement) -> bytes:
        mark = {**said.to_json(), "home": str(self._home.path)}
        # For every vector, with the price of a whole plan: without indentation it is encoded by compiled code.
        return json.dumps(mark, ensure_ascii=False).encode("utf-8")


def checkpoint_name(table: Table, checkpoints: Path) -> str:
    """File name in the state folder: a keyed hash of the set of texts, whatever their order, spacing and columns."""
    salt = _salt(checkpoints)
    words = {" ".join(text.split()) for text in table.texts}
    return hmac.digest(
        salt,
        b"".join(sorted(hmac.digest(salt, each.encode("utf-8", "surrogatepass"), "sha256") for each in words)),
        "sha256",
    ).hex()[:40]


def former_name(table: Table, checkpoints: Path) -> str:
    """The name that 0.2.0 gave: of all rows in order, with every column that was declared."""
    return fingerprint(table, _salt(checkpoints))[:40]


def salted(checkpoints: Path) -> str:
    """Identifies the state folder for which :func:`checkpoint_name` gave a name."""
    return hashlib.sha256(_salt(checkpoints)).hexdigest()


def _salt(checkpoints: Path) -> bytes:
    path = checkpoints / "salt"
    try:
        make_folder(checkpoints)
        if not path.exists():
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(32))
    except FileExistsError:
        pass
    except OSError:
        return bytes(32)  # no state folder can be made: the mark beside the data has to do
    return path.read_bytes()


def check(heads: Sequence[str], ledger: Ledger | None) -> None:
    """Raises PrivacyRefusal where releases were made that the ledger does not know."""
    if ledger is None:
        if heads:
            raise PrivacyRefusal(
                "releases were made from this data set, and their ledger is not here", RESTORE, code="ledger-missing"
            )
        return
    if not holds(ledger, heads):
        raise PrivacyRefusal(
            "the ledger is older than the releases that were made from this data set", RESTORE, code="ledger-too-old"
        )


def holds(ledger: Ledger, heads: Sequence[str]) -> bool:
    """Returns True if all of these heads are in the ledger's chain."""
    return {_START, *(entry["hash"] for entry in ledger.entries())}.issuperset(heads)


def budget_of(policy: HospitalPolicy) -> Budget:
    """The policy's budget as a ledger declares it. An unset budget is the smallest there is, never none."""
    return Budget(policy.total_epsilon or UNSET_EPSILON, policy.total_delta, policy.total_parts)


def is_set(budget: Budget | None) -> bool:
    """Returns False for a budget that was never set, as :func:`budget_of` declares it."""
    return budget is not None and budget.epsilon > UNSET_EPSILON


def _marks(path: Path) -> list[dict[str, Any]]:
    """The checkpoints in a file; version 0.2.0 wrote two lines: a checksum, an order and the object."""
    lines = re.findall(rb"([0-9a-f]{64}) (\d+ (\{.*\}))", path.read_bytes())
    whole = [json.loads(found) for stated, line, found in lines if hashlib.sha256(line).hexdigest() == stated.decode()]
    return whole or [read_json(path)]
