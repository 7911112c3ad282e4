"""``undersong-party join``: one command from an installed program to a request, by flags or by answers."""

import errno
import json

import pytest

from tests.doubles.authority import Authority
from tests.doubles.party_home import command, write_notes
from tests.doubles.typed import built, typed
from undersong_client import operations
from undersong_client.cli import joining
from undersong_client.cli.app import app
from undersong_client.consent import trust
from undersong_client.home import PartyHome
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_protocol import statistics
from undersong_protocol.agreement.enrolment import EnrolmentRequest

pytestmark = pytest.mark.heavy

COLUMNS = ("--label-field", "label", "--user-field", "patient")
RULES = ("--epsilon", 4, "--per-run", 2, "--question", "counts", "--minimum-parties", 3)


@pytest.fixture
def place(tmp_path, authority):
    """The words of ``join`` with a package, its fingerprint and the places of folder and request."""
    package = tmp_path / "alpha.package"
    package.write_bytes(authority.package_bytes("alpha"))
    fingerprint = authority.package("alpha").fingerprint
    notes = write_notes(tmp_path / "notes.jsonl")
    return {
        "package": (package, "--home", tmp_path / "h", "--request-out", tmp_path / "request"),
        "trust": ("--fingerprint", fingerprint),
        "data": ("--data", notes, *COLUMNS),
    }


def test_join_enrols_adds_the_data_and_sets_budget_and_questions(place, tmp_path):
    said = command("join", *place["package"], *place["trust"], *place["data"], *RULES)
    assert "6 patients" in said
    assert said.splitlines()[-1] == "next, with the operator's answer: undersong-party run --grant FILE"
    party_home = PartyHome(tmp_path / "h")
    allowed = operations.rules.show(tmp_path / "h").allowed
    assert (allowed.total_epsilon, allowed.run_epsilon, allowed.minimum_parties) == (4.0, 2.0, 3)
    assert operations.rules.show(tmp_path / "h").questions["counts"] == "all"
    assert party_home.settings.user_field == "patient"
    request = EnrolmentRequest.parse((tmp_path / "request").read_bytes())
    assert request.fingerprint in said


def test_join_names_every_missing_option_and_makes_nothing(place, tmp_path):
    refusal = command("join", *place["package"], "--json", code=2)
    for flag in ("--fingerprint", "--data", "--epsilon", "--question"):
        assert flag in refusal
    assert not (tmp_path / "h").exists()
    assert not (tmp_path / "request").exists()


def test_join_continues_with_the_first_step_that_is_not_done(place, tmp_path):
    wrong = ("--data", place["data"][1], "--label-field", "no such column")
    command("join", *place["package"], *place["trust"], *wrong, *RULES, code=2)
    request = (tmp_path / "request").read_bytes()
    done = typed(app, "join", *place["package"], *place["data"], *RULES, "--json")
    assert json.loads(done.stdout)["steps"] == {
        "coordinator": "before",
        "data": "now",
        "budget": "now",
        "questions": "now",
    }
    assert (tmp_path / "request").read_bytes() == request, "the operator may have signed it already"
    before = operations.rules.show(tmp_path / "h").allowed
    again = command("join", *place["package"], *place["data"], "--epsilon", 9, "--question", "all")
    assert "the budget stays as it was set before" in again
    assert operations.rules.show(tmp_path / "h").allowed == before


def test_join_asks_at_a_terminal_for_what_no_option_states(place, tmp_path, monkeypatch):
    monkeypatch.setattr(joining.sys, "stdin", Terminal())
    answers = {
        "fingerprint of": place["trust"][1],
        "file or folder": place["data"][1],
        "the texts": "text",
        "the labels": "label",
        "the patients": "patient",
        "epsilon": "4",
        "kinds of questions": "counts, nearest",
    }
    asked = []

    def answer(words, **_):
        (start,) = (start for start in answers if start in words)
        asked.append(start)
        return answers[start]

    monkeypatch.setattr(joining.typer, "prompt", answer)
    joining.join(**{**defaults(), "package": place["package"][0], "home": tmp_path / "h", "request": tmp_path / "r"})
    assert sorted(asked) == sorted(answers)
    found = operations.rules.show(tmp_path / "h")
    assert found.missing == ()
    assert {question for question, part in found.questions.items() if part == "all"} == {"counts", "nearest"}
    assert PartyHome(tmp_path / "h").settings.label_field == "label"


class Terminal:
    def isatty(self):
        return True


def defaults():
    return {parameter.name: parameter.default for parameter in built(app).commands["join"].params}


def test_a_wrong_fingerprint_is_logged_with_the_word_that_differs(place, tmp_path):
    command("init", "alpha", "--home", tmp_path / "h")
    wrong = Authority().package("alpha").fingerprint
    command("join", *place["package"], "--fingerprint", wrong, *place["data"], *RULES, code=2)
    (entry,) = AuditLog(PartyHome(tmp_path / "h").page / FILE_NAME).entries()
    assert entry.what == "enroll refused"
    assert f"word 1, '{wrong.split('-')[0]}', differs" in entry.about
    assert place["trust"][1].split("-")[0] not in entry.about
    assert not PartyHome(tmp_path / "h").coordinator.exists()


@pytest.mark.parametrize("step", ["write_json", "keys.install"])
def test_a_grant_is_installed_again_after_a_full_disk(place, authority, tmp_path, monkeypatch, step):
    home, request = tmp_path / "h", tmp_path / "request"
    command("init", "alpha", "--home", home)
    command("enroll", place["package"][0], *place["trust"], "--request-out", request, "--home", home)
    party_home = PartyHome(home)
    moved = ("moved.example:7443",)
    grant = authority.grant(EnrolmentRequest.parse(request.read_bytes()), addresses=moved)

    def fail(*_):
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(f"undersong_client.consent.trust.{step}", fail)
        with pytest.raises(OSError, match="the disk is full"):
            trust.install(party_home, grant)
    trust.install(party_home, grant)
    assert trust.coordinator(party_home).addresses == moved


def test_join_asks_about_each_kind_of_question_that_statistics_declare():
    assert all(question in joining._QUESTIONS for question in statistics.QUESTIONS)


def test_join_accepts_the_options_of_data_add_budget_set_and_policy_set():
    commands = built(app).commands
    taken = {flag for parameter in commands["join"].params for flag in parameter.opts}
    for group, name in (("data", "add"), ("budget", "set"), ("policy", "set")):
        flags = {flag for parameter in commands[group].commands[name].params for flag in parameter.opts}
        assert {flag for flag in flags if flag.startswith("--")} - taken <= {
            *("--dry-run", "--new-version", "--abandon-runs", "--restore-ledger", "--charge-missing", "--receipts"),
            *("--no-exclude",),
        }
