"""One private sum on the Merkle graph, all parties in one process: the coordinator's time, and what goes down.

    python -m benchmarks.merkle [--parties N ...] [--masks classical hybrid] [--colluders SHARE] [--sizes] [--quick]

A tenth of the parties falls silent after it has dealt its shares. Each party knows its own leaf of the roster, one
other leaf that it requires, and the root: both leaves and their proof are counted with what goes down. 12 000
coordinates; noise and candidates are left out. The goals are those of 10 000 parties.

``--sizes`` draws the graph and adds up the lengths of the requests, without keys or sums: the party with most choosers,
and a sample of the others.

``--json``: a list with one object for each size and kind of masks: ``parties``, ``masks``, ``survivors``, ``colluders``
(those that graph and noise allow for, invented parties among them), ``degree``, ``threshold``, ``stray`` (``Draw``),
``coordinator_s`` and ``party_ms`` (processor time, the latter of every twentieth party on average, which computes
everything itself; the others use what this process has verified, agreed on or encapsulated before), ``down_kB`` and
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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_protocol.secagg import keys, merkle, messages, sid
from undersong_protocol.secagg.coordinator import private_sum
from undersong_protocol.secagg.drawn import draw
from undersong_protocol.secagg.graph import drawn_graph
from undersong_protocol.secagg.masking import PAIR_HASH_BYTES, SEALED_PAIR_BYTES
from undersong_protocol.secagg.parameters import Member, RosterPart, SumParameters, default_threshold
from undersong_protocol.secagg.party import PartyMachine, Reply, WantsInput
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

QUESTION = bytes(32)
SIZES = (2_500, 5_000, 10_000)
COORDINATES = 12_000
COLLUDERS = 0.01
GOALS = {"coordinator_s": (60.0, 60.0), "largest_down_kB": (150.0, 600.0)}  # without and with post-quantum masks


def parameters(roster: tuple[Member, ...], colluders: int, post_quantum: bool) -> SumParameters:
    """Parameters of a sum of which a tenth of the parties may drop out."""
    threshold, dropouts = default_threshold(len(roster), colluders), len(roster) // 10
    return SumParameters(
        manifest_hash=bytes(32),
        run="merkle",
        query="sum",
        attempt=0,
        roster=roster,
        threshold=threshold,
        tolerated_dropouts=dropouts,
        colluders=colluders,
        dimension=COORDINATES,
        modulus_bits=32,
        sigma=0.0,
        post_quantum=post_quantum,
        merkle_above=0,
    )


class Shortcuts:
    """Lets parties that are not measured use what others of this process computed; ends with its context."""

    def __init__(self) -> None:
        agreed: dict[frozenset[bytes], bytes] = {}
        self._known: dict[bytes, tuple[bytes, bytes]] = {}
        secrets: dict[bytes, bytes] = {}
        self._secrets = secrets

        class Agreement(keys.Agreement):
            """A key agreement that computes each shared secret once, for both of its parties."""

            __slots__ = ("_own",)

            def __init__(self, secret: bytes) -> None:
                super().__init__(secret)
                self._own = self.public

            def shared(self, party: str, public: bytes) -> bytes:
                pair = frozenset((self._own, public))
                if pair not in agreed:
                    agreed[pair] = super().shared(party, public)
                    return agreed[pair]
                return agreed.pop(pair)

        class KemSecretKey(keys.KemSecretKey):
            """A KEM key that looks up secrets which this process encapsulated, instead of decapsulating."""

            __slots__ = ()

            def decapsulate(self, ciphertext: bytes) -> bytes:
                return secrets.get(ciphertext) or super().decapsulate(ciphertext)

        self._theirs = {"Agreement": Agreement, "KemSecretKey": KemSecretKey}
        self._own = {name: vars(keys)[name] for name in self._theirs}

    def __enter__(self) -> None:
        vars(keys).update(self._theirs)

    def __exit__(self, *_: object) -> None:
        vars(keys).update(self._own)

    def encapsulate(self, public: bytes) -> tuple[bytes, bytes]:
        """Replaces a party machine's encapsulation: each public key is encapsulated to only once in this process."""
        if public not in self._known:
            secret, ciphertext = self._known[public] = keys.encapsulate(public)
            self._secrets[ciphertext] = secret
        return self._known[public]


def measure(parties: int, colluders: int, post_quantum: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """Runs one sum with this number of parties; returns the JSON figures of the module's docstring."""
    identities = [Ed25519PrivateKey.generate() for _ in range(parties)]
    roster = tuple(Member(f"party-{i:05}", key.public_key().public_bytes_raw()) for i, key in enumerate(identities))
    sum_parameters = parameters(roster, colluders, post_quantum)
    vector = GridVector(np.random.default_rng(1).integers(-100, 101, COORDINATES))
    processor_s = {"party": 0.0, "coordinator": 0.0}
    down_bytes, up_bytes = dict.fromkeys((each.name for each in roster), 0), 0

    def timed(side: str, work: Callable[[], Any]) -> Any:
        start_s = time.process_time()
        returned = work()
        processor_s[side] += time.process_time() - start_s
        return returned

    def open_machine(index: int) -> PartyMachine:
        required = (index + 1) % parties
        shown = {each: roster[each] for each in (index, required)}
        proof = timed("coordinator", lambda: sum_parameters.roster_tree.proof(merkle.places(parties, shown)))
        down_bytes[roster[index].name] += len(proof) + sum(36 + len(member.name) for member in shown.values())
        part = RosterPart.opened(sum_parameters.roster_hash, parties, shown, proof, "coordinator")
        own = dataclasses.replace(sum_parameters, roster=part)
        port = keys.encapsulate if roster[index].name in measured_names else shortcuts.encapsulate
        return PartyMachine.open(own, roster[index].name, identities[index], os.urandom, port)

    shortcuts, measured_names = Shortcuts(), {member.name for member in roster[1::20]}
    machines = {member.name: open_machine(index) for index, member in enumerate(roster)}
    coordinator = private_sum(sum_parameters, lambda: QUESTION)
    requests = timed("coordinator", lambda: next(coordinator))
    silent_names = {member.name for member in roster[::10]}
    while True:
        first_request = wire.Request.FromString(next(iter(requests.values())))
        stage = str(first_request.WhichOneof("stage"))
        is_masking = stage == "mask"
        replies = {}
        for name in requests:
            request = timed("coordinator", partial(requests.__getitem__, name))
            down_bytes[name] += len(request)
            if is_masking and name in silent_names:
                continue
            machine = machines[name]

            def answer(machine: PartyMachine = machine, request: bytes = request) -> Reply:
                reply = machine.receive(request)
                return machine.provide(vector, QUESTION) if isinstance(reply, WantsInput) else reply

            if name in measured_names:
                cached_verified, keys.verified = keys.verified, keys.verified.__wrapped__  # type: ignore[assignment]
                reply = timed("party", answer)
                keys.verified = cached_verified
            else:
                with shortcuts:
                    reply = answer()
            if not is_masking:
                up_bytes += len(reply.payload)
            replies[name] = reply.payload
        report(f"{parties} parties: {stage} answered, coordinator at {processor_s['coordinator']:.1f} s")
        gc.collect()
        gc.freeze()  # a coordinator alone has no parties' objects that the collector would scan
        try:
            requests = timed("coordinator", partial(coordinator.send, replies))
        except StopIteration as stop:
            opened_sum = stop.value
            break
    plan = sum_parameters.draw
    return {
        **{
            "parties": parties,
            "masks": "hybrid" if post_quantum else "classical",
            "survivors": len(opened_sum.survivors),
        },
        **{"colluders": colluders, "degree": plan.degree, "threshold": plan.threshold, "stray": plan.stray},
        **{"coordinator_s": processor_s["coordinator"], "party_ms": 1e3 * processor_s["party"] / len(measured_names)},
        **{"down_kB": sum(down_bytes.values()) / parties / 1e3, "largest_down_kB": max(down_bytes.values()) / 1e3},
        **{
            "up_kB": up_bytes / parties / 1e3,
            "peak_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        },
        "exact": bool(np.array_equal(opened_sum.values, len(opened_sum.survivors) * vector.values))
        and not opened_sum.faults,
    }


def sizes(parties: int, colluders: int, post_quantum: bool) -> dict[str, Any]:
    """Sizes of the requests to the party that most others drew, and to two hundred others, from a graph drawn anew."""
    roster = tuple(Member(f"party-{i:05}", i.to_bytes(32, "little")) for i in range(parties))
    sum_parameters = parameters(roster, colluders, post_quantum)
    plan = sum_parameters.draw
    drawn_neighbours = [draw(parties, party, plan.degree, os.urandom(32)) for party in range(parties)]
    choosers: dict[int, list[int]] = {party: [] for party in range(parties)}
    for party, others in enumerate(drawn_neighbours):
        for other in others:
            choosers[other].append(party)
    key = bytes(32)
    kems = {"channel_kem": key, "mask_kem": key} if post_quantum else {}
    advert = wire.Advert(channel_key=key, mask_key=key, commitment=key, terms=key, **kems).SerializeToString()
    sealed = keys.SEALED_BYTES + (keys.CIPHERTEXT_BYTES if post_quantum else 0)
    everybody = messages.to_bitmap(range(parties), parties)

    def proof(of: Iterable[int]) -> bytes:
        return bytes(sid.DIGEST_BYTES * sum(map(len, merkle.places(parties, of))))

    def down(party: int) -> int:
        drawn, chooser_count = drawn_neighbours[party], len(choosers[party])
        graph = drawn_graph(plan, {party: drawn}, {party: choosers[party]})
        graph_neighbours = graph.neighbours(party, range(parties)) if post_quantum else ()
        pairs = sum(not graph.leads(party, other) for other in graph_neighbours)
        members = [wire.Enrolled(name=roster[each].name, identity=key) for each in drawn]
        requests: dict[str, Any] = {
            "reveal": wire.RevealRequest(present=everybody, root=key, path=proof([party])),
            "share": wire.ShareRequest(
                adverts=[wire.SignedAdvert(party=each, body=advert, signature=bytes(64)) for each in drawn],
                adverts_proof=proof(drawn),
                roster=members,
                roster_proof=proof(drawn),
                choosers=bytes(messages.CHOOSER_BYTES * chooser_count),
                kem_keys=bytes(sum_parameters.kem_keys_bytes * len(drawn)),
            ),
            "mask": wire.MaskRequest(
                sharers=everybody,
                ciphertexts=bytes(sealed * chooser_count),
                hashes=bytes(2 * keys.SHARE_HASH_BYTES * chooser_count),
                pairs=bytes(SEALED_PAIR_BYTES * pairs),
                pair_hashes=bytes(PAIR_HASH_BYTES * pairs),
            ),
            "consistency": wire.ConsistencyRequest(survivors=everybody),
            "unmask": wire.UnmaskRequest(signers=everybody, signatures=bytes(keys.SIGNATURE_BYTES * plan.threshold)),
        }
        own_proof = proof([party, (party + 1) % parties])
        request_bytes = sum(
            len(messages.request_bytes(sum_parameters, **{stage: message})) for stage, message in requests.items()
        )
        return (
            len(own_proof)
            + 2 * (36 + len(roster[0].name))
            + len(messages.advertise_request(sum_parameters))
            + request_bytes
        )

    most_chosen = max(choosers, key=lambda party: len(choosers[party]))
    sample = [down(party) for party in range(0, parties, max(1, parties // 200))]
    return {
        **{"parties": parties, "masks": "hybrid" if post_quantum else "classical", "colluders": colluders},
        **{"degree": plan.degree, "threshold": plan.threshold, "stray": plan.stray},
        **{"down_kB": sum(sample) / len(sample) / 1e3, "largest_down_kB": max(down(most_chosen), *sample) / 1e3},
    }


def show(row: Mapping[str, Any]) -> None:
    """Prints the figures of one size, and beside them the goals."""
    words = [f"{name} {value:,.4g}" if type(value) is float else f"{name} {value}" for name, value in row.items()]
    print(", ".join(words))
    goals = {name: values[row["masks"] == "hybrid"] for name, values in GOALS.items() if name in row}
    print("   goals: " + ", ".join(f"{name} {row[name]:.1f} of {goal:.0f}" for name, goal in goals.items()), flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merkle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parties", type=int, nargs="*", default=SIZES)
    parser.add_argument("--masks", nargs="*", default=["classical", "hybrid"], choices=("classical", "hybrid"))
    parser.add_argument("--colluders", type=float, default=COLLUDERS, metavar="SHARE", help="of all parties")
    parser.add_argument("--sizes", action="store_true", help="only what goes down, from the lengths of the requests")
    parser.add_argument("--quick", action="store_true", help="300 parties")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for masks in options.masks:
        for parties in (300,) if options.quick else options.parties:
            colluders = round(options.colluders * parties)
            if options.sizes:
                row = sizes(parties, colluders, masks == "hybrid")
            else:
                row = measure(parties, colluders, masks == "hybrid", lambda words: print(words, file=sys.stderr))
            rows.append(row)
            if not options.json:
                show(row)
    if options.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
