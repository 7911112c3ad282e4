"""Keyphrase densities: their error under noise, the samplers' speed, and what a histogram of 400 000 terms costs.

    python -m benchmarks.keyphrases [--quick] [--json]

``density``: root mean square error of n x density at 200 terms against the exact kernel sum (unit vectors, d = 256,
m = 500 pairs, epsilon 5, delta 1e-5), with and without noise, for n records; ``prefixes`` the same for every prefix
length of the logarithmic ensemble, L = 10; ``sampler``: 1 000 iterative sequences, L = 10, N = 1 000, 14 classes;
``vocabulary``: one private sum over five parties of 400 records each in this process. Exit status 1 where the time, the
memory, or the error of the single density or of the ensemble from n = 1 000 on misses its target.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from undersong.run.simulation import InProcess
from undersong_common.models.workers import cosines, sines
from undersong_common.privacy.accounting import gaussian_mu
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics.terms import FourierFeatures, TermHistogram
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, encode_texts
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.methods.parts.keyphrases import Densities
from undersong_server.progress import Silent

DIMENSION, PAIRS = 256, 500
PREFIX_NOISES = 6  # draws of the noise for one set of records and frequencies
SAMPLER_TARGET_S, SAMPLER_TARGET_GB, ERROR_TARGET = 60.0, 2.0, 0.10


def unit_vectors(rng: np.random.Generator, count: int, spread: float = 0.8) -> Any:
    """Draws unit vectors in 20 clusters, as those of words are; float32 [count, 256]."""
    centres = rng.normal(size=(20, DIMENSION))
    vectors = centres[rng.integers(0, 20, count)] + spread * rng.normal(size=(count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def feature_sums(statistic: FourierFeatures, sequences: Any, vectors: Any) -> Any:
    """Exact sums of the features of records whose phrases are given, int64 [n, phrases]; one class."""
    feature_totals = np.zeros(statistic.dimension)
    for structure, length in enumerate(statistic.lengths):
        phase = np.zeros((len(sequences), statistic.pairs), dtype=np.int64)
        for position in range(length):
            table = statistic.phases(structure, position, vectors)
            term_numbers = (
                sequences[:, position] if position < sequences.shape[1] else np.full(len(sequences), len(vectors))
            )
            phase += table[term_numbers]
        start = structure * statistic.structure_dimension
        weight = statistic.weights[structure]
        feature_totals[start : start + statistic.pairs] = weight * cosines(phase).sum(axis=0)
        feature_totals[start + statistic.pairs : start + statistic.structure_dimension] = weight * sines(phase).sum(
            axis=0
        )
    return feature_totals


def density_errors(sizes: list[int], repeats: int) -> list[dict[str, float]]:
    """Returns a row for each number of records n: errors of n x density, and how much the noise adds."""
    noise_multiplier = 1.0 / gaussian_mu(5.0, 1e-5)
    rows = []
    for n in sizes:
        plain_errors, noisy_errors = [], []
        for repeat in range(repeats):
            rng = np.random.default_rng([n, repeat])
            vectors = unit_vectors(rng, 1000)
            statistic = FourierFeatures(pairs=PAIRS, averaged=True, seed=repeat)
            record_terms = rng.integers(0, 300, size=(n, 1))
            sums = feature_sums(statistic, record_terms, vectors)
            squared_distances = ((vectors[:200, None].astype(np.float64) - vectors[None, :300]) ** 2).sum(axis=2)
            exact_densities = np.exp(-2.0 * squared_distances) @ np.bincount(record_terms[:, 0], minlength=300)
            noise = rng.normal(scale=noise_multiplier * statistic.sensitivity.l2, size=statistic.dimension)
            plain_errors.append(np.mean((Densities(statistic, sums, vectors).of_terms(0)[:200] - exact_densities) ** 2))
            noisy_errors.append(
                np.mean((Densities(statistic, sums + noise, vectors).of_terms(0)[:200] - exact_densities) ** 2)
            )
        plain_error, with_noise = math.sqrt(np.mean(plain_errors)), math.sqrt(np.mean(noisy_errors))
        rows.append({"n": n, "without_noise": plain_error, "with_noise": with_noise, "ratio": with_noise / plain_error})
    return rows


def prefix_errors(n: int, repeats: int) -> list[dict[str, float]]:
    """Returns a row for each prefix length of the logarithmic ensemble, whose noise is sqrt(5) times a single one's."""
    noise_multiplier = 1.0 / gaussian_mu(5.0, 1e-5)
    lengths = (1, 2, 4, 8, 16)
    squares: dict[int, list[tuple[float, float]]] = {length: [] for length in range(1, 11)}
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 77])
        vectors = unit_vectors(rng, 1000)
        statistic = FourierFeatures(pairs=PAIRS, lengths=lengths, phrases=10, seed=repeat)
        sequences = np.array([rng.permutation(300)[:10] for _ in range(n)])
        sums = feature_sums(statistic, sequences, vectors)
        noiseless = Densities(statistic, sums, vectors)
        noise = rng.normal(scale=noise_multiplier * statistic.sensitivity.l2, size=(PREFIX_NOISES, statistic.dimension))
        noisy_densities = [Densities(statistic, sums + one, vectors) for one in noise]
        squared_distances = np.clip(2.0 - 2.0 * (vectors.astype(np.float64) @ vectors.T.astype(np.float64)), 0.0, None)
        for length in squares:
            held_length = min(one for one in lengths if one >= length)
            prefixes = sequences[:50, :length]
            exact = np.zeros(len(prefixes))
            for row, prefix in enumerate(prefixes):
                distances = sum(
                    squared_distances[sequences[:, position], prefix[position]] for position in range(length)
                )
                exact[row] = np.exp(-2.0 / held_length * distances).sum()
            squares[length].append(
                (
                    float(np.mean((noiseless.of_prefixes(0, prefixes) - exact) ** 2)),
                    float(np.mean([(one.of_prefixes(0, prefixes) - exact) ** 2 for one in noisy_densities])),
                )
            )
    rows = []
    for length, error_pairs in squares.items():
        plain_error, with_noise = (math.sqrt(np.mean([pair[side] for pair in error_pairs])) for side in (0, 1))
        rows.append(
            {
                "n": n,
                "length": length,
                "without_noise": plain_error,
                "with_noise": with_noise,
                "ratio": with_noise / plain_error,
            }
        )
    return rows


def sampler(count: int, classes: int = 14, terms: int = 1000, length: int = 10) -> dict[str, float]:
    """Returns the seconds for ``count`` iterative sequences, tables included, and the process's peak memory."""
    rng = np.random.default_rng(0)
    vectors = np.pad(unit_vectors(rng, terms), ((0, 0), (0, 384 - DIMENSION)))
    figures: dict[str, float] = {"sequences": count}
    for name, lengths in (("logarithmic", (1, 2, 4, 8, 16)), ("linear", tuple(range(1, length + 1)))):
        statistic = FourierFeatures(pairs=512, classes=classes, lengths=lengths, phrases=length)
        sums = rng.normal(scale=30.0, size=statistic.dimension)
        start = time.perf_counter()
        densities = Densities(statistic, sums, vectors)
        for label in range(classes):
            densities.iterative(label, math.ceil(count / classes), length, rng, sharpness=4.0)
        figures[f"{name}_s"] = time.perf_counter() - start
    figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return figures


def vocabulary_sum(terms: int, records: int = 400) -> dict[str, float]:
    """Returns the cost of one private histogram of ``terms`` terms over five parties in this process."""
    from tests.doubles.parties import make_manifest, make_party
    from undersong_common.text.table import Table

    rng = np.random.default_rng(0)
    words = tuple(f"w{number}" for number in range(terms))
    statistic = TermHistogram(vocabulary=terms, distinct=10)
    plan = plan_sums([SumRequest("vocabulary", statistic)], Privacy(1.0, 1e-5), Quorum(5, 4, 1, 1))
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        block_store = MemoryBlocks()
        parties = {}
        for number in range(5):
            texts = tuple(" ".join(f"w{word}" for word in rng.integers(0, 5000, 30)) for _ in range(records))
            parties[f"p{number}"] = make_party(Path(folder), f"p{number}", Table(texts, None, None), blocks=block_store)
        block = encode_texts(words)
        journal = Journal(Path(folder) / "journal.sqlite")
        blocks = PublicBlocks(journal)
        federation = Federation(
            InProcess(parties),
            make_manifest(plan, parties, ()),
            journal,
            Silent(),
            blocks=blocks,
        )
        federation.agree()
        start_s = time.perf_counter()
        opened = federation.private_sum("vocabulary", [Input("vocabulary", (Segment(blocks.add(block)),))])
        seconds = time.perf_counter() - start_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bits = plan.sums[0].modulus_bits
    return {
        "terms": terms,
        "seconds": seconds,
        "added_peak_gb": (peak - memory_before) / 2**20,
        "peak_gb": peak / 2**20,
        "downlink_mb_a_party": len(block) / 2**20,
        "uplink_mb_a_party": bits * terms / 8 / 2**20,
        "deviation_of_noise_ratio": float(np.std(opened.natural[5000:]) / opened.sigma),
    }


def main(argv: list[str] | None = None) -> int:
    """Prints the figures; returns 1 if a target of the module's docstring is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keyphrases", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats and records")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    repeats = 3 if options.quick else 20
    vocabulary_figures = vocabulary_sum(
        400_000
    )  # It runs first, so that earlier work does not count in its memory peak.
    sampler_figures = sampler(1000)
    density_rows = density_errors([300, 1000, 3000] if options.quick else [300, 1000, 3000, 10_000], repeats)
    prefix_rows = prefix_errors(1000, max(repeats, 20)) + prefix_errors(2000, repeats)
    figures = {
        "vocabulary": [vocabulary_figures],
        "sampler": [sampler_figures],
        "density": density_rows,
        "prefixes": prefix_rows,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            for row in value:
                print(name, ", ".join(f"{key} {number:.4g}" for key, number in row.items()))
    targets_met = [
        sampler_figures["logarithmic_s"] < SAMPLER_TARGET_S,
        sampler_figures["peak_gb"] < SAMPLER_TARGET_GB,
        all(row["ratio"] < 1 + ERROR_TARGET for row in density_rows if row["n"] >= 1000),
        all(row["ratio"] < 1 + ERROR_TARGET for row in prefix_rows if row["n"] >= 1000),
    ]
    return 0 if all(targets_met) else 1


if __name__ == "__main__":
    sys.exit(main())
