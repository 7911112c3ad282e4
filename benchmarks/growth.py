"""How cost grows with the number of parties, coordinates, candidates, records or generators, as a power of it.

    python -m benchmarks.growth [--quick] [--json] [--pictures FOLDER]

One row doubles one size (or multiplies it by four) and leaves the others as they are. Costs are processor time of this
process, the least of a few repeats, or bytes. ``exponent`` is the slope of the least-squares line through the points on
logarithmic axes; ``last_exponent`` that between the last two, where constant parts count least.

``--pictures`` draws one SVG of processor time for what grows (parties, coordinates, candidates, records), named
growth-WHAT.svg, and growth-downlink.svg of what goes down to a party, above 2 000 parties as ``benchmarks.merkle
--sizes`` adds it up.
JSON: ``rows`` = list of {grows, sizes, what, unit, costs, exponent, last_exponent, fixed}.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import loglog, merkle
from tests.doubles.votes import top_q_votes
from undersong_common.arrays import Float64
from undersong_common.models.embedding import publishable, quantise
from undersong_protocol.secagg import keys
from undersong_protocol.secagg.coordinator import private_sum
from undersong_protocol.secagg.parameters import Member, SumParameters, default_threshold
from undersong_protocol.secagg.party import PartyMachine, WantsInput
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

QUESTION = bytes(32)
WIDTH = 384
RECORDS, CANDIDATES, Q = 1_000, 4_000, 8
PARTIES, COORDINATES = 20, 12_000
SAMPLES = 120

Costs = Mapping[str, float]


def private_sum_costs(parties: int, coordinates: int, post_quantum: bool) -> Costs:
    """Costs of one private sum in which a tenth of the parties is silent after step 1, without noise.

    ``party_ms`` (of one party on average) and ``coordinator_ms`` are processor times; ``down_kB`` is sent to one party.
    ``benchmarks.noise`` times the noise.
    """
    identities = [Ed25519PrivateKey.generate() for _ in range(parties)]
    roster = tuple(Member(f"p{i:04d}", key.public_key().public_bytes_raw()) for i, key in enumerate(identities))
    dropouts = max(1, parties // 10)
    parameters = SumParameters(
        manifest_hash=bytes(32),
        run="growth",
        query="sum",
        attempt=0,
        roster=roster,
        threshold=default_threshold(parties, 1),
        tolerated_dropouts=dropouts,
        colluders=1,
        dimension=coordinates,
        modulus_bits=32,
        sigma=0.0,
        post_quantum=post_quantum,
    )
    vector = GridVector(np.random.default_rng(1).integers(-100, 101, coordinates))
    processor_s = {"parties": 0.0, "coordinator": 0.0}

    def timed(side: str, work: Callable[[], Any]) -> Any:
        start_s = time.process_time()
        returned = work()
        processor_s[side] += time.process_time() - start_s
        return returned

    machines = {
        member.name: timed("parties", partial(PartyMachine.open, parameters, member.name, identity, os.urandom))
        for member, identity in zip(roster, identities, strict=True)
    }
    coordinator = private_sum(parameters, lambda: QUESTION)
    requests = timed("coordinator", lambda: next(coordinator))
    sent_bytes = 0
    while True:
        is_masking = wire.Request.FromString(next(iter(requests.values()))).WhichOneof("stage") == "mask"
        sent_bytes += sum(map(len, requests.values()))
        replies = {}
        for name, request in list(requests.items())[dropouts if is_masking else 0 :]:
            keys.verified.cache_clear()  # a party in a process of its own has verified nothing before
            reply = timed("parties", partial(machines[name].receive, request))
            if isinstance(reply, WantsInput):
                reply = timed("parties", partial(machines[name].provide, vector, QUESTION))
            replies[name] = reply.payload
        try:
            requests = timed("coordinator", partial(coordinator.send, replies))
        except StopIteration:
            return {
                "party_ms": 1e3 * processor_s["parties"] / parties,
                "coordinator_ms": 1e3 * processor_s["coordinator"],
                "down_kB": sent_bytes / parties / 1e3,
            }


def merkle_costs(parties: int, post_quantum: bool) -> Costs:
    """Bytes sent to one party on average, added up from the lengths of the requests (``benchmarks.merkle``)."""
    return {"down_kB": merkle.sizes(parties, round(merkle.COLLUDERS * parties), post_quantum)["down_kB"]}


def vote_costs(records: int, candidates: int) -> Costs:
    """Processor time of finding the nearest and furthest candidates of every record exactly."""
    rng = np.random.default_rng(2)
    x = quantise(_unit(rng, records))
    c = publishable(_unit(rng, candidates))
    start_s = time.process_time()
    top_q_votes(x, None, c, None, Q)
    return {"party_ms": 1e3 * (time.process_time() - start_s)}


def _unit(rng: np.random.Generator, rows: int) -> Float64:
    values = rng.standard_normal((rows, WIDTH))
    unit: Float64 = values / np.linalg.norm(values, axis=1, keepdims=True)
    return unit


def run_costs(generators: int) -> Costs:
    """Processor time of a whole run of fixed size with this number of n-gram generators."""
    from tests.doubles.bench import run_method
    from tests.doubles.tasks import make_task
    from undersong_server.runs import task as tasks
    from undersong_server.runs.planning import plan_run

    with tempfile.TemporaryDirectory() as folder:
        path = make_task(Path(folder), parties=1, records=40, samples=SAMPLES)
        task_head = path.read_text(encoding="utf-8").split("[[generators]]")[0]
        for number in range(generators):
            corpus = ("good", "poor")[number % 2]
            task_head += f'[[generators]]\nname = "g{number}"\nkind = "ngram"\ncorpus = "{corpus}.jsonl"\n'
        path.write_text(task_head, encoding="utf-8")
        task = tasks.load(path)
        run_plan = plan_run(task)
        start_s = time.process_time()
        run_method(task, run_plan, seed=0)
        return {"coordinator_ms": 1e3 * (time.process_time() - start_s)}


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent of a power law through the points, by least squares on logarithmic axes.

    >>> round(slope([1, 2, 4], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def rows_of(
    grows: str, fixed: str, sizes: Sequence[int], measure_costs: Callable[[int], Costs], repeats: int
) -> list[dict[str, Any]]:
    """Returns a row for each cost that ``measured`` gives; a cost is the least of ``repeats`` at each size."""
    costs_by_name: dict[str, list[float]] = {}
    measure_costs(sizes[0])  # what is loaded and cached once is no cost of the smallest size
    for size in sizes:
        runs = [measure_costs(size) for _ in range(repeats)]
        for cost_name in runs[0]:
            costs_by_name.setdefault(cost_name, []).append(min(run[cost_name] for run in runs))
    return [
        {
            **{
                "grows": grows,
                "sizes": list(sizes),
                "what": cost_name.rsplit("_", 1)[0],
                "unit": cost_name.rsplit("_", 1)[1],
            },
            **{"costs": costs, "exponent": slope(sizes, costs), "fixed": fixed},
            "last_exponent": slope(sizes[-2:], costs[-2:]),
        }
        for cost_name, costs in costs_by_name.items()
    ]


def measure(quick: bool, report: Callable[[str], None] = lambda _words: None) -> dict[str, Any]:
    """All rows as a JSON-able mapping."""
    repeats = 1 if quick else 2
    rows: list[dict[str, Any]] = []

    def add(grows: str, fixed: str, sizes: Sequence[int], measured: Callable[[int], Costs]) -> None:
        # One run is enough for sums over parties, since each party repeats the same work within it.
        rows.extend(rows_of(grows, fixed, sizes, measured, 1 if grows == "parties" else repeats))
        report(f"{grows}: done")

    party_counts = (8, 16, 32, 64) if quick else (10, 20, 40, 80, 160)
    for post_quantum, on_or_off in ((True, "on"), (False, "off")):
        fixed = f"{COORDINATES} coordinates, post-quantum {on_or_off}"
        add(
            "parties",
            fixed,
            party_counts,
            partial(private_sum_costs, coordinates=COORDINATES, post_quantum=post_quantum),
        )
        merkle_sizes, fixed = (
            merkle.SIZES[:2] if quick else (2_001, *merkle.SIZES[1:]),
            f"Merkle graph, post-quantum {on_or_off}",
        )
        add("parties", fixed, merkle_sizes, partial(merkle_costs, post_quantum=post_quantum))
    coordinate_counts = (10_000, 40_000, 160_000) if quick else (10_000, 40_000, 160_000, 640_000)
    add(
        "coordinates",
        f"{PARTIES} parties, post-quantum on",
        coordinate_counts,
        lambda d: private_sum_costs(PARTIES, d, True),
    )
    candidate_counts = (1_000, 2_000, 4_000, 8_000) if quick else (1_000, 2_000, 4_000, 8_000, 16_000)
    add("candidates", f"{RECORDS} records of {WIDTH}", candidate_counts, lambda n: vote_costs(RECORDS, n))
    record_counts = (500, 1_000, 2_000, 4_000) if quick else (500, 1_000, 2_000, 4_000, 8_000)
    add("records", f"{CANDIDATES} candidates of {WIDTH}", record_counts, lambda m: vote_costs(m, CANDIDATES))
    add("generators", f"a run of {SAMPLES} samples", (1, 2, 4, 8), run_costs)
    return {"rows": rows}


def show(figures: dict[str, Any]) -> None:
    """Prints the rows as a table."""
    print(f"{'grows':<12} {'cost':<15} {'exponent':>8} {'at the end':>10}   sizes -> costs (what is fixed)")
    for row in figures["rows"]:
        points = ", ".join(f"{size}: {_figure(cost)}" for size, cost in zip(row["sizes"], row["costs"], strict=True))
        print(
            f"{row['grows']:<12} {row['what'] + ' ' + row['unit']:<15} {row['exponent']:8.2f}"
            f" {row['last_exponent']:10.2f}   {points} ({row['fixed']})"
        )


def draw(figures: dict[str, Any], folder: Path) -> None:
    """Writes the pictures: processor times by what grows, and what goes down to a party."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in figures["rows"]:
        masks, is_downlink = row["fixed"].partition("post-quantum ")[2], row["unit"] == "kB"
        if row["grows"] == "generators" or (is_downlink and row["grows"] != "parties"):
            continue
        name = f"{row['what']}{f', post-quantum {masks}' if masks else ''}"
        if is_downlink:  # a short name, since the complete graph's lines end in the middle
            name = ("Merkle, " if row["fixed"].startswith("Merkle") else "") + {"on": "hybrid", "off": "classical"}[
                masks
            ]
        points = list(zip(map(float, row["sizes"]), row["costs"], strict=True))
        lines.setdefault("downlink" if is_downlink else row["grows"], {})[f"{name}: {row['exponent']:.2f}"] = points
    for grows, grown_lines in lines.items():
        if grows == "downlink":
            svg_text = loglog.draw_chart("Bytes to a party and parties, exponents behind", "parties", "kB", grown_lines)
        else:
            svg_text = loglog.draw_chart(
                f"Processor time and {grows}, exponents behind", grows, "milliseconds", grown_lines
            )
        (folder / f"growth-{grows}.svg").write_text(svg_text, encoding="utf-8")


def _figure(cost: float) -> str:
    return f"{cost:.{max(0, 2 - math.floor(math.log10(cost)))}f}" if 0 < cost < 1000 else f"{cost:.0f}"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, one repeat")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="where to draw them")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = measure(arguments.quick, report=lambda words: print(words, file=sys.stderr))
    print(json.dumps(figures)) if arguments.json else show(figures)
    if arguments.pictures is not None:
        draw(figures, arguments.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
