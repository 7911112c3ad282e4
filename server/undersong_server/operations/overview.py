"""Overview for the operator: what needs action, lists that stay fast with thousands of runs, and a support bundle."""

import io
import math
import os
import platform
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.printable import counted, json_text, with_iso_times
from undersong_common.version import SOFTWARE
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import ENROLLED, INVITED
from undersong_server.operations import coordinator
from undersong_server.operations.enrolment import PartyFacts
from undersong_server.operations.enrolment import parties as every_party
from undersong_server.operations.runs import RunSummary, is_put_away, log
from undersong_server.runs.folder import RunFailure, RunFolder, RunStatus

CERTIFICATE_DAYS = 30.0
AWAY_S = 120.0  # a party that is away for less may be restarting
NEW_S = 900.0  # in which an enrolled party installs its grant
PAGE_ROWS = 50
BUNDLED_LOGS = 50  # newest runs whose log is in a support bundle
UNDER_WAY = ("waiting", "running", "paused")

Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    """A page of a list: ``number`` from 1 to ``of``; ``all`` counts the rows of every page."""

    rows: tuple[Item, ...]
    number: int
    of: int
    all: int


def page(found: Sequence[Item], number: int) -> Page[Item]:
    """Returns the page of that number, or the nearest one.

    >>> page(list("abc"), 7)
    Page(rows=('a', 'b', 'c'), number=1, of=1, all=3)
    """
    of = max(1, -(-len(found) // PAGE_ROWS))
    number = max(1, min(number, of))
    return Page(tuple(found[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]), number, of, len(found))


class RunIndex:
    """Every run of a coordinator, newest first. A run whose files have not changed is not read again."""

    def __init__(self, home: Path) -> None:
        self._home = CoordinatorHome(home)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[tuple[int, int], float, RunSummary]] = {}
        self._listed: tuple[float, list[RunSummary]] = (-math.inf, [])

    def runs(self, *, age_s: float = 0.0) -> list[RunSummary]:
        """Returns every run; one with damaged files counts as failed.

        Args:
            age_s: largest age of the list that may be returned again.
        """
        with self._lock:
            if time.monotonic() - self._listed[0] < age_s:
                return self._listed[1]
            found: dict[str, tuple[tuple[int, int], float, RunSummary]] = {}
            folder = self._home.path / "runs"
            for name in os.listdir(folder) if folder.is_dir() else ():
                try:
                    status = os.stat(f"{folder}/{name}/status.json")
                except OSError:
                    continue  # the run is being created
                mark = (status.st_mtime_ns, status.st_ino)
                known = self._known.get(name)
                found[name] = known if known is not None and known[0] == mark else _read(folder / name, mark, known)
            self._known = found
            listed = [each[2] for each in sorted(found.values(), key=lambda each: (-each[1], each[2].run))]
            self._listed = (time.monotonic(), listed)
            return listed


def _read(path: Path, mark: tuple[int, int], known: Any) -> tuple[tuple[int, int], float, RunSummary]:
    run = RunFolder(path)
    try:
        made = known[1] if known is not None else (path / "plan.json").stat().st_mtime
        parties = known[2].parties if known is not None else run.planned().roster
        return mark, made, RunSummary(run.name, parties, run.status())
    except (OSError, UndersongError, KeyError, TypeError, ValueError):
        why = RunFailure(
            "its files are damaged", "restore the run's folder from a backup", ConfigurationError.exit_code
        )
        return mark, mark[0] / 1e9, RunSummary(run.name, (), RunStatus("failed", error=why))


@dataclass(frozen=True)
class Need:
    """Notice for the operator: ``says`` states the problem, ``remedy`` the action. A ``failed`` run can be put away."""

    grade: Literal["soon", "now"]
    kind: Literal["coordinator", "party", "run"]
    name: str
    says: str
    remedy: str = ""
    failed: bool = False


def needs(home: Path, runs: Sequence[RunSummary], parties: Sequence[PartyFacts]) -> tuple[Need, ...]:
    """Returns the notices on coordinator, parties and runs that need the operator's attention, urgent ones first."""
    found: list[Need] = []
    facts = coordinator.show(home)
    now = time.time()
    if not facts.served:
        says = "is not running"
        found.append(
            Need(
                "now",
                "coordinator",
                facts.name,
                says,
                "start its service on its machine: `undersong coordinator serve`",
            )
        )
    if facts.certificate_expires_at - now < CERTIFICATE_DAYS * 86400:
        says = f"has a certificate that ends in {_days(facts.certificate_expires_at - now)}"
        found.append(Need("soon", "coordinator", facts.name, says, "the serving process renews it by itself"))
    needed = {party for run in runs if run.status.state in UNDER_WAY for party in run.parties}
    waiting = [(run, run.status.waiting) for run in runs if run.status.waiting is not None]
    awaited = {each.party for _, reason in waiting for each in reason.parties}  # each stands with its run
    for each in parties:
        name = each.party.name
        found += _of_party(each, now, served=facts.served, needed=name in needed, awaited=name in awaited)
    known = {each.party.name: each for each in parties}
    for run, reason in waiting:
        whom = [known[each.party] for each in reason.parties if each.party in known]
        remarks = [(each.party.name, each.away_because or each.party.contact) for each in whom]
        remedies = [f"{name}: {words}" for name, words in remarks if words]
        found.append(Need("soon", "run", run.run, f"is {reason.words}", "; ".join(remedies)))
    for run in runs:
        status = run.status
        if status.error is not None and not is_put_away(home, run.run):
            found.append(
                Need("now", "run", run.run, f"failed: {status.error.problem}", status.error.remedy, failed=True)
            )
        elif status.state == "paused":
            found.append(Need("soon", "run", run.run, "is paused", "resume or stop it"))
    return tuple(sorted(found, key=lambda need: need.grade == "soon"))


def _of_party(each: PartyFacts, now: float, *, served: bool, needed: bool, awaited: bool) -> list[Need]:
    party, found = each.party, []
    if party.state == INVITED:
        says = f"was invited {_days(now - party.invited_at)} ago and is not enrolled"
        found.append(Need("soon", "party", party.name, says, "sign its request when it comes, or invite it again"))
    if party.state != ENROLLED:
        return found
    ends = party.certificate_expires_at
    if ends is not None and ends - now < CERTIFICATE_DAYS * 86400:
        says = "has a certificate that " + (f"ends in {_days(ends - now)}" if ends > now else "has ended")
        remedy = "its program renews it while it runs; else the hospital renews it on its page, under Coordinator"
        found.append(Need("soon" if ends > now else "now", "party", party.name, says, remedy))
    if awaited:
        return found
    away_s = now - (party.last_seen or party.enrolled_at or now)
    grade: Literal["soon", "now"] = "now" if needed else "soon"
    if party.does_not_start and each.away_because:
        remedy = "the hospital's page tells the whole reason and what to do, under Now"
        found.append(Need(grade, "party", party.name, f"is away: {each.away_because}", remedy))
    elif served and not each.connected and away_s > (AWAY_S if party.last_seen else NEW_S):
        says = f"is away for {_days(away_s)}" if party.last_seen else "has never connected"
        remedy = "ask the hospital to start its program" + (
            "" if party.last_seen else "; its grant has to be installed"
        )
        found.append(Need(grade, "party", party.name, says, remedy))
    elif party.paused:
        found.append(Need("soon", "party", party.name, "is paused by its people", "ask the hospital"))
    return found


def _days(seconds: float) -> str:
    if seconds < 3600:
        return f"{max(0.0, seconds) / 60:.0f} min"
    if seconds < 86400:
        return f"{seconds / 3600:.0f} h"
    return counted(round(seconds / 86400), "day")


@dataclass(frozen=True)
class Spending:
    """Cost of the newest runs: money for their generators, and the privacy that they have spent.

    Attributes:
        runs: number of runs counted.
        charged: number of these that have asked for a private sum; the others have spent no epsilon.
        epsilon, delta: sums over these: an upper bound for a patient in all of them; inf if one is not private.
    """

    runs: int
    price_usd: float
    charged: int
    epsilon: float
    delta: float


def spending(home: Path, runs: Sequence[RunSummary]) -> Spending:
    """Adds up the cost of the started runs, at most the 200 newest."""
    opened = CoordinatorHome(home)
    started = [run for run in runs if run.status.since is not None][:200]
    charged = [run for run in started if run.status.charged or run.status.state == "finished"]
    promises = [opened.run(run.run).planned().task["privacy"] for run in charged]
    used = [used for run in started for used in opened.run(run.run).usage().values()]
    return Spending(
        len(started),
        math.fsum(float(each["price_usd"]) for each in used),
        len(charged),
        math.fsum(float(promise["epsilon"]) for promise in promises),
        math.fsum(float(promise["delta"]) for promise in promises),
    )


def embedders(parties: Sequence[PartyFacts]) -> Mapping[str, int]:
    """Number of enrolled parties per embedding model's hash (hex); more than one entry means that some differ."""
    return Counter(each.party.embedder for each in parties if each.party.state == ENROLLED and each.party.embedder)


def fitting(parties: Sequence[PartyFacts], *, find: str = "", state: str = "") -> list[PartyFacts]:
    """Parties whose name contains ``find``, in the given state; "" is any, "connected" and "away" are states too."""
    return [
        each
        for each in parties
        if find in each.party.name
        and (
            not state
            or each.party.state == state
            or (each.party.state == ENROLLED and state == ("connected" if each.connected else "away"))
        )
    ]


def support_bundle(home: Path) -> bytes:
    """Returns a ZIP file for support: parties by name and fingerprint, states and logs.

    Texts, journals, task files, key files and telephone contacts are left out.
    """
    listed = RunIndex(home).runs()
    contents: dict[str, object] = {
        "program.json": {"software": SOFTWARE, "python": platform.python_version(), "system": platform.platform()},
        "coordinator.json": {key: value for key, value in asdict(coordinator.show(home)).items() if key != "home"},
        "parties.json": [
            {key: item for key, item in each.to_json().items() if key != "contact"} for each in every_party(home)
        ],
        "runs.json": [each.to_json() for each in listed],
    }
    newest = sorted(listed, key=lambda run: -(run.status.at or 0.0))[:BUNDLED_LOGS]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in contents.items():
            archive.writestr(name, json_text(with_iso_times(value)))
        for number, run in enumerate(run for run in newest if run.parties):
            archive.writestr(f"logs/{number:03}.txt", "\n".join([run.run, *log(home, run.run)]) + "\n")
    return file.getvalue()
