"""Our private sum beside the client code of Flower 1.41's SecAgg+, stage by stage, in one process on the same inputs.

    python -m benchmarks.secagg [--quick] [--json] [--masks both|classical|post-quantum]

Ours is measured with both kinds of masks, X25519 alone and hybrid with ML-KEM-768; Flower's are of the former kind. One
party is measured at each side; its peers are real (ours) or give real keys and ciphertexts (Flower's: their shares are
random, which costs the measured party the same). It lives through the whole sum, as in a daemon, several copies of it
beside each other; the masked input alone is measured once more behind a restart, every key agreement in it. Times are
CPU seconds of the process, best of several repeats; ratios are Flower's time over ours in the same run. Noise is left
out (``benchmarks.noise`` times it); what ours has and Flower's has not, signatures, hashes of shares, packing,
consistency, is in. Flower's masks come from a 32-bit seed, its keys are not authenticated: it does less.

JSON: ``masked_input`` = list of {n, degree, d, post_quantum, ours_s, flower_s, ratio_to_flower, floor_s,
largest_ratio, over_floor} behind a restart, the floor being what the protocol prescribes for the stage and nothing
else: AES-256 in CTR mode, X25519 and, post-quantum, decapsulation (masks cost less than in it where GCM is faster, see
``privacy.stream``); ``stages`` = list of {n, degree, d, post_quantum, stage, ours_s, flower_s, ratio,
ours_bytes, flower_bytes}; ``whole`` = list of {n, d, post_quantum, ours_s, flower_s, ratio}, all stages of one party
together; ``aes_fraction`` (mask expansion over raw AES-256-CTR), ``unmask_cpu_s`` by kind of masks (coordinator,
n = 100, d = 100 000, 10 dropouts), ``unmask_d`` and ``targets`` with whether each is met.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from undersong_common.errors import InternalError
from undersong_common.privacy.stream import CHUNK_BYTES, KeyStream
from undersong_protocol.secagg import keys
from undersong_protocol.secagg.coordinator import private_sum
from undersong_protocol.secagg.masking import add_masks
from undersong_protocol.secagg.parameters import Member, SumParameters, default_threshold
from undersong_protocol.secagg.party import PartyMachine, WantsInput
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

QUESTION = bytes(32)
# Colluders and dropouts for which graph.choose_neighbourhood gives degree 100 among 1000 parties.
COLLUDERS_1000, DROPOUTS_1000 = 104, 102


@dataclass(frozen=True)
class Case:
    """One size of the sum: the number of parties, of neighbours of each, and of coordinates."""

    n: int
    degree: int
    d: int
    repeats: int


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of ``repeats`` calls, in seconds, of all threads of this process."""
    least = math.inf
    for _ in range(repeats):
        start = time.process_time()
        work()
        least = min(least, time.process_time() - start)
    return least


@dataclass(frozen=True)
class Side:
    """Figures of ours or of Flower's: {seconds, bytes} by stage, and a function that times the masked input alone."""

    stages: dict[str, dict[str, float]]
    masked_input: Callable[[], float]


# --- ours -----------------------------------------------------------------------------------------------------------


@dataclass
class Federation:
    """n parties of a sum, and the keys that they enrolled."""

    parameters: SumParameters
    identities: list[Ed25519PrivateKey]
    machines: list[PartyMachine]

    @property
    def me(self) -> int:
        """The party that is measured; as for the average party, half of its neighbours have a lower index."""
        return len(self.machines) // 2

    def name(self, index: int) -> str:
        return self.parameters.name(index)


def federation(n: int, d: int, dropouts: int, colluders: int, post_quantum: bool) -> Federation:
    """Makes n fresh parties of an opened sum without noise."""
    identities = [Ed25519PrivateKey.generate() for _ in range(n)]
    roster = tuple(Member(f"p{i:04d}", key.public_key().public_bytes_raw()) for i, key in enumerate(identities))
    parameters = SumParameters(
        bytes(32),
        *("benchmark", "sum", 0),
        roster,
        *(default_threshold(n, colluders), dropouts, colluders, d, 32),
        0.0,
        post_quantum=post_quantum,
    )
    machines = [
        PartyMachine.open(parameters, member.name, identity, os.urandom)
        for member, identity in zip(roster, identities, strict=True)
    ]
    return Federation(parameters, identities, machines)


def time_ours(case: Case, vector: GridVector, post_quantum: bool) -> Side:
    """Times each stage of one party of ours whose peers are real parties."""
    if case.degree == case.n - 1:
        fed = federation(case.n, case.d, max(1, case.n // 10), 1, post_quantum)
    else:
        fed = federation(case.n, case.d, DROPOUTS_1000, COLLUDERS_1000, post_quantum)
        assert fed.parameters.graph is not None
        assert fed.parameters.graph.degree == case.degree
    measured_name, parameters = fed.name(fed.me), fed.parameters
    coordinator = private_sum(parameters, lambda: QUESTION)
    requests = next(coordinator)
    stages: dict[str, dict[str, float]] = {}

    def open_machine() -> None:
        PartyMachine.open(parameters, measured_name, fed.identities[fed.me], os.urandom).advertise()

    stages["setup"] = {"seconds": cpu_seconds(open_machine, case.repeats), "bytes": 0.0}
    masked_input: Callable[[], float] = lambda: math.nan  # noqa: E731

    def restore_machine(snapshot: bytes) -> PartyMachine:
        return PartyMachine.restore(parameters, measured_name, fed.identities[fed.me], snapshot)

    def handle(machine: PartyMachine, request: bytes) -> tuple[float, int]:
        keys.verified.cache_clear()
        start = time.process_time()
        reply = machine.receive(request)
        if isinstance(reply, WantsInput):
            reply = machine.provide(vector, QUESTION)
        return time.process_time() - start, len(reply.payload)

    def after_restart(snapshot: bytes, request: bytes) -> float:
        return handle(restore_machine(snapshot), request)[0]

    copies = [restore_machine(fed.machines[fed.me].snapshot()) for _ in range(case.repeats)]
    for stage in ("setup", "reveal", "share_keys", "masked_input", "consistency", "unmask"):
        request = requests[measured_name]
        if wire.Request.FromString(request).WhichOneof("stage") != _WIRE_NAMES[stage]:
            continue
        before = fed.machines[fed.me].snapshot()
        seconds, sizes = zip(*(handle(copy, request) for copy in copies), strict=True)
        stages.setdefault(stage, {"seconds": min(seconds)})
        stages[stage]["bytes"] = float(sizes[0])
        if stage == "masked_input":
            masked_input = partial(after_restart, before, request)
            if case.n * case.d > 2_000_000:
                # To go on, every peer would have to compute a vector.
                break
        replies = {}
        for index, machine in enumerate(fed.machines):
            reply = machine.receive(requests[fed.name(index)])
            if isinstance(reply, WantsInput):
                reply = machine.provide(vector, QUESTION)
            replies[fed.name(index)] = reply.payload
        try:
            requests = coordinator.send(replies)
        except StopIteration:
            break
    return Side(stages, masked_input)


_WIRE_NAMES = {
    "setup": "advertise",
    "reveal": "reveal",
    "share_keys": "share",
    "masked_input": "mask",
    "consistency": "consistency",
    "unmask": "unmask",
}


def time_unmasking(n: int, d: int, dropouts: int, post_quantum: bool) -> float:
    """CPU seconds of the coordinator from the last opened share to the sum; ``dropouts`` vectors were lost."""
    sum_federation = federation(n, d, dropouts, 1, post_quantum)
    coordinator = private_sum(sum_federation.parameters, lambda: QUESTION)
    requests = next(coordinator)
    generator = np.random.default_rng(1)
    vectors = {member.name: generator.integers(-1000, 1001, d) for member in sum_federation.parameters.roster}
    lost = {sum_federation.name(index) for index in range(0, n, n // dropouts)} if dropouts else set()
    machines = {sum_federation.name(index): machine for index, machine in enumerate(sum_federation.machines)}
    while True:
        is_last = wire.Request.FromString(next(iter(requests.values()))).WhichOneof("stage")
        replies = {}
        for name, request in requests.items():
            reply = machines[name].receive(request)
            if isinstance(reply, WantsInput):
                if name in lost:
                    continue
                reply = machines[name].provide(GridVector(vectors[name]), QUESTION)
            replies[name] = reply.payload
        start_s = time.process_time()
        try:
            requests = coordinator.send(replies)
        except StopIteration as stop:
            seconds = time.process_time() - start_s
            expected = sum(values for name, values in vectors.items() if name not in lost)
            if is_last != "unmask" or (stop.value.values != expected).any():
                raise InternalError("the benchmark's sum is not exact") from None
            return seconds


def raw_aes(n: int, d: int) -> Callable[[], None]:
    """Returns a function that expands n masks of d uint32 words with AES-256-CTR and discards them."""
    seeds = [os.urandom(32) for _ in range(n)]
    buffer = memoryview(bytearray(CHUNK_BYTES))

    def expand() -> None:
        for seed in seeds:
            stream = KeyStream(seed)
            for start in range(0, 4 * d, CHUNK_BYTES):
                stream.fill(buffer[: min(CHUNK_BYTES, 4 * d - start)])

    return expand


def time_aes_fraction(n: int, d: int, repeats: int) -> float:
    """Speed of adding n masks of d words, in units of raw AES-256-CTR over the same bytes, timed in turns."""
    accumulator = np.zeros(d, dtype=np.uint32)
    seeds = [os.urandom(32) for _ in range(n)]
    raw = raw_aes(n, d)
    expanded = masked = math.inf
    for _ in range(repeats):
        expanded = min(expanded, cpu_seconds(raw, 1))
        masked = min(masked, cpu_seconds(lambda: add_masks(accumulator, ((seed, 1) for seed in seeds)), 1))
    return expanded / masked


def floor_of(case: Case, post_quantum: bool) -> Callable[[], float]:
    """Returns a function that times the AES, key agreements and decapsulations that every masked input needs."""
    expand = raw_aes(case.degree + 1, case.d)
    secret = X25519PrivateKey.generate()
    publics = [X25519PrivateKey.generate().public_key() for _ in range(case.degree)]
    kem_secret = keys.KemSecretKey(os.urandom(32))
    _, ciphertext = keys.encapsulate(kem_secret.public)
    # The party decapsulates each neighbour's shares, and the mask secrets that neighbours of a lower index sent to it.
    lower = case.n // 2 if case.degree == case.n - 1 else case.degree // 2
    decapsulations = case.degree + lower if post_quantum else 0

    def work() -> None:
        expand()
        for public in publics:
            secret.exchange(public)
        for _ in range(decapsulations):
            kem_secret.decapsulate(ciphertext)

    return lambda: cpu_seconds(work, 1)


# --- Flower ---------------------------------------------------------------------------------------------------------


def time_flower(case: Case, vector: GridVector, threshold: int) -> Side:
    """Times each stage of one client of flwr 1.41's SecAgg+, by Flower's own stage functions."""
    from flwr.app import ConfigRecord
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
    from flwr.common.serde import config_record_to_proto
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_private_key,
        bytes_to_public_key,
        generate_key_pairs,
        private_key_to_bytes,
        public_key_to_bytes,
    )

    # The package shadows the module's name with a function of it.
    flower = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    me = 1
    holders = case.degree + 1
    settings = ConfigRecord(
        {
            Key.SAMPLE_NUMBER: case.n,
            Key.SHARE_NUMBER: holders,
            Key.THRESHOLD: threshold,
            Key.CLIPPING_RANGE: 8.0,
            Key.TARGET_RANGE: 4194304,
            Key.MOD_RANGE: 4294967296,
            Key.MAX_WEIGHT: 1000.0,
        }
    )
    state = flower.SecAggPlusState()
    state.nid = me
    stages: dict[str, dict[str, float]] = {}

    def size(values: dict[str, Any]) -> float:
        return float(config_record_to_proto(ConfigRecord(values)).ByteSize())

    def timed(stage: str, work: Callable[[], dict[str, Any]], repeats: int = case.repeats) -> None:
        least, reply = math.inf, {}
        for _ in range(repeats):
            start = time.process_time()
            reply = work()
            least = min(least, time.process_time() - start)
        stages[stage] = {"seconds": least, "bytes": size(reply)}

    timed("setup", lambda: flower._setup(state, settings))
    peers = {nid: (generate_key_pairs(), generate_key_pairs()) for nid in range(2, holders + 1)}
    public = {str(me): [state.pk1, state.pk2]} | {
        str(nid): [public_key_to_bytes(one[1]), public_key_to_bytes(two[1])] for nid, (one, two) in peers.items()
    }
    # Its Shamir sharing takes seconds at n = 100: once is enough.
    timed("share_keys", lambda: flower._share_keys(state, ConfigRecord(public)), 1)
    own = bytes_to_public_key(state.pk2)
    share_bytes = len(state.rd_seed_share_dict[me])
    ciphertexts = []
    for nid, (_, two) in peers.items():
        peer_secret = bytes_to_private_key(private_key_to_bytes(two[0]))
        plaintext = share_keys_plaintext_concat(nid, me, os.urandom(share_bytes), os.urandom(share_bytes))
        ciphertexts.append(encrypt(generate_shared_key(peer_secret, own), plaintext))
    received = ConfigRecord({Key.CIPHERTEXT_LIST: ciphertexts, Key.SOURCE_LIST: list(peers)})
    parameters = ndarrays_to_parameters([vector.values / 1000.0])
    timed("masked_input", lambda: flower._collect_masked_vectors(state, received, 1, parameters))
    mask_request = ConfigRecord({Key.ACTIVE_NODE_ID_LIST: [me, *peers], Key.DEAD_NODE_ID_LIST: []})
    timed("unmask", lambda: flower._unmask(state, mask_request))
    return Side(
        stages,
        lambda: cpu_seconds(lambda: flower._collect_masked_vectors(state, received, 1, parameters), 1),
    )


def least_in_turns(works: list[Callable[[], float]], turns: int) -> list[float]:
    """Returns the least of ``turns`` results of each function in ``works``.

    In turns, so that whatever else the machine does falls on all, and in an order drawn anew for each: whoever comes
    behind Flower's client finds the caches full of its data, which takes ours a fifteenth longer.
    """
    rng = random.Random(0)
    least = [math.inf] * len(works)
    for _ in range(turns):
        for place in rng.sample(range(len(works)), len(works)):
            least[place] = min(least[place], works[place]())
    return least


# --- report ---------------------------------------------------------------------------------------------------------


def measure(quick: bool, kinds: tuple[bool, ...] = (False, True)) -> dict[str, Any]:
    """All figures as a JSON-able mapping; ``kinds``: whether the masks are post-quantum, one after the other."""
    cases = [Case(10, 9, 12_000, 15), Case(100, 99, 12_000, 45), Case(100, 99, 100_000, 9), Case(100, 99, 1_000_000, 6)]
    if not quick:
        cases[1:1] = [Case(10, 9, 100_000, 15), Case(10, 9, 1_000_000, 9)]
        cases += [Case(1000, 100, 12_000, 9), Case(1000, 100, 100_000, 9), Case(1000, 100, 1_000_000, 6)]
    masked_rows: list[dict[str, Any]] = []
    stage_rows: list[dict[str, Any]] = []
    for case in cases:
        vector = GridVector(np.random.default_rng(case.d).integers(-1000, 1001, case.d))
        ours = {kind: time_ours(case, vector, kind) for kind in kinds}
        flower = time_flower(case, vector, 70 if case.n == 1000 else default_threshold(case.n, 1))
        timed_functions = [*(side.masked_input for side in ours.values()), *(floor_of(case, kind) for kind in kinds)]
        *times, flower_s = least_in_turns([*timed_functions, flower.masked_input], case.repeats)
        for place, (kind, side) in enumerate(ours.items()):
            stage_rows += _stages(case, kind, side, flower)
            masked_rows.append(_masked_input(case, kind, times[place], times[len(kinds) + place], flower_s))
    unmask_s = {
        _named(kind): min(time_unmasking(100, 100_000, 10, kind) for _ in range(1 if quick else 2)) for kind in kinds
    }
    aes_fraction = time_aes_fraction(100, 1_000_000, 4 if quick else 8)
    whole_rows = _whole(stage_rows)
    return {
        "masked_input": masked_rows,
        "stages": stage_rows,
        "whole": whole_rows,
        "aes_fraction": aes_fraction,
        "unmask_cpu_s": unmask_s,
        "unmask_d": 100_000,
        "targets": _targets(masked_rows, whole_rows, aes_fraction),
    }


def _named(post_quantum: bool) -> str:
    return "post-quantum" if post_quantum else "classical"


def _stages(case: Case, kind: bool, ours: Side, flower: Side) -> list[dict[str, Any]]:
    rows = []
    for stage, mine in ours.stages.items():
        theirs = flower.stages.get(stage)
        rows.append(
            {
                **{"n": case.n, "degree": case.degree, "d": case.d, "post_quantum": kind, "stage": stage},
                "ours_s": mine["seconds"],
                "flower_s": theirs["seconds"] if theirs else None,
                "ratio": theirs["seconds"] / mine["seconds"] if theirs else None,
                "ours_bytes": int(mine["bytes"]),
                "flower_bytes": int(theirs["bytes"]) if theirs else None,
            }
        )
    return rows


def _masked_input(case: Case, kind: bool, ours: float, floor: float, flower: float) -> dict[str, Any]:
    return {
        **{"n": case.n, "degree": case.degree, "d": case.d, "post_quantum": kind},
        **{"ours_s": ours, "flower_s": flower, "ratio_to_flower": flower / ours},
        **{"floor_s": floor, "largest_ratio": flower / floor, "over_floor": ours / floor},
    }


def _whole(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds up all stages of one party. Stages that do not depend on d may come from another size."""
    times_by_stage: dict[tuple[int, bool, int], dict[str, tuple[float, float | None]]] = {}
    late_times: dict[tuple[int, bool], dict[str, tuple[float, float | None]]] = {}
    for row in stages:
        times = (row["ours_s"], row["flower_s"])
        times_by_stage.setdefault((row["n"], row["post_quantum"], row["d"]), {})[row["stage"]] = times
        if row["stage"] in ("consistency", "unmask"):
            late_times.setdefault((row["n"], row["post_quantum"]), {})[row["stage"]] = times
    rows = []
    for (n, kind, d), by_stage in times_by_stage.items():
        if (n, kind) in late_times:
            stage_times = (late_times[n, kind] | by_stage).values()
            ours, flower = sum(mine for mine, _ in stage_times), sum(theirs or 0.0 for _, theirs in stage_times)
            rows.append(
                {"n": n, "d": d, "post_quantum": kind, "ours_s": ours, "flower_s": flower, "ratio": flower / ours}
            )
    return rows


def _targets(masked: list[dict[str, Any]], whole: list[dict[str, Any]], aes: float) -> dict[str, bool]:
    targets = {"mask expansion: at least 0.80 of raw AES-256-CTR": aes >= 0.8}
    for row in whole:
        least_ratios = {(12_000, False): 40, (1_000_000, False): 18, (12_000, True): 28, (1_000_000, True): 15}
        if row["n"] == 100 and (at := (row["d"], row["post_quantum"])) in least_ratios:
            words = f"a party's whole sum, n = 100, d = {row['d']}, {_named(row['post_quantum'])}"
            targets[f"{words}: at least {least_ratios[at]}x"] = row["ratio"] >= least_ratios[at]
    for row in masked:
        if row["n"] == 100 and row["d"] != 100_000:
            words = f"masked input, n = 100, d = {row['d']}, {_named(row['post_quantum'])}"
            targets[f"{words}: at most 1.25 of its floor"] = row["over_floor"] <= 1.25
    return targets


def show(figures: dict[str, Any]) -> None:
    """The figures as a table."""
    print(f"{'n':>5} {'k':>4} {'d':>9} {'post-quantum':>12} {'stage':<13} {'ours ms':>9} {'Flower ms':>10}", end=" ")
    print(f"{'ratio':>7} {'ours B':>9} {'Flower B':>9}")
    for row in figures["stages"]:
        theirs = f"{1e3 * row['flower_s']:10.2f} {row['ratio']:7.1f}" if row["flower_s"] is not None else " " * 18
        other = row["flower_bytes"] if row["flower_bytes"] is not None else ""
        print(
            f"{row['n']:5} {row['degree']:4} {row['d']:9} {'on' if row['post_quantum'] else 'off':>12} "
            f"{row['stage']:<13} {1e3 * row['ours_s']:9.2f} {theirs} {row['ours_bytes']:9} {other:>9}"
        )
    for row in figures["masked_input"]:
        print(
            f"masked input behind a restart, n = {row['n']}, k = {row['degree']}, d = {row['d']}, post-quantum "
            f"{'on' if row['post_quantum'] else 'off'}: {1e3 * row['ours_s']:.1f} ms, "
            f"{row['ratio_to_flower']:.1f}x Flower; its ciphers, key agreements and decapsulations alone would be "
            f"{row['largest_ratio']:.1f}x ({row['over_floor']:.2f} of it)"
        )
    for row in figures["whole"]:
        print(
            f"a whole sum at one party, n = {row['n']}, d = {row['d']}, post-quantum "
            f"{'on' if row['post_quantum'] else 'off'}: {1e3 * row['ours_s']:.1f} ms, {row['ratio']:.1f}x Flower"
        )
    print(f"mask expansion: {figures['aes_fraction']:.2f} of raw AES-256-CTR")
    for kind, seconds in figures["unmask_cpu_s"].items():
        print(f"unmasking at the coordinator (n = 100, d = 100 000, 10 dropouts), {kind}: {seconds:.3f} s of CPU")
    for target, met in figures["targets"].items():
        print(f"{'met ' if met else 'MISSED'} {target}")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--masks", choices=("both", "classical", "post-quantum"), default="both")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kinds = {"both": (False, True), "classical": (False,), "post-quantum": (True,)}[arguments.masks]
    figures = measure(arguments.quick, kinds)
    print(json.dumps(figures)) if arguments.json else show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
