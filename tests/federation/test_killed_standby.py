"""Coordinators over one PostgreSQL and their parties, killed two hundred times: every sum is that of no kill."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing

import pytest

from tests.doubles import killable
from tests.doubles.postgres import PostgresServer
from tests.server.federation.test_driver import World
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.secagg.parameters import Member
from undersong_server.coordinator.parties import SCHEMA
from undersong_server.federation.driver import Federation
from undersong_server.journal import Journal
from undersong_server.postgres import Postgres
from undersong_server.storage import ENTRIES, FILES, LEASE

pytestmark = pytest.mark.slow

KILLS = 100  # at least, for each kind of masks
RUNS = 3


@pytest.mark.parametrize("masks", ["classical", "hybrid"])
def test_whoever_is_killed_each_run_opens_the_same_sums_for_one_charge(tmp_path, masks):
    random_ = random.Random(masks)
    (tmp_path / "alone").mkdir()
    quorum = {"post_quantum": masks == "hybrid"}
    alone = World(tmp_path / "alone", epsilon=4.0, quorum=quorum, noise_seed=killable.NOISE_SEED)
    members = tuple(Member(name, alone.parties[name].public_identity) for name in sorted(alone.parties))
    with PostgresServer() as server:
        target = server.database()
        Postgres.create(target, LEASE + ENTRIES + FILES + SCHEMA)
        kinds = {name: (killable.serve_party, tmp_path, name, table) for name, table in alone.tables.items()}
        kinds |= {f"coordinator {n}": (killable.serve_runs, tmp_path, target, alone.plan, members) for n in (1, 2)}
        processes = {name: killable.begun(*kind) for name, kind in kinds.items()}
        place = Postgres(target)
        results = Journal(place, "done/")
        try:
            epochs, kills = set(), 0
            while kills < KILLS or len(results.items("run ")) < RUNS:
                kills += 1
                assert kills < 10 * KILLS  # on a busy machine a run takes longer than some kills
                time.sleep(random_.uniform(0.05, 1.0))
                victim = random_.choice(["coordinator 1", "coordinator 2", random_.choice(sorted(alone.tables))])
                processes[victim].kill()
                processes[victim].join()
                processes[victim] = killable.begun(*kinds[victim])
                epochs.add(place.last[0])
            finished = len(results.items("run "))
            until = time.monotonic() + 60.0
            while len(results.items("run ")) <= finished:  # what was under way at the last kill is finished too
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            for process in processes.values():
                process.kill()
                process.join()
        found = results.items("run ")
    assert len(epochs) > KILLS / 10
    for number, value in enumerate(found.values(), start=1):
        with closing(Journal(tmp_path / "alone" / f"{number}.sqlite")) as journal:
            blocks = type(alone.blocks)(journal)
            transport = alone.federation._transport
            federation = Federation(
                transport,
                killable.manifest_of(alone.plan, members, number),
                journal,
                alone.federation._progress,
                blocks=blocks,
            )
            assert killable.result_of(federation, blocks, alone.plan) == value
    for name in alone.tables:
        charges = [
            (entry["run"], entry["query"], entry["attempt"])
            for entry in Ledger.read(tmp_path / f"{name}.ledger.jsonl").entries()
            if entry["kind"] == "charge"
        ]
        assert len(charges) == len(set(charges))
        complete = {(f"run {n}", planned.name, 0) for n in range(1, len(found) + 1) for planned in alone.plan.sums}
        assert complete <= set(charges)
        sent: dict[str, set[str]] = {}
        for line in (tmp_path / f"{name}.sent").read_text().splitlines():
            slot, digest = json.loads(line)
            sent.setdefault(json.dumps(slot), set()).add(digest)
        assert {len(digests) for digests in sent.values()} == {1}
    print(f"{masks}: {kills} kills, {len(found)} runs, {len(epochs)} holders")
