"""The cleaned mixture: which labels are repaired, which texts are dropped, and that no label vanishes."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import cleaned_mixture
from tests.doubles import word_embedding
from tests.doubles.bench import run_method
from tests.doubles.tasks import make_replay_task
from undersong_common.models.embedding import Embedder
from undersong_server.methods.cleaned_mixture import DROPPED, MOST_LOST, cleaned
from undersong_server.methods.parts.words import word_classifier, word_rows
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def corpus(rng, *, labels=3, a_label=60, wrong=0.1, spread=0.5):
    """Embeddings around one direction per label, true and given labels, and two authors."""
    true = np.repeat(np.arange(labels), a_label)
    x = np.eye(labels, 12)[true] + spread * rng.normal(size=(len(true), 12)) / 12**0.5
    given = np.where(rng.random(len(true)) < wrong, (true + rng.integers(1, labels, len(true))) % labels, true)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return unit, true, given, rng.permutation(np.arange(len(true)) % 2)


def test_cleaning_repairs_or_drops_wrong_labels_and_keeps_right_ones(rng):
    x, true, given, author = corpus(rng)
    found = cleaned(x, given, author, 3, np.random.default_rng(0))
    wrong = given != true
    assert wrong.sum() >= 10
    assert (found[wrong] != given[wrong]).mean() > 0.9
    assert (found[~wrong] == given[~wrong]).mean() > 0.97
    kept = found != DROPPED
    assert (found[kept] == true[kept]).mean() > 0.97


def test_cleaning_drops_at_most_a_fifth_of_the_texts_of_a_label(rng):
    x, true, given, author = corpus(rng, wrong=0.0)
    given[true == 1] = np.where(rng.random(60) < 0.7, 0, 1)  # most texts of label 1 stand under label 0
    few = np.flatnonzero(true == 2)[:50]
    given[few] = 0  # and most of label 2
    found = cleaned(x, given, author, 3, np.random.default_rng(0))
    for label in range(3):
        own = given == label
        assert (found[own] != label).sum() <= MOST_LOST * own.sum()


def test_cleaning_drops_a_text_that_lies_between_two_other_labels(rng):
    x, true, given, author = corpus(rng, wrong=0.0)
    between = np.flatnonzero(true == 2)[:6]
    x[between] = 0.0
    x[between, :2] = 0.5**0.5
    found = cleaned(x, given, author, 3, np.random.default_rng(0))
    assert (found[between] == DROPPED).all()
    assert (np.delete(found, between) == np.delete(given, between)).all()


def test_label_that_the_words_confirm_stays_and_a_contradicted_one_goes(rng):
    x, true, given, author = corpus(rng, wrong=0.0)
    near, mistaken = np.flatnonzero(true == 2)[:6], np.flatnonzero(true == 2)[6:10]
    x[near] = np.eye(3, 12)[0]  # as texts of label 0 to the embedding, of label 2 by their words
    given[mistaken] = 0
    texts = [f"{('soup bread', 'gear axle', 'reef tide')[label]} {n}" for n, label in enumerate(true)]
    words = word_rows(texts), word_classifier
    before, after = (cleaned(x, given, author, 3, np.random.default_rng(0), *others) for others in ((), (words,)))
    assert (before[near] != 2).all()
    assert (after[near] == 2).all()
    assert (after[mistaken] != 0).all()


def judged_by_words(x, true, given, author, *, told):
    """Labels after cleaning by embeddings and words; a part ``told`` of the texts has words of its true label."""
    draw = np.random.default_rng(3)
    names = np.where(draw.random(len(true)) < told, true, draw.integers(0, 3, len(true)))
    texts = [f"{('soup bread', 'gear axle', 'reef tide')[name]} {n}" for n, name in enumerate(names)]
    return cleaned(x, given, author, 3, np.random.default_rng(0), (word_rows(texts), word_classifier))


def test_cleaning_keeps_all_labels_when_texts_hardly_predict_them(rng):
    x, true, given, author = corpus(rng, spread=6.0, wrong=0.0)
    alone = cleaned(x, given, author, 3, np.random.default_rng(0))
    assert (alone != given).sum() >= 10  # one kind of judge believes in chance
    assert (judged_by_words(x, true, given, author, told=0.1) == given).all()


@pytest.mark.heavy
def test_cleaning_repairs_mostly_wrong_labels_when_both_judges_agree(rng):
    x, true, given, author = corpus(rng, a_label=200, wrong=0.55)
    found = judged_by_words(x, true, given, author, told=0.95)
    assert (given == true).mean() < 0.5
    assert (found == true).mean() > (given == true).mean() + 0.1


def test_cleaning_of_one_generators_texts_compares_them_with_each_other(rng):
    x, true, given, author = corpus(rng)
    found = cleaned(x, given, np.zeros_like(author), 3, np.random.default_rng(0))
    assert (found[given != true] != given[given != true]).mean() > 0.9


@pytest.mark.parametrize("count", [0, 1, 2])
def test_cleaning_leaves_a_corpus_of_very_few_texts_unchanged(rng, count):
    x, _, given, _ = corpus(rng)
    assert cleaned(x[:count], given[:count], given[:count] * 0, 3, rng).tolist() == given[:count].tolist()


def test_cleaned_mixture_orders_the_same_texts_as_mixture_labels(tmp_path):
    rows = [{"text": f"note {number} of {number % 7}", "label": "ab"[number % 2]} for number in range(300)]
    task_file = make_replay_task(
        tmp_path,
        rows[:30],
        generators={"one": rows[:150], "two": rows[150:]},
        federation={"parties": 1},
        method={"name": "mixture+labels", "samples": 120},
    )
    found = {}
    for name in ("mixture+labels", "cleaned-mixture"):
        task = tasks.load(task_file, [f'method.name="{name}"'])
        found[name], run = run_method(task, plan_run(task), seed=3)
        assert run.asked == ["labels"]
    before, after = ({each.text: each.label for each in samples} for samples in found.values())
    assert set(after) <= set(before)
    assert len(after) == len(before) - run.records["dropped"][-1][1]
    assert 0 < len([text for text in before if after.get(text) != before[text]]) <= MOST_LOST * len(before)


def test_cleaning_benchmark_drops_a_wrong_label_and_is_at_most_forty_lines(tmp_path, monkeypatch):
    assert len(Path(cleaned_mixture.__file__).read_text(encoding="utf-8").splitlines()) <= 40
    foods, plants = ("bread", "cheese", "soup", "rice", "cake"), ("rose", "oak", "fern", "tulip", "moss")
    rows = [{"text": f"I {verb} {what} for dinner", "label": "food"} for what in foods for verb in ("ate", "cooked")]
    rows += [
        {"text": f"the {what} {verb} in the garden", "label": "plant"} for what in plants for verb in ("grew", "died")
    ]
    rows[0]["label"] = "plant"
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "corpus.jsonl"), str(tmp_path / "cleaned.jsonl")])
    monkeypatch.setattr(Embedder, "load", lambda: SimpleNamespace(encode=word_embedding.embed))
    assert cleaned_mixture.main() == 0
    found = [json.loads(line) for line in (tmp_path / "cleaned.jsonl").read_text().splitlines()]
    assert {"text": rows[0]["text"], "label": "plant"} not in found
    assert len(found) >= 0.8 * len(rows)
