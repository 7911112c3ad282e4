"""Evaluate on the Result screen: an uploaded file keeps its name, and its figures stand in place."""

import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.doubles.entered_console import entered_console
from tests.doubles.parties import embed
from tests.doubles.plain_browser import Browser
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_common.pages import store
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import releases, runs
from undersong_server.report.evaluations import (
    EVALUATION_FILE,
    Evaluated,
    KeptMeasure,
    evaluated,
    evaluated_beside,
    keep_evaluation,
)
from undersong_server.report.verdict import TEST_TEXTS, alarms, plain_words
from undersong_server.runs.folder import RunStatus

RESULT = "/runs/one/first/result"
ROWS = [{"text": f"a text number {number}", "label": "ab"[number % 2]} for number in range(30)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TEST_ROWS = [{"text": f"another text, of number {number}", "label": "ab"[number % 2]} for number in range(30)]
TEST_LINES = "".join(json.dumps(row) + "\n" for row in TEST_ROWS)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr("undersong_server.operations.releases.embedder", lambda *_: embed)
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    folder = CoordinatorHome(home.path).run("first")
    folder.write_status(RunStatus("finished", 1))
    folder.output.mkdir()
    (folder.output / "synthetic.jsonl").write_text(LINES.replace("a text", "an invented text"))
    return home.path


@pytest.fixture
def evaluation_page(home, tmp_path):
    (tmp_path / "offered").mkdir()
    (tmp_path / "offered" / "public.jsonl").write_text(TEST_LINES)
    with entered_console(home, [tmp_path / "offered"]) as page:
        yield page


def send(console, name, content, **fields):
    sent = {"text_field": "text", "label_field": "label", **console.hidden(RESULT), **fields}
    files = {} if name is None else {"test": (name, content)}
    return console.client.post(RESULT, data=sent, files=files)


def evaluation_of(console):
    return console.get(RESULT).text.partition('id="evaluation"')[2].partition("</table>")[0]


@pytest.mark.slow
def test_evaluation_of_an_uploaded_test_file_shows_its_name_and_figures(evaluation_page, home):
    assert "not measured" in evaluation_of(evaluation_page)
    done = send(
        evaluation_page,
        "C:\\Users\\ada\\Ward notes.csv",
        b"text,label\n" + b"".join(f'"{row["text"]}",{row["label"]}\n'.encode() for row in TEST_ROWS),
    )
    assert evaluation_page.led(done) == f"{RESULT}#evaluation"
    shown = evaluation_of(evaluation_page)
    assert "Ward notes.csv, " in shown
    assert "Panel score" in shown
    assert " to " in shown.partition("Panel score")[2].partition("</td>")[0]  # its interval
    assert "high is good" in shown
    assert evaluation_page.site.audit.entries()[-1].what == "run evaluate"
    assert not list(home.rglob("test.csv"))


@dataclass(frozen=True)
class Verdict:
    """A verdict on a folder, of three words."""

    holds: bool

    def lines(self):
        return ["each sum", "each file", *self.conclusion()]

    def conclusion(self):
        return ["Files: whole.", "By: us.", "Promise: 4."] if self.holds else ["Files: CHANGED."]


@pytest.mark.parametrize("holds", [True, False])
def test_valid_result_shows_its_conclusion_and_folds_the_single_checks(evaluation_page, monkeypatch, holds):
    monkeypatch.setattr(releases, "verdict", lambda home, run: Verdict(holds))
    part = evaluation_page.get(f"{RESULT}?part=verdict").text
    opening, _, folded = part.partition("<details")
    assert re.findall(r"<p>([^<]+)</p>", opening) == (Verdict(True).conclusion() if holds else Verdict(False).lines())
    assert re.findall(r"<p>([^<]+)</p>", folded) == (["each sum", "each file"] if holds else [])


BAD_PANEL = {"panel score": KeptMeasure(0.4, "high", percent=True, interval=(0.3, 0.52))}
GOOD_PANEL = {"panel score": KeptMeasure(0.9, "high", percent=True, interval=(0.8, 0.95))}


@pytest.mark.parametrize(
    ("measures", "alarm_count"),
    [
        (GOOD_PANEL | {"doubtful labels": KeptMeasure(0.42, "low", percent=True)}, 1),
        (GOOD_PANEL | {"doubtful labels": KeptMeasure(0.09, "low", percent=True)}, 0),
        (BAD_PANEL, 1),
        (BAD_PANEL | {"doubtful labels": KeptMeasure(0.42, "low", percent=True)}, 2),
        ({}, 0),
    ],
)
def test_result_page_begins_with_the_alarms_that_the_card_states(evaluation_page, home, measures, alarm_count):
    keep_evaluation(
        CoordinatorHome(home).run("first"), Evaluated("test.jsonl", dict.fromkeys(measures, "x"), measures, 30)
    )
    opening = evaluation_of(evaluation_page).partition("<dl")[0].partition("<table")[0]
    lows = [measure.interval[0] for measure in measures.values() if measure.interval]
    expected = alarms(2, lows, measures["doubtful labels"].value if "doubtful labels" in measures else math.nan)
    assert len(expected) == alarm_count
    assert re.findall(r"<li>([^<]+) <a", opening)[:alarm_count] == list(expected)
    assert ('<div class="problem" id="publish">' in opening) == bool(expected)
    meaning = plain_words(measures["panel score"].value, TEST_TEXTS, 2) if "panel score" in measures else None
    assert re.findall(r"<p>(In plain words[^<]+)</p>", evaluation_of(evaluation_page)) == ([meaning] if meaning else [])


@pytest.mark.slow
def test_run_can_be_evaluated_on_a_file_in_the_task_folders(evaluation_page, tmp_path):
    done = send(evaluation_page, None, b"", file=str(tmp_path / "offered" / "public.jsonl"))
    assert evaluation_page.led(done) == f"{RESULT}#evaluation"
    assert "public.jsonl, " in evaluation_of(evaluation_page)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("notes.pdf", b"%PDF", "notes.pdf: is no table"),
        ("<img src=x>.jsonl", b"{", "&lt;img src=x&gt;.jsonl"),
        ("test.jsonl", b'{"text": "a"}\n', "label"),
        (None, b"", "No test file was chosen"),
    ],
)
def test_unusable_uploaded_test_file_is_refused_naming_the_file(evaluation_page, home, name, content, words):
    refused = send(evaluation_page, name, content)
    assert refused.status_code == 409
    assert words in refused.text
    assert "/tmp" not in refused.text.replace("pytest", "")
    assert "<img" not in refused.text
    assert not (CoordinatorHome(home).run("first").path / EVALUATION_FILE).exists()


@pytest.mark.heavy
def test_second_evaluation_while_one_runs_is_refused(evaluation_page, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE_S", 0.1)
    begun, goes_on = threading.Event(), threading.Event()
    calls = []

    def evaluate(*arguments):
        calls.append(arguments)
        begun.set()
        assert goes_on.wait(30)
        return Evaluated("public.jsonl, 00000000", {})

    monkeypatch.setattr("undersong_server.operations.releases.evaluate_run", evaluate)
    fields = evaluation_page.hidden(RESULT) | {"file": str(tmp_path / "offered" / "public.jsonl")}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(evaluation_page.client.post, RESULT, data=fields)
        assert begun.wait(30)
        same_form = evaluation_page.client.post(RESULT, data=fields)
        another_form = evaluation_page.client.post(RESULT, data=fields | evaluation_page.hidden(RESULT))
        shown = evaluation_page.get(RESULT).text
        goes_on.set()
        assert first.result().status_code == 303
    for second in (same_form, another_form):
        assert second.status_code == 202
        assert "under way" in second.text
        assert 'class="problem"' not in second.text
    assert "An evaluation has been under way since" in shown
    assert len(calls) == 1
    assert "An evaluation has been under way" not in evaluation_page.get(RESULT).text


def test_evaluation_on_a_file_outside_the_task_folders_is_refused(evaluation_page, tmp_path):
    outside = tmp_path / "outside.jsonl"
    outside.write_text(LINES)
    assert send(evaluation_page, None, b"", file=str(outside)).status_code == 409


@pytest.mark.heavy
def test_viewer_sees_evaluation_figures_but_cannot_start_an_evaluation(evaluation_page):
    evaluation_page.site.accounts.set_role("vera", "viewer")
    viewer = Browser(evaluation_page.site).enter(evaluation_page.site.accounts.link("vera"))
    assert "Evaluate on a test file" not in viewer.get(RESULT).text
    assert viewer.post(RESULT, of="/account", file="x").status_code == 403


@pytest.mark.parametrize("way", ["chosen", "uploaded"])
def test_file_that_a_generator_has_read_is_refused_as_test_file(home, tmp_path, way):
    with entered_console(home, [tmp_path / "task"]) as page:
        assert "(task; 120 rows, " in page.get(RESULT).text
        read_file = tmp_path / "task" / "good.jsonl"
        if way == "chosen":
            refused = send(page, None, b"", file=str(read_file))
        else:
            refused = send(page, "mine.jsonl", read_file.read_bytes())
    assert refused.status_code == 409
    assert "generator good has read this file" in refused.text
    assert ("mine.jsonl: " in refused.text) is (way == "uploaded")
    assert not (CoordinatorHome(home).run("first").path / EVALUATION_FILE).exists()


@pytest.mark.heavy
def test_evaluation_on_another_file_keeps_the_runs_own_evaluation(evaluation_page, home):
    own_figures = Evaluated("test.jsonl, 0123abcd", {"panel score": "80.0 %"}, GOOD_PANEL, 30, "2026-11-29")
    folder = CoordinatorHome(home).run("first")
    keep_evaluation(folder, own_figures)
    send(evaluation_page, "another.jsonl", TEST_LINES.encode())
    assert evaluated(folder) == own_figures
    (beside,) = evaluated_beside(folder)
    assert (beside.test.partition(",")[0], beside.texts) == ("another.jsonl", 30)
    shown = evaluation_page.get(RESULT).text
    assert f"Evaluated on {own_figures.place_words}" in shown
    assert f"Also evaluated on {beside.place_words}" in shown
    assert releases.evaluation_place(home, "first", beside).endswith("test.jsonl, 0123abcd, stay.")


def test_new_evaluation_on_the_same_file_replaces_the_earlier_one(home):
    folder = CoordinatorHome(home).run("first")
    for name in ("test.jsonl", "copy of it.jsonl"):
        keep_evaluation(folder, Evaluated(f"{name}, 0123abcd", {}))
    assert evaluated(folder) == Evaluated("copy of it.jsonl, 0123abcd", {})
    assert evaluated_beside(folder) == ()


def test_evaluations_on_several_files_are_ordered_by_date(home):
    folder = CoordinatorHome(home).run("first")
    days = {"00000000": "2026-11-01", "ffffffff": "2026-11-02", "11111111": "2026-11-03"}
    own_figures, *others = (Evaluated(f"test.jsonl, {file_hash}", {}, day=day) for file_hash, day in days.items())
    for evaluation in (own_figures, *others):
        keep_evaluation(folder, evaluation)
    assert evaluated_beside(folder) == tuple(others)


@pytest.mark.heavy
@pytest.mark.parametrize(("shared", "is_warned"), [(6, True), (1, False)])
def test_evaluation_warns_of_test_texts_that_occur_in_the_corpus(home, tmp_path, shared, is_warned):
    output = CoordinatorHome(home).run("first").output
    rows = [json.loads(line) for line in (output / "synthetic.jsonl").read_text().splitlines()]
    test_path = tmp_path / "test.jsonl"
    test_path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:shared], *TEST_ROWS[shared:]]))
    report = releases.evaluate(output, EvaluationOptions(test=test_path), embed)
    assert any("6 of the 30 different test texts" in note for note in report.notes) is is_warned
