"""What is made of noisy counts, and of a generator's keywords."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from undersong_server.methods.parts.metadata import (
    RANGE_EDGES,
    Metadata,
    keywords,
    length_edges,
    length_range,
    shares_by_label,
    shares_of_counts,
)


@settings(max_examples=examples(25, 100), deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=60))
def test_shares_are_the_projection_of_noisy_counts_on_the_simplex(values):
    counts = np.array(values)
    found = shares_of_counts(counts)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    if counts.sum() > 1e-6:
        lowered = found * counts.sum()
        moved = counts - lowered
        kept = lowered > 1e-6 * max(1.0, counts.sum())
        if kept.any():  # the optimum of the projection: one shift where positive, no less where clipped
            assert moved[kept] == pytest.approx(np.full(kept.sum(), moved[kept].mean()), abs=1e-5)


def test_projected_shares_are_nearer_to_the_truth_than_clipped_ones():
    rng = np.random.default_rng(0)
    truth = np.zeros(100)
    truth[:20] = 50.0
    lowered, clipped = [], []
    for noisy in truth + rng.normal(scale=15.0, size=(50, 100)):
        positive = np.maximum(noisy, 0)
        lowered.append(np.abs(shares_of_counts(noisy) - truth / 1000).sum())
        clipped.append(np.abs(positive / positive.sum() - truth / 1000).sum())
    assert np.mean(lowered) < 0.75 * np.mean(clipped)


def test_length_range_covers_the_records_and_ignores_noise():
    rng = np.random.default_rng(1)
    edges = np.array(RANGE_EDGES)
    words = rng.integers(11, 40, 5000)
    counts = np.histogram(words, bins=edges)[0] + rng.normal(scale=12.0, size=len(edges) - 1)
    assert length_range(counts, 12.0) == (11, 44)
    assert length_range(np.histogram(words, bins=edges)[0].astype(float), 0.0) == (11, 44)
    assert length_range(np.zeros(len(edges) - 1), 12.0) == (0, RANGE_EDGES[-1])


def test_length_bin_edges_are_whole_numbers_of_words():
    assert length_edges(11, 44, 100).tolist() == list(range(11, 45))
    wide = length_edges(0, 1000, 100)
    assert len(wide) == 101
    assert (np.diff(wide) >= 1).all()


def test_keyword_shares_follow_the_votes_of_their_own_label():
    first, second = shares_by_label(np.array([90.0, 10.0, 5.0, 5.0]), np.array([0, 0, 1, 1]), 2)
    assert first == pytest.approx([0.9, 0.1])  # the softmax of these shares would be 0.69 and 0.31
    assert second == pytest.approx([0.5, 0.5])
    assert len(shares_by_label(np.zeros(0), np.zeros(0, dtype=np.int64), 1)[0]) == 0


def test_label_counts_are_drawn_within_one_of_their_exact_share():
    shares = np.array([0.5, 0.0, 0.3, 0.155, 0.045, 0.0])
    metadata = Metadata(10.0, shares, None, None, (), ())
    drawn = [metadata.draw_labels(30, np.random.default_rng(seed)) for seed in range(200)]
    counts = np.array([np.bincount(labels, minlength=6) for labels in drawn])
    assert np.abs(counts - 30 * shares).max() < 1.0
    assert counts.mean(axis=0) == pytest.approx(30 * shares, abs=0.15)  # no label is favoured
    assert len({tuple(labels) for labels in drawn}) > 190  # their order is random
    assert not len(metadata.draw_labels(0, np.random.default_rng(0)))


def test_drawn_lengths_and_terms_follow_the_metadata_shares():
    metadata = Metadata(
        10.0,
        np.array([0.2, 0.8]),
        np.array([2.0, 4.0, 8.0]),
        np.array([0.0, 1.0]),
        (("x",), ("y", "z")),
        (np.array([1.0]), np.array([0.25, 0.75])),
    )
    rng = np.random.default_rng(0)
    assert metadata.draw_labels(20_000, rng).mean() == pytest.approx(0.8, abs=0.02)
    lengths = {metadata.draw_words(rng) for _ in range(500)}
    assert lengths == {4, 5, 6, 7}
    assert np.mean([metadata.draw_terms(1, rng) == ("z",) for _ in range(4000)]) == pytest.approx(0.75, abs=0.04)
    assert metadata.draw_terms(0, rng) == ("x",)


def test_keywords_come_from_list_items_or_distinctive_words_of_texts():
    found = keywords(
        [
            ["1. lost card, 2. Stolen card, blocked PIN", "lost card, new PIN, card fees"],
            ["The transfer of the money is late, and I want to know where on earth it is.", "my transfer failed"],
            [],
        ],
        4,
    )
    assert found[0] == ["lost card", "Stolen card", "blocked PIN", "new PIN"]
    assert found[1][0] == "transfer"
    assert found[2] == []
