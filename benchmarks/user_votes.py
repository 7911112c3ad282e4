"""What is gained by scaling a user's votes up to the clipping bound instead of taking their mean over records.

    python -m benchmarks.user_votes --data FOLDER [--seeds 20] [--users 100] [--json]

FOLDER holds banking_groups (benchmarks/tasks), all public. Each seed draws ``--users`` users with 2 to 20 questions, of
which at most 8 count, and 3 000 candidates of six pools. The users vote for and against candidates (Q = 8, epsilon 4,
delta 1e-5, unit user), once scaled as the product does it, once by the mean of their records' votes, with the same
noise at the same charge. The 300 candidates with the highest difference, equally many of each label, train a logistic
regression on embeddings, which is judged on the test questions. ``norm`` is the mean share of the charged norm that a
user's contribution has, ``signal`` the length of the exact sum beside that of the noise.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.grid import CANDIDATES, KEPT, Q, load_questions
from tests.doubles.example_records import Records
from undersong_common.arrays import Float64, Int64
from undersong_common.intervals import over_seeds
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs, Rows, TopQVotes
from undersong_protocol.statistics.contribution import contribute
from undersong_server.methods.augpe import by_rank

FEWEST, MOST, COUNTED = 2, 20, 8  # fewest and most records of a user, and how many count
FORMS = ("scaled", "mean")


def draw_units(rng: np.random.Generator, users: int) -> Int64:
    """Returns the user number of each record, int64. Users have 2 to 20 records, of which at most 8 count."""
    return np.repeat(np.arange(users), np.minimum(rng.integers(FEWEST, MOST + 1, users), COUNTED))


def measure(data_folder: Path, seeds: int, users: int) -> dict[str, Any]:
    """Returns accuracy, norm and signal of both forms, a number for each seed."""
    from sklearn.linear_model import LogisticRegression

    labels, private, test, pool = load_questions(data_folder)
    statistic = TopQVotes(q=Q, candidates=CANDIDATES, labels=labels)
    privacy = Privacy(4.0, 1e-5, unit="user", max_per_unit=COUNTED)
    planned = plan_sums([SumRequest("votes", statistic)], privacy, Quorum(10, 7, 1, 1))["votes"]
    figures: dict[str, dict[str, list[float]]] = {form: {"accuracy": [], "norm": [], "signal": []} for form in FORMS}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        units = draw_units(rng, users)
        record_rows, candidate_rows = (
            rng.permutation(len(private.rows))[: len(units)],
            rng.permutation(len(pool.rows))[:CANDIDATES],
        )
        records = Records(embeddings=private.rows[record_rows], labels=private.labels[record_rows], units=units)
        candidates = LabelledEmbeddings(pool.rows[candidate_rows], pool.labels[candidate_rows])
        rows = statistic.rows(records, PublicInputs({"candidates": candidates}), {})
        matrix = sp.csr_array(rows.take(np.arange(len(units))))
        votes_by_form = {
            "mean": _by_mean(matrix, units),
            "scaled": _by_product(statistic, matrix, units, planned.scale),
        }
        noise = rng.normal(0.0, planned.sigma, 2 * CANDIDATES)
        for form, user_votes in votes_by_form.items():
            votes = user_votes.sum(axis=0)
            near_votes, far_votes = np.split(votes + noise, 2)
            best_candidates = by_rank(near_votes - far_votes, candidates.labels, KEPT)
            head = LogisticRegression(max_iter=500).fit(
                candidates.values[best_candidates], candidates.labels[best_candidates]
            )
            figures[form]["accuracy"].append(100 * float(head.score(test.rows, test.labels)))
            figures[form]["norm"].append(float(np.linalg.norm(user_votes, axis=1).mean() / statistic.sensitivity.l2))
            figures[form]["signal"].append(float(np.linalg.norm(votes) / np.linalg.norm(noise)))
    return {"seeds": seeds, "users": users, "sigma": planned.sigma, **figures}


def _by_mean(matrix: Any, units: Int64) -> Float64:
    """Returns the mean of each user's rows, float64 [users, dimension]."""
    members = sp.csr_array((np.ones(len(units)), (units, np.arange(len(units)))))
    return np.asarray((members @ matrix).toarray() / np.bincount(units)[:, None], dtype=np.float64)


def _by_product(statistic: TopQVotes, matrix: Any, units: Int64, scale: int) -> Float64:
    """Returns the vector that the product sends for each user, float64 [users, dimension]."""
    user_votes = [
        contribute(statistic, Rows(matrix[units == user], units[units == user]), scale=scale, max_per_unit=COUNTED)
        for user in np.unique(units)
    ]
    return np.stack([sent.values for sent in user_votes]) / scale


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.user_votes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds banking_groups")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    figures = measure(options.data, options.seeds, options.users)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(f"{options.seeds} seeds, {options.users} users, noise of {figures['sigma']:.2f} votes")
    for form in FORMS:
        means = {name: float(np.mean(numbers)) for name, numbers in figures[form].items()}
        print(f"{form}: accuracy {means['accuracy']:.1f} %, norm {means['norm']:.3f}, signal {means['signal']:.2f}")
    gain = over_seeds(np.array(figures["scaled"]["accuracy"]) - np.array(figures["mean"]["accuracy"]))
    print(f"scaled - mean: {gain.value:+.1f} ({gain.low:+.1f} to {gain.high:+.1f}) points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
