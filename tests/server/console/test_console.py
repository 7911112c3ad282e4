"""The console's screens and actions over a coordinator's folder: nothing is served, so nothing runs."""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import re
import time
import tomllib
import zipfile
from dataclasses import replace
from html import unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.coded import raises
from tests.doubles.crowds import add_parties, repeat_run
from tests.doubles.forms import fields_of
from tests.doubles.one_page import next_step_of, steps_of
from tests.doubles.pace import slow_after
from tests.doubles.plain_browser import Browser
from tests.doubles.stream import Credentials, make_home
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_common.pages.site import LIVE
from undersong_common.privacy import impact
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Package, new_tls_key
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import beginning, drafts, enrolment, form, overview, permissions, runs
from undersong_server.operations.overview import list_runs
from undersong_server.operations.tasks import Tried
from undersong_server.report.evaluations import Evaluated, KeptMeasure, keep_evaluation
from undersong_server.runs.folder import Annotations, Awaited, AwaitedParty, RunFailure, RunStatus, replace_json

pytestmark = pytest.mark.heavy

PARTIES = ("alpha", "beta", "gamma")

SCREENS = (
    "/",
    "/parties",
    "/parties/invite",
    "/parties/sign",
    "/runs",
    "/runs/new",
    "/compare",
    "/generators",
    "/audit",
    "/people",
    "/account",
)
NAMED = (("privacy-epsilon", "Epsilon"), ("task-words", "Words"))
HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e"


def test_screens_of_a_new_coordinator_explain_what_is_still_missing(tmp_path, entered):
    make_home(tmp_path / "home")
    console = entered(tmp_path / "home")
    for path in SCREENS:
        answer = console.get(path)
        assert answer.status_code == 200, path
        assert "cannot be shown" not in answer.text, path
        step = beginning.step_of_form(path, "")
        assert next_step_of(answer.text) == (f"{step.words}." if step else "Invite each hospital."), path
        links = re.findall(r'<a [^>]*href="(/[^"]*)"', answer.text.partition("<main")[2])
        assert [link for link in links if not link.startswith("/s/")] == [], path  # any other leads to the log-in
    assert "Nobody was invited yet" in console.get("/parties").text
    assert "No run was planned yet" in console.get("/runs").text
    assert "start its service" in console.get("/").text
    assert "undersong coordinator" not in console.get("/").text


def steps_on(page):
    part = page.partition("First steps")[2].partition("</ol>")[0]
    return re.findall(r"<li>(?:<a [^>]*>)?([^<:]+?)(?::|</a>)", part), re.findall(r"<strong>(\w+)", part)


def test_home_lists_the_first_steps_until_a_corpus_is_downloaded(tmp_path, entered):
    home = make_home(tmp_path / "home")
    home.change(operator="", contact="")
    console = entered(home.path)
    first = console.get("/").text
    assert steps_on(first)[1] == []
    shown = re.findall(r"<li>(?:<a [^>]*>)?([^<]+)", first.partition("First steps")[2].partition("</ol>")[0])
    assert [unescape(words) for words in shown] == steps_of("operator")
    console.post("/coordinator", of="/", operator="North Hospital", contact="Dr. Holm, 01 234")
    settings = CoordinatorHome(home.path).settings
    assert (settings.operator, settings.contact) == ("North Hospital", "Dr. Holm, 01 234")
    assert console.site.audit.entries()[-1].what == "change"
    assert steps_on(console.get("/").text)[1] == ["done"]
    enrolment.invite(home.path, "alpha")
    assert steps_on(console.get("/").text)[1] == ["done", "1"]  # hospital so far
    Credentials(home, "alpha")
    assert steps_on(console.get("/").text)[1] == ["done", "1", "done"]
    planned = runs.plan(
        home.path,
        make_task(tmp_path / "task"),
        RunOptions(name="first"),
        assignments=["federation.parties=1", "federation.colluders=0", "federation.tolerated_dropouts=0"],
    )
    assert steps_on(console.get("/").text)[1] == ["done", "1", "done", "done"]
    folder = home.run(planned.run)
    folder.write_status(RunStatus("running", since=time.time()))  # its people have not decided yet
    assert steps_on(console.get("/").text)[1] == ["done", "1", "done", "done"]
    folder.write_status(RunStatus("running", since=time.time(), charged=True))
    assert steps_on(console.get("/").text)[1] == ["done", "1", *["done"] * 3]
    folder.write_status(RunStatus("finished", since=time.time(), charged=True))
    steps = console.get("/").text.partition("First steps")[2].partition("</ol>")[0]
    assert steps.count("<a ") == 2  # a further hospital, and the result
    assert "/runs/one/first/result" in steps
    folder.annotate(Annotations(downloaded_at=2.0))
    assert "First steps" not in console.get("/").text


STATES = {
    "planned": (RunStatus("planned"), "Start the run spring"),
    "people": (
        RunStatus(
            "running", since=1.0, waiting=Awaited((AwaitedParty("beta", True, 3.0),), 1.0, None, 3, "", "people")
        ),
        "Telephone whom spring waits for: beta.",
    ),
    "machines": (
        RunStatus("waiting", since=1.0, waiting=Awaited((AwaitedParty("beta", False, 3.0),), 1.0, None, 3, "")),
        "Wait, or ask whom spring waits for: beta.",
    ),
    "under way": (RunStatus("running", since=1.0, charged=True), "Wait: the run spring goes on by itself."),
    "paused": (RunStatus("paused", since=1.0), "Resume the run spring"),
    "rejected": (
        RunStatus("failed", since=1.0, error=RunFailure("no", "talk", 3, ("beta",))),
        "Talk to beta, then revise the run spring.",
    ),
    "failed": (
        RunStatus("failed", since=1.0, error=RunFailure("no", "mend it", 2)),
        "Do what stands at the run spring",
    ),
    "finished": (RunStatus("finished", since=1.0, charged=True), "Read the result of spring, and evaluate it"),
    "stopped": (RunStatus("stopped", since=1.0), "Plan a run."),
}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_next_step_of_a_run_depends_on_its_state(tmp_path, entered, state):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    status, words = STATES[state]
    home.run("spring").write_status(status)
    console = entered(home.path)
    for path in ("/", "/runs", "/runs/one/spring", "/parties/one/alpha"):
        assert next_step_of(console.get(path).text).startswith(words), path
    shown = re.sub(r"<[^>]+>", " ", console.get("/runs/one/spring").text)
    is_open = state not in ("finished", "stopped", "failed", "rejected")
    assert ("So far" in shown, "Writing left" in shown) == (is_open, is_open)
    assert (" left" in shown.partition("Timeline")[2].partition("Latest texts")[0]) == is_open


@pytest.mark.heavy
@pytest.mark.parametrize("phase", ["embedding texts", "private sum votes, round 1", "writing round 2"])
def test_run_page_shows_the_current_phase_with_its_count(tmp_path, entered, phase):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    home.run("spring").write_status(RunStatus("running", since=1.0, phase=phase, done=3, total=8))
    shown = entered(home.path).get("/runs/one/spring?part=live").text
    is_writing = phase.startswith("writing")
    assert (f"{phase}, 3 of 8" in shown, "Writing left" in shown) == (not is_writing, is_writing)


@pytest.mark.parametrize("state", ["stopped", "paused", "failed"])
def test_no_screen_says_that_a_run_that_is_not_running_waits(tmp_path, entered, state):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    waiting = Awaited((AwaitedParty("beta", True, 3.0),), 1.0, None, 3, "waiting for people at beta", whom="people")
    active = RunStatus("running", 1, since=1.0, phase="votes", done=1, total=2, message="waits for approval: oak elm")
    error = RunFailure("no", "mend it", 2) if state == "failed" else None
    # As the serving process writes it when nothing drives the run, and as an earlier release did.
    home.run("spring").write_status(replace(active, state=state, waiting=waiting, error=error))
    console = entered(home.path)
    for path in ("/", "/runs", "/runs/one/spring", "/compare?run=spring"):
        shown = re.sub(r"<[^>]+>", " ", console.get(path).text)
        assert "waits for approval" not in shown, path
        assert "aiting for people" not in shown, path
        assert "oak elm" not in shown, path
        assert "Telephone" not in shown, path
    status = runs.status(home.path, "spring")
    assert status.words == (state if error is None else "failed: no")
    assert (status.detail, status.waiting, status.total) == ("", None, 0)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("private sum: how many of each", "3 of 1200 steps of this private sum"),
        ("measuring how good it is", "3 of 1200 texts embedded; the count begins again with each set of texts"),
        ("writing round 2 again, for texts that could not be used", "3 of 1200 texts ordered in this step"),
        ("approval of alpha", "3 of 1200 hospitals"),
        ("tuning round 1", "3 of 1200 steps"),
    ],
)
def test_progress_count_of_a_phase_states_its_unit(phase, words):
    assert RunStatus("running", phase=phase, done=3, total=1200).count_words == words
    assert RunStatus("running", phase=phase).count_words == ""
    assert RunStatus("running", phase=phase).words == f"running: {phase}"


def test_waiting_run_shows_when_its_wait_ends(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    words = "waiting for beta, gamma; 1 of 3 have answered, the quorum is 2; in 9 s it goes on only if 1 more answer"
    waiting = Awaited((AwaitedParty("beta", True, 3.0),), 1.0, time.time() + 9, 2, words)
    home.run("spring").write_status(RunStatus("running", 1, since=1.0, waiting=waiting))
    shown = re.sub(r"<[^>]+>", " ", entered(home.path).get("/runs/one/spring").text)
    assert "goes on only if 1 more answer" in shown
    assert "at most until" in shown
    assert "continues" not in shown


def test_waiting_state_has_the_warning_colour_and_names_the_private_sum(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    waiting = Awaited((AwaitedParty("beta", True, 3.0),), 1.0, time.time() + 9, 2, "waiting for beta")
    asking = RunStatus("running", 1, since=1.0, phase="private sum: how many of each", done=3, total=5, waiting=waiting)
    home.run("spring").write_status(asking)
    console = entered(home.path)
    for path in ("/", "/runs", "/runs/one/spring"):
        states = re.findall(r'class="state ([a-z]*)">waiting for hospitals', console.get(path).text)
        assert set(states) <= {"warn"}, path
    assert states == ["warn"]
    assert "Private sum: how many of each: 3 of 5 steps of this private sum" in console.get("/runs/one/spring").text


def test_compare_page_refreshes_the_states_of_all_its_runs(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    task = make_task(tmp_path / "task")
    for name in ("spring", "summer"):
        runs.plan(home.path, task, RunOptions(name=name))
        home.run(name).write_status(RunStatus("running", 1, since=1.0))
    console = entered(home.path)
    shown = console.get("/compare?run=spring&run=summer").text
    assert 'data-topic="all"' in shown
    renewal = unescape(re.search(r'hx-get="/s/[^/]+([^"]+part=compared)"', shown)[1])
    assert renewal == "/compare?run=spring&run=summer&part=compared"
    home.run("summer").write_status(RunStatus("stopped", 1, since=1.0))
    renewed = console.get(renewal).text
    assert renewed.count(">running</td>") == 1
    assert renewed.count(">stopped</td>") == 1


@pytest.mark.parametrize("sort", ["", "promised epsilon"])
def test_compare_page_sorts_runs_by_the_figure_in_its_address(tmp_path, entered, sort):
    home = make_home(tmp_path / "home", PARTIES)
    task = make_task(tmp_path / "task")
    for name, epsilon in (("spring", 4), ("summer", 2)):
        runs.plan(home.path, task, RunOptions(name=name), assignments=[f"privacy.epsilon={epsilon}"])
    shown = entered(home.path).get("/compare", params={"run": ["spring", "summer"], "sort": sort}).text
    names = re.findall(r'href="[^"]*/runs/one/(\w+)"', shown.partition("Compare runs</h1>")[2])
    assert names[:2] == (["summer", "spring"] if sort else ["spring", "summer"])


def test_run_page_reads_no_other_run_and_home_lists_the_runs_once(tmp_path, entered, monkeypatch):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    console, listed = entered(home.path), []
    monkeypatch.setattr(overview, "list_runs", lambda home: listed.append(home) or list_runs(home))
    assert next_step_of(console.get("/runs/one/spring").text).startswith("Start the run spring")
    assert listed == []
    assert next_step_of(console.get("/").text).startswith("Start the run spring")
    assert len(listed) == 2  # for all parts, and for the mark by which the screen renews itself
    assert next_step_of(console.get("/runs/one/other").text).startswith("Start the run spring")


@pytest.mark.parametrize(
    ("publication", "reason"),
    [
        (
            {"where": "Nowhere: we look at it.", "licence": "CC0-1.0"},
            "whoever planned it wrote that the texts are published nowhere",
        ),
        ({"licence": "CC0-1.0", "invented_records": True}, "it is a demonstration: by its plan every record is"),
    ],
)
def test_next_step_does_not_offer_publication_that_the_plan_forbids(tmp_path, entered, publication, reason):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task", publication=publication), RunOptions(name="spring"))
    home.run("spring").write_status(RunStatus("finished", since=1.0, charged=True))
    keep_evaluation(home.run("spring"), Evaluated("test.jsonl, 0123abcd", {}))
    console = entered(home.path)
    assert f"Do not publish spring, because {reason}" in next_step_of(console.get("/").text)
    home.run("spring").output.mkdir()
    (home.run("spring").output / "synthetic.jsonl").write_text("")
    files = console.get("/runs/one/spring/result?part=files").text
    assert f"Do not publish this run, because {reason}" in files
    home.run("spring").annotate(Annotations(downloaded_at=2.0))
    step = next_step_of(console.get("/runs/one/spring").text)
    assert step.startswith(f"Do not publish spring, because {reason}")
    assert step.endswith("; plan a run of your own.")


def test_next_step_of_a_run_without_licence_is_to_read_open_points(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    home.run("spring").write_status(RunStatus("finished", since=1.0, charged=True))
    home.run("spring").output.mkdir()
    (home.run("spring").output / "synthetic.jsonl").write_text("")
    keep_evaluation(home.run("spring"), Evaluated("test.jsonl, 0123abcd", {}))
    page = entered(home.path).get("/").text
    assert next_step_of(page) == "Read what is open on spring before you publish it."
    assert "/runs/one/spring/result#publish" in page.partition("What comes next")[2]


def test_the_next_step_after_an_evaluation_is_to_publish(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    task_file = make_task(tmp_path / "task", publication={"licence": "CC0-1.0"})
    runs.plan(home.path, task_file, RunOptions(name="spring"))
    home.run("spring").write_status(RunStatus("finished", since=1.0, charged=True))
    keep_evaluation(home.run("spring"), Evaluated("test.jsonl, 0123abcd", {}))
    console = entered(home.path)
    assert "then download and publish it" in next_step_of(console.get("/").text)
    assert "/runs/one/spring/result#files" in console.get("/").text.partition("What comes next")[2]
    home.run("spring").annotate(Annotations(marked=(1,)))
    assert "Download spring without the marked texts" in next_step_of(console.get("/").text)
    wrong_labels = {"doubtful labels": KeptMeasure(0.42, "low", percent=True)}
    keep_evaluation(home.run("spring"), Evaluated("test.jsonl, 0123abcd", {}, wrong_labels))
    assert next_step_of(console.get("/").text) == "Read what is bad about spring before you publish it."
    home.run("spring").annotate(Annotations(marked=(1,), downloaded_at=2.0))
    for path in ("/", "/runs/one/spring", "/runs/one/spring/result"):
        step = "Plan a run." if path == "/" else f"{beginning.PUBLISH.format(run='spring')}."
        assert next_step_of(console.get(path).text) == step, path
    home.run("spring").annotate(Annotations())
    for status in (RunStatus("finished", since=1.0), STATES["rejected"][0], STATES["paused"][0]):
        home.run("spring").write_status(status)
        if status.state != "paused":
            runs.put_away(home.path, "spring")
        assert (next_step_of(console.get("/runs/one/spring").text) == "Plan a run.") is (status.state != "paused")


def test_failed_evaluation_is_shown_until_an_evaluation_succeeds(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    folder, console = home.run("spring"), entered(home.path)
    failure = RunFailure("test.jsonl: has no column 'text'", "name the column; then evaluate the run on its Result", 2)
    folder.say(f"the evaluation failed: {failure.problem}")
    folder.write_status(RunStatus("finished", since=1.0, charged=True, evaluation_error=failure))
    folder.output.mkdir()
    (folder.output / "synthetic.jsonl").write_text('{"text": "a", "label": "garden", "generator": "good"}\n')
    screens = ("/", "/runs/one/spring", "/runs/one/spring/result")
    for path in screens:
        shown = html.unescape(console.get(path).text)
        assert "test.jsonl: has no column 'text'" in shown, path
        assert "name the column; then evaluate the run" in shown, path
        assert next_step_of(console.get(path).text) == "Evaluate spring again: its evaluation failed.", path
    assert re.search(r"failed at <time", console.get("/runs/one/spring/result").text)
    assert [moment.grade for moment in runs.timeline(home.path, "spring") if "evaluation" in moment.words] == ["bad"]
    keep_evaluation(folder, Evaluated("test.jsonl, 0123abcd", {}))
    for path in screens:
        assert "the evaluation failed" not in console.get(path).text.partition("Timeline")[0].lower(), path
        assert "The evaluation at the end" not in console.get(path).text, path


def test_the_next_step_reads_no_file_of_a_run_that_was_downloaded(tmp_path, entered, monkeypatch):
    home = make_home(tmp_path / "home", PARTIES)
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="spring"))
    home.run("spring").write_status(RunStatus("finished", since=1.0, charged=True))
    home.run("spring").annotate(Annotations(downloaded_at=2.0))
    console = entered(home.path)
    monkeypatch.setattr(beginning, "evaluated", lambda folder: pytest.fail(f"reads {folder.name}"))
    assert next_step_of(console.get("/").text) == "Plan a run."


def test_parties_page_says_not_shared_for_an_unshared_epsilon(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    with contextlib.closing(home.registry()) as registry:
        for name, left in (("alpha", None), ("beta", 3.25)):
            registry.seen(name, now=1.0, software="", embedder="", epsilon_left=left, paused=False)
    console = entered(home.path)
    row = {name: console.get(f"/parties?find={name}").text.partition("<tbody>")[2] for name in ("alpha", "beta")}
    assert "not shared" in row["alpha"]
    assert "3.25 <small>when it connected last; later runs are not taken off" in row["beta"]
    assert "not shared" in console.get("/parties/one/alpha").text


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("", "not shared: ask the hospital"),
        ('{"of": "another version"}', "not shared: ask the hospital"),
        (json.dumps(Policy(largest_epsilon=2.5).to_json()), "2.5, by the policy that it shares"),
        (json.dumps(Policy(largest_epsilon=math.inf).to_json()), "no limit"),
    ],
    ids=["none", "other-version", "bounded", "unbounded"],
)
def test_hospital_s_screen_states_the_largest_epsilon_of_its_policy(tmp_path, entered, policy, words):
    home = make_home(tmp_path / "home", PARTIES)
    with contextlib.closing(home.registry()) as registry:
        registry.seen("alpha", now=1.0, software="", embedder="", epsilon_left=None, paused=False, policy=policy)
    screen = entered(home.path).get("/parties/one/alpha").text
    assert f"<dt>Largest epsilon of one run</dt><dd>{words}</dd>" in screen


def test_invited_hospital_s_screen_says_what_helps_a_refused_package(console):
    words = "If its program refuses the package"
    console.post("/parties/invite", of="/parties/invite", name="delta")
    assert words in console.get("/parties/one/delta").text
    assert words not in console.get("/parties/one/alpha").text


def test_epsilon_of_later_runs_is_subtracted_from_a_hospitals_epsilon_left(tmp_path):
    home = make_home(tmp_path / "home", PARTIES)
    with contextlib.closing(home.registry()) as registry:
        registry.seen("beta", now=1.0, software="", embedder="", epsilon_left=10.0, paused=False)
    task = make_task(tmp_path / "task")
    epsilon = None
    for name, at, charged in (("before", 10.0, True), ("after", 30.0, True), ("uncharged", 30.0, False)):
        runs.plan(home.path, task, RunOptions(name=name))
        home.run(name).write_status(RunStatus("finished", since=1.0, at=at, charged=charged))
        epsilon = home.run(name).planned().task["privacy"]["epsilon"]
    facts = next(facts for facts in enrolment.parties(home.path) if facts.party.name == "beta")
    listed = [
        replace(run, status=replace(run.status, at=30.0 if run.run != "before" else 10.0))
        for run in list_runs(home.path)
    ]
    left = overview.epsilon_left(home.path, replace(facts, stated_at=20.0), listed)
    assert (left.later_runs, left.promised, left.now) == (1, epsilon, 10.0 - epsilon)
    assert overview.epsilon_left(home.path, facts, listed).promised == 0.0


def test_hospital_can_be_excluded_from_new_runs_and_included_again(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    console = entered(home.path)
    one = "/parties/one/beta"
    assert "What stays" in console.get(one).text
    console.post(f"{one}/leave-out", of=one)
    assert "left out of new runs" in console.get(one).text
    assert enrolment.roster(home.path, None) == ("alpha", "gamma")
    form = console.get(console.led(console.post("/runs/new", source="template classification"))).text
    assert re.findall(r'name="party" value="(\w+)" checked', form) == ["alpha", "gamma"]
    console.post(f"{one}/take-in", of=one)
    assert enrolment.roster(home.path, None) == PARTIES
    assert [entry.what for entry in console.site.audit.entries()][-2:] == ["leave out", "take in"]
    assert console.post("/parties/one/nobody/leave-out", of=one).status_code == 409


def test_new_run_does_not_ask_an_excluded_hospital(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    task = make_task(tmp_path / "task")
    runs.plan(home.path, task, RunOptions(name="before"))
    runs.plan(home.path, task, RunOptions(name="started"))
    runs.request(home.path, "started", "run")
    home.run("started").write_status(RunStatus("paused"))
    enrolment.leave_out(home.path, "beta", is_left_out=True)
    for revises in (False, True):
        assert drafts.from_run(home.path, "before", revises=revises).parties == ["alpha", "gamma"]
    refused = [
        lambda: runs.plan(home.path, task, RunOptions(parties=PARTIES)),
        lambda: runs.plan(home.path, None, revises="before"),
        lambda: runs.request(home.path, "before", "run"),
    ]
    for refused_call in refused:
        with raises(ConfigurationError, "left-out") as error:
            refused_call()
        assert "beta" in error.value.problem
        assert list(error.value.places) == ["parties"]
    console = entered(home.path)
    form = console.led(console.post("/runs/new", source="run before"))
    console.post(form, party=PARTIES, name="", do="check")
    assert "new runs leave out beta" in console.get(f"{form}?checked=yes").text
    assert runs.request(home.path, "started", "run").requested == "run"  # its hospitals were asked before
    enrolment.leave_out(home.path, "beta", is_left_out=False)
    assert runs.request(home.path, "before", "run").requested == "run"


def test_next_step_on_home_concerns_the_newest_run(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    task = make_task(tmp_path / "task")
    for place, name in enumerate(("older", "newer")):
        runs.plan(home.path, task, RunOptions(name=name))
        os.utime(home.run(name).path / "plan.json", (place + 1, place + 1))
    home.run("older").write_status(STATES["rejected"][0])
    console = entered(home.path)
    assert next_step_of(console.get("/").text).startswith("Start the run newer")
    home.run("newer").write_status(RunStatus("running", since=1.0, charged=True))
    assert next_step_of(console.get("/").text) == "Wait: the run newer goes on by itself."
    home.run("newer").write_status(STATES["rejected"][0])
    assert next_step_of(console.get("/").text) == "Talk to beta, then revise the run newer."
    address = console.led(console.post("/runs/new", source="revise newer"))
    assert next_step_of(console.get("/").text) == "Finish the revision of newer, and plan it."
    assert next_step_of(console.get(address).text).startswith("Complete the form above")


def test_contact_can_be_changed_and_the_letter_states_labels_and_epsilon(tmp_path, entered):
    home = make_home(tmp_path / "home", ("alpha",))
    console = entered(home.path)
    one = "/parties/one/alpha"
    letter = console.get(f"{one}/letter").text
    assert "not fixed yet" in letter
    assert "undersong-party budget set</code> changes them later" in letter
    assert "alpha.grant" not in letter  # it is enrolled
    invited = console.led(console.post("/parties/invite", name="delta"))
    assert 'href="/s/' in console.get(invited).text.partition("letter to delta")[0].rpartition("<a ")[2]
    console.post(f"{one}/contact", of=one, contact=f"{HOSTILE} 0123")
    assert "0123" in enrolment.parties(home.path)[0].party.contact
    assert HOSTILE not in console.get(one).text
    console.post(f"{one}/contact", of=one, contact="Dr. Novak, 0123")
    assert enrolment.parties(home.path)[0].party.contact == "Dr. Novak, 0123"
    options = ["federation.parties=1", "federation.colluders=0", "federation.tolerated_dropouts=0"]
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"), assignments=options)
    task = home.run("first").planned().task
    letter = console.get(f"{one}/letter").text
    assert ", ".join(task["task"]["labels"]) in letter
    assert f"epsilon {task['privacy']['epsilon']:g}" in letter
    assert "approves or rejects it" in letter
    assert console.post("/parties/one/nobody/contact", of=one, contact="x").status_code == 409


def test_full_name_is_set_at_invitation_and_changed_on_the_partys_page(tmp_path, entered):
    home = make_home(tmp_path / "home")
    console = entered(home.path)
    one = "/parties/one/delta"
    console.led(console.post("/parties/invite", name="delta", full_name="Delta Clinic, Faro"))
    assert "Delta Clinic, Faro" in console.get(one).text
    console.post(f"{one}/full-name", of=one, full_name="Delta <b>Hospital, Porto")
    assert "Delta &lt;b&gt;Hospital, Porto" in console.get(one).text
    for unreadable in (HOSTILE, "a" * 201):
        assert console.post(f"{one}/full-name", of=one, full_name=unreadable).status_code == 409
    assert enrolment.full_names(home.path) == {"delta": "Delta <b>Hospital, Porto"}
    assert console.post("/parties/one/nobody/full-name", of=one, full_name="x").status_code == 409


def test_a_rejected_run_names_the_hospital_and_its_telephone(tmp_path, entered):
    home = make_home(tmp_path / "home", PARTIES)
    enrolment.note_contact(home.path, "beta", "Dr. Beta, 0999")
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    failure = RunFailure("beta: its people have rejected the run", "revise it", 3, ("beta", "gamma"))
    home.run("first").write_status(RunStatus("failed", 1, error=failure))
    console = entered(home.path)
    for path in ("/", "/runs/one/first"):
        page = console.get(path).text
        assert "rejected by beta, gamma" in page
        assert "Dr. Beta, 0999" in page
        assert ">failed<" not in page
    shown = console.get("/runs/one/first").text
    assert "no telephone number is noted" in shown
    privacy = home.run("first").planned().task["privacy"]
    assert f"This plan asks for epsilon {privacy['epsilon']:g} and delta" in shown
    assert "rejected by beta" in console.get("/runs").text
    assert list_runs(home.path)[0].status.words.startswith("rejected by beta, gamma: ")


def test_invitation_suggests_a_short_name_and_a_second_ends_the_first(tmp_path, entered):
    console = entered(make_home(tmp_path / "home", ()).path)
    refused = console.post("/parties/invite", name="Heart Institute", contact="", days="14")
    assert "write heart-institute, and the name in full in its own field" in refused.text
    first, second = (
        console.get(console.led(console.post("/parties/invite", name="heart-institute", contact="", days="14"))).text
        for _ in range(2)
    )
    ended = "An earlier package for heart-institute admits nobody any more"
    assert (ended in first, ended in second) == (False, True)
    console.get(re.search(r'href="[^"]*(/download/[^"]+)"', second)[1])
    assert "invited and not signed yet: heart-institute" in console.get("/").text


def test_new_run_without_enrolled_hospitals_says_to_sign_their_requests(tmp_path, entered):
    home = make_home(tmp_path / "home", ())
    enrolment.invite(home.path, "alpha")
    console = entered(home.path)
    address = console.led(console.post("/runs/new", source="example")).partition("?")[0]
    assert "1 hospital is invited, none is signed: sign their requests." in console.get(address).text
    told = console.get(console.led(console.post(address, do="plan"))).text
    assert "No run is planned yet: nobody is enrolled. 1 hospital is invited" in told
    assert "need another look" not in told


PEOPLE = "its people have rejected run 'first'"
REASON = "At most epsilon 2. Call Dr. Okafor, 555-0142."


@pytest.mark.parametrize(
    ("problem", "on_run", "on_home"),
    [
        (f"beta refuses: {PEOPLE}: {REASON}", f"beta says: {REASON}", f"is rejected by beta: it says: {REASON}"),
        (f"beta refuses: {PEOPLE}", "beta gives no reason", "is rejected by beta: it gives no reason"),
        (
            f"beta refuses: {PEOPLE.replace('rejected', 'withdrawn from')}: {REASON}",
            f"beta has withdrawn, and says: {REASON}",
            f"is rejected by beta: it has withdrawn, and says: {REASON}",
        ),
        ("beta refuses: epsilon 4 is above 2", "beta refuses: epsilon 4 is above 2", "beta: epsilon 4 is above 2"),
    ],
    ids=["reason", "none", "withdrawn", "its policy"],
)
def test_rejected_run_quotes_the_reason_and_names_whom_to_telephone(tmp_path, entered, problem, on_run, on_home):
    home = make_home(tmp_path / "home", PARTIES)
    enrolment.note_contact(home.path, "beta", "Dr. Beta, 0999")
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    remedy = "talk to its people" if "people" in problem else "lower privacy.epsilon to 2"
    home.run("first").write_status(RunStatus("failed", 1, error=RunFailure(problem, remedy, 3, ("beta",))))
    console = entered(home.path)
    for path, words in (("/", on_home), ("/runs/one/first", on_run), ("/runs", on_run)):
        shown = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", console.get(path).text)))
        assert words in shown, path
        assert "talk to" not in shown, path
    for path in ("/", "/runs/one/first"):
        shown = html.unescape(re.sub(r"<[^>]+>", "", console.get(path).text))
        own = "; lower privacy.epsilon to 2" if "people" not in problem else ""
        whom = "whom its reason names, else Dr. Beta, 0999" if REASON in problem else "Dr. Beta, 0999"
        assert f"Remedy: telephone beta ({whom}){own}; then revise the run" in shown, path


def test_home_explains_why_its_epsilon_total_differs_from_a_ledgers(console, monkeypatch):
    spent = overview.RecentCosts(3, 0.0, 3, 4.5, 3e-5)
    monkeypatch.setattr(overview, "spending", lambda home, runs: spent)
    assert impact.total(4.5, 3e-5, composed=False) in html.unescape(console.get("/").text)
    for silent in (replace(spent, charged=0, epsilon=0.0), replace(spent, epsilon=math.inf)):
        monkeypatch.setattr(overview, "spending", lambda home, runs, silent=silent: silent)
        assert "ledger composes" not in console.get("/").text


def test_hospital_is_invited_signed_by_fingerprint_and_revoked_by_name(console, home):
    done = console.post("/parties/invite", name="delta", contact="Dr. Who, 555-1", days="3")
    shown = console.get(done.headers["location"])
    link = re.search(r'href="([^"]+/download/[^"]+)"', shown.text)[1]
    package = Package.parse(console.get(link).content)
    assert package.party == "delta"
    assert console.get(link).status_code == 404
    assert "was downloaded" in console.get(done.headers["location"]).text
    assert package.fingerprint in shown.text

    identity = Ed25519PrivateKey.generate()
    request = EnrolmentRequest.make("delta", new_tls_key(), identity, package.token)
    signed = request.sign(identity)
    fingerprint = EnrolmentRequest.parse(signed).fingerprint

    def send(**fields):
        sent = {**console.hidden("/parties/sign"), **fields}
        return console.client.post("/parties/sign", data=sent, files={"request": ("delta.json", signed)})

    for wrong, why in (("", "was not compared"), ("1a2b-3c4d", "is not the fingerprint")):
        refused = send(fingerprint=wrong)
        assert refused.status_code == 409
        assert why in refused.text
        assert fingerprint not in refused.text
    done = send(fingerprint=fingerprint)
    grant = re.search(r'href="([^"]+/download/[^"]+)"', console.get(done.headers["location"]).text)[1]
    assert console.get(grant).headers["content-disposition"].endswith('"delta.grant"')
    assert "Dr. Who" in console.get("/parties/one/delta").text
    assert console.post("/parties/one/delta/revoke", of="/parties/one/delta", typed="beta").status_code == 409
    console.post("/parties/one/delta/revoke", of="/parties/one/delta", typed="delta", reason="moved away")
    facts = next(each for each in enrolment.parties(home) if each.party.name == "delta")
    assert (facts.party.state, facts.party.reason) == ("revoked", "moved away")
    noted = [entry.what for entry in console.site.audit.entries()]
    refused = ["sign refused"]  # the fingerprint that was stated and did not match
    assert noted[-7:] == ["log in by link", "invite", "download", *refused, "sign", "download", "revoke"]
    (entry,) = [each for each in console.site.audit.entries() if each.what == "sign refused"]
    assert "word 1, '1a2b', differs" in entry.about
    assert fingerprint.split("-")[0] not in entry.about


def wrong(text):
    """What is wrong by the path of its field."""
    return dict(re.findall(r'<p class="wrong" id="wrong-([^"]+)">([^<]+)</p>', text))


@pytest.mark.slow
def test_form_shows_errors_beside_their_fields_and_then_plans_a_run(console, home, tasks):
    path = next(tasks.glob("*.toml"))
    address = console.led(console.post("/runs/new", source=f"file {path}"))
    first = console.get(address).text
    form = fields_of(first)
    assert form["key privacy.epsilon"] == ["4.0"]
    assert form["key privacy.unit"] == ["sample"]
    assert wrong(first) == {}
    typed = {**form, "key privacy.epsilon": "-1", "key task.words": ["60", "40"], "seed": "3", "do": "check"}
    shown = console.get(console.led(console.post(address, typed))).text
    assert {"privacy-epsilon", "task-words"} == wrong(shown).keys()
    assert {name: fields_of(shown)[name] for name in ("key privacy.epsilon", "key task.words", "seed")} == {
        "key privacy.epsilon": ["-1"],
        "key task.words": ["60", "40"],
        "seed": ["3"],
    }
    assert [f'href="#key-{place}">{words}</a>' in shown for place, words in NAMED] == [True, True]
    named = {**typed, "key task.name": "bad/name!", "key privacy.epsilon": "four"}
    shown = console.get(console.led(console.post(address, named))).text
    assert ("begin with a letter or digit; use" in shown, "write a number<" in shown, "quotes<" in shown) == (
        True,
        True,
        False,
    )
    reversed_words = {**typed, "key privacy.epsilon": "4", "key task.words": ["60", "10"]}
    shown = console.get(console.led(console.post(address, reversed_words))).text
    assert "the least number, 60, is above the most, 10; state the smaller one first" in wrong(shown)["task-words"]
    both = {**typed, "key privacy.epsilon": "4", "key privacy.noise_multiplier": "2", "key task.words": ["", ""]}
    shown = console.get(console.led(console.post(address, both))).text
    assert {"privacy-epsilon", "privacy-noise_multiplier"} == wrong(shown).keys()
    assert shown.count('aria-invalid="true"') == 2
    before = len(list_runs(home))
    assert console.led(console.post(address, {**typed, "do": "plan"})) == f"{address}?checked=yes"
    told = console.get(f"{address}?checked=yes").text
    assert 'class="told notice warn" role="status">No run is planned yet' in told
    assert len(list_runs(home)) == before
    strict = json.dumps(Policy(largest_epsilon=0.5).to_json())
    with contextlib.closing(CoordinatorHome(home).registry()) as registry:
        registry.seen("alpha", now=1.0, software="", embedder="", epsilon_left=None, paused=False, policy=strict)
    right = {**typed, "key privacy.epsilon": "2", "key privacy.delta": "0.5", "key task.words": ["", ""]}
    live = console.client.post(f"{address}{LIVE}", data={**right, **console.hidden(address)})
    assert live.status_code == 200
    assert "<html" not in live.text
    assert "alpha would refuse this" in live.text
    assert "Weak: delta 0.5 allows anything to happen" in live.text
    assert live.text.index("Weak: delta") < live.text.index("Tell the hospitals the promise, epsilon 2: a budget")
    assert 'id="wrong-privacy-epsilon" hx-swap-oob="true"></p>' in live.text
    shown = console.get(console.led(console.post(address, {**right, "do": "check"}))).text
    assert "Checked: nothing is missing, but alpha would refuse it" in shown
    assert "it may be planned" not in shown
    sent = {**right, "name": "from the page", "patience": "60", "do": "plan"}
    done = console.post(address, sent)
    assert console.led(done) == "/runs/one/from%20the%20page"
    made = CoordinatorHome(home).run("from the page").planned()
    assert (made.seed, made.patience_s, made.task["privacy"]["epsilon"]) == (3, 60.0, 2)
    assert console.get(address).status_code == 404
    again = console.led(console.post("/runs/new", source=f"file {path}"))
    assert "exists already" in console.post(again, {**sent, "seed": "0"}).text
    assert fields_of(console.get(again).text)["name"] == ["from the page"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    slow_after(
        [
            {"key privacy.epsilon": "1.5"},
            {"key task.description": "a clinic's note\r\nin two lines"},
            {"party": ["alpha", "gamma"]},
            {"key federation.post_quantum": ["false"]},
            {"label": ["kitchen", "garden", "cellar"], "meaning": ["", "outside", ""]},
        ],
        2,
    ),
    ids=["a field", "long text", "parties", "a flag", "labels"],
)
def test_plan_has_the_values_that_the_form_shows(console, home, tasks, change):
    address = console.led(console.post("/runs/new", source=f"file {next(tasks.glob('*.toml'))}"))
    sent = {**fields_of(console.get(address).text), "name": f"as shown {len(list_runs(home))}", **change}
    done = console.post(address, {**sent, "do": "plan"})
    made = CoordinatorHome(home).run(sent["name"]).planned()
    assert console.led(done).startswith("/runs/one/as%20shown")
    assert list(made.roster) == sent["party"]
    assert made.task["task"].get("label_descriptions", {}) == ({"garden": "outside"} if "meaning" in change else {})
    assert made.task["task"]["labels"] == [label for label in sent["label"] if label]
    assert made.load().task.federation.post_quantum is (sent["key federation.post_quantum"][-1] == "true")
    assert made.task["privacy"]["epsilon"] == (1.5 if "key privacy.epsilon" in change else 4.0)
    description = change.get("key task.description", "a short remark")
    assert made.task["task"]["description"] == description.replace("\r\n", "\n")
    again = drafts.from_run(home, sent["name"])
    unchanged = fields_of(console.get(console.led(console.post("/runs/new", source=f"run {sent['name']}"))).text)
    assert drafts.fill(again, unchanged).data == again.data


@pytest.mark.slow
@pytest.mark.parametrize("template", slow_after(["classification", "free text"], 1))
def test_draft_from_a_template_keeps_typed_values_and_becomes_a_run(console, home, tasks, template):
    address = console.led(console.post("/runs/new", source=f"template {template}"))
    first = console.get(address).text
    assert wrong(first) == {}
    assert ('id="labels"' in first.split('id="more-task"')[0]) is (template == "classification")
    console.post(address, {**fields_of(first), "do": "add generators", "kind": "ngram"})
    shown = console.get(address).text
    words = {
        "key task.name": "pantry",
        "key task.description": "a short remark",
        "key generators.0.corpus": "good.jsonl",
        "key publication.licence": "CC0-1.0",
    }
    if template == "classification":
        words |= {"label": ["kitchen", "garden"], "meaning": ["indoors", ""]}
    form = {**fields_of(shown), **words}
    shown = console.get(console.led(console.post(address, {**form, "do": "check"}))).text
    assert wrong(shown).keys() == {"task-purpose", "publication-where"}
    for act in (
        "rows",
        "add attributes",
        "remove attributes.0",
        "add generators",
        "remove generators.1",
        "try generators.0",
    ):
        console.post(address, {**fields_of(shown), "do": act, "kind": "ngram"})
        shown = console.get(address).text
        kept = fields_of(shown)
        assert {name: kept[name][: len(form[name])] for name in words} == {
            name: [value] if isinstance(value, str) else value for name, value in words.items()
        }, act
    assert "5 texts, " in shown
    assert shown.count("<li><p>") == 5
    assert console.get("/runs/new").text.count("pantry") >= 1
    written = tomllib.loads(console.get(f"{address}/task.toml").text)
    assert written == {key: value for key, value in drafts.find(home, address[-16:]).data.items() if value}
    done = {"key task.purpose": "tests", "key publication.where": "here", "key publication.contact": "a@b.example"}
    planned = console.post(address, {**fields_of(shown), **done, "name": f"of {template}", "do": "plan"})
    assert console.led(planned) == f"/runs/one/of%20{template.replace(' ', '%20')}"
    task = CoordinatorHome(home).run(f"of {template}").planned().load().task
    assert (task.task.labels, task.publication.contact) == (tuple(words.get("label", ())), "a@b.example")


def test_draft_survives_conversion_to_a_task_file_and_back(home, tasks):
    written = drafts.from_file(home, next(tasks.glob("*.toml")))
    more = {"prompts": {"folder": 'a "b" \\ c'}, "method": {**written.data["method"], "attributes": {"a b": ["x"]}}}
    draft = replace(written, data={**written.data, **more, "privacy": {"epsilon": math.inf, "delta": 1e-7}})
    assert tomllib.loads(draft.toml) == {key: value for key, value in draft.data.items() if value}


def test_a_draft_that_an_earlier_version_kept_is_still_read(home, tasks):
    draft = replace(drafts.from_file(home, next(tasks.glob("*.toml"))), name="mine", seed="7")
    path = drafts._folder(home) / f"{draft.identity}.json"
    kept = json.loads(path.read_text())
    names = ("name", "parties", "seed", "patience")
    former = {"name": "mine", "parties": None, "seed": "7", "patience": draft.patience}
    path.write_text(json.dumps({**{key: value for key, value in kept.items() if key not in names}, "options": former}))
    assert drafts.find(home, draft.identity) == draft
    assert draft in [each for each, _ in drafts.unfinished(home)]


def test_rejected_run_page_links_to_a_draft_of_its_revision(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="refused", parties=PARTIES[:2], seed=9))
    folder = CoordinatorHome(home).run("refused")
    folder.write_status(RunStatus("failed", 1, error=RunFailure("beta refuses run 'refused': too much", "", 3)))
    assert "refused" in console.get("/?part=needs").text
    shown = console.get("/runs/one/refused").text
    assert 'value="revise refused"' in shown
    address = console.led(console.post("/runs/new", of="/runs/one/refused", source="revise refused"))
    assert "too much" in console.get(address).text
    form = fields_of(console.get(address).text)
    assert (form["name"], form["party"], form["seed"]) == ([""], ["alpha", "beta"], ["9"])
    revision = f"refused revised {time.strftime('%Y-%m-%d')}"
    console.post(address, {**form, "key privacy.epsilon": "1", "do": "plan"})
    planned = CoordinatorHome(home).run(revision).planned()
    assert planned.task["task"]["revises"] == "refused"
    assert ">refused</strong>" not in console.get("/?part=needs").text
    after = console.get(f"/runs/one/{quote(revision)}").text
    assert ("Epsilon: 4.0 → 1" in after, "refused</a>; changed:" in after) == (True, True)
    console.post("/runs/one/refused/put-away", of="/runs/one/refused")  # anew, which forgets no successor
    assert 'Replaced by <a href="/s/' in console.get("/runs/one/refused").text


def test_home_lists_a_waiting_run_and_its_awaited_parties_as_one_entry(home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="waits", parties=PARTIES))
    now = time.time()
    waiting = Awaited((AwaitedParty("beta", False, 900.0),), now - 900, now + 60, 2, "waiting for beta")
    CoordinatorHome(home).run("waits").write_status(RunStatus("running", 1, waiting=waiting))
    parties = [
        replace(each, connected=False, party=replace(each.party, last_seen=now - 900, paused=True, contact="Dr. Ada"))
        for each in enrolment.parties(home)
    ]
    listed = [each for each in list_runs(home) if each.run == "waits"]
    found = [each for each in overview.needs(home, listed, parties) if each.kind != "coordinator"]
    about = [each for each in found if "beta" in f"{each.name} {each.says} {each.remedy}"]
    assert [(each.kind, each.name) for each in about] == [("run", "waits")]
    assert "Dr. Ada" in about[0].remedy
    assert {each.name for each in found if each.kind == "party"} >= {"alpha", "gamma"}


def test_remedies_on_a_page_name_its_buttons_and_no_shell_command(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="told"))
    folder = CoordinatorHome(home).run("told")
    remedies = {
        "see `undersong parties`": 'see <a href="/s/',
        "correct the key, then: undersong run resume": "correct the key, then: <strong>Resume</strong>",
        "start it: `undersong coordinator serve`; wait <b>": "start it; wait &lt;b&gt;",
        "`undersong-party check` says more": "",
    }
    for remedy, shown in remedies.items():
        folder.write_status(RunStatus("failed", 1, error=RunFailure("no", remedy, 2)))
        text = console.get("/runs/one/told?part=standing").text
        said = text.partition("<strong>Remedy:</strong> ")[2].partition("</p>")[0]
        assert said.startswith(shown), remedy
        assert "undersong " not in said
        assert "undersong-party" not in said


def test_refused_request_that_accepts_json_is_answered_in_json(console):
    headers = {"accept": "application/json"}
    refused = console.post("/parties/invite", name="not a name!", headers=headers)
    assert refused.status_code == 409
    assert refused.json().keys() == {"problem", "remedy", "code", "shown", "box"}
    done = console.post("/parties/invite", name="epsilon", headers=headers)
    assert done.json()["location"].startswith(console.client.base)


def fetch_once(console, screen):
    return console.get(re.search(r'href="([^"]+/download/[^"]+)"', console.get(screen).text)[1]).content


@pytest.mark.parametrize("kind", ["package", "reply"])
def test_pages_say_that_a_hospitals_file_is_not_downloaded_until_it_is(tmp_path, entered, kind, monkeypatch):
    home = make_home(tmp_path / "home")
    console = entered(home.path)
    invited = console.post("/parties/invite", name="delta")
    made = console.led(invited)
    if kind == "reply":
        package = Package.parse(fetch_once(console, made))
        request = EnrolmentRequest.make("delta", new_tls_key(), identity := Ed25519PrivateKey.generate(), package.token)
        content = request.sign(identity)
        fields = {**console.hidden("/parties/sign"), "fingerprint": EnrolmentRequest.parse(content).fingerprint}
        made = console.led(console.client.post("/parties/sign", data=fields, files={"request": ("r", content)}))
    said = f"its {kind} was made and never downloaded"
    assert said not in console.get("/").text.lower()  # whoever has made it downloads it next
    assert f'<p class="notice">{said.capitalize()}' in console.get("/parties/one/delta").text
    monkeypatch.setattr(enrolment, "UNFETCHED_S", 0.0)
    assert f'<p class="notice warn">{said.capitalize()}' in console.get("/parties/one/delta").text
    for path in ("/parties", "/parties/one/delta", "/"):
        assert said in console.get(path).text.lower(), path
    link = re.search(r'href="/s/[^/]+(/parties/(?:invite|sign)\?[^"]+)">download it</a>', console.get("/parties").text)
    assert unescape(link[1]) == made
    console.site.downloads._files.clear()  # fifteen minutes later, or after a restart
    shown = console.get("/parties").text
    assert said in shown
    again = re.search(r'href="/s/[^/]+([^"]+)">make a new [^<]+: invite it again</a>', shown)[1]
    assert 'value="delta"' in console.get(again).text
    if kind == "package":
        anew = console.led(console.post("/parties/invite", name="delta"))
        fetch_once(console, anew)
        for path in ("/parties", "/parties/one/delta", "/"):
            assert said not in console.get(path).text.lower(), path


def test_file_dated_in_the_future_counts_at_once_as_not_downloaded(tmp_path, entered):
    console = entered(make_home(tmp_path / "home").path)
    console.post("/parties/invite", name="delta")
    console.site.store.rows("UPDATE offer SET made_at = made_at + 86400")
    assert "has waited for 0 s: its package was made and never downloaded" in console.get("/").text


@pytest.mark.parametrize(
    ("fault", "colour"), [("", "told notice done"), ("refusal", "told problem")], ids=["answer", "failure"]
)
def test_generator_test_result_box_is_coloured_by_its_outcome(console, home, tasks, monkeypatch, fault, colour):
    tried = Tried("", "", "", (), "I cannot", "", fault, "", 1, 1, 0.0, 0.1)
    monkeypatch.setattr("undersong_server.operations.tasks.try_in_run", lambda *_, **__: tried)
    console.post("/generators/test", of="/account", run="any", generator="good")
    shown = console.get("/generators").text
    assert f'class="{colour}"' in shown
    assert ("gave no usable text (refusal" in shown) is bool(fault)


def test_clicking_plan_twice_creates_one_run(console, home, tasks):
    address = console.led(console.post("/runs/new", source=f"file {next(tasks.glob('*.toml'))}"))
    fields = {**fields_of(console.get(address).text), **console.hidden(address), "do": "plan"}
    before = len(list_runs(home))
    places = {console.client.post(address, data=fields).headers["location"] for _ in range(3)}
    assert len(places) == 1
    assert len(list_runs(home)) == before + 1


def test_console_offers_only_toml_files_that_are_tasks(home, tmp_path):
    task = '[task]\nname = "spring"\n'
    files = {
        "task": task,
        "slip": task + "labels = [",
        "pyproject": '[project]\nname = "undersong"\n',
        "prompts": 'task = "write"\n',
        "no TOML": "{",
        "digits": f"a = {'1' * 5000}",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    (tmp_path / "folder.toml").mkdir()
    assert [path.stem for path in permissions.offered([tmp_path])] == ["slip", "task"]
    for given in (files["pyproject"], files["prompts"]):
        with raises(ConfigurationError, "no-task"):
            drafts.from_bytes(home, "the uploaded file", given.encode(), ())
    with raises(ConfigurationError, "not-toml"):
        drafts.from_file(home, tmp_path / "slip.toml")


@pytest.mark.parametrize("named", ["private", "private/*.jsonl", [f"private/site-{party}.jsonl" for party in range(3)]])
def test_form_does_not_offer_a_tasks_private_records_as_a_corpus(home, tmp_path, named):
    draft = drafts.from_file(home, make_task(tmp_path, data={"path": named}))
    offered = permissions.files(draft, (tmp_path,))
    assert offered == ["good.jsonl", "poor.jsonl", "test.jsonl"]
    template = drafts.from_template(home, form.templates()[0], (tmp_path,))  # names no records itself
    assert permissions.files(template, (tmp_path,)) == offered


@pytest.mark.parametrize("place", ["", "below"])
def test_no_file_beside_an_unreadable_task_file_is_offered(tmp_path, monkeypatch, place):
    (tmp_path / "below").mkdir()
    for folder in ("", "below"):
        (tmp_path / folder / "records.jsonl").write_text("{}\n", encoding="utf-8")
    task_file = tmp_path / place / "task.toml"
    task_file.write_text('[task]\nname = "spring"\n[data]\npath = "records.jsonl"\n', encoding="utf-8")

    def public_places():
        return {str(path.parent.relative_to(tmp_path)) for path in permissions.public_files([tmp_path])}

    others = {"below"} if not place else {"."}
    assert public_places() == others  # the records that it names are left out
    for broken in ("[ task ]\nname = ", "task = { name = "):
        task_file.write_text(broken, encoding="utf-8")
        assert public_places() == (set() if not place else others)
    read_bytes = Path.read_bytes

    def closed(path):
        if path.name == "task.toml":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", closed)
    assert public_places() == (set() if not place else others)


def ngram(corpus):
    return {"name": "new", "kind": "ngram", "corpus": [str(corpus)]}


def endpoint(base_url, key="OPENAI_API_KEY", **more):
    return {"name": "new", "kind": "openai", "model": "m", "base_url": base_url, "api_key_env": key, **more}


def may_not_plan(home, tasks, draft, keys=()):
    """Whether the console may not even plan the draft; the error of a task that it may plan is another one's."""
    try:
        check = permissions.FilePermissions(home, draft, (tasks,), keys)
        runs.preview(home, draft.data, Path(draft.folder), list(PARTIES), check=check)
    except ConfigurationError as error:
        return error.code == "not-from-the-console"
    return False


@pytest.mark.slow
@pytest.mark.parametrize("place", ["corpus", "prompts", "root", "cache"])
@pytest.mark.parametrize("way", ["upload", "form"])
def test_console_task_may_not_name_files_outside_the_operators_folders(home, tasks, tmp_path, place, way):
    (tmp_path / "secret").write_text("private")
    (tasks / "link").unlink(missing_ok=True)
    (tasks / "link").symlink_to(tmp_path)
    written = drafts.from_file(home, next(tasks.glob("*.toml")))

    def draft(path):
        data = json.loads(json.dumps(written.data))
        if place == "corpus":
            data["generators"][0]["corpus"] = [path]
        elif place == "cache":
            data["generators"].append(endpoint("http://127.0.0.1:1", "", cache=path))
        else:
            data |= {"prompts": {"folder": path}} if place == "prompts" else {"data": {"root": path}}
        if way == "form":
            return replace(written, data=data)
        return replace(drafts.from_bytes(home, "uploaded", b"[task]", (tasks,)), data=data)

    away = os.path.relpath(tmp_path / "secret", tasks)
    keys = home / "authority" / "signing.key"
    for path in (str(tmp_path / "secret"), away, "link/secret", str(keys), f"{tasks}/../secret", "a\0b"):
        assert may_not_plan(home, tasks, draft(path)), path
    for path in ("good.jsonl", str(tasks / "good.jsonl"), "prompts", "sub/../good.jsonl"):
        assert not may_not_plan(home, tasks, draft(path)), path


def test_console_task_may_name_files_that_the_operators_task_names(home, tasks, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "one", "label": "kitchen"}\n')
    theirs = drafts.from_file(home, next(tasks.glob("*.toml")))
    data = {**theirs.data, "generators": [ngram(tmp_path / "corpus.jsonl")]}
    assert may_not_plan(home, tasks, replace(theirs, data=data))
    own = replace(theirs, data=data, operators=data)
    assert not may_not_plan(home, tasks, own)
    assert not may_not_plan(home, tasks, drafts.fill(own, {"key privacy.epsilon": ["2"]}))


def test_console_task_may_send_api_keys_only_to_hosts_the_operator_named(home, tasks):
    """The attack: a task from the console sends a key of the coordinator to a host of its author's."""
    theirs = drafts.from_file(home, next(tasks.glob("*.toml")))
    allowed = [("api.example", "OPENAI_API_KEY"), ("127.0.0.1:8000", "OPENAI_API_KEY")]

    def draft(table, **own):
        return replace(theirs, data={**theirs.data, "generators": [table]}, **own)

    good = endpoint("https://api.example/v1")
    assert not may_not_plan(home, tasks, draft(good), allowed)
    assert not may_not_plan(home, tasks, draft(endpoint("https://elsewhere.example/v1", "")), allowed)
    for table in (
        endpoint("https://elsewhere.example/v1"),
        endpoint("https://api.example/v1", "OTHER_API_KEY"),
        endpoint("https://api.example:444/v1"),
        {"name": "new", "kind": "openai", "model": "m"},
        {**good, "endpoints": [{"base_url": "https://elsewhere.example/v1", "api_key_env": "OPENAI_API_KEY"}]},
        endpoint("http://127.0.0.1:8000/v1", proxy="http://127.0.0.1:9999"),
    ):
        assert may_not_plan(home, tasks, draft(table), allowed), table
        assert not may_not_plan(home, tasks, draft(table, operators={"generators": [table]})), table
    own_table = endpoint("http://127.0.0.1:7000/v1")
    for change in (
        {"base_url": "http://127.0.0.1:7001/v1"},
        {"api_key_env": "OTHER_API_KEY"},
        {"proxy": "http://127.0.0.1:9999"},
        {"endpoints": [{"base_url": "https://elsewhere.example/v1", "api_key_env": "OPENAI_API_KEY"}]},
    ):
        changed = draft({**own_table, **change}, operators={"generators": [own_table]})
        assert may_not_plan(home, tasks, changed), change


def test_refused_plan_shows_its_error_and_creates_no_run(console, home, tasks):
    toml = next(tasks.glob("*.toml")).read_text().replace("good.jsonl", "/etc/passwd")
    sent = console.client.post("/runs/new", data=console.hidden("/runs/new"), files={"task": ("t.toml", toml)})
    shown = console.led(sent)
    assert "outside the operator" in wrong(console.get(shown).text)["generators-0-corpus"]
    before = len(list_runs(home))
    sent = {**fields_of(console.get(shown).text), "name": "stolen", "do": "plan"}
    assert console.led(console.post(shown, sent)) == f"{shown}?checked=yes"
    assert len(list_runs(home)) == before


@pytest.mark.parametrize("revises", ['"../../x"', '"nowhere"', '"."', '"a\\u0000b"', "3", '["a"]'])
def test_uploaded_task_with_an_invalid_revises_key_is_refused(console, tasks, revises):
    toml = next(tasks.glob("*.toml")).read_text().replace("[task]", f"[task]\nrevises = {revises}", 1)
    answer = console.client.post("/runs/new", data=console.hidden("/runs/new"), files={"task": ("t.toml", toml)})
    assert answer.status_code == 409
    assert "revises" in answer.text or "is not the name of a run" in answer.text
    assert "internal error" not in answer.text


def test_form_with_unequal_numbers_of_labels_and_meanings_is_refused(console, tasks):
    address = console.led(console.post("/runs/new", source=f"file {next(tasks.glob('*.toml'))}"))
    hidden = console.hidden(address)
    for sent in ({"label": "kitchen"}, {"label": ["a", "b"], "meaning": "x"}, {"meaning": "x"}):
        for place in (f"{address}{LIVE}", address):
            answer = console.client.post(place, data={**sent, **hidden})
            assert (answer.status_code, "fields meaning" in answer.text) == (409, True), (place, sent)


def test_run_page_buttons_request_the_same_actions_as_the_commands(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="acted"))
    address = "/runs/one/acted"
    assert "Start</button>" in console.get(address).text
    console.post(f"{address}/start", of=address)
    assert CoordinatorHome(home).run("acted").requested().action == "run"
    assert console.post(f"{address}/stop", of=address, typed="other").status_code == 409
    console.post(f"{address}/stop", of=address, typed="acted")
    assert CoordinatorHome(home).run("acted").requested().action == "stop"
    assert "once the coordinator runs" in console.get(address).text


def test_page_of_an_unknown_run_says_so_without_a_server_error(console):
    answer = console.get("/runs/one/nowhere")
    assert answer.status_code == 200
    assert "No run" in answer.text
    assert "Remedy" in answer.text
    long = "x" * 300
    odd = (f"/runs/one/{long}", f"/runs/one/{long}/report", f"/runs/new/{long}", f"/api/runs/{long}")
    for path in ("/runs/one/..%2f..%2fetc", "/runs/one/nowhere/file/manifest.json", "/runs/new/zzz", *odd):
        assert console.get(path).status_code in (200, 404)


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (b"a=" + b"[" * 100_000, "has more than 16 levels"),
        (b"a=" + b"9" * 6_000, "has a number of thousands of digits"),
        (b"a=\xff", "is not UTF-8"),
        (b"[task]\n" + b".".join([b"a"] * 2_000) + b"=1", "has more than 16 levels"),  # 12 s and a 500 at 20 000 parts
        (b"[task]\n[" + b" . ".join([b"a", b'"b"', b"'c'"] * 6) + b"]", "has more than 16 levels"),
        (b"[task]\nx=" + b"{a=" * 300 + b"1" + b"}" * 300, "has more than 16 levels"),
    ],
)
def test_uploaded_file_that_is_no_task_is_refused_with_its_fault(home, task, fault):
    with pytest.raises(ConfigurationError, match=f"the uploaded file: {fault}"):
        drafts.from_bytes(home, "the uploaded file", task, ())


def test_list_of_runs_states_the_damage_of_a_run_and_shows_the_others(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="damaged"))
    (home / "runs" / "damaged" / "plan.json").write_text("{")
    text = console.get("/runs?find=damaged").text
    assert "plan.json: is not JSON" in text
    assert console.get("/").status_code == 200


def test_markup_and_control_characters_from_peers_are_shown_as_text(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="hostile"))
    folder = CoordinatorHome(home).run("hostile")
    folder.say(HOSTILE)
    usage = {
        HOSTILE: dict.fromkeys(("calls", "kept", "retried", "dropped", "prompt_tokens", "completion_tokens"), 1)
        | {"price_usd": 0.5}
    }
    folder.tell("record", {"name": "weights", "round": 0, "value": [0.5, 0.5]})
    folder.tell("texts", {"step": HOSTILE, "round": 0, "texts": [(HOSTILE, HOSTILE, HOSTILE)]})
    folder.tell("usage", {"usage": usage})
    folder.tell("sum", {"name": HOSTILE, "sigma": 1.0, "survivors": [HOSTILE]})
    failed = RunStatus("failed", number=1, message=HOSTILE, phase=HOSTILE, error=RunFailure(HOSTILE, HOSTILE, 3))
    folder.write_status(failed)
    replace_json(folder.path / "evaluation.json", {"test": HOSTILE, "figures": {HOSTILE: HOSTILE}}, durable=False)
    assert "Test file" in console.get("/compare?run=hostile").text
    assert b"<img" in console.get("/compare/figures.csv?run=hostile").content  # a file, which no browser shows
    for path in ("/runs/one/hostile", "/runs", "/", "/generators", "/compare?run=hostile"):
        text = console.get(path).text
        assert "<img" not in text, path
        assert "\x1b" not in text, path
        assert "\u202e" not in text, path
    assert r"\x1b[2J" in console.get("/runs/one/hostile").text


def test_list_filters_are_in_the_address_and_kept_by_paging_links(console, home, tasks):
    for number in range(60):
        folder = CoordinatorHome(home).path / "runs" / f"many {number:03}"
        folder.mkdir(parents=True)
        made = CoordinatorHome(home).path / "runs" / "many 000"
        if number == 0:
            folder.rmdir()
            runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="many 000"))
            continue
        for name in ("plan.json", "status.json"):
            (folder / name).write_bytes((made / name).read_bytes())
    text = console.get("/runs?find=many&state=planned").text
    assert "60 runs" in text
    assert "find=many&amp;state=planned&amp;page=2" in text
    second = console.get("/runs?find=many&state=planned&page=2").text
    assert "Page 2 of 2" in second
    assert "Page 2 of 2" in console.get("/runs?find=many&state=planned&page=7").text
    assert 'value="many"' in second
    part = console.get("/runs?find=many&part=runs").text
    assert "part=runs" in part
    assert "<html" not in part


@pytest.mark.slow
def test_administrator_adds_and_removes_people_links_and_tokens(console, site):
    console.post("/people", name="vera", role="viewer")
    done = console.post("/people/link", of="/people", name="vera")
    text = console.get(done.headers["location"]).text
    secret = re.search(r"/enter#([\w-]+)", text)[1]
    assert secret not in console.get(done.headers["location"]).text
    vera = Browser(site).enter(secret)
    assert vera.get("/people").status_code == 403
    assert "Invite a hospital" not in vera.get("/parties").text
    assert vera.post("/parties/invite", of="/", name="x", days="1").status_code == 403
    done = console.post("/people/token", of="/people", name="vera", label="nightly")
    token = re.search(r"undersong_[\w-]+", console.get(done.headers["location"]).text)[0]
    headers = {"authorization": f"Bearer {token}"}
    found = Browser(site).get("/api/parties", headers=headers).json()
    assert {"alpha", "beta", "gamma"} <= {each["name"] for each in found}
    assert Browser(site).get("/people", headers=headers).status_code == 403
    console.post("/people/remove", of="/people", name="vera", typed="vera")
    assert vera.get("/").status_code == 303
    assert Browser(site).get("/api/parties", headers=headers).status_code == 401
    written = site.audit.path.read_text()
    assert secret not in written
    assert token not in written


def test_support_bundle_contains_no_texts_and_no_keys(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="bundled"))
    folder = CoordinatorHome(home).run("bundled")
    folder.tell("texts", {"step": "1", "round": 0, "texts": [("a secret sentence", "", "g")]})
    enrolment.invite(home, "epsilon", contact="Dr. Strange, 555-1")
    with zipfile.ZipFile(BytesIO(console.get("/audit/support.zip").content)) as archive:
        held = b"".join(archive.read(name) for name in archive.namelist())
        assert "runs.json" in archive.namelist()
    assert b"secret sentence" not in held
    assert b"Strange" not in held
    assert b"PRIVATE KEY" not in held
    with CoordinatorHome(home).registry().database.writing() as database:
        token = database.execute("SELECT token FROM party WHERE name = 'epsilon'").fetchone()[0]
    assert token.encode() not in held


def test_run_charts_show_recorded_weights_votes_and_speed(console, home, tasks):
    runs.plan(home, next(tasks.glob("*.toml")), RunOptions(name="drawn"))
    folder = CoordinatorHome(home).run("drawn")
    for round_, row in enumerate(([0.5, 0.5], [0.7, 0.3])):
        folder.tell("record", {"name": "weights", "round": round_, "value": row})
    folder.tell("record", {"name": "weights noise", "round": 1, "value": [0.05, 0.2]})
    used = {"kept": 1, "retried": 0, "dropped": 0, "prompt_tokens": 0, "completion_tokens": 0, "price_usd": 0.0}
    speed = {"answered": 6, "busy_s": 3.0, "timed": 4, "latency_s": 5.0}
    folder.tell("usage", {"usage": {"good": {**used, **speed}, "poor": used}})
    for number, shares in enumerate(([0.6, 0.4], [0.95, 0.05], [1.5, -0.5])):
        told = {"name": f"votes/{number}", "sigma": 2.0, "survivors": ["alpha"], "shares": shares, "noise": [0.1, 0.1]}
        folder.tell("sum", told)
    text = console.get("/runs/one/drawn").text
    weights, votes, epsilon = re.findall(r'role="img" aria-label="[^"]+">(.*?)</svg>', text, re.DOTALL)
    points = r"<title>(.*?)</title>"
    assert re.findall(points, weights) == [
        *("good, 1: 50.0 %", "good, 2: 70.0 %", "good", "poor, 1: 50.0 %", "poor, 2: 30.0 %", "poor")
    ]
    assert len(re.findall('<line class="interval"', weights)) == 4
    assert "weight 70.0&nbsp;% (s.e. 5.0)" in text
    assert re.findall(points, votes)[2] == "good, 3: 150.0 %"
    assert re.findall(points, votes)[6] == "poor, 3: -50.0 %"
    speed = re.search(r'data-name="Answers/s".*?</td>', text)[0]
    assert ">2<" in speed
    assert "1.25 s a call" in speed
    assert "/generators/test" in console.get("/generators").text
    assert "<title>as planned and as it ran, 1: " in epsilon  # the same figures are one line


@pytest.mark.parametrize(("minutes", "said"), [(14, []), (16, ["has never connected"])])
def test_newly_signed_party_is_not_reported_as_unconnected_at_once(home, minutes, said):
    now = time.time()
    party = next(each for each in enrolment.parties(home) if each.party.name == "gamma")
    new = replace(party, connected=False, party=replace(party.party, last_seen=None, enrolled_at=now - 60 * minutes))
    found = overview._of_party(new, now, served=True, needed=False, awaited=False)
    assert [each.says for each in found if "connected" in each.says] == said


@pytest.mark.parametrize("days", ["0", "0.05", "366", "nan", "soon"])
def test_invalid_days_of_an_invitation_are_refused_with_their_bounds(console, days):
    shown = console.post("/parties/invite", of="/parties/invite", name="delta", days=days).text
    assert "is not between 0.1 and 365" in shown


def test_home_lists_parties_and_certificates_that_need_action(tmp_path, entered):
    home = make_home(tmp_path / "home")
    Credentials(home, "alpha", days=10)
    enrolment.invite(tmp_path / "home", "beta")
    with contextlib.closing(home.registry()) as registry:
        registry.refused_start("alpha", "clock")
    console = entered(tmp_path / "home")
    text = console.get("/").text
    # Ten days less the time until now, which may round to nothing.
    assert re.search("has a certificate that ends in (9 d 23 h|10 d 0 h)", text)
    assert "is not enrolled" not in text  # a day is usual between an invitation and its request
    with contextlib.closing(home.registry()) as registry:
        parties = [party for party in registry.parties() if party.name == "beta"]
    late = enrolment.PartyFacts(replace(parties[0], invited_at=time.time() - 90_000), connected=False)
    (need,) = overview._of_party(late, time.time(), served=True, needed=False, awaited=False)
    assert need.says == "was invited 1 d 1 h ago and is not enrolled"
    because = "its daemon does not start: its machine&#39;s clock is wrong"
    for path in ("/", "/parties", "/parties/one/alpha"):
        assert because in console.get(path).text, path


def test_home_sums_epsilon_and_delta_of_the_runs_that_were_charged(tmp_path, tasks, entered):
    home = make_home(tmp_path / "home", PARTIES)
    ends = (
        ("rejected", "13", "1e-5", RunStatus("failed", 1, since=1.0)),
        ("waits", "7", "1e-5", RunStatus("waiting", 1, since=1.0)),
        ("done", "4", "1e-5", RunStatus("finished", 1, since=1.0)),
        ("left", "2", "1e-6", RunStatus("stopped", 2, since=1.0, charged=True)),
        ("planned", "5", "1e-5", RunStatus()),
    )
    for name, epsilon, delta, status in ends:
        changes = [f"privacy.epsilon={epsilon}", f"privacy.delta={delta}"]
        runs.plan(home.path, next(tasks.glob("*.toml")), RunOptions(name=name), assignments=changes)
        home.run(name).write_status(status)
    text = entered(home.path).get("/?part=figures").text
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    assert "Epsilon spent, at most 6 at delta 1.1e-5, for whoever took part in 2 runs of these" in said


@pytest.mark.slow
def test_screens_of_a_thousand_parties_are_fast_and_small(tmp_path, tasks, entered):
    home = make_home(tmp_path / "home")
    add_parties(home, 1000)
    runs.plan(
        tmp_path / "home",
        next(tasks.glob("*.toml")),
        RunOptions(name="run 0000", parties=["party-0001", "party-0002", "party-0003"]),
    )
    repeat_run(tmp_path / "home" / "runs" / "run 0000", 2000)
    console = entered(tmp_path / "home")
    begun = time.process_time()
    for folder in (tmp_path / "home" / "runs").iterdir():
        os.stat(folder / "plan.json")
    one_look_s = time.process_time() - begun  # at a file of every run, of which a screen needs some
    slowest = {}
    for path in ("/", "/parties", "/parties?page=20", "/runs", "/runs?page=40", "/runs?find=19", "/compare"):
        times = []
        for _ in range(5):
            begun = time.process_time()  # of this process: what else the machine does says nothing
            answer = console.get(path)
            times.append(time.process_time() - begun)
            assert len(answer.content) < 300_000, path
        slowest[path] = min(times)
    assert max(slowest.values()) < 12 * one_look_s, (slowest, one_look_s)
    assert re.search(r"1\W?000 hospitals", console.get("/parties").text)
