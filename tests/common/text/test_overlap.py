"""What synthetic texts share with records: verbatim, nearly, in long runs, and by the distance to the closest one."""

import itertools
import random
from dataclasses import asdict

import numpy as np
import pytest

from undersong_common.text import overlap
from undersong_common.text.overlap import closest_distances, closest_records, find_overlap, words

NOTE = (
    "Patient arrived by ambulance at four with crushing chest pain that had started an hour before while she was "
    "gardening and it did not ease with rest or with the spray"
)


def test_copy_counts_as_verbatim_after_folding_case_and_punctuation():
    found = find_overlap(
        ["nothing alike", NOTE.upper().replace(" ", " \n") + "!!", "ＣＨＥＳＴ pain"], [NOTE, "chest, pain"]
    )
    assert found.verbatim == (2, 3)
    assert found.near_verbatim == found.shared_run == ()
    assert found.longest_run == len(words(NOTE))


def test_one_changed_word_is_near_verbatim():
    assert find_overlap([NOTE.replace("ambulance", "taxi")], [NOTE]).near_verbatim == (1,)
    short = "how do I activate my new card today"
    assert find_overlap([short.replace("new", "old")], [short]).near_verbatim == (1,)


@pytest.mark.parametrize(("record", "is_near"), [("a b c a b", True), ("a b c d a b", False)])
def test_a_part_with_three_fifths_of_the_pairs_is_near_verbatim(record, is_near):
    """All three pairs of "a b", with those of its two ends, occur in the record, which has five or six."""
    assert (find_overlap(["a b"], [record]).near_verbatim == (1,)) is is_near


def test_a_copied_passage_in_a_new_text_is_a_shared_run():
    passage = " ".join(words(NOTE)[5:15])
    text = (
        "totally new words were written here by nobody in particular and then " + passage + " prior to more new words "
    )
    found = find_overlap([text + "which follow on and on without end until the text is long enough"], [NOTE])
    assert found.shared_run == (1,)
    assert found.runs == {1: 10}
    assert find_overlap([" ".join(words(NOTE)[5:12])], [NOTE]).runs == {}  # seven words: below what counts


def test_a_text_stitched_from_several_records_is_near_verbatim():
    first, second = [f"a{k}" for k in range(40)], [f"b{k}" for k in range(40)]
    found = find_overlap([" ".join(first[:20] + second[:20])], [" ".join(first), " ".join(second)])
    assert found.near_verbatim == (1,)  # 26 of its 33 eight-word runs, though at most half of its pairs with one record
    assert found.longest_run == 20


def test_shared_word_runs_do_not_cross_the_border_of_two_records():
    assert find_overlap(["a b c d e f g h"], ["a b c d", "e f g h"]).runs == {}


@pytest.mark.heavy
def test_longest_runs_and_resemblance_equal_a_plain_search():
    rng = random.Random(3)
    alphabet = [f"w{k}" for k in range(4)]  # few words: long accidental runs, hashes under pressure
    theirs = [[rng.choice(alphabet) for _ in range(rng.randrange(0, 60))] for _ in range(40)]
    ours = [[rng.choice(alphabet) for _ in range(rng.randrange(0, 60))] for _ in range(30)]
    for index in range(12):  # and some copies of every length
        source = rng.choice(theirs)
        start = rng.randrange(0, max(1, len(source)))
        ours[index] += source[start : start + rng.randrange(1, 60)]

    def longest(a, b):
        best, previous = 0, [0] * (len(b) + 1)
        for x in a:
            row = [0] * (len(b) + 1)
            for j, y in enumerate(b):
                row[j + 1] = previous[j] + 1 if x == y else 0
            best, previous = max(best, *row), row
        return best

    def pairs(tokens):
        marked = ["^", *tokens, "$"]
        return set(itertools.pairwise(marked)) if tokens else set()

    def alike(a, b):
        return bool(a and b) and len(a & b) / len(a | b) >= overlap.JACCARD

    vocabulary = {}
    left = overlap._Corpus.read([" ".join(row) for row in ours], vocabulary)
    right = overlap._Corpus.read([" ".join(row) for row in theirs], vocabulary)
    found = find_overlap([" ".join(row) for row in ours], [" ".join(row) for row in theirs])
    expected = {i + 1: n for i, a in enumerate(ours) if (n := max(longest(a, b) for b in theirs)) >= overlap.RUN_WORDS}
    assert found.runs == expected
    assert max(expected.values()) > 20
    resembling = [any(alike(pairs(a), pairs(b)) for b in theirs) for a in ours]
    values = np.random.default_rng(1).integers(0, 1 << 64, size=len(vocabulary) + 1, dtype=np.uint64)
    padded = (corpus.padded(len(vocabulary)) for corpus in (left, right))
    assert overlap._mark_resembling(*padded, values).tolist() == resembling
    assert 0 < sum(resembling) < len(ours)


@pytest.mark.parametrize(("synthetic", "private"), [([], [NOTE]), ([NOTE], []), ([""], ["..."]), (["?!"], [NOTE])])
def test_empty_corpus_or_empty_records_have_no_overlap(synthetic, private):
    found = find_overlap(synthetic, private)
    assert found.verbatim == found.near_verbatim == found.shared_run == ()
    assert found.rows == len(synthetic)


def test_scripts_without_spaces_are_compared_by_character():
    assert len(words("患者は胸痛を訴えた")) == 9
    assert find_overlap(["患者は胸痛を訴えて来院した"], ["昨日、患者は胸痛を訴えて来院"]).runs == {1: 11}


def test_overlap_report_contains_no_word_of_either_file():
    shown = str(find_overlap([NOTE], [NOTE]).as_dict()) + repr(find_overlap([NOTE], [NOTE]))
    assert not any(word in shown for word in ("ambulance", "gardening", "spray"))


@pytest.mark.slow
def test_thousands_of_texts_take_seconds():
    rng = np.random.default_rng(0)
    draw = rng.zipf(1.3, size=(6000, 40)) % 5000
    texts = [" ".join(f"w{k}" for k in row) for row in draw]
    found = find_overlap(texts[:3000], texts[2990:])
    assert found.verbatim == tuple(range(2991, 3001))


def directions(rows: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(rows, 12)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_distances_equal_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "BLOCK_ROWS", 7)  # the blocks' seams are what can go wrong
    rows, records = directions(40, 0), directions(30, 1)
    expected = [min(1 - float(a.astype(np.float64) @ b) for b in records) for a in rows]
    assert closest_distances(rows, records) == pytest.approx(expected, abs=1e-6)


def test_texts_of_the_same_kind_are_nearer_to_training_half_of_the_time() -> None:
    found = closest_records(directions(400, 2), directions(300, 3), directions(500, 4))
    assert (found.rows, found.records) == (400, 300)
    assert found.closer.low < 0.5 < found.closer.high
    assert found.training == pytest.approx(found.holdout, rel=0.15)


def test_copies_of_training_records_are_closer_than_held_out_ones() -> None:
    training = directions(300, 3)
    synthetic = np.concatenate([training[:100], directions(100, 2)])
    found = closest_records(synthetic, training, directions(300, 4))
    assert found.closer.low > 0.6
    assert found.training[0] == pytest.approx(0.0, abs=1e-6)
    assert found.holdout[0] > 0.1
    assert asdict(found)["closer"]["value"] == found.closer.value


def test_texts_at_equal_distances_count_half() -> None:
    same = directions(20, 5)
    assert closest_records(same, same, same).closer.value == 0.5


def test_closest_records_refuses_a_side_without_records() -> None:
    with pytest.raises(ValueError, match="no rows"):
        closest_records(directions(3, 0), directions(3, 1)[:0], directions(3, 2))
