"""Runs as an operator handles them without a command line: plan, request an action, list, show, follow."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial

import pytest

from tests.doubles.coded import raises
from tests.doubles.stream import make_home
from tests.doubles.tasks import JUDGED, make_task, write_rows
from undersong_common.errors import ConfigurationError, TransportError
from undersong_common.program.configuration import override, read_toml
from undersong_protocol.agreement import bounds
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import enrolment, runs
from undersong_server.operations.overview import list_runs
from undersong_server.operations.runs import watch
from undersong_server.runs.folder import Awaited, AwaitedParty, RunFailure, RunStatus

PARTIES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("coordinator") / "home", PARTIES).path


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"))


def folder_of(home, run):
    return CoordinatorHome(home).run(run)


def test_planned_run_stores_its_options_and_is_listed(home, task):
    planned = runs.plan(home, task, RunOptions(name="first", seed=3), assignments=["privacy.epsilon=2"])
    assert planned.parties == PARTIES
    assert planned.figures.privacy.epsilon == 2
    assert planned.figures.quorum.parties == 3
    assert planned.to_json()["queries"][0]["statistic"] == planned.figures.sums[0].statistic
    summary = next(found for found in list_runs(home) if found.run == "first")
    assert summary.status.state == "planned"
    details = runs.show(home, "first")
    assert details.figures == planned.figures
    assert folder_of(home, "first").planned().seed == 3
    assert json.dumps(details.to_json())


@pytest.mark.parametrize(("stated", "missing"), [({}, {"makers", "contact"}), ({"makers": "North"}, {"contact"})])
def test_plan_without_the_operator_s_name_is_refused(tmp_path, stated, missing):
    home = make_home(tmp_path / "home", PARTIES)
    home.change(operator="", contact="")
    with raises(ConfigurationError, "no-operator") as refused:
        runs.plan(home.path, make_task(tmp_path / "task", publication=stated), RunOptions(name="nobody"))
    assert set(refused.value.places) == {f"publication.{key}" for key in missing}
    assert list_runs(home.path) == []


@pytest.mark.parametrize("key", ["publication.contact", "task.contact"])
@pytest.mark.parametrize(("words", "is_taken"), [("Mara Holm", False), (" ", False), ("https://north.example", True)])
def test_plan_accepts_a_contact_only_with_a_number_or_address(home, task, key, words, is_taken):
    def preview():
        return runs.preview(home, override(read_toml(task), [f"{key}='{words}'"]), task.parent, None)

    if is_taken:
        assert preview().parties == PARTIES
        return
    with pytest.raises(ConfigurationError) as refused:
        preview()
    assert list(refused.value.places) == [key]
    assert "e-mail address, a telephone number or a web address" in refused.value.remedy


def test_plan_states_the_stored_full_names_of_only_its_own_parties(tmp_path):
    home = make_home(tmp_path / "home", PARTIES).path
    task_names = "{beta = 'Beta, Faro', gamma = 'Gamma, Faro', delta = 'Delta'}"
    enrolment.note_full_name(home, "beta", "Beta Hospital, Porto")
    assignments = [f"federation.full_names={task_names}"]
    task_file = make_task(tmp_path / "task")
    planned = runs.plan(home, task_file, RunOptions(name="named"), assignments=assignments)
    (remark,) = planned.to_json()["remarks"]
    assert remark.startswith("federation.full_names is ignored for 'delta': no hospital of this run has that name")
    assert runs.plan(home, task_file, RunOptions(name="without")).remarks == ()
    stored = folder_of(home, "named").planned()
    assert stored.task["federation"] == {"full_names": {"beta": "Beta Hospital, Porto", "gamma": "Gamma, Faro"}}
    assert stored.load().task.federation.full_names == stored.task["federation"]["full_names"]


def test_stored_plan_has_no_full_names_key_when_none_is_known(home, task):
    runs.plan(home, task, RunOptions(name="unnamed"))
    stored = folder_of(home, "unnamed").planned()
    assert "full_names" not in stored.task["federation"]
    assert "full_names" not in stored.load().task.model_dump()["federation"]


def test_task_with_unprintable_characters_in_a_full_name_is_refused(home, task):
    with pytest.raises(ConfigurationError, match="full_names"):
        runs.plan(home, task, RunOptions(name="hidden"), assignments=["federation.full_names={beta='Beta\u202e'}"])


@pytest.mark.parametrize("row", [{"note": "a", "label": "garden"}, {"text": "a", "label": "attic"}])
def test_plan_refuses_a_test_file_that_the_run_could_not_read(home, tmp_path, row):
    task_file = make_task(tmp_path, evaluation=JUDGED)
    write_rows(tmp_path / "test.jsonl", [row])
    with pytest.raises(ConfigurationError, match=r"test\.jsonl:1"):
        runs.plan(home, task_file, RunOptions(name="unread"))
    assert not folder_of(home, "unread").exists


def test_unreadable_run_folder_is_listed_beside_the_others(tmp_path, task):
    home = make_home(tmp_path / "home", PARTIES).path
    runs.plan(home, task, RunOptions(name="first", seed=3))
    round_ = folder_of(home, "first").path.with_name("round")
    round_.symlink_to(round_)
    assert {found.run: found.status.state for found in list_runs(home)} == {"first": "planned", "round": "unreadable"}


def test_default_run_name_has_the_tasks_name_and_no_name_is_used_twice(home, task):
    assert runs.plan(home, task, RunOptions(suffix="1f")).run == "small 1f"
    assert runs.plan(home, task, RunOptions(insecure_noise_seed=4)).run == "small insecure-4"
    assert runs.plan(home, task).run != runs.plan(home, task).run
    with raises(ConfigurationError, "run-exists"):
        runs.plan(home, task, RunOptions(name="small 1f"))


def test_plan_takes_only_enrolled_parties_and_each_once(home, task):
    assert runs.plan(home, task, RunOptions(parties=["gamma", "alpha", "beta", "alpha"])).parties == PARTIES
    with raises(ConfigurationError, "not-enrolled"):
        runs.plan(home, task, RunOptions(parties=["alpha", "delta"]))
    with raises(ConfigurationError, "not-enrolled"):
        runs.plan(home, task, RunOptions(parties=[]))


def test_run_requests_are_numbered_and_refused_after_its_end(home, task):
    runs.plan(home, task, RunOptions(name="second"))
    folder = folder_of(home, "second")
    assert (folder.requested().action, folder.requested().number) == (None, 0)
    assert asdict(runs.request(home, "second", "run")) == {"run": "second", "requested": "run", "served": False}
    for number, action in enumerate(("pause", "run", "stop"), 2):
        assert runs.request(home, "second", action).requested == action
        assert (folder.requested().action, folder.requested().number) == (action, number)
    folder.write_status(RunStatus(state="stopped", number=4))
    with raises(ConfigurationError, "run-ended"):
        runs.request(home, "second", "run")
    with raises(ConfigurationError, "no-run"):
        runs.request(home, "nowhere", "run")
    with raises(ConfigurationError, "invalid-name"):
        runs.status(home, "../second")


def test_folder_of_a_run_killed_before_its_plan_was_written_is_ignored(home):
    folder = folder_of(home, "half planned")
    folder.path.mkdir(parents=True)
    folder.write_status(RunStatus())
    for refused in (
        runs.status,
        runs.show,
        partial(runs.request, action="run"),
        runs.put_away,
        lambda *of: next(watch(*of)),
    ):
        with raises(ConfigurationError, "no-run"):
            refused(home, "half planned")
    assert sorted(path.name for path in folder.path.iterdir()) == ["status.json"]


def test_status_of_a_run_is_read_back_as_written(home, task):
    runs.plan(home, task, RunOptions(name="third"))
    waiting = Awaited((AwaitedParty("beta", True, 2.5), AwaitedParty("gamma", False, None)), 1.0, 4.0, 3, "waiting")
    written = RunStatus("running", 2, None, 1.5, "round 1", 3, 7, "a line", waiting, RunFailure("why", "how", 3))
    folder_of(home, "third").write_status(written)
    found = runs.status(home, "third")
    assert replace(found, at=None) == written
    assert found.at == pytest.approx(time.time(), abs=60)
    assert found.words == "running: round 1 3/7: waiting: why"
    assert found.to_json()["waiting"]["for"][0] == {"party": "beta", "connected": True, "seconds": 2.5}
    assert "waiting" not in RunStatus().to_json()


@pytest.mark.heavy
def test_watch_yields_each_change_of_a_run_once_and_ends_with_the_run(home, task):
    runs.plan(home, task, RunOptions(name="fourth"))
    runs.request(home, "fourth", "run")
    folder = folder_of(home, "fourth")
    for number in range(30):
        folder.say(f"old line {number}")
    folder.write_status(RunStatus("failed", number=0))  # of an earlier request: it is to begin again
    events = watch(home, "fourth", timeout_s=20.0)
    first = next(events)
    assert [line[-2:] for line in first.lines] == [f"{number}" for number in range(10, 30)]
    assert first.status.state == "failed"

    def drive():
        folder.write_status(RunStatus("running", number=1, phase="round 1", done=1, total=2))
        time.sleep(0.5)
        folder.say("a new line")
        time.sleep(0.5)
        folder.write_status(RunStatus("failed", number=1, error=RunFailure("it broke", "mend it", 7)))

    thread = threading.Thread(target=drive)
    thread.start()
    rest = list(events)
    thread.join()
    assert [event.status.words for event in rest] == [
        "running: round 1 1/2",
        "running: round 1 1/2",
        "failed: it broke",
    ]
    assert [len(event.lines) for event in rest] == [0, 1, 0]
    assert rest[-1].status.error == RunFailure("it broke", "mend it", 7)


def test_watch_gives_up_after_its_timeout(home, task):
    runs.plan(home, task, RunOptions(name="fifth"))
    with raises(TransportError, "still-running"):
        list(watch(home, "fifth", timeout_s=0.1))
    with raises(ConfigurationError, "no-run"):
        list(watch(home, "nowhere"))


def test_token_budget_can_be_raised_in_a_run_but_no_signed_option(home, task, tmp_path):
    written = tmp_path / "task.toml"
    endpoint = '[[generators]]\nname = "far"\nkind = "openai"\nmodel = "tiny"\nbase_url = "https://far.example/v1"\n'
    written.write_text(task.read_text(encoding="utf-8") + endpoint + "token_budget = 30000\n", encoding="utf-8")
    for corpus in ("good.jsonl", "poor.jsonl"):
        (tmp_path / corpus).write_text((task.parent / corpus).read_text(encoding="utf-8"), encoding="utf-8")
    runs.plan(home, written, RunOptions(name="amended"))
    runs.request(home, "amended", "run")
    before = runs.show(home, "amended").figures.sums
    runs.request(home, "amended", "run", ["generators.2.token_budget=90000", "generators.2.concurrency=2"])
    amended = folder_of(home, "amended").planned().load().task.generators[2]
    assert (amended.token_budget, amended.concurrency) == (90000, 2)
    assert runs.show(home, "amended").figures.sums == before
    for change in (
        "generators.2.model=large",
        'generators.2.base_url="https://else.example/v1"',
        "generators.0.order=2",
        "privacy.epsilon=9",
        "task.description=other",
    ):
        with raises(ConfigurationError, "signed-by-parties"):
            runs.request(home, "amended", "run", [change])
    assert folder_of(home, "amended").planned().load().task.generators[2] == amended


def test_a_plan_says_which_shared_policies_would_refuse_it(home, task):
    def shared(**policy):
        strict = bounds.Policy(**{"largest_epsilon": 0.5, **policy})
        wide = bounds.Policy(largest_epsilon=math.inf)
        texts = (json.dumps(strict.to_json()), json.dumps(wide.to_json()), '{"of": "another version"}')
        with closing(CoordinatorHome(home).registry()) as registry:
            for name, text in zip(PARTIES, texts, strict=True):
                registry.seen(name, now=1.0, software="", embedder="", epsilon_left=None, paused=False, policy=text)

    shared()
    planned = runs.plan(home, task, RunOptions(name="refused"))
    ((party, why),) = planned.refusals
    assert party == "alpha"
    assert "the policy allows 0.5" in why
    assert planned.to_json()["would_refuse"] == {"alpha": why}
    assert not runs.plan(home, task, RunOptions(name="modest"), assignments=["privacy.epsilon=0.4"]).refusals
    shared(statistics=frozenset({"label_histogram"}))
    foreign = runs.plan(home, task, RunOptions(name="foreign"), assignments=["privacy.epsilon=0.4"])
    assert "does not allow the statistic" in dict(foreign.refusals)["alpha"]


def test_default_names_of_runs_of_one_day_differ_by_their_time(home, task, monkeypatch):
    clock = time.strptime("2031-01-09 14:05:09", "%Y-%m-%d %H:%M:%S")
    written = time.strftime
    monkeypatch.setattr(time, "strftime", lambda words, when=clock: written(words, when))
    names = [runs.plan(home, task).run.removeprefix("small epsilon 4 ") for _ in range(4)]
    assert names == ["2031-01-09", "2031-01-09 14.05", "2031-01-09 14.05.09", "2031-01-09 14.05.09 2"]
    runs.plan(home, task, RunOptions(name="spring 2"))
    revised = ["spring 2"]
    for _ in range(2):
        revised.append(runs.plan(home, None, revises=revised[-1]).run)
    assert revised[1:] == ["spring 2 revised 2031-01-09", "spring 2 revised 2031-01-09 14.05"]
    proposed = runs.plan(home, None, assignments=["privacy.epsilon=3"], revises="small epsilon 4 2031-01-09")
    assert proposed.run == "small epsilon 3 2031-01-09"


def test_revision_takes_task_and_parties_of_the_run_that_it_replaces(home, task):
    runs.plan(home, task, RunOptions(name="rejected", parties=PARTIES[:3], seed=5), assignments=["privacy.epsilon=3"])
    folder_of(home, "rejected").write_status(RunStatus("failed", 1, error=RunFailure("beta refuses", "revise it", 3)))
    made = runs.plan(home, None, RunOptions(name="rejected 2"), assignments=["privacy.epsilon=1"], revises="rejected")
    planned = folder_of(home, "rejected 2").planned()
    assert (planned.task["task"]["revises"], planned.task["privacy"]["epsilon"]) == ("rejected", 1)
    assert made.parties == PARTIES
    assert planned.load().task.public_words["revises"] == "rejected"
    assert folder_of(home, "rejected").is_put_away
    runs.plan(home, None, RunOptions(name="rejected 3"), revises="rejected 2")
    assert folder_of(home, "rejected 2").requested().action == "stop"
    folder_of(home, "rejected 3").write_status(RunStatus("finished", 1))
    with raises(ConfigurationError, "run-ended"):
        runs.plan(home, None, RunOptions(name="rejected 4"), revises="rejected 3")
    with raises(ConfigurationError, "no-task"):
        runs.plan(home, None)


def test_archived_failed_run_reappears_when_it_fails_again(home, task):
    runs.plan(home, task, RunOptions(name="away"))
    folder = folder_of(home, "away")
    folder.write_status(RunStatus("failed", 1))
    assert not folder.is_put_away
    runs.put_away(home, "away")
    assert folder.is_put_away
    time.sleep(0.01)
    folder.write_status(RunStatus("failed", 2))
    assert not folder.is_put_away
    with raises(ConfigurationError, "no-run"):
        runs.put_away(home, "nobody planned it")


def test_hospital_in_only_one_of_two_plans_counts_as_one_difference(tmp_path):
    home = make_home(tmp_path / "home", PARTIES)
    for name in PARTIES:
        enrolment.note_full_name(home.path, name, f"The {name} hospital, Porto")
    task_file = make_task(tmp_path / "task")
    plans = []
    for name, parties in (("all", PARTIES), ("two", PARTIES[:2])):
        runs.plan(home.path, task_file, RunOptions(name=name, parties=parties))
        plans.append(home.run(name).planned())
    differences = dict(runs.plan_differences(plans))
    assert differences["parties"] == (list(PARTIES), list(PARTIES[:2]))
    assert not [key for key in differences if "full_names" in key]
    enrolment.note_full_name(home.path, "alpha", "Alpha Hospital, Lyon")
    runs.plan(home.path, task_file, RunOptions(name="renamed", parties=PARTIES))
    (key,) = dict(runs.plan_differences([plans[0], home.run("renamed").planned()]))
    assert key == "federation.full_names.alpha"
