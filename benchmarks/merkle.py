"""One private sum on the Merkle graph, all parties in one process: the coordinator's time, and what goes down.

    python -m benchmarks.merkle [--parties N ...] [--masks classical hybrid] [--colluders SHARE] [--quick] [--json]

A tenth of the parties falls silent after it has dealt its shares. Each party knows its own leaf of the roster, one
other leaf that it requires, and the root: both leaves and their proof are counted with what goes down. 12 000
coordinates; noise and candidates are left out. The goals are those of 10 000 parties.

JSON: a list with one object for each size and kind of masks: ``parties``, ``masks``, ``survivors``, ``colluders``
(those that graph and noise allow for, invented parties among them), ``degree``, ``threshold``, ``stray`` (``Draw``),
``coordinator_s`` and ``party_ms`` (processor time, the latter of every twentieth party on average, which verifies all
that it is shown itself, where the others know what this process has verified), ``down_kB`` and
``largest_down_kB`` (to a party on average, and to that which gets most), ``up_kB`` (key material, without the vector),
``peak_GB`` (memory of everybody together). ``exact`` is true if the opened sum is that of the survivors' vectors.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_protocol.secagg import keys, merkle
from undersong_protocol.secagg.coordinator import private_sum
from undersong_protocol.secagg.parameters import Member, RosterPart, SumParameters, default_threshold
from undersong_protocol.secagg.party import PartyMachine, Reply, WantsInput
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

QUESTION = bytes(32)
SIZES = (2_500, 5_000, 10_000)
COORDINATES = 12_000
COLLUDERS = 0.01
GOALS = {"coordinator_s": (60.0, 60.0), "largest_down_kB": (150.0, 600.0)}  # without and with post-quantum masks


def measure(parties: int, colluders: int, post_quantum: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """One sum at one size; see the module."""
    identities = [Ed25519PrivateKey.generate() for _ in range(parties)]
    roster = tuple(Member(f"party-{i:05}", key.public_key().public_bytes_raw()) for i, key in enumerate(identities))
    silent = parties // 10
    full = SumParameters(
        bytes(32),
        *("merkle", "sum", 0),
        roster,
        *(default_threshold(parties, colluders), silent, colluders, COORDINATES, 32, 0.0),
        post_quantum=post_quantum,
        merkle_above=0,
    )
    vector = GridVector(np.random.default_rng(1).integers(-100, 101, COORDINATES))
    spent = {"party": 0.0, "coordinator": 0.0}
    down, up = dict.fromkeys((each.name for each in roster), 0), 0

    def timed(side: str, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = work()
        spent[side] += time.process_time() - begun
        return result

    def opened(index: int) -> PartyMachine:
        required = (index + 1) % parties
        shown = {each: roster[each] for each in (index, required)}
        proof = timed("coordinator", lambda: full.roster_tree.proof(merkle.places(parties, shown)))
        down[roster[index].name] += len(proof) + sum(36 + len(member.name) for member in shown.values())
        part = RosterPart.opened(full.roster_hash, parties, shown, proof, "coordinator")
        own = dataclasses.replace(full, roster=part)
        return PartyMachine.open(own, roster[index].name, identities[index], os.urandom)

    machines = {member.name: opened(index) for index, member in enumerate(roster)}
    coordinator = private_sum(full, lambda: QUESTION)
    requests = timed("coordinator", lambda: next(coordinator))
    watched = {member.name for member in roster[1::20]}
    gone = {member.name for member in roster[::10]}
    while True:
        first = wire.Request.FromString(next(iter(requests.values())))
        stage = str(first.WhichOneof("stage"))
        masked = stage == "mask"
        replies = {}
        for name in requests:
            request = timed("coordinator", lambda n=name, r=requests: r[n])
            down[name] += len(request)
            if masked and name in gone:
                continue
            machine = machines[name]

            def answer(machine: PartyMachine = machine, request: bytes = request) -> Reply:
                reply = machine.receive(request)
                return machine.provide(vector, QUESTION) if isinstance(reply, WantsInput) else reply

            if name in watched:
                remembering, keys.verified = keys.verified, keys.verified.__wrapped__  # type: ignore[assignment]
                reply = timed("party", answer)
                keys.verified = remembering
            else:
                reply = answer()
            if not masked:
                up += len(reply.payload)
            replies[name] = reply.payload
        report(f"{parties} parties: {stage} answered, coordinator at {spent['coordinator']:.1f} s")
        gc.collect()
        gc.freeze()  # the parties' objects are looked through no more, as they would not be in a coordinator alone
        try:
            requests = timed("coordinator", lambda r=replies: coordinator.send(r))
        except StopIteration as stop:
            total = stop.value
            break
    plan = full.draw
    return {
        **{"parties": parties, "masks": "hybrid" if post_quantum else "classical", "survivors": len(total.survivors)},
        **{"colluders": colluders, "degree": plan.degree, "threshold": plan.threshold, "stray": plan.stray},
        **{"coordinator_s": spent["coordinator"], "party_ms": 1e3 * spent["party"] / len(watched)},
        **{"down_kB": sum(down.values()) / parties / 1e3, "largest_down_kB": max(down.values()) / 1e3},
        **{"up_kB": up / parties / 1e3, "peak_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9},
        "exact": bool(np.array_equal(total.values, len(total.survivors) * vector.values)) and not total.faults,
    }


def show(row: Mapping[str, Any]) -> None:
    """Prints a row, and the goals beside what was measured."""
    words = [f"{name} {value:,.4g}" if type(value) is float else f"{name} {value}" for name, value in row.items()]
    print(", ".join(words))
    goals = {name: values[row["masks"] == "hybrid"] for name, values in GOALS.items()}
    print("   goals: " + ", ".join(f"{name} {row[name]:.1f} of {goal:.0f}" for name, goal in goals.items()), flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merkle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parties", type=int, nargs="*", default=SIZES)
    parser.add_argument("--masks", nargs="*", default=["classical", "hybrid"], choices=("classical", "hybrid"))
    parser.add_argument("--colluders", type=float, default=COLLUDERS, metavar="SHARE", help="of all parties")
    parser.add_argument("--quick", action="store_true", help="300 parties")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = []
    for masks in options.masks:
        for parties in (300,) if options.quick else options.parties:
            colluders = round(options.colluders * parties)
            row = measure(parties, colluders, masks == "hybrid", lambda words: print(words, file=sys.stderr))
            found.append(row)
            if not options.json:
                show(row)
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
