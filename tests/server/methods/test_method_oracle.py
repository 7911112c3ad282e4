"""The default method decides what a second program decides that was written from its page alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.doubles import bench
from tests.doubles.pace import slow_but
from tests.doubles.tasks import make_replay_task
from tests.doubles.word_embedding import DIMENSION, embed
from tests.server.methods import method_oracle as oracle
from undersong_common.models.embedding import quantise
from undersong_protocol.statistics.classifier_votes import word_features, word_labels
from undersong_protocol.wire.public import resolve
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

WORDS = {
    "a": ("apple", "bread", "cheese", "plum", "honey"),
    "b": ("piston", "gear", "axle", "brake", "clutch"),
    "c": ("tide", "reef", "sail", "anchor", "harbour"),
}


class Recorded(bench.CountingRun):
    """Keeps what the oracle is given: the orders and their texts, the opened sums, and what was drawn by chance."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.waves: list[Any] = []
        self.opened: dict[str, Any] = {}
        self.public: dict[str, Any] = {}
        self.drawn: list[tuple[str, str, Any]] = []

    def write(self, step, round_, orders):
        self.waves.append((list(orders), super().write(step, round_, orders)))
        return self.waves[-1][1]

    def private_sum(self, name, inputs):
        self.opened[name] = super().private_sum(name, inputs)
        self.public[name] = resolve(inputs, self._federation._blocks)
        return self.opened[name]

    def rng(self, step):
        own, drawn = super().rng(step), self.drawn

        class Drawing:
            def __getattr__(self, name):
                def draw(*arguments, **named):
                    drawn.append((step, name, getattr(own, name)(*arguments, **named)))
                    return drawn[-1][2]

                return draw

        return Drawing()


def draw_rows(rng, count, mixed):
    """Texts of words of their label, one in five of any label; ``mixed[own][given]`` is how many bear which label."""
    found = []
    chances = np.array(mixed, dtype=float)
    names = list(WORDS)[: len(chances)]
    for _ in range(count):
        cell = rng.choice(chances.size, p=chances.ravel() / chances.sum())
        own, given = (names[number] for number in divmod(cell, len(names)))
        words = [rng.choice(WORDS[own if rng.random() < 0.8 else rng.choice(names)]) for _ in range(5)]
        found.append({"text": f"{' '.join(words)} {rng.integers(10**6)}", "label": given})
    return found


def wrong(share, labels=2):
    """Equal labels, a share of whose texts bears another one."""
    return np.full((labels, labels), share / (labels - 1)) + np.eye(labels) * (1 - share - share / (labels - 1))


def run_against_oracle(folder: Path, pools, shares=(1, 1), *, records=200, epsilon=8.0, counts=(), **method):
    rng = np.random.default_rng(5)
    counts = dict(counts)
    private = draw_rows(rng, records, np.diag(shares))
    written = {name: draw_rows(rng, counts.get(name, 300), mixed) for name, mixed in pools.items()}
    path = make_replay_task(
        folder,
        private,
        generators=written,
        task={"labels": list(WORDS)[: len(shares)]},
        privacy={"epsilon": epsilon},
        federation={"parties": 1},
        method={"name": "undersong", "samples": 120, **method},
    )
    task = load(path, [])
    plan = plan_run(task)
    corpus, run = bench.run_method(task, plan, seed=3)
    return SimpleNamespace(plan=plan.plan, corpus=corpus, run=run)


def texts_of(samples, run) -> oracle.Texts:
    generators = list(run.setting.generators)
    return oracle.Texts(
        np.asarray(run.embeddings(samples), dtype=float),
        run.label_numbers(samples),
        np.array([generators.index(each.generator) for each in samples], dtype=int),
        [word_features(each.text) for each in samples],
        [[word_features(piece) for piece in pieces(each.text)] for each in samples],
    )


def pieces(text: str) -> list[str]:
    """Step 2.5: eight words from every fourth word on, until the last word is covered."""
    words = text.split()
    starts = [start for start in range(0, len(words), 4) if start == 0 or start + 4 < len(words)]
    return [" ".join(words[start : start + 8]) for start in starts] or [text]


def support_folds(run, good: int, bad: int):
    """The permutations that step 2.5 drew for so many good and bad texts."""
    drawn = [values for step, _, values in run.drawn if step == "support folds"]
    return next(pair for pair in zip(drawn[::2], drawn[1::2], strict=True) if [*map(len, pair)] == [good, bad])


def agree(seen, program, own) -> bool:
    """Whether a published linear function and the oracle's give the same labels, but for near ties on its grid."""
    logits = seen @ program[:-1] + program[-1]
    ranked = np.sort(logits, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > 0.1
    return clear.mean() > 0.5 and bool((logits.argmax(axis=1) == own(seen).argmax(axis=1))[clear].all())


CASES = {
    "generators": {
        "pools": {"good": wrong(0.05, 3), "poor": wrong(0.3, 3), "bad": wrong(0.9, 3)},
        "shares": (6, 1, 4),
        "records": 400,
    },
    "one generator": {"pools": {"one": wrong(0.3)}, "epsilon": 20.0},
    "noisy centres": {"pools": {"one": wrong(0.5, 3)}, "shares": (5, 3, 6), "records": 70, "epsilon": 3.0},
    "rare label": {
        "pools": {"good": wrong(0.05, 3), "bad": [[0.1, 0.3, 0], [0.3, 0.1, 0], [0, 0, 0.3]]},
        "shares": (6, 0.3, 4),
        "records": 400,
        "written": 2,
        "samples": 60,
    },
    "choice by label": {
        "pools": {"left": [[1, 0], [1, 0]], "right": [[0, 1], [0, 1]]},
        "epsilon": 20.0,
        "records": 400,
    },
    "nothing left": {
        "pools": {"good": wrong(0.02), "bad": wrong(0.6)},
        "counts": {"good": 60},
        "rounds": 5,
        "epsilon": 20.0,
    },
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", slow_but(CASES, ["rare label"]))
def test_program_agrees_with_an_independent_reading_of_docs_method_md(name, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "embed", lambda texts: quantise(embed(texts)))
    monkeypatch.setattr(bench, "CountingRun", Recorded)
    monkeypatch.setattr("undersong_common.models.embedders.dimension", lambda model: DIMENSION)
    found = run_against_oracle(tmp_path, **CASES[name])
    run, setting, opened = found.run, found.run.setting, found.run.opened
    options = {
        "samples": 120,
        **{key: CASES[name][key] for key in ("samples", "written", "rounds") if key in CASES[name]},
    }
    case = oracle.Case(len(setting.generators), len(setting.labels), **options)
    one = (case.generators, case.labels)

    # Step 0: the sums, and noise that belongs to each one's part of the budget.
    planned = oracle.plan(case)
    assert [each.name for each in found.plan.sums] == list(planned)
    per_part = [each.sigma / each.build().sensitivity.l2 * planned[each.name] ** 0.5 for each in found.plan.sums]
    assert per_part == pytest.approx([per_part[0]] * len(per_part), rel=0.01)

    p, m = oracle.shares(opened["labels"].natural, opened["labels"].sigma)
    assert run.records["label shares"][0][1] == pytest.approx(p.tolist())

    chosen, spent, blocks = np.ones(one, dtype=bool), np.zeros(one, dtype=bool), True
    samples: list[Any] = []
    texts = oracle.Texts(np.zeros((0, 64)), np.zeros(0, dtype=int), np.zeros(0, dtype=int), [])
    aside = np.zeros(0, dtype=bool)
    judged = (np.zeros(case.generators, dtype=bool),) * 2
    for t, (orders, written) in enumerate(run.waves):
        asked = np.zeros(one, dtype=int)
        for order in orders:
            asked[setting.generators.index(order.generator), setting.labels.index(order.label)] += 1
        size = oracle.round_size(case, t) if t < case.rounds else len(orders)  # later ones are written anew
        assert asked.tolist() == oracle.orders(case, size, p, texts, aside, chosen, spent).tolist()
        assert not any(order.good for order in orders)
        before = oracle.tally(case, texts)
        samples += [each for each in written if each is not None]
        texts = texts_of(samples, run)
        spent |= 2 * (oracle.tally(case, texts) - before) < asked
        if t == 0 and case.generators > 1:
            judged = oracle.support(case, opened["support"].natural, opened["support"].sigma, m, texts)
        aside, left_out = oracle.set_aside(texts, *judged, partial(support_folds, run))
        chosen &= ~left_out[:, None]
        chosen[:, ~chosen.any(axis=0)] = ~left_out[:, None]
        if (who := f"who/{t + 1}") in planned:
            for program, own in zip(run.public[who].numbers["classifiers"], oracle.judges(case, p, texts), strict=True):
                if abs(program[-1]).max() < 1000:  # a judge of one label has seen nothing to tell
                    assert agree(texts.x, program, own)
            wanted = np.arange(case.labels) if blocks else np.zeros(case.labels)
            assert run.public[who].numbers["blocks"].tolist() == wanted.tolist()
            chosen, blocks = oracle.who(case, opened[who].natural, opened[who].sigma, m, texts, chosen, blocks)
    equal_weights = chosen / chosen.sum(axis=0)
    assert run.records["weights"][-1][1] == pytest.approx((equal_weights @ p).tolist())

    # The choice is cleaned after each turn of writing anew, and the last one counts; the mixture is cleaned after it.
    folds = [drawn for step, _, drawn in run.drawn if step == "folds"]
    cuts = [drawn for step, _, drawn in run.drawn if step == "corpus"]
    left = np.flatnonzero(~aside)
    inside = left[oracle.of_chosen(case, p, texts.where(left), chosen)]
    labels = np.full(len(samples), -1)
    if "centres" in planned:
        centres = opened["centres"]
        labels[inside] = oracle.by_centres(case, centres.natural, centres.sigma, p, m, texts.where(inside))
    else:
        labels[inside] = oracle.cleaned(case, texts.where(inside), folds[-2] % 5)
    choice = np.flatnonzero(labels >= 0)
    if len(choice) > case.samples:
        choice = np.sort(choice[cuts.pop(0)[: case.samples]])
    cleaned = np.full(len(samples), -1)
    cleaned[left] = oracle.cleaned(case, texts.where(left), folds[-1] % 5)
    mixture = np.flatnonzero(cleaned >= 0)
    if len(mixture) > case.samples:
        mixture = np.sort(mixture[cuts.pop(0)[: case.samples]])
    corpora = ((mixture, cleaned), (choice, labels))
    for n, (rows_, given) in enumerate(corpora):
        head = oracle.linear(texts.x[rows_], given[rows_], case.labels, oracle.STRENGTH)
        assert agree(texts.x, run.public["verdict"].numbers["heads"][n], head)
        by_words = oracle.word_classifier([texts.words[row] for row in rows_], given[rows_], case.labels)
        program = word_labels(run.public["verdict"].numbers["word classifiers"][n], [each.text for each in samples])
        assert (by_words(texts.words).argmax(axis=1) == program).mean() > 0.98

    gain, error, taken = oracle.verdict(opened["verdict"].natural, opened["verdict"].sigma, m)
    ((_, said),) = run.records["verdict"]
    assert (said["gain"], said["error"], said["taken"]) == (pytest.approx(gain), pytest.approx(error), taken)
    counted = opened["labels"].sigma * case.labels**0.5
    value, low, high = oracle.score(opened["verdict"].natural, opened["verdict"].sigma, m, counted, taken)
    ((_, measured),) = run.records["score"]
    assert (measured["value"], measured["low"], measured["high"]) == pytest.approx((value, low, high), abs=1e-4)
    rows_, given = corpora[taken]
    assert [(each.text, each.label) for each in found.corpus] == [
        (samples[row].text, setting.labels[given[row]]) for row in rows_
    ]
