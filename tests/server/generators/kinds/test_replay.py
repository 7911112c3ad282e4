"""Texts from a file, drawn towards the good and away from the bad."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from tests.doubles.word_embedding import embed
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.text.table import read_table
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.replay import ReplayGenerator, ReplaySettings

TOPICS = ("card", "loan", "pin")
POOL = [
    {"text": f"my {topic} is {state} number {number}", "label": label}
    for label in ("a", "b")
    for topic in TOPICS
    for state in ("lost", "blocked")
    for number in range(20)
]


def replay(
    folder: Path, rows: Sequence[dict[str, Any]] = POOL, labels: Sequence[str] = ("a", "b"), **fields: Any
) -> ReplayGenerator:
    path = folder / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ReplaySettings(name="old", kind="replay", path="pool.jsonl", **fields)
    return ReplayGenerator(options, labels=labels, folder=folder, embed=embed)


def request(seed: int, label: str = "a", kind: str = "zero_shot", **fields: Any) -> GenerationRequest:
    return GenerationRequest(kind, label, "", seed, **fields)


def write_texts(generator: ReplayGenerator, requests: Sequence[GenerationRequest]) -> list[str]:
    answers = list(generator.answer(requests))
    assert [index for index, _ in answers] == list(range(len(requests)))
    assert all(isinstance(answer, Completion) for _, answer in answers)
    return [answer.text for _, answer in answers if isinstance(answer, Completion)]


def test_replay_file_is_read_once_but_each_run_tracks_its_own_used_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path, *columns: Any) -> Any:
        read.append(path)
        return read_table(path, *columns)

    monkeypatch.setattr("undersong_server.generators.kinds.replay.read_table", counted)
    options = ReplaySettings(name="old", kind="replay", path="pool.jsonl")
    first = replay(tmp_path)
    drawn = write_texts(first, [request(seed) for seed in range(5)])
    second = ReplayGenerator(options, labels=("a", "b"), folder=tmp_path, embed=embed)
    assert write_texts(second, [request(seed) for seed in range(5)]) == drawn
    assert len(read) == 1
    (tmp_path / "pool.jsonl").write_text(json.dumps({"text": "only this", "label": "a"}) + "\n")
    third = ReplayGenerator(options, labels=("a", "b"), folder=tmp_path, embed=embed)
    assert write_texts(third, [request(1)]) == ["only this"]


def test_replay_repeats_a_text_only_after_all_were_used(tmp_path: Path) -> None:
    generator = replay(tmp_path, [row | {"text": row["text"] + row["label"]} for row in POOL])
    first = write_texts(generator, [request(seed) for seed in range(120)])
    assert len(set(first)) == 120
    assert generator.counts["repeats"] == 0
    ((_, again),) = generator.answer([request(200)])
    assert isinstance(again, Completion)
    assert again.note == "repeat"
    write_texts(generator, [request(seed) for seed in range(201, 320)])
    assert generator.counts["repeats"] == 120
    assert len(set(write_texts(generator, [request(seed, "b") for seed in range(120)]))) == 120
    assert generator.counts["repeats"] == 120


def test_replay_does_not_repeat_a_text_that_has_two_labels(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": label} for label in "ab" for number in range(20)]
    generator = replay(tmp_path, rows)
    given_ = write_texts(generator, [request(seed, "ab"[seed % 2]) for seed in range(20)])
    assert len(set(given_)) == 20


def test_replay_counts_rows_of_other_labels_and_duplicates(tmp_path: Path) -> None:
    rows = [*POOL, {"text": "x", "label": "c"}, {"text": "MY card is lost, number 3!", "label": "a"}]
    counts = replay(tmp_path, rows).counts
    assert (counts["texts"], counts["rows_of_other_labels"], counts["duplicate_rows"]) == (240, 1, 1)


@pytest.mark.slow
def test_zero_shot_replay_draws_uniformly(tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "label": "a"} for number in range(10)]
    # Every tenth draw starts a new round through the ten texts.
    drawn = Counter(write_texts(replay(tmp_path, rows), [request(seed) for seed in range(20_000)])[::10])
    # Each 200 +- 13.4; 5 standard deviations: a false alarm in some 170 000 runs.
    assert len(drawn) == 10
    assert all(133 <= count <= 267 for count in drawn.values())


def test_replay_draws_near_good_and_far_from_bad_examples(tmp_path: Path) -> None:
    good, bad = ("the card was swallowed",), ("a loan please",)
    contrast = [request(seed, kind="contrast", good=good, bad=bad) for seed in range(20)]
    topics = Counter(text.split()[1] for text in write_texts(replay(tmp_path), contrast))
    assert topics["card"] >= 16
    assert topics["loan"] == 0
    only_bad = Counter(
        text.split()[1] for text in write_texts(replay(tmp_path), [request(s, bad=bad) for s in range(60)])
    )
    assert only_bad["loan"] <= 6


@pytest.mark.slow
def test_replay_draws_by_the_stated_softmax(tmp_path: Path) -> None:
    rows = [{"text": text, "label": "a"} for text in ("card", "card loan", "loan", "pin")]
    good, bad = ("card", "pin card"), ("loan",)
    pool = embed([row["text"] for row in rows]).astype(float)
    scores = pool @ embed(good).astype(float).mean(0) - pool @ embed(bad).astype(float).mean(0)
    weights = np.exp(scores / 0.5)
    expected = weights / weights.sum()
    asked = [request(seed, good=good, bad=bad) for seed in range(6000)]
    drawn = Counter(
        write_texts(replay(tmp_path, rows, temperature=0.5), asked)[::4]
    )  # the first of each round through all
    for row, probability in zip(rows, expected, strict=True):
        tolerance = 5 * np.sqrt(1500 * probability * (1 - probability))
        assert abs(drawn[row["text"]] - 1500 * probability) < tolerance


def test_replayed_texts_lie_near_their_parents(tmp_path: Path) -> None:
    for kind in ("paraphrase", "fill_in", "cross"):
        near = write_texts(replay(tmp_path), [request(s, kind=kind, parents=("pin pin blocked",)) for s in range(15)])
        assert sum("pin" in text for text in near) >= 13


def test_replayed_text_contains_wanted_terms_that_the_pool_has(tmp_path: Path) -> None:
    rows = [
        *POOL,
        {"text": "He is, in the Left KNEE group.", "label": "a"},
        {"text": "knee of the left leg", "label": "a"},
    ]
    first = write_texts(replay(tmp_path, rows), [request(1, kind="keyphrases", terms=("left-knee",))])
    assert first == ["He is, in the Left KNEE group."]
    assert write_texts(replay(tmp_path, rows), [request(1, kind="keyphrases", terms=("!",))])  # a term without a word


def test_replayed_text_is_near_the_wanted_length(tmp_path: Path) -> None:
    rows = [
        {"text": " ".join(["w"] * length) + f" {number}", "label": "a"}
        for length in (5, 20, 80)
        for number in range(30)
    ]
    drawn = write_texts(replay(tmp_path, rows), [request(seed, kind="metadata", words=21) for seed in range(25)])
    assert sum(len(text.split()) == 21 for text in drawn) >= 23
    both = [request(seed, kind="metadata", words=21, terms=("w",)) for seed in range(25)]
    assert sum(len(text.split()) == 21 for text in write_texts(replay(tmp_path, rows), both)) >= 20


def test_replay_without_a_named_class_draws_from_all(tmp_path: Path) -> None:
    rows = [{"text": f"{label} {number}", "label": label} for label in "ab" for number in range(20)]
    drawn = write_texts(replay(tmp_path, rows), [request(seed, "") for seed in range(40)])
    assert len(set(drawn)) == 40
    assert write_texts(replay(tmp_path, [{"text": "x"}], labels=()), [request(1, "")]) == ["x"]


def test_replay_request_for_a_label_without_texts_fails_alone(tmp_path: Path) -> None:
    answers = dict(replay(tmp_path, POOL[:120], ("a", "b")).answer([request(1, "b"), request(2, "a", good=("x",))]))
    assert isinstance(answers[0], GenerationError)
    assert "'b'" in str(answers[0])
    assert isinstance(answers[1], Completion)


def test_replay_file_without_any_label_of_the_task_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "texts-missing"):
        replay(tmp_path, labels=("c",))
    with pytest.raises(ConfigurationError, match="generator old"):
        replay(tmp_path, [{"body": "x", "label": "a"}])


@settings(max_examples=examples(6, 25), deadline=None)
@given(cut=st.integers(0, 60), seeds=st.lists(st.integers(0, 2**56), min_size=60, max_size=60), clean=st.booleans())
@pytest.mark.heavy
def test_resumed_replay_draws_the_texts_of_an_undisturbed_run(
    tmp_path_factory: pytest.TempPathFactory, cut: int, seeds: list[int], clean: bool
) -> None:
    folder = tmp_path_factory.mktemp("pool")
    asked = [
        request(seed, "ab"[index % 2], "contrast", good=("card lost",), bad=("loan",) if index % 3 else ())
        for index, seed in enumerate(seeds)
    ]
    whole = write_texts(replay(folder), asked)
    resumed = replay(folder)
    seen = [Completion(f' "{text}" ' if clean else text) for text in whole[:cut]]
    resumed.observe(asked[:cut], seen)
    assert write_texts(resumed, asked[cut:]) == whole[cut:]
    assert resumed.counts["unknown_journaled"] == 0


def test_journaled_text_that_is_no_longer_in_the_file_is_counted(tmp_path: Path) -> None:
    generator = replay(tmp_path)
    generator.observe([request(1), request(2)], [Completion("never heard of"), GenerationError("none")])
    assert generator.counts["unknown_journaled"] == 1


def test_replay_embeds_each_text_of_the_file_and_each_example_once(tmp_path: Path) -> None:
    embedded: Counter[str] = Counter()

    def counting(batch: Sequence[str]) -> Float32:
        embedded.update(batch)
        return embed(batch)

    replay(tmp_path)
    options = ReplaySettings(name="old", kind="replay", path="pool.jsonl")
    generator = ReplayGenerator(options, labels=("a", "b"), folder=tmp_path, embed=counting)
    write_texts(generator, [request(seed) for seed in range(10)])
    assert not embedded  # a uniform draw needs no embedding
    for start in range(0, 60, 20):
        write_texts(generator, [request(seed, good=("card lost", "new")) for seed in range(start, start + 20)])
    assert max(embedded.values()) == 1
    assert len(embedded) == 120 + 2  # both labels hold the same texts


@pytest.mark.slow
def test_replay_draws_from_six_thousand_texts_in_less_than_15_seconds(tmp_path: Path) -> None:
    rows = [{"text": f"word{n % 97} word{n % 89} word{n}", "label": "ab"[n % 2]} for n in range(6000)]
    generator = replay(tmp_path, rows)
    known = [row["text"] for row in rows[:400]]
    write_texts(generator, [request(1, good=tuple(known))])
    started = time.process_time()
    for round_ in range(4):
        asked = [
            request(
                n,
                "ab"[n % 2],
                "contrast",
                good=tuple(known[n % 390 : n % 390 + 4]),
                bad=tuple(known[n % 7 : n % 7 + 4]),
            )
            for n in range(round_ * 1200, round_ * 1200 + 1200)
        ]
        write_texts(generator, asked)
    assert time.process_time() - started < 15.0
