"""The invented tasks: what each promises of its labels and generators."""

from collections import Counter

import numpy as np
import pytest

from benchmarks import fresh_tasks
from tests.doubles.pace import slow_after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "labels", "generators", "most"),
    slow_after(
        [
            ("twelve-offices", 12, 3, 0.10),
            ("one-cook", 5, 1, 0.25),
            ("quiet-shifts", 3, 2, 0.93),
            ("busy-office", 4, 3, 0.9),
        ],
        2,
    ),
)
def test_each_fresh_task_has_its_labels_and_generators(name, labels, generators, most):
    made = fresh_tasks.TASKS[name]()
    counts = Counter(row["label"] for row in made.test)
    assert (len(counts), len(made.pools)) == (labels, generators)
    assert max(counts.values()) < most * len(made.test)
    assert len(made.test) >= 500
    assert (made.records, made.samples, made.epsilon) == (300, 600, 4.0)
    for rows in (made.private, made.test, *made.pools.values()):
        assert len({row["text"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_nine_of_ten_invented_shift_reports_are_uneventful():
    test = fresh_tasks.quiet_shifts().test
    assert np.mean([row["label"] == "nothing" for row in test]) == pytest.approx(0.9, abs=0.03)


def test_fresh_task_generator_has_its_stated_share_of_wrong_labels():
    shares = fresh_tasks.equal(["a", "b", "c"])
    made = fresh_tasks.rows(np.random.default_rng(0), 2000, shares, lambda rng, label: f"{label} {rng.random()}", 0.2)
    assert np.mean([row["text"][0] != row["label"] for row in made]) == pytest.approx(0.2, abs=0.03)


@pytest.mark.slow
def test_labels_of_invented_shift_reports_match_their_texts():
    events = {row["label"] for row in fresh_tasks.quiet_shifts().test if fresh_tasks.find_event(row["text"]) == ""}
    assert events == {"nothing"}
    for row in fresh_tasks.quiet_shifts().pools["plain"]:
        assert (fresh_tasks.find_event(row["text"]) or "nothing") == row["label"]


def test_fresh_task_generator_knows_a_part_of_each_word_list():
    part = fresh_tasks.draw_phrases(np.random.default_rng(0), fresh_tasks.OFFICES)
    for name, own in part.items():
        assert len(set(own)) == fresh_tasks.KNOWN < len(fresh_tasks.OFFICES[name])
        assert set(own) <= set(fresh_tasks.OFFICES[name])
