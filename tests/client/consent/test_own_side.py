"""The officer's sheet: who asks, own figures, whom a column names, delta by the number of patients, the risk of all."""

import json
import re
from dataclasses import replace

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.party_home import HashedEmbedder, command, joined
from tests.doubles.typed import typed
from undersong_client.cli.app import app
from undersong_client.consent import preview
from undersong_client.consent.approvals import Proposals
from undersong_client.consent.sheet import NO_LIST, NO_LIST_AS_SIGNED, Sheet
from undersong_client.home import PartyHome
from undersong_client.storage.own_figures import OwnFigures, delta_of, own_figures, proposed_delta
from undersong_common.models.embedding import Embedder
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_common.privacy.accounting import Gaussian, best_guess
from undersong_common.privacy.impact import cases
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_protocol.agreement import words
from undersong_protocol.agreement.manifest import plan_words

FALL = "tests/client/records/cases/fall.csv"
COLUMNS = ("--text-field", "Notiz", "--label-field", "Strom", "--user-field", "Fall")
# Words that an officer's first screen never has; "1e-" stands only beside its "1 in 100,000".
INNER_WORDS = ("party", "daemon", "grant", "statistic", "chain", "sealed", "releases", "undersong-party", "1e-")


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


def sheet(home, run="spring"):
    value = json.loads(command("preview", run, "--home", home, "--json"))
    page = preview.sheet_page(Sheet.from_json(value))
    return value, [section for section in page.sections if not section.folded]


WHO = {"operator": "North Research Office", "contact": "Mara Holm, 0123 456 78"}


def test_the_sheet_begins_with_who_asks(home):
    proposed(home, task=WHO)
    _, sections = sheet(home)
    name, first = sections[0].figures[0]
    assert name == "What is asked"
    assert first.startswith("North Research Office (Mara Holm, 0123 456 78")
    assert " asks: how many of your records have each label" in first


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        (("budget", "set", "--epsilon", 4, "--delta", "1e-6"), ["plan the run with privacy.delta = 1e-06"]),
        (("budget", "set", "--epsilon", 1, "--delta", "1e-5"), ["plan the run with a smaller privacy.epsilon"]),
        (("policy", "set", "--minimum-parties", 5), ["federation"]),
        (("policy", "set", "--unit", "party"), ["privacy.unit"]),
    ],
)
def test_first_remedy_of_the_sheet_is_a_change_the_operator_can_plan(home, settings, changes):
    command(*settings, "--home", home)
    proposed(home, task=WHO)
    value, sections = sheet(home)
    assert value["objections"]
    assert all(change in value["remedies"][0] for change in changes), value["remedies"]
    assert not any(word in " ".join(value["remedies"]) for word in ("raise", "budget set", "policy set"))
    (refusal,) = [section for section in sections if "REFUSES" in section.title]
    assert refusal.points[-1].startswith("Remedy: ask North Research Office (Mara Holm, 0123 456 78")


def test_a_column_named_like_a_case_is_asked_about(tmp_path):
    home = tmp_path / "party"
    command("init", "alpha", "--home", home)
    said = command("data", "add", FALL, *COLUMNS, "--home", home, code=2)
    assert "--user-is patient" in said
    assert "--user-is case" in said
    assert not PartyHome(home).settings.data
    added = command("data", "add", FALL, *COLUMNS, "--user-is", "case", "--home", home)
    assert "cases; the one with most" in added
    assert "a patient with three cases is protected as three" in " ".join(added.split())
    assert not re.search(r"\busers?\b", added)
    command("data", "add", FALL, *COLUMNS, "--new-version", "--home", home)  # the same column: it was answered
    assert PartyHome(home).settings.user_is == "case"


@pytest.mark.parametrize(("column", "asked"), [("patient", False), ("CaseNo", True), ("hadm_id", True), ("pid", False)])
def test_only_columns_named_like_a_case_are_asked_about(tmp_path, column, asked):
    home, notes = tmp_path / "party", tmp_path / "notes.csv"
    command("init", "alpha", "--home", home)
    notes.write_text(f"text,{column}\na note,1\n", encoding="utf-8")
    command("data", "add", notes, "--user-field", column, "--home", home, code=2 if asked else 0)


def test_sheet_calls_the_unit_a_case_in_every_sentence(home):
    PartyHome(home).change(user_is="case")
    proposed(home)
    _, sections = sheet(home)
    shown = repr(sections)
    assert "a patient with three cases is protected as three" in shown
    assert "whether one case's records were used" in shown
    assert "'cases'" in shown
    assert "user" not in shown.replace("used", "")


def test_the_sheet_shows_the_hospital_s_own_figures(home):
    proposed(home)
    own = dict(next(section for section in sheet(home)[1] if section.title == "Your records").figures)
    assert own["file"].startswith("alpha.jsonl, read 20")
    assert (own["records"], own["patients"], own["rows left out"]) == ("12", "6", "none")
    assert own["labels that the plan knows"] == "those of 100 % of the records"


def test_sheet_says_why_the_risk_of_all_runs_is_less_than_their_sum(home):
    ledger = Ledger.read(home / "ledger.jsonl")
    earlier = Charge("earlier", "00" * 32, "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
    ledger.charge(earlier, at=5.0)
    ledger.send(earlier, "aa" * 32, at=5.0)
    manifest = proposed(home)
    value, sections = sheet(home)
    both = best_guess([Gaussian(4.0), *manifest.plan.charged_events()])
    assert value["cost"]["best_guess_after"] == pytest.approx(both)
    (budget,) = [section for section in sections if section.bar is not None]
    shown = " ".join(budget.sentences)
    risk = dict(sections[0].figures)["The risk of all runs"]
    assert f"right in at most {-int(-100 * both // 1)} of 100 cases" in risk
    is_same = value["privacy"]["delta"] == value["cost"]["delta"]
    assert is_same or "1 in 10,000, which your hospital chose; the promise of this run stands at 1 in" in shown
    assert shown.count(preview.RUNS_TOGETHER) == 1
    assert repr(preview.sheet_page(Sheet.from_json(value))).count(preview.RUNS_TOGETHER) == 1
    before, alone, shown_sum = (
        int(re.search(pattern, shown)[1]) for pattern in (r"before: (\d+) %", r"would use (\d+) %", r"not (\d+) %")
    )
    assert before + alone == shown_sum


@pytest.mark.parametrize(
    ("fewest", "allowed"), [(1, "none"), (2, "only 1, which could subtract its own numbers and see yours")]
)
def test_sheet_shows_the_run_s_number_of_others_beside_the_policy_s(home, fewest, allowed):
    command("policy", "set", "--minimum-parties", fewest, "--home", home)
    proposed(home)
    value, sections = sheet(home)
    shown = repr(sections)
    others = f"at least {value['others']} other hospitals"
    assert value["others"] > fewest - 1
    assert shown.count(others) == 2  # the short sentence, and the policy beside it
    assert f"your policy would also accept a run with {allowed}" in shown
    assert "by your policy" not in shown
    assert words.by_policy(fewest - 1) in value["warnings"]  # as it is signed


def test_sheet_shows_four_risks_side_by_side_in_cases_of_100(home):
    proposed(home)
    value, sections = sheet(home)
    (table,) = [section.table for section in sections if section.title.startswith("The risk in cases of 100")]
    privacy, cost = value["privacy"], value["cost"]
    assert table[0] == ("a guess is right", "this run", "all runs")
    names = ["on average", "in rare cases"]
    assert [row[0] for row in table[1:]] == [*names, *(f"{name}, if all others help" for name in names)]
    assert all(float(rare) <= float(worst) for rare, worst in zip(table[2][1:], table[4][1:], strict=True))
    assert table[1][1:] == tuple(cases(guess) for guess in (privacy["best_guess"], cost["best_guess_after"]))
    assert all(float(average) <= float(rare) for average, rare in zip(table[1][1:], table[2][1:], strict=True))
    assert all(float(average) <= float(worst) for average, worst in zip(table[1][1:], table[3][1:], strict=True))
    assert f"in at most {table[3][1]} of 100 cases" in dict(sections[0].figures)["The risk of this run"]


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (1, "if all others of an opened sum did, and 1 may be all, the guess"),
        (3, "if all others of an opened sum did, and 3 may be all, the guess"),
        (4, "if all others did, the guess"),
    ],
)
def test_the_sheet_says_how_few_helpers_undo_the_promise(home, others, says):
    """Of five hospitals, none of which may help; a sum opens with as few others as are planned."""
    manifest = proposed(home)
    value, _ = sheet(home)
    stored = Sheet.from_json(value)
    assert len(manifest.roster) == 5
    words_of_risk = preview._helper_words(replace(stored, others=others, colluders=0))
    assert says in words_of_risk
    assert ("it lies between" in words_of_risk) == (others > 1)


def test_rounded_risks_that_show_no_saving_are_not_explained():
    assert preview._why_less(0.214, 0.104, 0.312) == []  # 21 % and 10 %, and together 31 %
    assert "Together it is 25 % and not 31 %." in preview._why_less(0.214, 0.104, 0.25)[0]


def test_short_part_of_the_sheet_names_limit_and_steps(home):
    proposed(home)
    value, sections = sheet(home)
    figures = dict(sections[0].figures)
    limit = value["privacy"]["max_per_unit"]
    assert f"Of one patient, at most {limit} record" in figures["What is asked"]
    assert "for any of all 6 patients, of at most 12 in 100,000." in figures["The risk of this run"]
    assert "whatever else somebody wants to know about one patient" in figures["What else could be learned"]
    (steps,) = [section for section in sections if section.title == "What you do, in order"]
    assert steps.points == preview.STEPS
    (choices,) = [section for section in sections if section.title == "What you can do"]
    assert "begins only when all of its hospitals have approved" in choices.points[0]
    assert "a run that has begun" in choices.points[-1]


@pytest.mark.parametrize(
    ("objectors", "told"),
    [
        (None, "your data set records no objections: no list was given"),
        (0, "a list was given; none of it is in the file"),
        (3, "3 in the file, left out"),
    ],
)
def test_sheet_tells_a_missing_objection_list_from_one_without_effect(objectors, told):
    figures = OwnFigures("notes.csv", 0.0, 12, 6, "patient", objectors, {})
    assert dict(figures.rows())["patients who object"] == told


def test_a_data_set_without_a_list_of_objections_says_so(home):
    assert dict(own_figures(PartyHome(home)).rows())["patients who object"] == NO_LIST
    proposed(home)
    value, sections = sheet(home)
    shown = dict(next(section for section in sections if section.title == "Your records").figures)
    assert shown["patients who object"] == NO_LIST
    assert dict(value["own"]["rows"])["patients who object"] == NO_LIST_AS_SIGNED


def test_the_first_screen_says_that_the_time_of_an_answer_is_seen(home):
    proposed(home)
    value, sections = sheet(home)
    assert value["clock_bits"] > 0
    leaves = dict(next(section for section in sections if section.title == "In short").figures)["What leaves"]
    assert "How long an answer takes is seen, too" in leaves


def test_consent_sheet_has_no_word_of_the_implementation(home):
    proposed(home)
    value, sections = sheet(home)
    shown = repr(sections).replace(value["words"], "")  # drawn from a list that holds "chain" and "grant"
    assert [word for word in INNER_WORDS if re.search(rf"\b{word}", shown)] == []


def test_a_sheet_of_an_earlier_version_is_still_shown(home):
    proposed(home)
    value, _ = sheet(home)
    for key in ("operator", "asked", "others", "own", "remedies"):
        del value[key]
    del value["cost"]["best_guess_after"]
    assert "how many of your records have each label" in repr(preview.sheet_page(Sheet.from_json(value)).sections)


def test_a_budget_without_delta_gets_one_by_the_number_of_patients(home):
    command("budget", "set", "--epsilon", 4, "--home", home)
    assert json.loads(command("budget", "show", "--home", home, "--json"))["delta"] == 1e-5


@pytest.mark.parametrize("units", [1, 9_999, 10_000, 10_001, 99_999, 123_456, 10**7])
def test_proposed_delta_is_the_largest_allowed_power_of_ten(units):
    delta = proposed_delta(units)
    assert delta <= 1e-5
    assert delta * 10 * units <= 1 + 1e-9
    assert delta == 1e-5 or delta * 100 * units > 1 - 1e-9


@pytest.mark.parametrize(
    ("patients", "delta", "number"), [(9_000, 1e-5, "number of patients, 9,000"), (None, 1e-6, "records, 20,000")]
)
def test_proposed_delta_follows_patients_and_without_them_records(home, monkeypatch, patients, delta, number):
    many = replace(own_figures(PartyHome(home)), records=20_000, patients=patients)
    monkeypatch.setattr("undersong_client.storage.own_figures.own_figures", lambda _: many)
    proposed_value, sentence = delta_of(PartyHome(home))
    assert proposed_value == delta
    assert sentence.endswith(number)


def test_approve_without_words_shows_the_sheet_and_names_the_rest(home):
    manifest = proposed(home)
    done = typed(app, "approve", "spring", "--home", home, standalone_mode=False)
    assert "how many of your records have each label" in " ".join(done.stdout.split())
    assert done.exception.exit_code == 2
    assert "which plan of run" in str(done.exception)
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    command("approve", "spring", plan_words(manifest.hash), "--home", home)  # the sheet was shown
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"


def test_words_that_do_not_match_are_logged_with_the_word_that_differs(home):
    manifest = proposed(home)
    nine = plan_words(manifest.hash).split()
    command("preview", "spring", "--home", home)
    command("approve", "spring", *nine[:4], "wrong", *nine[5:], "--home", home, code=3)
    (entry,) = [each for each in AuditLog(PartyHome(home).page / FILE_NAME).entries() if each.what == "approve refused"]
    assert "word 5, 'wrong', differs" in entry.about
    assert nine[4] not in entry.about  # nothing to copy


def test_missing_grant_file_is_refused_with_whom_to_ask(home, tmp_path):
    said = command("enroll", "--grant", tmp_path / "not-here.grant", "--home", home, code=2)
    assert "the operator's answer is not here yet" in said
    assert "Nothing is lost" in said
