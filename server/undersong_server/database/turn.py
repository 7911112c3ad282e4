"""The turn to serve: one process takes the lease, and others stand by."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.database.interface import LEASE_S, Away, Database
from undersong_server.database.lease import Lease
from undersong_server.database.postgres import Postgres
from undersong_server.database.storage import Storage

log = logging.getLogger(__name__)

STANDBY_S = 0.5  # time between two attempts of a standby to take over
_OWNED = "SELECT key, value FROM entry WHERE key IN ('coordinator', 'served by')"
_SERVES = "INSERT INTO entry VALUES ('served by', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


@dataclass(frozen=True)
class Candidate:
    """A process that wants to serve a coordinator.

    Attributes:
        holder: name of the process for others: its machine and its folder.
        coordinator: the coordinator's name.
        fingerprint: of the coordinator's authority.
        facts: what a standby must have in common with the process that served last, by name.
        lock: takes the lock of the one process that serves from this folder.
    """

    holder: str
    coordinator: str
    fingerprint: str
    facts: Mapping[str, str]
    lock: Callable[[], AbstractContextManager[None]]


@contextmanager
def turn(
    storage: Storage,
    candidate: Candidate,
    lost: Callable[[], None],
    *,
    standby: bool,
    meanwhile: Callable[[], None],
) -> Iterator[Lease]:
    """Waits until this process may serve, and yields its lease, which is given back at the end.

    Args:
        lost: as of :class:`Lease`.
        standby: waits as long as another process serves; otherwise only for the lease of one that has died.
        meanwhile: called after each attempt that has failed.

    Raises ConfigurationError if another process serves.
    """
    with ExitStack() as open_contexts:
        held_lease = Lease(*await_turn(storage, candidate, open_contexts, standby=standby, meanwhile=meanwhile), lost)
        open_contexts.callback(held_lease.end)
        yield held_lease


def await_turn(
    storage: Storage, candidate: Candidate, open_contexts: ExitStack, *, standby: bool, meanwhile: Callable[[], None]
) -> tuple[Database, int]:
    """Takes the folder's lock and the lease, and returns the database and its epoch. Arguments as of :func:`turn`."""
    give_up_at_s = time.monotonic() + LEASE_S + 2 * STANDBY_S
    last_problem: str | None = None
    while True:
        problem = ""
        try:
            if storage.shared is None:
                open_contexts.enter_context(candidate.lock())
            else:
                with candidate.lock():  # If a process hangs here, another machine may take the lease.
                    pass
            if (taken_turn := take_turn(storage, candidate, standby=standby)) is not None:
                # The lock is taken only now: to other processes it says who serves, not who waits.
                if storage.shared is not None:
                    open_contexts.enter_context(candidate.lock())
                if storage.shared is not None:
                    log.info("serves %s from now on; other machines may stand by", candidate.coordinator)
                log.debug("holds the lease under epoch %d", taken_turn[1])
                return taken_turn
            if not standby and time.monotonic() > give_up_at_s:
                raise ConfigurationError(
                    f"another process serves this coordinator: {storage.last_turn[1]}",
                    "stop it first, or stand by with --standby",
                    code="coordinator-in-use",
                )
            meanwhile()
        except UndersongError as error:
            if not standby or (error.code != "coordinator-in-use" and not isinstance(error, Away)):
                raise
            problem = error.problem if isinstance(error, Away) else ""
        if problem != last_problem:
            if problem:
                log.warning("cannot take over: %s", problem)
            else:
                log.info("stands by for %s", candidate.coordinator)
            last_problem = problem
        time.sleep(STANDBY_S)


def take_turn(storage: Storage, candidate: Candidate, *, standby: bool = False) -> tuple[Database, int] | None:
    """Takes the lease for this process, which holds the lock; None while another machine's process has it.

    From then on the storage refuses what this process writes once another process has taken the lease.

    Args:
        standby: True refuses to follow a process of another release, or with other settings.

    Raises ConfigurationError for another coordinator's database, and as :meth:`Database.take` does.
    """
    database = storage.registry()
    owner_facts = {
        fact_row["key"]: bytes(fact_row["value"])
        for fact_row in (database.rows(_OWNED) if storage.shared is not None else [])
    }
    fingerprint = candidate.fingerprint.encode()
    if owner_facts.get("coordinator", fingerprint) != fingerprint:
        raise ConfigurationError(
            f"{storage.folder}: the database of --storage holds another coordinator",
            "copy that coordinator's authority/ into this folder, or name another database",
            code="other-coordinator",
        )
    if standby:
        served_facts: dict[str, str] = json.loads(owner_facts.get("served by", b"{}"))
    else:
        served_facts = {}
    fact_differences = [
        f"{fact_name} {candidate.facts.get(fact_name)!r} here, {fact_value!r} there"
        for fact_name, fact_value in served_facts.items()
        if candidate.facts.get(fact_name) != fact_value
    ]
    if fact_differences:
        raise ConfigurationError(
            f"{storage.folder}: cannot stand by for a coordinator that was last served with other settings:"
            f" {'; '.join(fact_differences)}",
            "make them the same; to go on with what is here: stop all machines, start this one without --standby",
            code="other-standby",
        )
    epoch = database.take(candidate.holder)
    if epoch is None:
        database.close()
        return None
    database.end_others(epoch)
    if storage.shared is not None:
        with closing(Postgres(storage.address, epoch)) as fenced_database, fenced_database.writing() as transaction:
            transaction.execute(_SERVES, (json.dumps(dict(candidate.facts)).encode(),))
        storage.shared.epoch = epoch
        storage.shared.close()  # Its next connection states the epoch.
    storage.epoch = epoch
    return database, epoch
