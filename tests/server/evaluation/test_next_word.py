"""A corpus of the same kind lowers the next-word loss, another kind hardly does, and it is a true distribution."""

from __future__ import annotations

import math

import pytest

from benchmarks.next_word import Likeliest, next_word_accuracy
from undersong_server.evaluation.metrics import END, Trigrams, next_word_loss

CARDS = [f"my card was {verb} at the {place} today" for verb in ("stolen", "declined") for place in ("shop", "bank")]
TEST = ["my card was stolen at the bank today", "my card was declined at the shop"]
OTHER = ["a moving film about a family by the sea", "the plot drags and the jokes fall flat"]


def test_next_word_loss_is_lower_after_training_on_similar_texts() -> None:
    before, after, elsewhere = (next_word_loss(training, TEST) for training in ((), CARDS, OTHER))
    assert after < 0.5 * before
    assert before - elsewhere < 0.2 * (before - after)


def test_base_probabilities_of_the_next_word_model_sum_to_one() -> None:
    base = Trigrams((), "en")
    known = sum(base.probability(word, ()) for word in base.general)
    assert 0.99 <= known <= 1.0
    assert 0 < base.probability("xqzzyv", ()) < base.probability("the", ())


def test_next_word_loss_equals_a_count_by_hand() -> None:
    """One training text "a", one test text "a": each order adds (count + kinds p)/(total + kinds)."""
    base = Trigrams((), "en")

    def probability(word: str) -> float:
        found = (1 + 2 * base.probability(word, ())) / (2 + 2)  # "a" and the end, once each, without context
        for _ in range(2):
            found = (1 + found) / 2  # one follower, once
        return found

    expected = -(math.log2(probability("a")) + math.log2(probability(END))) / 2
    assert next_word_loss(["a"], ["a"]) == pytest.approx(expected)


def test_next_word_loss_of_no_text_is_not_a_number() -> None:
    assert math.isnan(next_word_loss(["a"], []))


@pytest.mark.slow
def test_likeliest_word_has_the_highest_probability_of_all_known_words() -> None:
    model = Likeliest([*CARDS, *OTHER], "en")
    words = [*model.general, *{word for text in CARDS + OTHER for word in text.split()}]
    for context in ((), ("my", "card"), ("the", "bank"), ("at", "sea"), ("unseen", "words")):
        best = max(model.probability(word, context) for word in words)
        assert model.probability(model.likeliest(context), context) == best


@pytest.mark.heavy
def test_next_word_accuracy_is_high_only_on_texts_of_the_same_kind() -> None:
    assert next_word_accuracy(CARDS, TEST) > 0.6 > 0.2 > next_word_accuracy(OTHER, TEST)
    assert math.isnan(next_word_accuracy(CARDS, []))
