"""Points that stay open before a finished run is published: each state that raises one, and one that does not."""

import json
from dataclasses import replace

import pytest

from tests.doubles.hospitals import operator
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import runs
from undersong_server.operations.comparison import judge
from undersong_server.operations.open_points import open_points, publish_answer
from undersong_server.report.evaluations import HELP_FILE, MISMATCHES_FILE, Evaluated, KeptMeasure, keep_evaluation
from undersong_server.runs.folder import RunStatus, replace_json

PANEL = {"panel score": KeptMeasure(0.9, "high", percent=True, interval=(0.85, 0.95))}


@pytest.fixture
def home(tmp_path):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    stated = {"licence": "CC0-1.0", "contact": "a@b.example"}
    runs.plan(home.path, make_task(tmp_path / "task", publication=stated), RunOptions(name="first"))
    run = home.run("first")
    run.write_status(RunStatus("finished", 1))
    run.output.mkdir()
    write_corpus(home.path, [f"text number {number}" for number in range(4)])
    keep_evaluation(run, Evaluated("test.jsonl, 0123abcd", {"panel score": "90.0 %"}, PANEL, 4))
    return home.path


def write_corpus(home, texts, generator="another"):
    lines = [json.dumps({"text": text, "label": "a", "generator": generator}) + "\n" for text in texts]
    (CoordinatorHome(home).run("first").output / "synthetic.jsonl").write_text("".join(lines))


def words_of(home):
    return [point.words for point in open_points(home, "first", judge(home, "first"))]


def test_run_without_anything_to_check_has_no_open_point(home):
    assert words_of(home) == []


@pytest.mark.parametrize(("sign", "word"), [(0, "within chance"), (-1, "worse"), (None, "not measured"), (1, None)])
def test_unmeasured_effect_of_the_records_is_an_open_point(home, sign, word):
    replace_json(CoordinatorHome(home).run("first").path / HELP_FILE, {"words": "x", "sign": sign}, durable=False)
    assert words_of(home) == ([f"Effect of the records on quality: {word}."] if word else [])


def test_shared_phrases_and_set_aside_texts_are_open_points_with_links(home):
    write_corpus(home, ["the same five words here", *["the same five words here again"] * 29])
    aside = {"text": "late check-in", "label": "a", "generator": "g", "reason": "generator"}
    (CoordinatorHome(home).run("first").output / "set-aside.jsonl").write_text(json.dumps(aside) + "\n")
    phrases, beside = open_points(home, "first", judge(home, "first"))
    assert phrases.words == (
        "30 of 30 rows (100 %) hold a stock phrase, 5 words in a row that stand in 5 or more rows: the texts vary"
        " little."
    )
    assert phrases.address.endswith("?marked=phrases#corpus")
    assert "1 text of no corpus: 1 of g." in beside.words
    assert beside.address.endswith("?marked=aside#corpus")


def keep_mismatches(home, rows):
    kept = {"rows": 60, "label_by_row": rows}
    replace_json(CoordinatorHome(home).run("first").path / MISMATCHES_FILE, kept, durable=False)


def test_unmarked_mismatched_rows_are_an_open_point(home):
    keep_mismatches(home, {})
    assert words_of(home) == []
    keep_mismatches(home, {"3": "b", "2": "c"})
    (point,) = open_points(home, "first", judge(home, "first"))
    assert point.words.startswith("2 of 60 rows (3.3 %) read like another label than their own")
    assert point.address.endswith("?marked=mismatched#corpus")
    found = json.loads(operator("run", "search", "first", "--other-label", "--home", home, "--json"))
    assert found["numbers"] == [3, 2]  # the surest first
    assert found["mismatches"] == {"rows": 60, "label_by_row": {"3": "b", "2": "c"}}
    operator("run", "search", "first", "--other-label", "--marked", "--home", home, code=2)
    operator("run", "mark", "first", "3", "--home", home)
    assert words_of(home)[0].endswith("goes unseen. Not marked of these: 1.")
    operator("run", "mark", "first", "2", "--home", home)
    assert words_of(home) == []


def test_unnamed_source_of_a_generators_texts_is_an_open_point(home):
    names = [table["name"] for table in CoordinatorHome(home).run("first").planned().task["generators"]]
    write_corpus(home, ["a text"], generator=names[0])
    assert any(
        f"does not name the source of the texts of {names[0]}, nor its licence" in words for words in words_of(home)
    )


def test_named_source_of_a_generators_texts_is_no_open_point(home, tmp_path):
    task_file = make_task(tmp_path / "named", publication={"licence": "CC0-1.0"})
    changes = ["generators.0.source=Advice of our desk, CC0-1.0."]
    runs.plan(home, task_file, RunOptions(name="named"), assignments=changes)
    run = CoordinatorHome(home).run("named")
    run.write_status(RunStatus("finished", 1))
    run.output.mkdir()
    rows = [{"text": "a text", "generator": name} for name in ("good", "poor")]
    (run.output / "synthetic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [point.words for point in open_points(home, "named", judge(home, "named")) if "the source" in point.words]
    assert sources == ["The plan does not name the source of the texts of poor, nor its licence."]


def answer_of(home, **changes):
    judgement = replace(judge(home, "first"), **changes)
    return publish_answer(home, "first", judgement, open_points(home, "first", judgement)).words


def test_publish_answer_is_yes_not_yet_or_no_by_open_points_and_plan(home, tmp_path):
    assert answer_of(home) == "Yes: nothing that was measured or planned speaks against it."
    (CoordinatorHome(home).run("first").output / "set-aside.jsonl").write_text('{"text": "x", "reason": "doubt"}\n')
    assert answer_of(home) == "Not yet: 1 point is open."
    bad = answer_of(home, alarms=("The labels are wrong.",))
    assert bad == "No, because the texts are bad by what was measured; 2 points are open."
    runs.plan(home, make_task(tmp_path / "two", publication={"where": " nowhere"}), RunOptions(name="two"))
    nowhere = publish_answer(home, "two", judge(home, "first"), ())
    assert nowhere.words == "No, because whoever planned it wrote that the texts are published nowhere."
    points = open_points(home, "first", judge(home, "first"))  # a text that was set aside
    assert publish_answer(home, "two", judge(home, "first"), points).words.endswith(" nowhere; 1 point is open.")
