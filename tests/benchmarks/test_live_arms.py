"""Arms of a live comparison share their model's answers, and their page says what each gained over zero-shot."""

from __future__ import annotations

import argparse
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import live_arms, shared_answers
from benchmarks.judged_tables import fill_marks
from benchmarks.outside_judge import by_counts
from undersong_common.errors import ConfigurationError
from undersong_server.prompts.rendering import Prompts, TaskWords

TASK = TaskWords(description="a question to a bank", labels=("lost card", "fee", "rate"))


def body(number: int, **fields: Any) -> dict[str, Any]:
    prompt = Prompts(TASK).render("zero_shot", number=number, **{"label": "fee", **fields})
    return {
        "model": "m",
        "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A model that numbers its answers; returns what it was asked."""
    requests: list[dict[str, Any]] = []

    class Reply:
        def __enter__(self) -> Reply:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def read(self) -> bytes:
            return json.dumps({"number": len(requests)}).encode()

    def urlopen(request: urllib.request.Request, timeout: float) -> Reply:
        assert isinstance(request.data, bytes)
        requests.append(json.loads(request.data))
        return Reply()

    monkeypatch.setattr("benchmarks.shared_answers.urllib.request.urlopen", urlopen)
    return requests


def test_shared_answers_treats_prompts_that_differ_only_in_hints_as_one() -> None:
    assert body(1) != body(2)
    assert shared_answers.question_of(body(1)) == shared_answers.question_of(body(2))
    for other in (body(1, label="rate"), body(1, words=12), body(1) | {"temperature": 0.5}):
        assert shared_answers.question_of(other) != shared_answers.question_of(body(1))
    prompts = [Prompts(TASK).render("worded", label="fee", good=(good,), terms=("pay",)) for good in ("a", "b")]
    assert len({shared_answers.remove_hints(prompt.user) for prompt in prompts}) == 2


def test_shared_answers_asks_the_model_once_for_all_runs(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    answers = shared_answers.Answers(tmp_path / "answers.sqlite", "http://model")
    first = [answers.answer("zero-shot", "draw", body(number)) for number in range(3)]
    assert len({*first}) == len(asked) == 3
    assert [answers.answer("form", "draw", body(number)) for number in (7, 8)] == first[:2]
    assert len(asked) == 3
    assert answers.answer("form", "another draw", body(0)) not in first  # another seed has texts of its own
    again = shared_answers.Answers(tmp_path / "answers.sqlite", "http://model")
    again.begin("zero-shot")
    assert [again.answer("zero-shot", "draw", body(number)) for number in range(3)] == first
    assert len(asked) == 4


def test_shared_answers_are_served_over_http(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    real = urllib.request.OpenerDirector.open
    answers = shared_answers.Answers(tmp_path / "answers.sqlite", "http://model")
    with shared_answers.sharing(answers) as address:
        for run in ("one", "two"):
            url = f"{address}/draw/{run}/v1/chat/completions"
            request = urllib.request.Request(url, json.dumps(body(0)).encode(), {"Content-Type": "application/json"})
            with real(urllib.request.build_opener(), request) as reply:
                assert json.load(reply) == {"number": 1}
    assert len(asked) == 1


def cell(arm: str, seed: int, right: float, records: int = 300) -> dict[str, Any]:
    made = {"model": "m", "task": "t", "arm": arm, "records": records, "seed": seed, "generator_calls": 4}
    vector = np.array([right, 1.0])
    texts = [f"{arm} text {number}" for number in range(4)]
    return {**made, "texts": texts, "labels": ["a", "b"] * 2, "right": dict.fromkeys(live_arms.SHOWN, vector)}


def test_live_table_compares_each_method_with_zero_shot_by_seed() -> None:
    found = [cell("zero-shot", 0, 0.0), cell("zero-shot", 1, 0.5), cell("form", 0, 0.5), cell("form", 1, 0.5)]
    zero, form = live_arms.table_by_arm(found).splitlines()[2:]
    assert zero.startswith("| m | t | 300 | zero-shot | 2 | 4 | 62.5 | 62.5 | 62.5 |")
    assert "| +12.5 (" in form  # 25 and 0 points
    assert form.endswith("| 3.0 | 4 |")
    alone = live_arms.table_by_arm([cell("zero-shot", 0, 0.0), cell("form", 0, 0.5, records=1400)]).splitlines()[3]
    assert "+25.0 (-9.6 to +59.6)" in alone  # over the real texts, of which one differs


def test_live_table_compares_with_another_method_at_equal_record_counts() -> None:
    arms = [cell("zero-shot", 0, 0.5), cell("default", 0, 0.0), cell("default", 0, 1.0, records=1400)]
    found = [*arms[:2], cell("form", 0, 0.5), arms[2], cell("form", 0, 0.5, records=1400)]
    heads, _, zero, default, form, _, many = live_arms.table_by_arm(found, "default").splitlines()
    assert "| meaning - default | words - default | panel - default |" in heads
    assert "| +25.0 (" in zero
    assert "| +25.0 (" in form
    assert "| -25.0 (" in many
    assert "|  |  |  |" in default


def test_share_closed_counts_only_seeds_with_zero_shot_and_the_bound() -> None:
    ends = [cell("zero-shot", 0, 0.25), cell("zero-shot", 1, 0.25), cell("real-examples", 0, 0.75)]
    ours = [cell("default", 0, 0.375), cell("default", 1, 1.0), cell("default", 0, 0.75, records=1400)]
    _, _, few, many = live_arms.shares_closed([*ends, *ours]).splitlines()
    assert few.split(" | ")[3:8] == ["default", "1", "87.5", "25%", "87.5"]
    assert many.split(" | ")[3:7] == ["default", "1", "87.5", "100%"]
    assert live_arms.shares_closed([*ends[:2], *ours]) == ""
    assert "| - |" in live_arms.shares_closed([ends[0], cell("real-examples", 0, 0.25), ours[0]])


def test_live_page_shows_texts_of_one_label_side_by_side() -> None:
    shown = live_arms.side_by_side([cell("zero-shot", 0, 0.0), cell("form", 0, 0.5)], 0).splitlines()
    assert "| label | zero-shot | form |" in shown
    assert "| a | zero-shot text 0 | form text 0 |" in shown
    assert "| b | zero-shot text 3 | form text 3 |" in shown
    assert "| a |  |  |" in shown  # there are no more
    assert len(shown) == 5 + live_arms.TEXTS_SHOWN


def test_live_results_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- begin arms -->\nold\n<!-- end -->\n\nmore\n", encoding="utf-8")
    fill_marks(page, {"arms": "| new |"})
    assert page.read_text(encoding="utf-8") == "# Page\n\n<!-- begin arms -->\n| new |\n<!-- end -->\n\nmore\n"
    with pytest.raises(ConfigurationError, match="texts"):
        fill_marks(page, {"texts": "x"})


def test_live_cells_have_a_single_zero_shot_run_for_all_record_counts() -> None:
    given = argparse.Namespace(first_seed=0, seeds=1, records=[300, 1400], arms=["zero-shot", "form"])
    assert list(live_arms.cells(given)) == [("zero-shot", 300, 0), ("form", 300, 0), ("form", 1400, 0)]


def test_word_count_classifier_predicts_labels() -> None:
    texts, labels = ["my card is lost", "the fee is high"] * 3, ["card", "fee"] * 3
    assert by_counts(texts, labels, ["lost card", "high fee"]) == ["card", "fee"]
