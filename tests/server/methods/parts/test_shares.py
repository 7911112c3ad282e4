"""The whole corpus comes near to given shares of generators and labels, whatever was written before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undersong_server.methods.parts import shares
from undersong_server.pool import Pool, Sample


def pool_of(counts):
    """A pool with ``counts[k][c]`` texts of generator k and label c."""
    pool = Pool(("a", "b"), ("one", "two", "three"))
    for generator, row in zip(("one", "two", "three"), counts, strict=True):
        for label, count in zip("ab", row, strict=True):
            pool.extend(Sample(f"{generator} {label} {n}", label, generator, 0, "zero_shot") for n in range(count))
    return pool


def test_what_was_written_too_much_of_is_not_written_again():
    pool = pool_of([(10, 10), (10, 10), (10, 10)])
    weights = np.array([0.6, 0.3, 0.1])
    assert shares.generator_counts(pool, weights, 40).tolist() == [32, 8, 0]
    assert shares.generator_counts(pool_of([(0, 0)] * 3), weights, 10).tolist() == [6, 3, 1]


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    ordered=st.lists(st.integers(0, 60), min_size=3, max_size=3),
)
def test_labels_make_up_for_what_is_missing(counts, ordered):
    share, before = np.array([0.5, 0.3, 0.2]), np.array(ordered)
    wanted = shares.labels_to_write(np.array(counts), share, before)
    assert [len(labels) for labels in wanted] == counts
    assert before.tolist() == ordered  # the caller counts
    total = before + np.bincount(np.concatenate(wanted).astype(np.int64), minlength=3)
    # No label is written beyond its share, rounded up.
    assert (total <= np.maximum(before, np.ceil(share * total.sum() + 1e-9))).all()


def test_thinning_keeps_weights_and_label_shares():
    pool = pool_of([(60, 60), (60, 60), (60, 60)])
    weights, label_shares = np.array([0.2, 0.3, 0.5]), np.array([0.25, 0.75])
    kept = shares.thinned(pool, weights, label_shares, np.random.default_rng(0))
    by_generator = [sum(sample.generator == name for sample in kept) for name in ("one", "two", "three")]
    assert by_generator == [72, 108, 120]  # the third wrote no more than 120
    mine = [sample.label for sample in kept if sample.generator == "one"]
    assert mine.count("a") / len(mine) == pytest.approx(0.25, abs=0.02)
    assert [pool.samples.index(sample) for sample in kept] == sorted(pool.samples.index(sample) for sample in kept)
