"""What the console says to its operator: a remedy for every failure, said once, and times that do not move."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import time
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from tests.doubles.entered_console import entered_console
from tests.doubles.forms import fields_of
from tests.doubles.one_page import next_step_of
from tests.doubles.processes import ROOT
from tests.doubles.stream import make_home
from tests.doubles.tasks import JUDGED, make_task
from undersong_common.errors import InternalError
from undersong_common.pages.site import LIVE
from undersong_common.privacy import impact
from undersong_server import methods
from undersong_server.coordinator.home import CoordinatorHome, Serving
from undersong_server.defaults import RunOptions
from undersong_server.operations import curation, drafts, enrolment, form, overview, runs
from undersong_server.runs.folder import PREPARING, Awaited, AwaitedParty, RunFailure, RunStatus

WORDS = "apple bread candle door engine flour garden hammer island"
PROBLEM = "internal error: ImportError at form.py:24 < undersong.py:47"


def visible(page):
    """The words of a screen's main part, as somebody reads them."""
    main = page.partition("<main")[2].partition(">")[2].partition("</main>")[0]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", main)))


def plan_run(home, tasks, name):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name=name))
    return CoordinatorHome(home).run(name)


FAILURES = {
    "a fault of the program": RunFailure(PROBLEM, "", InternalError.exit_code),
    "an error without a remedy": RunFailure("the endpoint answered 500", "", 7),
    "an error with a remedy": RunFailure("the key was refused", "correct the key", 2),
    "a rejection without a remedy": RunFailure("beta: its people have rejected the run", "", 3, ("beta",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAILURES)
def test_every_failure_is_shown_once_on_a_screen_with_a_remedy(console, home, tasks, kind):
    failure = FAILURES[kind]
    folder = plan_run(home, tasks, kind)
    folder.say(failure.problem)
    folder.say(f"failed: {failure.problem}")
    folder.write_status(RunStatus("failed", 1, since=1.0, message="failed", error=failure))
    for path in (f"/runs/one/{kind}", "/"):
        said = visible(console.get(path).text)
        problem = failure.problem.removeprefix("beta: ") if path == "/" else failure.problem
        assert said.count(problem) == 1, path
        assert re.search(rf"{re.escape(problem)}.*?Remedy: (\S+ ){{3}}", said), path
    needs = console.get("/?part=needs").text
    if failure.exit_code == InternalError.exit_code:
        assert "/audit/support.zip" in needs
        assert "restart the coordinator" in needs
    runs.put_away(home, kind)


# Folders and files whose errors a screen of the console may show, and the errors in them that only commands raise.
ERROR_SOURCES = ("operations", "coordinator/parties.py", "runs", "evaluation", "release/verify.py", "generators")
ONLY_COMMANDS = {
    *("no-task", "too-late", "signed-by-parties", "another-run-there", "no-archive", "file-exists", "folder-exists"),
    *("backup-elsewhere", "home-not-empty", "coordinator-exists", "test-file-missing", "labels-missing"),
    *("nothing-to-compare", "too-few-records"),
}


def stated_words(node):
    """The words of a string in a program's source; a value that is filled in is an ellipsis."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(part.value if isinstance(part, ast.Constant) else "..." for part in parts)


def errors_of(path):
    """(words, code) of every configuration error that a file raises."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("ConfigurationError", "ValueError"):
            code = next((stated_words(each.value) for each in call.keywords if each.arg == "code"), "")
            for argument in call.args:
                if isinstance(argument, ast.Constant | ast.JoinedStr):
                    yield stated_words(argument), code


def test_no_error_on_a_screen_names_an_option_command_or_toml_table(site):
    folder = ROOT / "server" / "undersong_server"
    paths = [path for source in ERROR_SOURCES for path in ([folder / source, *(folder / source).rglob("*.py")])]
    render = site._templates.from_string("{{ words|commands }}").render
    named = {}
    for path in filter(Path.is_file, paths):
        for words, code in errors_of(path):
            shown = unescape(re.sub(r"<[^>]+>", "", render(words=words, base="")))
            if code not in ONLY_COMMANDS and re.search(r"(?<!\w)--[a-z]|\[\[|undersong [a-z]", shown):
                named[f"{path.name}: {words}"] = shown
    assert named == {}


@pytest.mark.parametrize(
    ("problem", "remedy", "shown"),
    [
        ("not compared", "type it (--fingerprint)", "Remedy: type it"),
        ("x", "see `undersong parties`", "Remedy: see Hospitals"),
        ("two [[generators]] share a name", "give each its own", "two generators share a name"),
        ("x", "choose one: --sheet NAME; go on", "Remedy: choose one; go on"),
    ],
)
def test_errors_that_name_options_are_shown_with_the_field_to_click(console, home, tasks, problem, remedy, shown):
    folder = plan_run(home, tasks, "options")
    folder.write_status(RunStatus("failed", 1, since=1.0, error=RunFailure(problem, remedy, 2)))
    try:
        for path in ("/runs/one/options", "/"):
            assert shown in visible(console.get(path).text), path
    finally:
        shutil.rmtree(folder.path)


def test_timeline_lists_each_event_once_and_the_log_file_is_folded(console, home, tasks):
    folder = plan_run(home, tasks, "told")
    for number in range(60):
        folder.say(f"event {number} of the run")
    page = console.get("/runs/one/told").text
    unfolded = visible(re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL))
    assert [unfolded.count(f"event {number} of the run") for number in (0, 59)] == [0, 1]
    timeline = visible("<main>" + page.partition("Timeline</h2>")[2].partition("</section>")[0])
    assert all(timeline.count(f"event {number} of the run") == 1 for number in range(60))
    assert "Log file: 60 lines" in visible(page)
    runs.put_away(home, "told")


def test_timeline_of_an_ended_run_closes_with_its_end(home, tasks):
    folder = plan_run(home, tasks, "ends")
    folder.say("finished")
    folder.tell("sum", {"name": "verdict", "survivors": ["alpha"]})
    assert runs.timeline(home, "ends")[-1].words == "finished"
    runs.put_away(home, "ends")


def test_failing_part_of_a_page_offers_the_support_bundle(console, monkeypatch):
    def broken(home, runs):
        raise ImportError

    monkeypatch.setattr(overview, "spending", broken)
    page = console.get("/").text
    assert "internal error: ImportError" in page
    assert "have IT restart the console" in page
    assert "/audit/support.zip" in page.partition("internal error")[2].partition("</section>")[0]


@pytest.mark.heavy
@pytest.mark.parametrize(("started_before_s", "is_offered"), [(60.0, False), (-60.0, True), (None, True)])
def test_resume_is_offered_unless_the_same_program_would_fail_again(
    home, tasks, console, monkeypatch, started_before_s, is_offered
):
    name = f"resumes {started_before_s}"
    folder = plan_run(home, tasks, name)
    folder.write_status(RunStatus("failed", 1, since=1.0, error=FAILURES["a fault of the program"]))
    serving = None
    if started_before_s is not None:
        serving = Serving(1, 1, None, folder.status().at - started_before_s, ())
    monkeypatch.setattr(CoordinatorHome, "serving", serving)
    page = console.get(f"/runs/one/{name}").text
    assert ('/resume"' in page, "Resume appears here once" in page) == (is_offered, not is_offered)
    assert (f'aria-label="Resume {name}"' in console.get("/?part=needs").text) is is_offered
    step = "Do what stands" if is_offered else "Have IT restart the coordinator"
    assert next_step_of(page).startswith(step)
    runs.put_away(home, name)


def test_all_times_on_a_screen_are_utc_times_in_one_format(console, home, tasks):
    folder = plan_run(home, tasks, "timed")
    folder.say("prepares the run")
    began = time.time() - 3600
    waiting = Awaited(
        (AwaitedParty("beta", True, 3.0),), began, None, 3, f"waiting for people; this plan's words: {WORDS}", "people"
    )
    shown = []
    for at in (1, 2):
        folder.write_status(RunStatus("running", 1, since=began - 5, waiting=waiting))
        shown.append(console.get("/runs/one/timed").text)
        time.sleep(0.01 * at)
    timelines = [page.partition('class="timeline"')[2].partition("</ol>")[0] for page in shown]
    assert timelines[0] == timelines[1]
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    outside = re.sub(rf"<time [^>]+>{stamp} UTC</time>", "", shown[0])
    assert re.findall(stamp, outside) == []
    assert f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(began))} UTC" in timelines[0]
    assert '<pre tabindex="0"><time' in shown[0].replace("\n", "")
    assert 'Times are in <span id="zone">UTC</span>' in shown[0]  # until the page's script turns them


def test_run_page_shows_the_plans_nine_words_once_to_read_aloud(console, home, tasks):
    folder = plan_run(home, tasks, "nine")
    words = f"waiting for people at beta to approve (0 of 3 hospitals have); this plan's words: {WORDS}"
    waiting = Awaited((AwaitedParty("beta", True, 3.0),), 1.0, None, 3, words, "people")
    folder.write_status(RunStatus("running", 1, since=1.0, message=words, waiting=waiting))
    said = visible(console.get("/runs/one/nine").text)
    assert said.count(WORDS) == 1
    assert f"Read these nine words aloud to each hospital: {WORDS}" in said
    for path in ("/", "/runs"):
        assert WORDS not in visible(console.get(path).text), path


STATES = {
    "prepares": (RunStatus("waiting", 1, since=1.0, phase=PREPARING, message="prepares the run"), "preparing"),
    "embeds": (RunStatus("waiting", 1, since=1.0, phase="embedding texts", total=3), "preparing"),
    "is held": (RunStatus("waiting", 1, since=1.0, message="no space; free some"), "held up"),
    "asks people": (
        RunStatus("running", 1, since=1.0, waiting=Awaited((), 1.0, None, 3, "w", "people")),
        "waiting for people",
    ),
    "works": (RunStatus("running", 1, since=1.0), "running"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", STATES)
def test_state_of_a_run_has_the_same_words_on_every_screen(console, home, tasks, kind):
    status, words = STATES[kind]
    name = f"state {kind}"
    plan_run(home, tasks, name).write_status(status)
    page = console.get(f"/runs/one/{name}").text
    assert re.findall(r'class="state [^"]*">([^<]+)', page)[0] == words
    assert words in visible(console.get(f"/runs?find={name}").text)
    now = page.partition('<li class="now">')[2].partition("</li>")[0]
    assert "running:" not in now
    assert ("running" in now) is (words == "running")
    runs.put_away(home, name) if status.state not in runs.UNDER_WAY else None


def as_default_method(task_file):
    """The task file with the default method, whose keys are few."""
    text = re.sub(r"(?m)^(votes|examples|shortlist) = .*\n", "", task_file.read_text(encoding="utf-8"))
    task_file.write_text(text.replace('"wasp"', '"undersong"'), encoding="utf-8")
    return task_file


@pytest.mark.heavy
def test_screens_explain_why_more_calls_than_texts_are_planned(console, home, tasks, tmp_path):
    task_file = as_default_method(make_task(tmp_path, samples=300))
    runs.plan(home, task_file, RunOptions(name="counted"))
    figures = overview.run_plan(home, "counted").figures
    assert figures.generator_calls > 300
    assert figures.unpublished.startswith("At most 300 texts of them are published; up to ")
    page = visible(console.get("/runs/one/counted").text)
    assert page.count(figures.unpublished) == 2  # beside the texts written so far, and in the plan
    draft = console.led(console.post("/runs/new", source="run counted"))
    so_far = visible(console.get(draft).text)
    assert figures.unpublished[1:] in so_far.partition("So far")[2].partition("Each private sum")[0]
    plan_run(home, tasks, "uncounted")  # by WASP, which publishes every text that it orders
    assert overview.run_plan(home, "uncounted").figures.unpublished == ""


def test_empty_figures_and_table_columns_are_not_shown(home, tasks, console):
    folder = plan_run(home, tasks, "silent")
    table = visible(console.get("/generators").text)
    for column in ("Calls", "Usable texts", "Tokens", "US$", "Answers/s", "Over the last"):
        assert column not in table, column
    glance = console.get("/?part=figures").text
    for figure in ("Money", "Epsilon spent", "Runs finished"):
        assert figure not in glance, figure
    used = {"calls": 3, "kept": 3, "retried": 0, "dropped": 0, "prompt_tokens": 0, "completion_tokens": 0}
    folder.tell("usage", {"usage": {"good": {**used, "price_usd": 0.5}}})
    folder.write_status(RunStatus("finished", 1, since=1.0))
    table = visible(console.get("/generators").text)
    assert ("Calls" in table, "US$" in table, "Retried" in table, "Tokens" in table) == (True, True, False, False)
    assert "Money" in console.get("/?part=figures").text


def test_large_numbers_are_grouped_by_narrow_spaces_on_every_screen(console, home, tasks):
    folder = plan_run(home, tasks, "large")
    used = {"calls": 20823, "kept": 20823, "retried": 0, "dropped": 0, "cut": 0, "counted": {"corpus_rows": 12345}}
    tokens = {"prompt_tokens": 20823, "completion_tokens": 0, "price_usd": 20823.0}
    folder.tell("usage", {"usage": {"good": {**used, **tokens}}})
    folder.write_status(RunStatus("running", 1, since=1.0))
    run_screens = ["/runs/one/large", "/compare?run=large&run=large"]
    for path in ["/", "/parties", "/runs", "/generators", *run_screens]:
        assert "\\u" not in visible(console.get(path).text), path
    generators = console.get("/generators").text
    assert re.search(r"\b20\u202f8\d\d\b", generators)
    assert "corpus rows 12\u202f345" in generators


def test_corpus_rows_of_a_generator_are_not_summed_over_runs(home, tasks):
    for name in ("first reading", "second reading"):
        folder = plan_run(home, tasks, name)
        folder.tell("usage", {"usage": {"good": {"calls": 3, "counted": {"corpus_rows": 900, "cached": 2}}}})
    usages = overview.generator_usage(home, ["second reading", "first reading"])
    counted = next(usage.counted for usage in usages if usage.name == "good")
    assert counted == {"corpus rows": 900, "cached": 4}


@pytest.mark.heavy
def test_screens_tell_not_yet_shared_epsilon_from_withheld_epsilon(tmp_path, entered):
    made = make_home(tmp_path / "home", ("alpha", "beta"))
    enrolment.invite(made.path, "gamma")
    with contextlib.closing(made.registry()) as registry:
        registry.seen("alpha", now=1.0, software="", embedder="", epsilon_left=None, paused=False)
    console = entered(made.path)
    said = {"alpha": "not shared", "beta": "not heard yet", "gamma": "not enrolled"}
    for name, words in said.items():
        assert f"Epsilon left {words}" in visible(console.get(f"/parties/one/{name}").text), name
        row = console.get(f"/parties?find={name}").text.partition("<tbody>")[2].partition("</tbody>")[0]
        assert words in row.rpartition("<td")[2], name
    assert "Several runs together spend at most the sum" in visible(console.get("/parties").text)


@pytest.mark.heavy
def test_rejected_run_shows_which_other_hospitals_had_approved(console, home, tasks):
    folder = plan_run(home, tasks, "refused")
    failure = RunFailure("beta: its people have rejected the run", "", 3, ("beta",), ("alpha",))
    folder.write_status(RunStatus("failed", 1, since=1.0, error=failure))
    for path in ("/runs/one/refused", "/"):
        said = visible(console.get(path).text)
        assert "Of the others, alpha had approved; no decision had come from gamma." in said, path
        assert "have have" not in said
    draft = console.led(console.post("/runs/new", of="/runs/one/refused", source="revise refused"))
    assert "must approve again, those that had approved too" in visible(console.get(draft).text)
    runs.put_away(home, "refused")
    found = console.get("/runs?state=rejected").text
    assert ">refused</a>" in found
    assert "in the archive" in found
    assert ">refused</a>" not in console.get("/runs").text
    assert "state=archive" in console.get("/runs").text
    assert ">refused</a>" in console.get("/runs?state=archive").text


def test_timeline_does_not_mark_a_refusal_as_success(home, tasks):
    folder = plan_run(home, tasks, "red")
    failure = RunFailure("beta refuses: no consent", "", 3, ("beta",))
    folder.say(failure.problem)
    folder.write_status(RunStatus("failed", 1, since=1.0, error=failure))
    grades = {moment.words: moment.grade for moment in runs.timeline(home, "red")}
    assert grades["a hospital refuses: see above"] == "bad"


@pytest.mark.parametrize(("state", "button"), [("planned", "start"), ("paused", "resume")], ids=["planned", "paused"])
def test_next_step_of_a_run_links_to_the_button_for_it(console, home, tasks, state, button):
    folder = plan_run(home, tasks, f"{state} step")
    folder.write_status(RunStatus(state, 0, since=None if state == "planned" else 1.0))
    page = console.get(f"/runs/one/{state} step").text
    assert f'id="{button}"' in page.partition("What comes next")[0]
    assert f"/runs/one/{state}%20step#{button}" in page.partition("What comes next")[2]


def test_a_draft_says_which_full_names_its_run_ignores(console, home, tasks):
    plan_run(home, tasks, "ignored")
    draft = drafts.from_run(home, "ignored")
    named = drafts.save(home, replace(draft, data={**draft.data, "federation": {"full_names": {"delta": "Delta"}}}))
    page = visible(console.get(f"/runs/new/{named.identity}").text).replace("&#39;", "'")
    assert "federation.full_names is ignored for 'delta': no hospital of this run has that name" in page


@pytest.mark.heavy
def test_proposed_names_of_runs_of_one_task_differ(console, home, tasks):
    task_file, day = next(tasks.glob("*.toml")), time.strftime("%Y-%m-%d")
    names = [runs.plan(home, task_file, assignments=changes).run for changes in ([], ["privacy.epsilon=1.5"], [])]
    assert names[:2] == [f"small epsilon 4 {day}", f"small epsilon 1.5 {day}"]
    assert re.fullmatch(rf"small epsilon 4 {day} \d\d\.\d\d", names[2])
    for name in (*names, f"{names[2]}.59", f"small epsilon 4 {day} 2", "small 11807f6d", "small 11807f6d 2"):
        assert runs.is_proposed_name(name, "small"), name
    for name in ("small", "small spring", "small 2", f"other epsilon 4 {day}"):
        assert not runs.is_proposed_name(name, "small"), name
    draft = drafts.from_run(home, names[0], revises=True)
    assert draft.name == ""  # so that the revised epsilon names it
    address = f"/runs/new/{draft.identity}"
    assert f"the run is called small epsilon 4 {day} " in visible(console.get(address).text)
    sent = {**fields_of(console.get(address).text), "key privacy.epsilon": "3", "do": "plan"}
    assert console.led(console.post(address, sent)) == f"/runs/one/small%20epsilon%203%20{day}"


@pytest.mark.slow
def test_run_page_names_the_run_it_was_copied_from_and_the_changes(console, home, tasks):
    plan_run(home, tasks, "origin")
    for changes in ({"key privacy.epsilon": "1"}, {}):
        address = console.led(console.post("/runs/new", source="run origin"))
        name = f"begun {len(changes)}"
        sent = {**fields_of(console.get(address).text), **changes, "name": name, "do": "plan"}
        console.post(address, sent)
        page = visible(console.get(f"/runs/one/{name}").text)
        assert "Begun with the values of origin" in page
        assert ("Epsilon: 4.0 → 1" in page, ", unchanged." in page) == (bool(changes), not changes)
        curation.describe(home, name, note="ours")  # which forgets no origin
        assert runs.revision(home, name).begun_with == "origin"
    assert runs.revision(home, "origin").begun_with == ""


@pytest.mark.heavy
def test_next_step_after_an_invitation_offers_to_invite_the_next_hospital(tmp_path, entered):
    made = make_home(tmp_path / "home")
    enrolment.invite(made.path, "alpha")
    console = entered(made.path)
    assert unescape(next_step_of(console.get("/").text)) == "Sign each hospital's request, or invite the next."
    links = console.get("/").text.partition("What comes next")[2].partition("</section>")[0]
    assert re.findall(r'href="[^"]*(/parties/[^"]+)"', links) == ["/parties/sign", "/parties/invite"]
    assert "Invite each hospital: 1 hospital so far ( invite the next )" in visible(console.get("/").text)


@pytest.mark.heavy
def test_letter_says_when_it_will_state_labels_and_epsilon(tmp_path, entered):
    made = make_home(tmp_path / "home", ("alpha",))
    console = entered(made.path)
    early = visible(console.get("/parties/one/alpha/letter").text)
    assert "once you have begun a new run: print it again then" in early
    assert "we send you this letter again with them. Tell us until then" in early  # it has joined
    enrolment.invite(made.path, "beta")
    assert "Join all the same" in visible(console.get("/parties/one/beta/letter").text)
    console.post("/runs/new", source="template classification")
    later = visible(console.get("/parties/one/alpha/letter").text)
    assert "print it again" not in later
    assert "epsilon 4 at delta 1e-5" in later


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("addresses", "warned"),
    [
        (("localhost:7443", "notes.example:7443"), "localhost:7443"),
        (("127.0.0.1:7443", "[::1]:7443"), "127.0.0.1:7443, [::1]:7443"),
        (("notes.example:7443",), ""),
    ],
)
def test_letter_and_invitation_warn_of_a_loopback_address(tmp_path, entered, addresses, warned):
    made = make_home(tmp_path / "home", ("alpha",), addresses=addresses)
    console = entered(made.path)
    for path in ("/parties/one/alpha/letter", "/parties/invite"):
        page = visible(console.get(path).text)
        assert (f"The address {warned} reaches this machine only" in page) is bool(warned)
        assert ("this machine only" in page) is bool(warned)


def test_downloaded_package_shows_its_download_time_and_no_button(console):
    done = console.post("/parties/invite", name="delta").headers["location"]
    page = console.get(done).text
    link = re.search(r'<a class="button" href="([^"]+/download/[^"]+)" download data-once>', page)[1]
    console.get(link)
    after = console.get(done).text
    assert "/download/" not in after
    assert "was downloaded at <time" in after
    assert "/parties/one/delta/letter" in after
    assert re.search(r'<input id="name" name="name" value="([^"]*)"', after)[1] == ""  # a second one ends the first


def test_remedy_for_a_wrong_fingerprint_first_suggests_typing_it_again(console, home):
    error = enrolment.OtherFingerprint("delta", "1a2b", "3c4d-5e6f")
    assert error.remedy.startswith("have the hospital read its fingerprint again, and type each word")
    assert "3c4d" not in f"{error.problem} {error.remedy}"
    text = console.site.render("problem.html.j2", {"problem": error.problem, "remedy": "", "base": ""})
    assert "What was typed is not the fingerprint" in text
    named = console.site.render("problem.html.j2", {"problem": "beta refuses", "remedy": "", "base": ""})
    assert "<p>beta refuses</p>" in named  # a name keeps its letters


@pytest.mark.heavy
def test_form_without_a_generator_says_so_exactly_once(console, home, tasks):
    address = console.led(console.post("/runs/new", source="template classification"))
    for checked in ("", "?checked=yes"):
        page = console.get(f"{address}{checked}").text
        assert "[[generators]]" not in page
        assert visible(page).count("Add a generator : it writes the texts") == 1
    sent = {**fields_of(console.get(address).text), "do": "plan"}
    before = len(overview.list_runs(home))
    console.post(address, sent)
    assert len(overview.list_runs(home)) == before


@pytest.mark.slow
def test_new_form_has_empty_label_rows_and_the_coordinators_contact(tmp_path, entered):
    made = make_home(tmp_path / "home", ("alpha",))
    made.change(operator="North Hospital", contact="Dr. Holm, 01 234")
    console = entered(made.path)
    address = console.led(console.post("/runs/new", source="template classification"))
    empty = visible(console.get(address).text)
    assert "Labels (required)" in empty
    assert "as stands above" not in empty  # nothing stands there before the form is complete
    form = fields_of(console.get(address).text)
    assert len(form["label"]) == len(form["meaning"]) == drafts.LABEL_ROWS
    assert form["key publication.makers"] == ["North Hospital"]
    assert form["key publication.contact"] == ["Dr. Holm, 01 234"]
    labels = {"label": [f"label {n}" for n in range(10)], "meaning": [""] * 10}
    console.post(address, {**form, **labels, "do": "rows"})
    assert len(fields_of(console.get(address).text)["label"]) == 10 + drafts.FEWEST_EMPTY_ROWS
    few = {"label": ["a", "b", *[""] * 8], "meaning": [""] * 10}
    console.post(address, {**form, **few, "do": "rows"})
    assert len(fields_of(console.get(address).text)["label"]) == 10 + drafts.FEWEST_EMPTY_ROWS
    proposed = []
    for _ in range(2):
        console.post(address, {**fields_of(console.get(address).text), "do": "add generators", "kind": "ngram"})
        form = fields_of(console.get(address).text)
        proposed.append(form[f"key generators.{len(proposed)}.name"][0])
        console.post(address, {**form, f"key generators.{len(proposed) - 1}.name": f"mine {len(proposed)}"})
    assert proposed == ["ngram-1", "ngram-2"]


FIELD = re.compile(r'<div class="field[^"]*">\s*(.*?)<p class="wrong"', re.DOTALL)
JARGON = ("In TOML", "TOML.", "its own file", "number of units", "[[generators]]", "None", "`")


def draft_page(console, template, method, kind):
    """The form of a new run with this method and a generator of this kind, and what its first level shows."""
    address = console.led(console.post("/runs/new", source=f"template {template}"))
    console.post(address, {**fields_of(console.get(address).text), "do": "add generators", "kind": kind})
    chosen = {**fields_of(console.get(address).text), "key method.name": method, "do": "check"}
    console.post(address, chosen)
    page = console.get(address).text
    first = re.sub(r'<details id="(?:more-|further|file|sums).*?</details>', "", page, flags=re.DOTALL)
    console.post(address, {**chosen, "do": "discard"})
    return page, first


@pytest.mark.parametrize("template", form.templates())
def test_first_form_fields_explain_meaning_usual_value_and_cost(console, template):
    names = [*methods.names()]
    kinds = form.generator_kinds()
    for number, method in enumerate(names):
        page, first = draft_page(console, template, method, kinds[number % len(kinds)])
        shown_fields = FIELD.findall(first)
        assert len(shown_fields) >= 15, method
        for field in shown_fields:
            words = unescape(re.sub(r"<[^>]+>", " ", field))
            assert "Usual:" in words, (method, words)
            assert "Mind:" in words, (method, words)
        assert [word for word in JARGON if word in visible(first)] == [], method
        labels = [unescape(label) for label in re.findall(r'<label for="key-\w+-[^"]*">([^<]+)', first)]
        of_runs = [label.strip() for label in labels if label.strip() not in ("Name", "Contact")]
        assert len(set(of_runs)) == len(of_runs), labels
        assert "Another generator" not in page


def test_form_describes_each_method_and_each_generator_kind(console):
    words = form.field_words()
    described = set(methods.names()) - set(methods.OFFERED)  # what this process's other tests offer has no line
    for table, names in (("methods", described), ("kinds", form.generator_kinds())):
        assert set(words[table]) == set(names)
        assert len(set(words[table].values())) == len(names)
    page, _ = draft_page(console, "classification", "undersong", "ngram")
    shown = visible(page).casefold()
    for line in (*words["methods"].values(), *words["kinds"].values()):
        assert line.casefold() in shown


def test_epsilon_field_has_a_scale_and_states_the_records_needed(console):
    address = console.led(console.post("/runs/new", source="template classification"))
    page = console.get(address).text
    assert f"1 is very careful, 8 loose. {impact.yardstick()}" in visible(page)
    sent = {**fields_of(page), "do": "add generators", "kind": "ngram"}
    console.post(address, sent)
    typed = {
        "key task.name": "scaled",
        "key task.description": "a short remark",
        "label": [f"label {number}" for number in range(10)],
        "meaning": [""] * 10,
        "key generators.0.corpus": "good.jsonl",
        "do": "check",
    }
    needed = []
    for epsilon in ("1", "8"):
        filled = {**fields_of(console.get(address).text), **typed, "key privacy.epsilon": epsilon}
        console.post(address, filled)
        said = visible(console.get(address).text)
        at_least, of_label = re.search(r"fewer than about ([\d\s,]+) records .*?\(([\d\s,]+) a label\)", said).groups()
        needed.append((int(re.sub(r"\D", "", at_least)), int(re.sub(r"\D", "", of_label))))
    assert needed[0][0] > 4 * needed[1][0]
    assert '<option value="user" selected>one patient (user)</option>' in page
    loses = form.field_words()["privacy"]["epsilon"]["loses"]
    assert '"So far" says how many this plan needs' in loses
    assert not re.search(r"(\d+|hundreds of) records", loses)
    assert [-(-total // 10) for total, _ in needed] == [of_label for _, of_label in needed]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("half", "half"), ("a b", "a b"), ("3", '"3"'), ("true", '"true"'), ("a  b", '"a  b"'), ("[1]", '"[1]"')],
)
def test_form_field_shows_quotes_only_where_toml_would_misread_the_word(value, shown):
    assert form._text("toml", value) == shown
    field = form.TaskField("method.rounds", "toml", shown, "", (), "", required=False, first=True)
    assert field.value([shown]) == value


OTHER_WORDS = re.compile(
    r'(?<!["\w.-])(?:part(?:y|ies)|grants?)(?!["\w])|\btasks?\b(?! (?:file|folder)|\.toml)', re.IGNORECASE
)


def test_no_screen_uses_a_synonym_of_a_fixed_term(console, home, tasks):
    folder = plan_run(home, tasks, "in one word")
    waiting = Awaited((AwaitedParty("beta", True, 3.0),), 1.0, 2.0, 2, "waiting for beta", "replies")
    folder.write_status(RunStatus("running", 1, since=1.0, waiting=waiting))
    enrolment.invite(home, "delta")
    page, _ = draft_page(console, "classification", "undersong", "ngram")
    screens = ["/", "/parties", "/parties/invite", "/parties/sign", "/parties/one/delta", "/parties/one/delta/letter"]
    screens += [
        "/runs",
        "/runs/new",
        "/runs/one/in one word",
        "/runs/one/in one word/result",
        "/compare",
        "/generators",
    ]
    said = {path: visible(console.get(path).text) for path in screens}
    menu = re.sub(r"<[^>]+>", " ", console.get("/").text.partition('"Screens">')[2].partition("</nav>")[0])
    assert "Hospitals" in menu
    said |= {"form": visible(re.sub(r"<(?:option|pre)\b.*?</(?:option|pre)>", "", page, flags=re.DOTALL)), "menu": menu}
    for path, words in said.items():
        assert OTHER_WORDS.findall(words) == [], (path, words)


def test_screens_of_a_run_name_its_sums_by_their_questions(console, home, tasks):
    folder = plan_run(home, tasks, "asked")
    names = [planned.name for planned in folder.planned().load().plan.sums]
    for name in names:
        folder.tell("sum", {"name": name, "sigma": 2.0, "survivors": ["alpha", "beta"]})
    folder.tell("texts", {"step": "anew 2", "round": 1, "texts": [("a text", "", "good")]})
    page = visible(console.get("/runs/one/asked").text)
    for name in names:
        assert not re.search(rf"(?<![\w/]){re.escape(name)}(?![\w/])", page), name
    assert page.count("opened from 2 of 3 hospitals: for each candidate text, how many of their records") == len(names)
    assert f"(2 of {len(names)})" in page
    assert "wrote 1 text in place of those that the choice left out" in page
    shutil.rmtree(folder.path)


def test_form_warns_when_a_corpus_is_a_test_file_and_refuses_its_own(tmp_path):
    folder = tmp_path / "tasks"
    stated = {"where": "here", "licence": "CC0-1.0", "contact": "a@b.example"}
    task_file = make_task(folder, task={"purpose": "tests"}, publication=stated, evaluation=JUDGED)
    made = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    with entered_console(made.path, [folder]) as page:
        for source in ("template classification", f"file {task_file}"):
            address = page.led(page.post("/runs/new", source=source))
            if source.startswith("template"):
                page.post(address, {**fields_of(page.get(address).text), "do": "add generators", "kind": "ngram"})
            shown = page.get(address).text
            assert re.search(r">test\.jsonl \(20 rows, [\d.]+ kB, test file of task\.toml\)</option>", shown)
            sent = {**fields_of(shown), "key generators.0.corpus": "test.jsonl", "do": "check"}
            said = visible(page.get(page.led(page.post(address, sent))).text)
            if source.startswith("template"):
                assert "ngram-1 would read test.jsonl, the test file of task.toml" in said
            else:
                assert "reads the file of evaluation.test, test.jsonl" in said
                before = len(overview.list_runs(made.path))
                page.post(address, {**sent, "do": "plan"})
                assert len(overview.list_runs(made.path)) == before


@pytest.mark.parametrize("typed", [["Kitchen", "Garden"], ["", ""]], ids=["others", "none"])
def test_form_warns_of_labels_that_differ_from_the_files_and_adopts_them(console, home, typed):
    address = console.led(console.post("/runs/new", source="template classification"))
    console.post(address, {**fields_of(console.get(address).text), "do": "add generators", "kind": "ngram"})
    sent = {**fields_of(console.get(address).text), "key generators.0.corpus": "good.jsonl"}
    sent |= {"label": typed, "meaning": ["indoors", ""], "do": "check"}
    shown = console.get(console.led(console.post(address, sent))).text
    for place in ("generators-0-corpus", "task-labels"):
        notice = shown.partition(f'id="differs-{place}"')[2].partition("</div></div>")[0]
        assert "<p>good.jsonl has" in notice, place  # the folder stands beside the field
        assert 'value="labels generators.0.corpus">Use the file' in notice, place
    live = console.client.post(f"{address}{LIVE}", data={**sent, **console.hidden(address)}).text
    assert 'id="differs-task-labels" hx-swap-oob="true"><div class="notice warn">' in live
    assert console.led(console.post(address, {**sent, "do": "labels generators.0.corpus"})).endswith("#label-1")
    shown = console.get(address).text
    assert [label for label in fields_of(shown)["label"] if label] == ["garden", "kitchen"]
    assert "Use the file" not in shown
    assert console.post(address, {**sent, "label": ["garden", "kitchen"], "do": "labels 7.path"}).status_code == 409


def test_a_form_reads_no_labels_of_a_file_that_it_may_not_name(console, tmp_path):
    (tmp_path / "secret.jsonl").write_text('{"text": "a", "label": "hidden word"}\n')
    address = console.led(console.post("/runs/new", source="template classification"))
    console.post(address, {**fields_of(console.get(address).text), "do": "add generators", "kind": "ngram"})
    sent = {**fields_of(console.get(address).text), "label": ["garden"], "meaning": [""]}
    sent |= {"key generators.0.corpus": str(tmp_path / "secret.jsonl"), "do": "check"}
    assert "hidden word" not in console.get(console.led(console.post(address, sent))).text


def test_missing_fields_are_listed_in_form_order_with_their_generator(console):
    address = console.led(console.post("/runs/new", source="template classification"))
    console.post(address, {**fields_of(console.get(address).text), "do": "add generators", "kind": "ngram"})
    sent = {**fields_of(console.get(address).text), "key publication.contact": "nobody", "do": "check"}
    shown = console.get(console.led(console.post(address, sent))).text
    missing = re.findall(
        r'<li><a href="#([^"]+)">([^<]+)</a>', shown.partition("Still missing")[2].partition("</ul>")[0]
    )
    places = [shown.index(f'id="{place}"') for place, _ in missing]
    assert places == sorted(places)
    assert ("key-generators-0-corpus", "Corpus (ngram-1)") in missing
    # A contact is looked at whatever else is wrong.
    assert "has no telephone number and no address" in shown.partition('id="wrong-publication-contact"')[2][:200]


@pytest.mark.heavy
def test_rejected_run_offers_revision_first_and_folds_asking_again(tmp_path, entered):
    made = make_home(tmp_path / "home", ("alpha",))
    runs.plan(made.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    failure = RunFailure("alpha: its people have rejected the run", "revise it", 3, ("alpha",))
    made.run("spring").write_status(RunStatus("failed", 1, error=failure))
    page = entered(made.path).get("/runs/one/spring").text
    actions = page.partition('<div class="actions">')[2].partition("</div>")[0]
    assert ">Revise</button>" in actions
    assert "Resume" not in actions
    folded = page.partition('<details id="same-plan">')[2].partition("</details>")[0]
    assert "only where a hospital has changed its policy or its budget since" in folded
    assert "/runs/one/spring/resume" in folded
