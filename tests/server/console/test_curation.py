"""Notes, tags, the archive and marks on the console: each is one form, in the audit log, and no viewer's to change."""

import io
import json
import re
import zipfile

import pytest

from tests.doubles.entered_console import entered_console
from tests.doubles.one_page import next_step_of
from tests.doubles.plain_browser import Browser
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import releases, runs
from undersong_server.report.evaluations import Evaluated, keep_evaluation
from undersong_server.runs.folder import RunStatus

RUN, RESULT = "/runs/one/first", "/runs/one/first/result"
TEXTS = ["a hotel in town", "hotel by the sea", "wrist pain", "<b>fever</b>"]


@pytest.fixture
def home(tmp_path):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    for name in ("first", "second"):
        task_file = make_task(tmp_path / name, publication={"licence": "CC0-1.0"})
        runs.plan(home.path, task_file, RunOptions(name=name))
    run = home.run("first")
    run.write_status(RunStatus("finished", 1))
    run.output.mkdir()
    lines = [json.dumps({"text": text, "label": "a", "generator": "g"}) + "\n" for text in TEXTS]
    (run.output / "synthetic.jsonl").write_text("".join(lines))
    return home.path


@pytest.fixture
def curation_page(home):
    with entered_console(home) as page:
        yield page


def did(console):
    return [entry.what for entry in console.site.audit.entries()]


def runs_listed(console, query=""):
    page = console.get(f"/runs?part=runs{query}").text
    return [name for name in ("first", "second") if f"/runs/one/{name}" in page]


@pytest.mark.slow
def test_run_note_and_tags_are_shown_searchable_and_in_the_audit_log(curation_page):
    curation_page.post(f"{RUN}/note", of=RUN, note="<i>for</i> the board", tags="spring, best so far")
    page = curation_page.get(RUN).text
    assert "&lt;i&gt;for&lt;/i&gt; the board" in page
    assert "/runs?tag=best+so+far" in page or "/runs?tag=best%20so%20far" in page
    assert runs_listed(curation_page, "&tag=spring") == ["first"]
    assert runs_listed(curation_page, "&find=board") == ["first"]
    assert did(curation_page)[-1] == "run note"
    assert curation_page.post(f"{RUN}/note", of=RUN, note="x" * 5000).status_code == 409


@pytest.mark.heavy
def test_archived_runs_are_left_out_of_home_lists_and_compare(curation_page):
    assert runs_listed(curation_page) == ["first", "second"]
    curation_page.post(f"{RUN}/put-away", of=RUN)
    assert (runs_listed(curation_page), runs_listed(curation_page, "&state=archive")) == (["second"], ["first"])
    for screen in ("/", "/compare", "/runs/new"):
        page = curation_page.get(screen).text
        assert not any(place in page for place in ("/runs/one/first", 'value="first"', 'value="run first"')), screen
        assert any(place in page for place in ("/runs/one/second", 'value="second"', 'value="run second"')), screen
    assert "Take out of the archive" in curation_page.get(RUN).text
    curation_page.post(f"{RUN}/take-back", of=RUN)
    assert runs_listed(curation_page) == ["first", "second"]
    assert did(curation_page)[-2:] == ["run put-away", "run take-back"]


@pytest.mark.heavy
def test_two_finished_runs_are_offered_for_comparison(curation_page, home):
    assert "/compare?run=" not in curation_page.get("/?part=under_way").text
    CoordinatorHome(home).run("second").write_status(RunStatus("finished", 1))
    assert "/compare?run=" in curation_page.get("/?part=under_way").text
    shown = curation_page.get("/compare?run=first").text
    assert "Tick at least one run beside first." in shown
    ticked, other = re.findall(r'<input type="checkbox" name="run" value="(?:first|second)"( checked)?>', shown)
    assert (ticked, other) == (" checked", "")
    assert "Tick at least" not in curation_page.get("/compare?run=first&run=second").text


@pytest.mark.heavy
def test_operator_marks_one_text_or_all_texts_that_a_search_finds(curation_page, home):
    led = curation_page.led(curation_page.post(f"{RUN}/marks", of=RESULT, row="3", mark="yes", find="", page="1"))
    assert led.endswith("#text-3")
    curation_page.post(f"{RUN}/marks", of=RESULT, mark="yes", find="hotel")
    assert releases.search(home, "first").marked == (1, 2, 3)
    curation_page.post(f"{RUN}/marks", of=RESULT, row="3", mark="no")
    assert releases.search(home, "first").marked == (1, 2)
    page = curation_page.get(f"{RESULT}?part=corpus&marked=yes").text
    assert (page.count("<strong>marked</strong>"), "fever" in page) == (2, False)
    files = curation_page.get(f"{RESULT}?part=files").text
    leading = files.partition("<button")[2].partition("</button>")[0]
    assert "/without-marked.zip" in leading
    assert "Download without the 2 marked texts" in leading
    assert "Download everything, 2 marked texts of 4 included" in files
    assert "tell the receiver the coordinator's fingerprint another way" in files
    assert next_step_of(curation_page.get(RESULT).text).startswith("Read the result of first")
    assert [words for words in did(curation_page) if "mark" in words] == ["run mark", "run mark", "run unmark"]
    assert curation_page.post(f"{RUN}/marks", of=RESULT, row="9", mark="yes").status_code == 409


def test_download_without_marked_texts_is_recorded_in_the_audit_log(curation_page, monkeypatch):
    assert "has no marked text" in curation_page.get(f"{RUN}/without-marked.zip").text
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("first/synthetic.jsonl", "")
    monkeypatch.setattr(releases, "archive_without_marked", lambda home, run, without_aside: buffer.getvalue())
    answer = curation_page.get(f"{RUN}/without-marked.zip")
    assert answer.content == buffer.getvalue()
    assert curation_page.site.audit.entries()[-1].about == "first: everything without the marked texts"


@pytest.mark.heavy
def test_frequent_phrases_link_lists_exactly_the_rows_with_such_phrases(curation_page, home):
    shared = [f"{number}: <b>in</b> the past, 5 HOURS only {number}" for number in range(5)]
    rows = [{"text": text, "label": "a", "generator": "g"} for text in [*TEXTS, *shared]]
    output = home / "runs" / "first" / "output" / "synthetic.jsonl"
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    address = re.search(r'href="[^"]*(/runs/[^"]+marked=phrases)#corpus"', curation_page.get(RESULT).text)[1]
    page = curation_page.get(f"{address}&part=corpus").text
    assert re.findall(r'<li id="text-(\d+)">', page) == ["5", "6", "7", "8", "9"]
    assert page.count("<mark>") == 5
    assert "<mark>0: &lt;b&gt;in&lt;/b&gt; the past, 5 HOURS only 0</mark>" not in page
    assert "the past, 5 HOURS only</mark> 0" in page
    assert "Mark these 5 texts" in page
    curation_page.post(f"{RUN}/marks", of=RESULT, mark="yes", marked="phrases")
    assert releases.search(home, "first").marked == (5, 6, 7, 8, 9)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("counts", "why"),
    [
        (
            {"contradicted": 2, "surplus": 1},
            "2 under a label that models contradict and 1 more than the task asks for.",
        ),
        ({}, "under a label that models contradict, not chosen, more than the task asks for, not counted apart."),
    ],
)
def test_corpus_page_counts_written_texts_that_are_in_no_file(curation_page, home, counts, why):
    run = CoordinatorHome(home).run("first")
    assert "in no file" not in curation_page.get(f"{RESULT}?part=corpus").text
    run.tell("usage", {"at": 1.0, "usage": {"good": {"kept": 7}}})
    run.tell("record", {"name": "unpublished", "round": 0, "value": counts})
    assert (
        f"3 of the 7 texts that generators wrote are in no file: {why}"
        in curation_page.get(f"{RESULT}?part=corpus").text
    )


@pytest.mark.heavy
def test_set_aside_texts_show_their_reason_and_can_be_left_out_of_download(curation_page, home, monkeypatch):
    assert "set aside" not in curation_page.get(RESULT).text
    files = curation_page.get(f"{RESULT}?part=files").text
    buttons = files.partition('<p class="actions">')[2].partition("</form>")[0]
    assert ("<button>Download everything</button>" in buttons, "without_aside" in files) == (True, False)
    row = {"text": "late check-in", "label": "a", "generator": "mixed", "reason": "generator"}
    (home / "runs" / "first" / "output" / "set-aside.jsonl").write_text(json.dumps(row) + "\n")
    counts = {"records": 511.0, "votes": [414.0, 97.0], "expected": [255.5, 255.5], "error": [0.04, 0.04]}
    CoordinatorHome(home).run("first").tell("record", {"name": "support", "round": 0, "value": counts})
    assert "1 text set aside" in curation_page.get(f"{RESULT}?part=corpus").text
    aside = curation_page.get(f"{RESULT}?part=corpus&marked=aside").text
    assert "late check-in" in aside
    assert "set aside: too few records are near its generator's texts" in aside.replace("&#39;", "'")
    assert "counted were 414 (give or take 10) to good and 97 (give or take 10) to poor." in aside
    assert "wrist pain" not in aside
    assert "Mark text" not in aside
    assert curation_page.post(f"{RUN}/marks", of=RESULT, mark="yes", marked="aside").status_code == 409
    assert releases.search(home, "first").marked == ()
    files = curation_page.get(f"{RESULT}?part=files").text
    assert "Leave out set-aside.jsonl, whose 1 text is no part of the corpus" in files
    assert files.partition('<p class="actions">')[2].partition("</form>")[0] == buttons
    asked = []
    monkeypatch.setattr(releases, "archive", lambda home, run, without_aside: asked.append(without_aside) or b"PK")
    for query in ("", "?without_aside=yes"):
        curation_page.get(f"{RUN}/archive.zip{query}")
    assert asked == [False, True]
    assert curation_page.site.audit.entries()[-1].about == "first: everything, without set-aside.jsonl"


@pytest.mark.heavy
def test_viewer_sees_notes_and_marks_but_cannot_change_them(curation_page):
    curation_page.post(f"{RUN}/marks", of=RESULT, row="1", mark="yes")
    curation_page.site.accounts.set_role("vera", "viewer")
    viewer = Browser(curation_page.site).enter(curation_page.site.accounts.link("vera"))
    page = viewer.get(RESULT).text
    assert ("<strong>marked</strong>" in page, "Mark text 2" in page) == (True, False)
    for path in ("marks", "note", "put-away", "take-back"):
        assert viewer.post(f"{RUN}/{path}", of="/account", row="1", mark="no").status_code == 403


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("role", "taken", "is_noted"),
    [
        ("operator", "archive.zip", True),
        ("operator", "file/synthetic.jsonl", True),
        ("operator", "file/README.md", False),
        ("viewer", "archive.zip", False),
    ],
)
def test_only_a_download_by_an_operator_completes_the_download_step(
    curation_page, home, monkeypatch, role, taken, is_noted
):
    (home / "runs" / "first" / "output" / "README.md").write_text("a card")
    keep_evaluation(CoordinatorHome(home).run("first"), Evaluated("test.jsonl, 0123abcd", {}))
    monkeypatch.setattr(releases, "archive", lambda home, run, without_aside: b"PK")
    curation_page.site.accounts.set_role("vera", role)
    vera = Browser(curation_page.site).enter(curation_page.site.accounts.link("vera"))
    assert vera.get(f"{RUN}/{taken}").status_code == 200
    step = next_step_of(vera.get(RESULT).text)
    assert ("publish it" in step) is not is_noted
    assert ("downloaded the texts last at" in vera.get(RESULT).text) is is_noted
    curation_page.post(f"{RUN}/marks", of=RESULT, row="1", mark="yes")
    assert "without the marked texts, and publish it" in next_step_of(vera.get(RESULT).text)
