"""The embedded n-gram model: what it learns, where examples pull it, and what it keeps its hands off."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undersong_common.errors import ConfigurationError
from undersong_common.printable import is_blank
from undersong_common.text.patient_ids import is_database_null
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.ngram import (
    END,
    START,
    Counts,
    NgramGenerator,
    NgramSettings,
    detokenise,
    tokenise,
)

OPENINGS = ("the patient reports", "patient has", "she complains of", "he came in with")
FINDINGS = {
    "cardiac": ("chest pain", "palpitations", "a racing heart", "tight pressure in the chest"),
    "injury": ("a sore ankle", "a cut hand", "left knee pain", "a bruised shoulder"),
}
ENDINGS = ("since this morning", "for two days", "after lunch", "since last week", "after work")


def corpus(count: int = 400, seed: int = 0) -> list[dict[str, str]]:
    rng = Random(seed)
    rows = []
    for _ in range(count):
        label = rng.choice(("cardiac", "injury"))
        text = f"{rng.choice(OPENINGS)} {rng.choice(FINDINGS[label])} {rng.choice(ENDINGS)}"
        rows.append({"text": f"{text.capitalize()}. No fever.", "label": label})
    return rows


def ngram(
    folder: Path,
    rows: Sequence[dict[str, Any]] | None = None,
    labels: Sequence[str] = ("cardiac", "injury"),
    **fields: Any,
) -> NgramGenerator:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (corpus() if rows is None else rows)), encoding="utf-8")
    settings = NgramSettings(**{"name": "small", "kind": "ngram", "corpus": "corpus.jsonl", **fields})
    return NgramGenerator(settings, labels=labels, folder=folder)


def write_texts(generator: NgramGenerator, requests: Sequence[GenerationRequest]) -> list[str]:
    answers = [answer for _, answer in generator.answer(requests)]
    assert all(isinstance(answer, Completion) for answer in answers)
    return [answer.text for answer in answers if isinstance(answer, Completion)]


def ask(
    generator: NgramGenerator, count: int, label: str = "cardiac", kind: str = "zero_shot", **fields: Any
) -> list[str]:
    return write_texts(generator, [GenerationRequest(kind, label, "", seed, **fields) for seed in range(count)])


def share(found: Sequence[str], word: str) -> float:
    return sum(word in text.lower() for text in found) / len(found)


# Counts


def test_ngram_counts_equal_those_of_the_texts() -> None:
    counts = Counts([[5, 6, 5, 6, 7], [5, 7]], 3, 1.0)
    assert Counter(counts[5, 6].pick(u) for u in (0.0, 0.49, 0.5, 0.99)) == {5: 2, 7: 2}
    assert counts[5, 6].escape == pytest.approx(2 / 4)  # Witten-Bell: T / (N + T), two successors seen twice in all
    assert counts[START, START].pick(0.3) == 5
    assert (7, 5) not in counts
    assert END in counts[7,].tokens
    assert END not in counts[6,].tokens
    assert (99,) not in counts


@given(st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=12), min_size=1, max_size=8), st.integers(2, 4))
def test_ngram_picks_reproduce_the_empirical_distribution(data: list[list[int]], order: int) -> None:
    counts = Counts(data, order, 1.0)
    plain: dict[tuple[int, ...], Counter[int]] = {}
    for text in data:
        padded = [*[START] * (order - 1), *text, END]
        for position in range(order - 1, len(padded)):
            for size in range(order):
                plain.setdefault(tuple(padded[position - size : position]), Counter())[padded[position]] += 1
    for context, successors in plain.items():
        total = successors.total()
        drawn = Counter(counts[context].pick((k + 0.5) / total) for k in range(total))
        assert drawn == successors


def test_low_temperature_sharpens_ngram_draws() -> None:
    data = [[2]] * 3 + [[3]]
    shares = []
    for temperature in (0.5, 1.0, 2.0):
        counts = Counts(data, 2, temperature)
        shares.append(np.mean([counts[START,].pick(u) == 2 for u in np.linspace(0, 0.9999, 1000)]))
    assert shares == pytest.approx([0.9, 0.75, 3**0.5 / (3**0.5 + 1)], abs=0.002)


# Tokens


@pytest.mark.parametrize(
    "text",
    [
        "Can't pay with my card (again)! Why?",
        'He said: "No fever, no cough", then left.',
        "BP 120/80, 3.5 mg, 62-year-old, e.g. on day 2...",
        "Line one.\nLine two: yes.",
        "Fees of $20 and 5%; and/or more…",
    ],
)
def test_usual_texts_survive_ngram_tokenisation(text: str) -> None:
    assert detokenise(tokenise(text)) == text


@given(st.text(max_size=80))
def test_tokenising_and_detokenising_again_changes_nothing(text: str) -> None:
    once = detokenise(tokenise(text))
    assert detokenise(tokenise(once)) == once or not once.isascii()


# Texts


@pytest.mark.heavy
def test_ngram_texts_are_new_well_formed_and_about_their_label(tmp_path: Path) -> None:
    generator = ngram(tmp_path)
    heart, limb = ask(generator, 300), ask(generator, 300, "injury")
    assert share(heart, "chest") + share(heart, "heart") + share(heart, "palpitations") > 0.8
    assert share(limb, "chest") < 0.1
    assert share(limb, "knee") > 0.1
    assert all(text[0].isupper() and text.endswith(".") for text in heart + limb)
    assert len(set(heart)) > 60
    assert set(heart) - {row["text"] for row in corpus()}
    assert all("  " not in text and " ." not in text for text in heart)


@pytest.mark.heavy
def test_ngram_text_depends_on_its_seed_and_not_on_earlier_requests(tmp_path: Path) -> None:
    generator, other = ngram(tmp_path), ngram(tmp_path)
    asked = [
        GenerationRequest(
            "contrast", "cardiac", "", seed, good=("A FLUTTER, an XYZ",), bad=("no fever",), terms=("Ecg",)
        )
        for seed in range(30)
    ]
    whole = write_texts(generator, asked)
    write_texts(other, [GenerationRequest("contrast", "injury", "", 1, good=("xyz ecg flutter Flutter",))])
    other.observe(asked[:10], [Completion(text) for text in whole[:10]])
    assert write_texts(other, asked[10:]) == whole[10:]
    assert len(set(whole)) > 10


@pytest.mark.slow
def test_good_examples_raise_and_bad_ones_lower_their_words_probability(tmp_path: Path) -> None:
    generator = ngram(tmp_path)
    plain = ask(generator, 400)
    good = ask(generator, 400, good=("She complains of a fluttering sensation since last week.",))
    bad = ask(generator, 400, bad=("The patient reports palpitations after lunch.",))
    assert share(plain, "fluttering") == 0
    assert share(good, "fluttering sensation") > 0.02
    assert share(good, "since last week") > 1.3 * share(plain, "since last week")
    assert share(bad, "palpitations") < 0.6 * share(plain, "palpitations")
    both = ask(generator, 400, good=("Palpitations.",), bad=("The patient reports palpitations after lunch.",))
    assert share(both, "palpitations") > share(bad, "palpitations")


def test_examples_have_no_effect_when_both_weights_are_zero(tmp_path: Path) -> None:
    generator = ngram(tmp_path, cache=0.0, penalty=0.0)
    plain = ask(generator, 20, words=12)
    # The penalty's own draws of chance are made all the same where an n-gram is bad, so only good examples here.
    assert ask(generator, 20, words=12, good=("a fluttering sensation",)) == plain


@pytest.mark.slow
@pytest.mark.parametrize("words", [5, 12, 40, 150])
def test_wanted_length_steers_ngram_texts(tmp_path: Path, words: int) -> None:
    lengths = [len(text.split()) for text in ask(ngram(tmp_path), 100, words=words)]
    assert 0.85 * words <= np.mean(lengths) <= 1.08 * words + 2
    assert max(lengths) <= 1.25 * words + 3


def test_ngram_text_ends_with_the_sentence_that_reaches_the_wanted_length(tmp_path: Path) -> None:
    rows = [{"text": "Alpha beta gamma. " * 40, "label": "cardiac"}]
    assert {len(text.split()) for text in ask(ngram(tmp_path, rows), 20, words=20)} == {21}


@pytest.mark.heavy
def test_ngram_text_without_a_wanted_length_is_as_long_as_the_corpus_s(tmp_path: Path) -> None:
    lengths = [len(text.split()) for text in ask(ngram(tmp_path), 300)]
    own = [len(row["text"].split()) for row in corpus() if row["label"] == "cardiac"]
    assert abs(np.mean(lengths) - np.mean(own)) < 2.0


@pytest.mark.heavy
def test_wanted_terms_appear_in_ngram_texts(tmp_path: Path) -> None:
    generator = ngram(tmp_path)
    terms = ("left knee", "Troponin", "after lunch")
    for kind in ("keyphrases", "metadata"):
        for text in ask(generator, 60, kind=kind, terms=terms, words=18):
            assert all(term.lower() in text.lower() for term in terms)
            assert len(text.split()) < 32
    assert share(ask(generator, 200, kind="keyphrases", terms=("Troponin T",), words=4), "troponin t") == 1.0
    plain = ngram(tmp_path, [{"text": "fever", "label": "cardiac"}, {"text": "cough", "label": "cardiac"}])
    assert share(ask(plain, 50, kind="keyphrases", terms=("Troponin", "ECG"), words=3), "troponin") == 1.0
    after = ask(generator, 60, kind="keyphrases", terms=("lunch",))
    assert share(after, "after lunch") > 0.5  # where the corpus has a word before it, there it goes


@pytest.mark.heavy
def test_paraphrase_and_fill_in_keep_about_half_of_the_parent(tmp_path: Path) -> None:
    generator = ngram(tmp_path)
    parent = "The patient reports chest pain since this morning. No fever."
    for kind in ("paraphrase", "fill_in"):
        children = ask(generator, 200, kind=kind, parents=(parent,))
        pairs = [
            pair for child in children for pair in zip(parent.lower().split(), child.lower().split(), strict=False)
        ]
        assert 0.4 < np.mean([was == now for was, now in pairs]) < 0.95
        assert len(set(children)) > 50


@pytest.mark.heavy
def test_crossed_ngram_text_takes_from_both_parents(tmp_path: Path) -> None:
    parents = ("Patient has an odd humming noise after work.", "Patient has an odd buzzing tooth since last week.")
    children = ask(ngram(tmp_path), 300, kind="cross", parents=parents)
    assert share(children, "humming") > 0.2
    assert share(children, "buzzing") > 0.2
    both = [("humming", "last week"), ("buzzing", "after work")]
    assert any(noise in text and end in text for text in children for noise, end in both)


@pytest.mark.heavy
def test_label_without_texts_and_no_label_use_the_whole_corpus(tmp_path: Path) -> None:
    generator = ngram(tmp_path, labels=("cardiac", "renal"))
    assert generator.counts["labels_without_corpus"] == 1
    assert generator.counts["rows_of_other_labels"] == sum(row["label"] == "injury" for row in corpus())
    for label in ("renal", ""):
        found = ask(generator, 200, label)
        assert share(found, "knee") > 0.05
        assert share(found, "chest") > 0.05


def test_ngram_takes_a_corpus_without_labels_and_several_files(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text('{"text": "Only this one sentence here."}\n', encoding="utf-8")
    generator = ngram(tmp_path, labels=(), corpus="plain.jsonl")
    assert ask(generator, 1, "") == ["Only this one sentence here."]
    assert ngram(tmp_path, corpus=["plain.jsonl", "corpus.jsonl"]).counts["corpus_rows"] == 401


def is_text(written: str) -> bool:
    return not is_blank(written) and not is_database_null(written.encode("utf-8", "replace").decode())


def test_error_for_a_missing_or_broken_corpus_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"generator small: .*nowhere.jsonl"):
        ngram(tmp_path, corpus="nowhere.jsonl")
    with pytest.raises(ConfigurationError, match="'text'"):
        ngram(tmp_path, [{"body": "x"}])


@pytest.mark.heavy
@given(st.lists(st.text(min_size=1, max_size=30).filter(is_text), min_size=1, max_size=5), st.integers(0, 2**56))
def test_ngram_generator_copes_with_empty_and_unusual_corpora(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    rows = [text.encode("utf-8", "replace").decode() for text in rows]
    generator = ngram(folder, [{"text": text, "label": "x"} for text in rows], ("x",))
    every = tuple(rows)
    for kind in ("zero_shot", "paraphrase", "cross", "keyphrases"):
        list(generator.answer([GenerationRequest(kind, "x", "", seed, every, every, every, every)]))


@pytest.mark.slow
def test_fifteen_hundred_ngram_texts_take_less_than_ten_seconds(tmp_path: Path) -> None:
    generator = ngram(tmp_path, corpus(3000))
    good, bad = tuple(row["text"] for row in corpus(4, 1)), tuple(row["text"] for row in corpus(4, 2))
    started = time.process_time()
    ask(generator, 1500, kind="contrast", good=good, bad=bad, words=30)
    assert time.process_time() - started < 10.0
