"""How often private preference pairs are right: what the method tuned learns from, without any model.

    python -m benchmarks.preferences --data FOLDER [--records 300] [--texts 10]

FOLDER holds banking10/train.jsonl and test.jsonl. The test questions stand for a model's texts: half of them, drawn at
random, get another label, about as many as a small model misses. Groups of ``--texts`` texts of a label stand for the
answers to one prompt. ``chosen`` and ``rejected`` are the shares of right texts among the pairs' first and second texts
(0.5 would be no information). ``order`` is the share of pairs whose first text is the right one, of pairs with one
right text. Means over draws of records and of noise. "similarity" ranks by a text's product with one noisy sum of the
records' embeddings, which serves all rounds; votes are asked three times.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from tests.doubles.votes import top_q_votes
from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.models.embedding import Embedder
from undersong_common.text.table import read_table
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.statistics.embedding_sum import EmbeddingSum

EPSILONS, QS, VOTES, DRAWS, NOISES = (1.0, 4.0), (1, 4, 8), 3, 5, 20


def add_noise(scores: Float64, sigma: float, rng: np.random.Generator) -> Float64:
    return scores + rng.normal(0.0, sigma, scores.shape)


def count_right(ranked: Int64, right: Int64, rejected: int) -> tuple[int, int, int, int]:
    """Counts right texts in the preference pairs of ranked groups: the first text, and that at rank ``rejected``.

    Returns pairs whose chosen text is right, whose rejected text is right, those in the right order, and those with
    exactly one right text.
    """
    first, second = right[ranked[:, 0]], right[ranked[:, rejected - 1]]
    return int(first.sum()), int(second.sum()), int((first > second).sum()), int((first != second).sum())


def rank_groups(scores: Float64, groups: Int64) -> Int64:
    return np.take_along_axis(groups, np.argsort(-scores[groups], axis=1), axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--records", type=int, default=300)
    parser.add_argument("--texts", type=int, default=10)
    arguments = parser.parse_args()
    train, test = (
        read_table(arguments.data / "banking10" / f"{name}.jsonl", "text", "label") for name in ("train", "test")
    )
    names = sorted(set(train.labels or ()))
    embedder = Embedder.load("packaged")
    records, texts = (embedder.encode(list(table.texts)) for table in (train, test))
    of_records, true_labels = (np.array([names.index(each) for each in table.labels or ()]) for table in (train, test))
    rng = np.random.default_rng(0)
    is_mislabelled = rng.permutation(len(true_labels)) < len(true_labels) // 2
    stated_labels = np.where(
        is_mislabelled, (true_labels + rng.integers(1, len(names), len(true_labels))) % len(names), true_labels
    )
    right = (stated_labels == true_labels).astype(np.int64)
    groups = np.concatenate(
        [_groups(rng.permutation(np.flatnonzero(stated_labels == k)), arguments.texts) for k in range(len(names))]
    )
    for epsilon in EPSILONS:
        privacy, quorum = Privacy(epsilon, 1e-5), Quorum(5, 5, 0, 0)
        for kind in (*QS, "similarity"):
            pair_counts = np.zeros(4)
            for _ in range(DRAWS):
                record_rows = rng.permutation(len(records))[: arguments.records]
                if isinstance(kind, int):
                    vote_statistic = TopQVotes(q=kind, candidates=len(texts), labels=len(names), furthest=False)
                    plan = plan_sums([SumRequest(f"votes/{t}", vote_statistic) for t in range(VOTES)], privacy, quorum)
                    near, _ = top_q_votes(records[record_rows], of_records[record_rows], texts, stated_labels, kind)
                    exact_votes, sigma = near / 2.0 ** (kind - 1), plan["votes/0"].sigma
                    scores = [add_noise(exact_votes, sigma, rng) for _ in range(NOISES)]
                else:
                    sums = _sums(records[record_rows], of_records[record_rows], len(names))
                    asked_once = [SumRequest("sum", EmbeddingSum(sums.shape[1], len(names)))]
                    sigma = plan_sums(asked_once, privacy, quorum)["sum"].sigma
                    scores = [(texts * add_noise(sums, sigma, rng)[stated_labels]).sum(axis=1) for _ in range(NOISES)]
                for each in scores:
                    pair_counts += count_right(rank_groups(each, groups), right, arguments.texts // 2)
            pairs = len(groups) * DRAWS * NOISES
            line = {"epsilon": epsilon, "by": kind, "sigma": sigma, "chosen": pair_counts[0] / pairs}
            print(
                json.dumps(line | {"rejected": pair_counts[1] / pairs, "order": pair_counts[2] / pair_counts[3]}),
                flush=True,
            )


def _groups(members: Int64, size: int) -> Int64:
    return members[: len(members) // size * size].reshape(-1, size)


def _sums(embedded: Float32, labels: Int64, count: int) -> Float64:
    return np.stack([embedded[labels == k].astype(np.float64).sum(axis=0) for k in range(count)])


if __name__ == "__main__":
    main()
