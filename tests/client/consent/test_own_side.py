"""The officer's sheet: who asks, own figures, whom a column names, delta by the number of patients, the risk of all."""

import json
import math
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder, command, joined, write_notes
from tests.doubles.sheets import blank_sheet
from tests.doubles.typed import typed
from undersong_client.cli.app import app
from undersong_client.consent import budget_sections, choice_sections, preview, risk_sections
from undersong_client.consent.approvals import LAPSES, OTHER_DATA, Proposal, Proposals
from undersong_client.consent.leaving_sections import left_alone_words
from undersong_client.consent.people import PersonalDecision
from undersong_client.consent.policy import HospitalPolicy
from undersong_client.consent.question_sections import ALL_QUESTIONS
from undersong_client.consent.run_terms import REJECT_IS_FINAL, WITHDRAWAL
from undersong_client.consent.sheet import (
    MOST_NAMES,
    NO_LIST,
    NO_LIST_AS_SIGNED,
    NOTHING_BESIDE,
    BudgetEffect,
    FinalCost,
    NamedParty,
    OwnRecords,
    ReleaseGroup,
    RunEnd,
    Sheet,
    StatedTask,
    Surroundings,
    UnitPromise,
)
from undersong_client.home import Declared, PartyHome
from undersong_client.operations import outbox, runs
from undersong_client.storage import datasets
from undersong_client.storage.own_figures import OwnFigures, delta_of, own_figures, proposed_delta
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import Embedder
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_common.privacy.accounting import Gaussian, best_guess, best_guess_of, epsilon, gaussian_mu
from undersong_common.privacy.impact import NO_PROTECTION, cases, certainty, odds_factor
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget, Charge
from undersong_protocol import limits
from undersong_protocol.agreement import receipt, words
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest, plan_words
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram

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


def test_run_cost_computes_each_figure_from_the_charges_of_its_name(tmp_path):
    delta = 1e-5
    ledger = Ledger.open(tmp_path / "ledger.jsonl", "data", Budget(30.0, delta))
    earlier = Charge("winter", "aa" * 32, "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
    ledger.charge(earlier, at=1.0)
    ledger.send(earlier, "bb" * 32, at=1.0)
    cost = preview._compute_cost(ledger, Charge("spring", "cc" * 32, "", 0, (Gaussian(3.0),), alone=(Gaussian(1.5),)))
    both = [Gaussian(4.0), Gaussian(3.0)]
    expected = BudgetEffect(
        delta=delta,
        budget=30.0,
        before=epsilon([Gaussian(4.0)], delta),
        alone=epsilon([Gaussian(3.0)], delta),
        after=epsilon(both, delta),
        best_guess_after=best_guess(both),
        left_after=30.0 - epsilon(both, delta),
        worst_before=epsilon([Gaussian(2.0)], delta),
        worst_after=epsilon([Gaussian(2.0), Gaussian(1.5)], delta),
    )
    assert asdict(cost) == pytest.approx(asdict(expected))
    assert len(set(asdict(expected).values())) == 9


def test_every_epsilon_in_the_specialist_section_states_its_delta():
    cost = BudgetEffect(
        delta=1e-3,
        budget=30.0,
        before=2.0,
        alone=1.0,
        after=2.5,
        left_after=27.5,
        worst_before=4.0,
        worst_after=6.0,
    )
    stored = blank_sheet(cost=cost, privacy=replace(blank_sheet().privacy, delta=1e-5))
    figures = [text for _, text in preview._figure_section(stored).figures if text.startswith("epsilon")]
    assert len(figures) == 5
    assert [text for text in figures if not re.match(r"epsilon .* at delta (1e-05|0\.001)[.\s]", text)] == []
    assert sum("at delta 0.001" in text for text in figures) == 3


def test_sheet_s_privacy_promise_has_the_figures_of_the_plan():
    privacy = Privacy(4.0, 1e-5, "user", max_per_unit=7, max_records=900)
    plan = SimpleNamespace(
        privacy=privacy, charged_events=lambda: [Gaussian(4.0)], epsilon_if_all_others_collude=lambda: 11.0
    )
    guess = best_guess([Gaussian(4.0)])
    assert preview._compute_promise(SimpleNamespace(plan=plan), "case") == UnitPromise(
        epsilon=4.0,
        delta=1e-5,
        unit="user",
        unit_word="case",
        max_per_unit=7,
        max_records=900,
        best_guess=guess,
        epsilon_if_all_others_collude=11.0,
        stopping_refunds=True,
    )


FINGERPRINT = "0001-0203-0405-0607-0809-0a0b-0c0d-0e0f"


def test_a_sheet_states_each_number_of_its_plan_under_its_name():
    roster = tuple(Member(name, bytes([place + 1]) * 32) for place, name in enumerate("abcdefg"))
    sums = [
        SumRequest("labels", LabelHistogram(3), first_rung_s=0.04),
        SumRequest("more", LabelHistogram(5), first_rung_s=0.16),
    ]
    quorum = Quorum(7, 6, 1, 3, post_quantum=False)
    plan = plan_sums(sums, Privacy(4.0, 1e-5), quorum)
    manifest = Manifest("spring", {"name": "t", "labels": ["a", "b"]}, "wasp", "00" * 32, roster, plan)
    side = preview.PartySide(
        "b",
        roster[1].identity,
        "00" * 32,
        HospitalPolicy(required_parties=(f"c={FINGERPRINT}",)),
        ("a caution",),
        ("a warning",),
        has_labels=True,
        teacher_model="",
        coordinator=SimpleNamespace(name="clinics", fingerprint="00-11"),
        own=OwnRecords("", ()),
        drill=False,
    )
    stated = preview.make_sheet(manifest, side, None)
    assert (stated.run, stated.manifest, stated.method, stated.party) == (
        "spring",
        manifest.hash.hex(),
        "wasp",
        "b",
    )
    assert (stated.tolerated_dropouts, stated.colluders, stated.post_quantum) == (1, 3, False)
    assert stated.others == quorum.fewest - 1
    assert [party.name for party in stated.parties] == list("abcdefg")
    assert stated.parties[1].fingerprint == party_fingerprint("b", roster[1].identity)
    assert (stated.first_rung_s, stated.clock_bits) == (0.04, limits.bits(0.04))
    assert stated.numbers_in_all == 8
    assert (stated.required_parties, stated.labels_missing) == (("c",), False)
    assert preview.make_sheet(manifest, replace(side, has_labels=False), None).labels_missing
    assert stated.coordinator == NamedParty("clinics", "00-11")
    assert (tuple(stated.cautions), tuple(stated.warnings)) == (("a caution",), ("a warning",))
    assert len(stated.objections) == len(stated.remedies) > 0
    assert all(problem not in stated.remedies for problem in stated.objections)


@pytest.mark.parametrize("refunds", [True, False])
def test_sheet_of_an_ended_run_states_the_epsilon_that_was_charged(refunds):
    planned = replace(blank_sheet().privacy, stopping_refunds=refunds)
    ended = RunEnd(FinalCost(epsilon=0.5, spent=0.7, releases=3, delta=1e-7), None)
    as_it_ran = risk_sections._promise_as_it_ran(replace(blank_sheet(), privacy=planned, ended=ended))
    guess = best_guess_of(0.5, 1e-7, one_gaussian=True) if refunds else planned.best_guess
    assert as_it_ran == replace(planned, epsilon=0.5, delta=1e-7, best_guess=guess)


def test_sheet_shows_the_current_state_of_its_request():
    person = PersonalDecision("Ada", "IT", "", "page", "approved", 6.0, "")
    request = Proposal(
        run="first",
        manifest="ab" * 32,
        received_s=1.0,
        number=3,
        revises="winter",
        changes=("epsilon 1 -> 2",),
        replaced=True,
        people=(person,),
    )
    open_sheet = replace(blank_sheet(), objections=("too few hospitals",))
    now = preview.with_request(open_sheet, request, is_signed=True, end=None)
    assert (now.number, now.revises, now.changes, now.replaced) == (3, "winter", ("epsilon 1 -> 2",), True)
    assert (now.people, now.as_signed, now.ended) == ((person,), True, None)
    assert now.words == plan_words(bytes.fromhex("ab" * 32))
    assert now.objections == ("too few hospitals",)
    end = RunEnd(None, None)
    ended = preview.with_request(open_sheet, request, is_signed=False, end=end)
    assert (ended.ended, ended.objections, ended.as_signed) == (end, (), False)


def test_budget_shares_are_those_before_the_run_of_it_and_after_it():
    figures = {"delta": 1e-5, "budget": 8.0, "best_guess_after": 0.6, "left_after": 4.0}
    worst = {"worst_before": 3.0, "worst_after": 5.0}
    cost = BudgetEffect(**figures, **worst, before=1.0, alone=2.0, after=4.0)
    assert budget_sections.budget_shares(cost, 8.0) == (0.125, 0.25, 0.5)
    assert budget_sections.budget_shares(replace(cost, alone=None), 8.0) == (0.125, math.inf, 0.5)


def test_choice_sections_list_the_steps_before_the_choices():
    sections = choice_sections.choice_sections(blank_sheet(), NOTHING_BESIDE)
    assert [section.title for section in sections] == [choice_sections.IN_ORDER, "What you can do"]
    choices = [point.partition(" ")[0].rstrip(":,") for point in sections[1].points]
    assert [choices[0], choices[2], choices[4]] == ["Approve", "Refuse", "Ask"]


def test_first_section_of_the_sheet_names_the_operator_who_asks(home):
    proposed(home, task=WHO)
    _, sections = sheet(home)
    asked = sections[0]
    assert asked.title == "What is asked"
    assert asked.sentences[0].startswith(
        "North Research Office (Mara Holm, 0123 456 78), the operator, asks: how many of your records have each label;"
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        (("budget", "set", "--epsilon", 4, "--delta", "1e-6"), ["plan the run with privacy.delta = 1e-06"]),
        (
            ("budget", "set", "--epsilon", 1, "--delta", "1e-5"),
            ["plan the run with a smaller epsilon (privacy.epsilon)"],
        ),
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


def test_user_column_named_like_a_case_number_needs_option_user_is(tmp_path):
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
def test_only_user_columns_named_like_a_case_number_need_an_answer(tmp_path, column, asked):
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
    own = dict(next(section for section in sheet(home)[1] if section.title.startswith("Your records")).figures)
    assert own["file"].startswith("alpha.jsonl, read 20")
    assert (own["records"], own["patients"], own["rows left out"]) == ("12", "6", "none")
    assert own["records with a label that the plan knows"] == "100 %"


@pytest.mark.heavy
@pytest.mark.parametrize("period", ["January 2024 to June 2025", ""])
def test_sheet_names_the_stated_period_of_the_records(home, period):
    data_add = ("data", "add", home.parent / "alpha.jsonl", "--label-field", "label", "--user-field", "patient")
    command(*data_add, *(("--period", period) if period else ()), "--home", home)
    proposed(home)
    _, sections = sheet(home)
    own = dict(next(section for section in sections if section.title.startswith("Your records")).figures)
    assert own["period that they cover"] == (period or preview.NO_PERIOD)
    (steps,) = [section for section in sections if section.title == "What you do, in order"]
    assert ("ask which period" in " ".join(steps.points)) == (not period)
    assert json.loads(command("data", "show", "--home", home, "--json"))["period"] == period
    command(*data_add, "--new-version", "--home", home)  # as the columns: what is not stated again is not kept
    assert not PartyHome(home).settings.period


@pytest.mark.parametrize("period", ["June\n2025", "x" * 101, "a\u202eb"])
def test_stated_period_that_is_long_or_not_one_line_is_refused(period):
    with raises(ConfigurationError, "period-no-line"):
        Declared("notes.jsonl", period=period)


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
    folded = repr(preview._figure_section(Sheet.from_json(value)))
    of_all = re.search(
        r"1 in 100 becomes at most (\S+) in 100, and by all runs together at most (\S+) in", repr(sections)
    )
    this_run, all_runs = map(float, of_all.groups())
    odds = odds_factor(epsilon([Gaussian(4.0), *manifest.plan.charged_events()], 1e-5), 1e-5)
    assert this_run < all_runs == math.ceil(100 * odds / (odds + 99))
    risk = dict(sections[1].figures)["The risk of all runs"]
    assert f"on average, right in at most {-int(-100 * both // 1)} of 100 cases" in risk
    assert value["privacy"]["delta"] < value["cost"]["delta"]
    assert "1 in 10,000, which your hospital chose; the promise of this run is computed with 1 in" in folded
    assert f"{budget_sections.RUNS_TOGETHER}'" in folded
    assert repr(preview.sheet_page(Sheet.from_json(value))).count(budget_sections.RUNS_TOGETHER) == 1
    before, after = map(float, re.search(r"before: ([\d.]+) % .* after this run: ([\d.]+) %;", shown).groups())
    budget_epsilon = value["cost"]["budget"]
    assert before == pytest.approx(100 * value["cost"]["before"] / budget_epsilon, abs=0.051)
    assert after == pytest.approx(100 * value["cost"]["after"] / budget_epsilon, abs=0.051)
    guess_before = cases(best_guess([Gaussian(4.0)]))
    assert f"of 100 cases ({guess_before} before this one); with bad luck, in up to" in risk


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fewest", "allowed"), [(1, "none"), (2, "only 1, which could subtract its own numbers and see yours")]
)
def test_sheet_shows_run_s_and_policy_s_minimum_of_other_hospitals(home, fewest, allowed):
    command("policy", "set", "--minimum-parties", fewest, "--home", home)
    proposed(home)
    value, sections = sheet(home)
    shown = repr(sections)
    others = f"at least {value['others']} other hospitals"
    assert value["others"] > fewest - 1
    assert shown.count(others) == 2  # the short sentence, and the policy beside it; the steps name them otherwise
    assert f"your policy would also accept a run with {allowed}" in shown
    assert "by your policy" not in shown
    assert words.by_policy(fewest - 1) in value["warnings"]  # as it is signed


def test_each_figure_of_the_risk_appears_once_in_the_sheet_s_short_part(home):
    manifest = proposed(home)
    value, sections = sheet(home)
    privacy, cost = value["privacy"], value["cost"]
    in_short = dict(sections[1].figures)
    this_run, all_runs = in_short["The risk of this run"], in_short["The risk of all runs"]
    assert f"right in at most {cases(privacy['best_guess'])} of 100 cases" in this_run
    sure = cases(certainty(privacy["epsilon"], privacy["delta"]))
    rarely, rarer = (cases(certainty(epsilon(manifest.plan.charged_events(), d), d)) for d in (0.005, 0.0005))
    bad_luck = f"With bad luck in this one run, in up to {sure}, but over {rarely} for one given patient in at most"
    assert f"{bad_luck} 1 of 100 runs. In at most 2 of 100,000 such runs (the excepted" in this_run
    assert (
        "excepted runs; for at least one of all 6 patients, 1 of 8,333 runs), nothing is promised. This holds only"
        " while" in this_run
    )
    (meaning,) = [section for section in sections if section.title == "What the figures of the risk mean"]
    assert (
        "Each of these shares is of one given patient: for somebody among all 6 patients, this run's guess may be over"
        f" {rarely} in at most 1 of 16 runs and over {rarer} in at most 1 of 166 runs." in " ".join(meaning.sentences)
    )
    assert "From all runs over these records (none before this one) and" in all_runs
    assert all_runs.endswith(  # the first run, at its own delta, though the budget has a larger one
        f"; with bad luck, in up to {sure}. The same condition holds."
    )
    assert cost["delta"] > privacy["delta"]
    alone = cases(best_guess(manifest.plan.alone_events()))
    (more_help,) = [section for section in sections if section.title == risk_sections.MORE_HELP]
    guess_of_all = cases(cost["best_guess_after"])
    assert more_help.table[1] == (
        "at most 1 other",
        cases(privacy["best_guess"]),
        sure,
        guess_of_all,
        sure,
    )
    assert more_help.table[-1][:2] == ("all others", alone)
    shown = repr(sections)
    assert shown.count("on average, right in at") == 2  # of all runs; the budget has the other
    assert shown.count(f"{risk_sections.OVER_THE_NOISE}, right in at") == 1
    assert "unlucky" not in shown


@pytest.mark.parametrize(
    ("delta", "says"),
    [
        (1e-5, "outside at most 2 of 100,000 such series (for at least one of all 6 patients, 1 of 8,333 runs)"),
        (1e-2, "(for at least one of all 6 patients, 1 of 8 runs, because your hospital's budget counts with 1 in"),
        (1e-1, "(for all 6 patients together, nothing is promised, because your hospital's budget counts with"),
    ],
)
def test_large_delta_of_the_budget_is_explained_beside_the_risk(home, delta, says):
    """The runs are no single Gaussian here, so that their figures hold at the budget's delta alone."""
    proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    cost = replace(stored.cost, delta=delta, best_guess_after=0.9)
    ((_, of_all),) = risk_sections.risk_of_all(
        replace(stored, cost=cost, privacy=replace(stored.privacy, delta=1e-6)), NOTHING_BESIDE
    )
    assert says in of_all


def bad_luck_words(stored):
    (meaning,) = risk_sections.meaning_section(stored)
    return " ".join(meaning.sentences)


def test_sheet_computes_the_chance_of_bad_luck_by_the_bound_s_function(home):
    ledger = Ledger.read(home / "ledger.jsonl")
    earlier = Charge("earlier", "00" * 32, "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
    ledger.charge(earlier, at=5.0)
    ledger.send(earlier, "aa" * 32, at=5.0)
    manifest = proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    this_run = [Gaussian(1.0 / gaussian_mu(stored.privacy.epsilon, stored.privacy.delta))]
    every_run = [Gaussian(4.0), *manifest.plan.charged_events()]
    assert stored.privacy.stopping_refunds
    said = re.findall(r"surer than (\S+) of 100 cases in at most 1 of (\S+) (runs|series)", bad_luck_words(stored))
    assert said == [
        (cases(certainty(epsilon(events, share / 2), share / 2)), shown, counted)
        for events, counted in ((this_run, "runs"), (every_run, "series"))
        for share, shown in ((0.01, "100"), (0.001, "1,000"))
    ]
    assert f"but over {said[0][0]} for one given patient in at most 1 of 100 runs." in risk_sections.risk_words(stored)
    assert "with noise of its own: at most 2 of 100,000 series are excepted, and a guess is surer" in bad_luck_words(
        stored
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stopping_refunds": False}, "surer outside the excepted runs. How often one comes near it, these figures do"),
        ({"delta": 0.0}, "whatever the records are: no guess is surer."),
    ],
)
def test_sheet_says_where_the_chance_of_bad_luck_is_not_computed(home, changes, says):
    proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    assert says in bad_luck_words(replace(stored, cost=None, privacy=replace(stored.privacy, **changes)))


def table_of(page):
    (section,) = [section for section in page.sections if section.title == risk_sections.MORE_HELP]
    return section.table


def test_sheet_states_the_risk_of_one_colluder_beyond_the_promise(home):
    ledger = Ledger.read(home / "ledger.jsonl")
    earlier = Charge("earlier", "00" * 32, "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
    ledger.charge(earlier, at=5.0)
    ledger.send(earlier, "aa" * 32, at=5.0)
    manifest = proposed(home)
    preview_of_run = runs.preview(home, "spring", checkpoints=home / "checkpoints")
    events = manifest.plan.events_with(2)
    right, sure = cases(best_guess(events)), cases(certainty(epsilon(events, 1e-5), 1e-5))
    of_all = cases(best_guess([*events, Gaussian(2.0)]))
    _, one_helps, two_help, all_help = table_of(preview_of_run.page)
    assert two_help[:4] == ("2 others", right, sure, of_all)
    for column in range(1, 5):
        assert float(one_helps[column]) < float(two_help[column]) < float(all_help[column])
    stored = preview_of_run.sheet
    unlimited = replace(stored, privacy=replace(stored.privacy, epsilon_if_all_others_collude=None))
    assert table_of(preview.sheet_page(unlimited))[-1][1:] == ("nothing is promised",) * 4
    without_budget = preview.sheet_page(replace(stored, cost=None), preview_of_run.surroundings)
    assert {len(row) for row in table_of(without_budget)} == {3}


def test_no_worst_case_is_stated_where_the_promise_holds_against_all(home):
    proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    everybody = len(stored.parties) - 1
    more_help = f"title='{risk_sections.MORE_HELP}', "
    assert more_help in repr(preview.sheet_page(stored))
    assert more_help not in repr(preview.sheet_page(replace(stored, colluders=everybody)))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("others", "colluders", "says"),
    [
        (
            1,
            0,
            "The figures of 1 to 3 others lie between the last two rows. One that is alone with you in a sum counts",
        ),
        (
            3,
            0,
            "If 1 hospital does not answer, only 3 others are in a sum with you: the last row then holds if these 3",
        ),
        (
            2,
            1,
            "The figures of 2 to 3 others lie between the last two rows. If 2 hospitals do not answer, only 2 others",
        ),
        (4, 2, "on average and with bad luck. The figures of 3 others lie between the last two rows."),
        (4, 3, "on average and with bad luck."),
    ],
)
def test_sheet_says_how_many_colluders_undo_the_promise(home, others, colluders, says):
    """Of five hospitals, of which a sum opens with as few others as are planned."""
    proposed(home)
    stored = replace(Sheet.from_json(sheet(home)[0]), others=others, colluders=colluders)
    (more_help,) = risk_sections.more_help(stored, NOTHING_BESIDE)
    assert says in more_help.sentences[0]
    (with_row,) = risk_sections.more_help(stored, Surroundings(one_more=(0.7, 0.9)))
    assert f"The figures of {colluders + 1}" not in with_row.sentences[0]
    assert more_help.table[-1][0] == "all others"
    words_of_risk = risk_sections.helper_words(stored)
    assert ("guesses for itself" in words_of_risk) == (colluders == 0)


def test_sheet_of_an_ended_run_states_the_risk_if_all_others_helped(home):
    proposed(home)
    ended = replace(Sheet.from_json(sheet(home)[0]), ended=RunEnd(None, None))
    assert "If all others helped, a guess would, on average, be right in at most" in risk_sections.helper_words(ended)
    assert risk_sections.more_help(ended, NOTHING_BESIDE) == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("largest", "worst", "says"),
    [
        (8.0, 3.9, ""),
        (8.0, 6.0, "all runs together would use 150 % of your budget."),
        (4.0, 6.0, "150 % of your budget, and this run alone 183 % of the most that your policy allows for one run."),
        (4.0, None, "operator, this run alone 183 % of the most"),
    ],
)
def test_budget_section_says_when_worst_case_exceeds_budget_or_policy(home, largest, worst, says):
    """The worst case of this run alone has epsilon 7.33; the budget is 4."""
    proposed(home)
    value, _ = sheet(home)
    value["cost"]["worst_after"] = worst
    page = preview.sheet_page(Sheet.from_json(value), Surroundings(("winter", "spring"), largest))
    (budget,) = [section for section in page.sections if section.bar is not None]
    said = [sentence for sentence in budget.sentences if sentence.startswith("Budget and policy do not limit")]
    assert len(said) == bool(says)
    assert all(says in sentence for sentence in said)


def test_budget_section_names_the_runs_before_this_one(home):
    ledger = Ledger.read(home / "ledger.jsonl")
    for run in ("autumn", "winter"):
        charge = Charge(run, "00" * 32, "votes", 0, (Gaussian(9.0),), alone=(Gaussian(5.0),))
        ledger.charge(charge, at=5.0)
        ledger.send(charge, "aa" * 32, at=5.0)
    manifest = proposed(home)
    before = command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    signed_s = Proposals(PartyHome(home)).find("spring").decided_s
    later = Charge("later", "11" * 32, "votes", 0, (Gaussian(9.0),), alone=(Gaussian(5.0),))
    ledger = Ledger.read(home / "ledger.jsonl")
    ledger.charge(later, at=signed_s + 1.0)
    ledger.send(later, "bb" * 32, at=signed_s + 1.0)
    for shown in (before, command("preview", "spring", "--home", home)):
        assert "% (by 'autumn', 'winter': Requests has the sheets). Used after this run: " in shown
        assert "From all runs over these records ('autumn', 'winter') and this one together" in " ".join(shown.split())


@pytest.mark.heavy
@pytest.mark.parametrize("has_list", [False, True])
def test_sheet_says_who_approved_earlier_runs_and_their_objection_lists(home, has_list):
    if has_list:
        objections = home.parent / "objections.txt"
        objections.write_text("nobody-here\n")
        columns = ("--label-field", "label", "--user-field", "patient", "--home", home)
        command("data", "add", home.parent / "alpha.jsonl", "--exclude", objections, "--despite-cautions", *columns)
    earlier = proposed(home, run="winter")
    command("preview", "winter", "--home", home)
    command("approve", "winter", plan_words(earlier.hash), "--name", "Ada Weller", "--role", "IT", "--home", home)
    ledger = Ledger.read(home / "ledger.jsonl")
    for run in ("autumn", "winter"):
        charge = Charge(run, earlier.hash.hex(), "votes", 0, (Gaussian(9.0),), alone=(Gaussian(5.0),))
        ledger.charge(charge, at=5.0)
        ledger.send(charge, "aa" * 32, at=5.0)
    proposed(home)
    shown = " ".join(command("preview", "spring", "--home", home).split())
    assert (
        "Before this run: of 'autumn', no approval is stored here; 'winter' was approved by Ada Weller (role, as typed:"
        " IT) on 20" in shown
    )
    end = "; it has not ended, as far as is known here."
    noted = f"objections then: a list was given; none of it is in the file{end}"
    assert (noted in shown, f"its sheet names no list of objections{end}" in shown) == (has_list, not has_list)
    assert choice_sections.READ_EARLIER in shown


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"approval": "each"}, "one person; nobody has decided yet. IT can approve without you, by a command."),
        (
            {"approval": "each", "two_people": True},
            "two people: a privacy officer and one for IT; nobody has decided yet. One of them alone approves nothing.",
        ),
        (
            {"approval": "standing"},
            "nobody: every run within the policy is signed by itself. No person is asked before it;",
        ),
    ],
)
def test_sheet_says_who_decides_by_the_rule_of_the_policy(changes, says):
    policy = HospitalPolicy(**changes)
    stored = blank_sheet(two_people=policy.two_people)
    page = preview.sheet_page(stored, Surroundings(is_standing=policy.approval == "standing", is_undecided=True))
    answers = dict(page.sections[1].figures)
    assert answers["Who decides here"].startswith(
        f"By your hospital's policy (its rules in this software, Undersong), {says}"
    )
    assert policy.deciders in answers["Who decides here"]
    names = list(answers)
    assert names.index("Who decides here") < names.index("What leaves")
    decided = preview.sheet_page(replace(stored, as_signed=True))
    assert "Who decides here" not in dict(decided.sections[1].figures)


@pytest.mark.parametrize(
    ("writers", "says"),
    [
        (("one (a language model)", "two"), "programs that write invented texts;"),
        (
            (f"pool ({words.WRITTEN_BEFORE})",),
            "programs that take texts from a file of texts that were written before;",
        ),
        (
            ("one", f"pool ({words.WRITTEN_BEFORE})"),
            "programs that write invented texts and programs that take texts from a file of texts that were written"
            " before;",
        ),
        (None, "programs that give texts;"),
    ],
)
def test_sheet_says_if_generators_write_texts_or_take_them_from_files(writers, says):
    task = StatedTask("triage", None, None, None, None, writers, None)
    page = preview.sheet_page(blank_sheet(task=task))
    assert dict(page.sections[0].figures)["the writers"] == f"{says} the answers steer them"
    unused = preview.sheet_page(blank_sheet(task=task, ended=RunEnd(None, None)))
    assert dict(unused.sections[1].figures)["the writers"] == says.removesuffix(";")
    shown = "\n".join(page.lines())
    assert ("invented texts" in shown) == ("write invented texts" in says)


def test_sheet_with_delta_zero_mentions_no_runs_without_a_promise(home):
    proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    page = preview.sheet_page(replace(stored, privacy=replace(stored.privacy, delta=0.0)))
    risk = dict(page.sections[1].figures)["The risk of this run"]
    assert "With bad luck in this one run, in up to" in risk
    assert "nothing is promised" not in risk
    assert "the promise of this run is computed with no such chance" in repr(page)


@pytest.mark.parametrize(
    ("hospitals", "is_signed", "says"),
    [
        (1, False, "once your hospital approves. Requests"),
        (2, False, "when the last hospital approves, perhaps yours. Requests"),
        (12, True, "when the last hospital approves. Requests"),
    ],
)
def test_sheet_says_after_whose_approval_the_run_begins(hospitals, is_signed, says):
    parties = tuple(NamedParty(f"h{number}", f"{number:04}-print") for number in range(hospitals))
    stored = blank_sheet(party="h0", parties=parties, as_signed=is_signed, tolerated_dropouts=0)
    undone = dict(preview.sheet_page(stored).sections[1].figures)["What can be undone"]
    assert undone.startswith(f"The run begins {says}")


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (0, "nothing about records."),
        (1, "a label."),
        (3, "a label; b; and c."),
        (5, "a label; b; c; and 2 more, below."),
    ],
)
def test_sheet_names_three_questions_and_lists_each_once_below(count, says):
    asked = ["a label", "b", "c", "how many are long (by the plan), and by how much", "e"][:count]
    task = StatedTask("triage", None, ("good", "bad"), "teaching", None, None, None)
    page = preview.sheet_page(blank_sheet(asked=asked, task=task))
    section = page.sections[0]
    assert section.sentences == (f"The operator asks: {says}",)
    listed = [section.points for section in page.sections if section.title == ALL_QUESTIONS]
    assert listed == [tuple(asked)] * (count > 0)
    assert repr(page).count("how many are long") == (count == 5)
    assert dict(section.figures)["for what"] == "“teaching”"
    assert ("a label" in dict(section.figures)) == (count > 0)


def test_questions_have_examples_of_the_plan_s_own_labels(home):
    proposed(home)
    _, sections = sheet(home)
    (more,) = [section for section in sections if section.title.startswith("More on what is asked")]
    assert dict(more.figures)["For example"] == "how many of your records are labelled good."


@pytest.mark.parametrize("ended", [None, RunEnd(None, None)])
def test_operator_s_fingerprint_appears_once_on_a_sheet(ended):
    stored = blank_sheet(coordinator=NamedParty("one", "c0c0-print"), ended=ended)
    assert repr(preview.sheet_page(stored)).count("c0c0-print") == 1


def test_sheet_describes_generators_of_one_kind_only_once():
    writers = ("handbook (an n-gram model)", "mixed (an n-gram model)", "one (a language model)", "two")
    assert preview._join_writers(writers) == "handbook, mixed (each an n-gram model); one (a language model); two"


def test_only_the_specialist_part_names_the_kind_of_each_model():
    writers = ("handbook (a small program (an n-gram model), run by the operator)", "two")
    task = StatedTask("triage", None, None, None, None, writers, None)
    stored = blank_sheet(task=task)
    plain, complete = (dict(preview.purpose(stored, is_complete=is_complete).figures) for is_complete in (False, True))
    assert (
        plain["who writes the texts"]
        == f"handbook (a small program, run by the operator); two. {preview.NAMES_OF_WRITERS}"
    )
    assert complete["who writes the texts"] == f"{writers[0]}; two. {preview.NAMES_OF_WRITERS}"
    assert plain["how many texts"] == preview.NO_NUMBER_OF_TEXTS
    assert preview.NAMES_OF_WRITERS not in repr(preview.purpose(blank_sheet()))
    assert dict(preview._figure_section(stored).figures)["who writes the texts"] == f"{writers[0]}; two"
    assert "who runs it" in complete.keys() - plain.keys()


@pytest.mark.parametrize(
    ("hospitals", "others", "calls"),
    [
        (1, 0, ""),
        (2, 1, "the other hospital ("),
        (3, 1, "both other"),
        (4, 1, "all 3 other"),
        (3, 2, "1 of the other"),
        (40, 9, "as many"),
    ],
)
def test_sheet_asks_to_call_so_many_hospitals_that_each_sum_needs_one(hospitals, others, calls):
    parties = tuple(NamedParty(f"h{number}", f"{number:04}-print") for number in range(hospitals))
    stored = blank_sheet(party="h0", parties=parties, others=others, coordinator=NamedParty("one", "c0c0-print"))
    *_, compare, _ = choice_sections.steps(stored, Surroundings(is_standing=True))
    assert f"with the operator{f' and with {calls}' if calls else '. If'}" in compare
    _, own_row, operator_row, *other_rows = choice_sections.calls_section(stored).table
    assert own_row[:2] == ("you (h0)", "0000-print")
    assert operator_row[:2] == ("the operator", "c0c0-print")
    assert bool(other_rows) == bool(calls)


@pytest.mark.parametrize(
    ("hospitals", "others", "colluders", "says"),
    [
        (5, 3, 1, "the one that you do not call as one that helps the operator: the figures of the risk then allow no"),
        (6, 3, 2, "the 2 that you do not call as ones that help the operator: the figures of the risk then allow no"),
        (6, 3, 3, "the 2 that you do not call as ones that help the operator: the figures of the risk then allow at"),
    ],
)
def test_sheet_counts_an_uncalled_hospital_as_helping_the_operator(hospitals, others, colluders, says):
    parties = tuple(NamedParty(f"h{number}", f"{number:04}-print") for number in range(hospitals))
    stored = blank_sheet(party="h0", parties=parties, others=others, colluders=colluders)
    assert choice_sections.count_uncalled(stored).startswith(f"Count {says}")


@pytest.mark.parametrize("hospitals", [2, 12, 13, 1000])
def test_sheet_shows_fingerprints_beside_the_words_to_read_aloud(hospitals):
    parties = tuple(NamedParty(f"h{number}", f"{number:04}-print") for number in range(hospitals))
    stored = blank_sheet(party="h0", parties=parties, others=1, coordinator=NamedParty("one", "c0c0-print"))
    page = preview.sheet_page(stored)
    shown = [section for section in page.sections if not section.folded]
    (place,) = [place for place, section in enumerate(shown) if section.title == preview.WORDS]
    rows = shown[place + 1].table[1:]
    assert [row[1] for row in rows[:2]] == ["0000-print", "c0c0-print"]
    is_short = hospitals <= MOST_NAMES
    named_rows = [row for row in rows if row[1].endswith("-print")]
    assert len(named_rows) == (1 + hospitals if hospitals <= MOST_NAMES + 1 else 2)
    assert all(row[3:] == ("yes / no",) * 3 for row in rows[1:])
    folded = [section.columns for section in page.sections if section.folded and section.columns]
    assert [len(columns) for columns in folded] == ([] if is_short else [hospitals])


@pytest.mark.parametrize(
    ("changes", "is_standing", "says"),
    [
        ({"two_people": False}, False, "while your policy stays as it is, one person, you or IT, can approve that one"),
        ({}, False, "it needs both approvals again"),
        ({}, True, "your policy, as it is, would approve it without a person"),
    ],
)
def test_sheet_says_what_a_rejection_binds_under_each_policy(changes, is_standing, says):
    page = preview.sheet_page(blank_sheet(**changes), Surroundings(is_standing=is_standing))
    (choices,) = [section for section in page.sections if section.title == "What you can do"]
    (final,) = [point for point in choices.points if point.startswith(REJECT_IS_FINAL)]
    assert says in final


@pytest.mark.parametrize(
    ("publication", "says"),
    [
        (None, []),
        ("Our page; contact: desk", []),
        ("Our page; licence: CC0; contact: desk", ["as the licence (CC0) allows"]),
        ("Our page; made by: Nordbrook; contact: desk", []),
        (
            "Our page; licence: CC0; made by: five clinics.",
            ["the licence (CC0)", "in the name of (the operator's words): five clinics; ask"],
        ),
    ],
)
def test_sheet_states_licence_and_other_publishers_before_the_decision(publication, says):
    task = StatedTask("triage", None, None, None, publication, None, None)
    stored = blank_sheet(task=task, operator="Nordbrook (+44 20)")
    points = [point for point in _points_for_you(stored) if point.startswith("the texts are published")]
    assert len(points) == len(says)
    assert all(words_of_point in point for words_of_point, point in zip(says, points, strict=True))
    assert "the texts are published" not in repr(_points_for_you(replace(stored, ended=RunEnd(None, None))))


def _points_for_you(stored):
    titles = (preview.FOR_YOU, preview.NOTED)
    return [point for part in preview.sheet_page(stored).sections if part.title in titles for point in part.points]


def test_rejected_plan_is_approved_by_no_person_and_no_standing_policy(home):
    manifest = proposed(home)
    command("preview", "spring", "--home", home)
    command("reject", "spring", "--home", home)
    said = command("approve", "spring", plan_words(manifest.hash), "--home", home, code=2)
    assert "run 'spring' was rejected" in said
    command("policy", "set", "--approval", "standing", "--home", home)
    with pytest.raises(PrivacyRefusal, match="have rejected"):
        Proposals(PartyHome(home)).reason_to_wait(manifest)


@pytest.mark.parametrize(
    ("dropouts", "says"), [(0, "one hospital no longer"), (1, "than 1 of the hospitals no longer answers")]
)
def test_the_sheet_says_how_long_a_run_takes_and_what_ends_it(dropouts, says):
    group = ReleaseGroup("label_histogram", "how many", "", 3, (2, 2, 2), 1.0, 1.0, "gaussian")
    page = preview.sheet_page(blank_sheet(tolerated_dropouts=dropouts, releases=(group, group), asked=("how",)))
    (section,) = [section for section in page.sections if section.title == "How long it takes, and what ends it"]
    assert section.sentences[0].startswith(
        "The plan states no length and no end date. It asks its 1 question in 6 sums"
    )
    assert says in section.points[1]
    assert "7 days after a sum was begun" in section.points[-1]


@pytest.mark.parametrize("ended", [None, RunEnd(None, None)])
def test_the_sheet_says_what_the_coordinator_keeps_after_the_run(ended):
    page = preview.sheet_page(blank_sheet(ended=ended))
    (section,) = [section for section in page.sections if section.title == "What is kept, where and how long"]
    assert not section.folded
    assert section.table == words.KEPT
    how_long = {name: period for name, _, period in section.table}
    assert how_long["a hospital's answers, scrambled"].startswith("until their sum is opened, then erased")
    assert how_long["opened sums, the orders to the writers, and what they wrote"].startswith(
        "after the run, too: no date is set"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "nothing leaves while nobody here approves, and silence is no consent. IT can approve while you wait"),
        ({"two_people": True}, "nothing leaves until both have approved"),
        ({"is_standing": True}, "it stops nothing"),
    ],
)
def test_sheet_s_sentence_about_waiting_depends_on_who_decides(changes, says):
    is_standing = changes.get("is_standing", False)
    stored = blank_sheet(two_people=changes.get("two_people", False))
    assert says in choice_sections.waiting_words(stored, Surroundings(is_standing=is_standing))


def test_sheet_of_a_revised_plan_says_what_became_of_the_plan_before(home):
    proposed(home)
    command("preview", "spring", "--home", home)
    command("reject", "spring", "--reason", "too much", "--home", home)
    proposed(home, run="summer", epsilon=0.7, task={"revises": "spring"})
    shown = command("preview", "summer", "--home", home)
    frame = shown[shown.index("IT REVISES 'spring'") : shown.index("In short")]
    assert "That plan was rejected here" in frame
    assert "and it has cost nothing of your budget." in " ".join(frame.split())
    assert "epsilon 1.5 -> 0.7: better, since a smaller number protects more" in frame


def test_sheet_counts_patients_with_more_records_than_the_cap(home):
    proposed(home)
    page = preview.sheet_page(Sheet.from_json(sheet(home)[0]), Surroundings(units_cut=3))
    assert "of one with more (3 here)" in repr(page)
    users = Counter(datasets.load(PartyHome(home)).table.users)
    limit = sheet(home)[0]["privacy"]["max_per_unit"]
    more = sum(count > limit for count in users.values())
    assert f"of one with more ({more} here)" in " ".join(command("preview", "spring", "--home", home).split())


def test_sheet_says_length_and_day_of_the_list_of_objections(home):
    proposed(home)
    page = preview.sheet_page(Sheet.from_json(sheet(home)[0]), Surroundings(objection_list="by a list of 12 numbers"))
    (own,) = [section for section in page.sections if section.title.startswith("Your records")]
    assert dict(own.figures)["patients who object"].endswith("(by a list of 12 numbers)")


@pytest.mark.parametrize(("after", "shown"), [(0.317, "32 %; 68 %"), (0.25, "25.0 %; 75.0 %")])
def test_budget_percentages_have_tenths_only_if_runs_together_use_less(after, shown):
    said = budget_sections.used_words(0.214, 0.104, after, "'winter'")
    assert f"Used after this run: {shown} would be left" in said


def test_sheet_s_short_part_names_the_cap_on_records_and_the_next_steps(home):
    proposed(home)
    value, sections = sheet(home)
    figures = dict(sections[1].figures)
    (more,) = [dict(section.figures) for section in sections if section.title.startswith("More on what is asked")]
    (meaning,) = [section for section in sections if section.title == "What the figures of the risk mean"]
    limit = value["privacy"]["max_per_unit"]
    assert more["Records that count"].startswith(f"Of one patient, at most {limit} record")
    assert "hold for any other yes-or-no question about one patient" in meaning.sentences[0]
    assert "The figures hold if this software, undersong 0.3.0, does what it states" in meaning.sentences[-1]
    factor = f"{odds_factor(value['privacy']['epsilon'], value['privacy']['delta']):.3g}"
    assert (
        f"; outside the excepted runs, the run shifts the odds of that guess by a factor of at most {factor}: a chance"
        in (meaning.sentences[0])
    )
    assert figures["Which records"].endswith("12 records of 6 patients. Objections are NOT CHECKED.")
    (steps,) = [section for section in sections if section.title == "What you do, in order"]
    assert figures["What next"] == f"“{steps.title}”: two people, objections, telephone, nine words, decision."
    assert steps.ordered
    two_people, objections, examined, ask, compare, _ = steps.points
    assert examined.startswith(choice_sections.ASK_EXAMINED)
    assert two_people.startswith("If IT must not approve alone")
    assert "a command of IT: order it in writing" in two_people
    assert "in the software, only both together can undo it" in two_people
    assert "by changing the software's files, IT could undo it alone" in two_people
    assert objections.startswith("Ask IT for the list of patients who object")
    assert "under which agreement with your hospital" in ask
    assert (
        "is for you to judge. Do not approve before you have the agreement, the legal basis and what else the lines"
        in ask
    )
    assert "full name and town of the other hospitals" in ask
    assert "with the operator and with 3 of the other hospitals (look up the numbers" in compare
    assert f" {choice_sections.count_uncalled(Sheet.from_json(value))} If one more" in compare
    assert choice_sections.CALL_PROVES in compare
    assert f"If one more helps, “{risk_sections.MORE_HELP}” says what holds. If" in compare
    assert risk_sections.MORE_HELP in [section.title for section in sections]
    assert compare.endswith("A hospital that you do not reach counts as one that you do not call.")
    (choices,) = [section for section in sections if section.title == "What you can do"]
    assert "do step 1 first" in choices.points[4]
    assert repr(sections).count(WITHDRAWAL) == 1
    assert "“What can be undone” says what becomes of the run" in choices.points[-1]
    assert WITHDRAWAL in figures["What can be undone"]
    assert "begins when the last hospital approves, perhaps yours" in figures["What can be undone"]
    assert "a run that has begun" in choices.points[-1]


OTHERS = ("beta", "delta", "gamma", "omega")
ALL_FOUR = {name: f"{name.capitalize()} Hospital, Porto" for name in OTHERS}


def test_sheet_says_what_false_numbers_of_another_hospital_cost(home):
    proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    for changes, ends in (
        ({}, f"patients; what a hospital that helps the operator takes, “{risk_sections.MORE_HELP}” says."),
        ({"colluders": len(OTHERS)}, "They take no protection from your patients."),
        ({"ended": RunEnd(None, None)}, "They take no protection from your patients."),
    ):
        sentence = preview._hospital_section(replace(stored, **changes)).sentences[-1]
        assert sentence.startswith("Nobody can check another hospital's numbers: false ones could spoil the texts.")
        assert sentence.endswith(ends)


@pytest.mark.parametrize(
    ("full_names", "lacking", "ask"),
    [
        ({}, "The plan has no full names.", "Ask for full name and town of the other hospitals."),
        ({"alpha": "Alpha, Faro"}, "no full name of beta, delta, gamma, omega.", "town of beta, delta, gamma, omega."),
        ({**ALL_FOUR, "delta": ""}, "The plan has no full name of delta.", "Ask for full name and town of delta."),
        (ALL_FOUR, "", ""),
    ],
)
def test_sheet_names_hospitals_in_full_and_those_without_a_full_name(home, full_names, lacking, ask):
    full_names = {name: full_name for name, full_name in full_names.items() if full_name}
    proposed(home, task={"full_names": full_names} if full_names else None)
    value, sections = sheet(home)
    said = {section.title: " ".join((*section.sentences, *section.points)) for section in sections}
    who, steps = said["Who takes part"], said["What you do, in order"]
    for name in OTHERS:
        assert (f"{name} (" in who) == (name in full_names)
        assert f"{name} ({full_names[name]})" in who if name in full_names else True
    assert ("alpha (you; Alpha, Faro)" if "alpha" in full_names else "alpha (you),") in who
    assert ("no full name" in who, lacking in who) == (bool(lacking), True)
    assert ("full name and town" in steps, ask in steps) == (bool(ask), True)
    assert (preview.OPERATORS_WORDS in who) == bool(full_names)
    assert [party.get("full_name", "") for party in value["parties"][1:]] == [
        full_names.get(name, "") for name in OTHERS
    ]
    listed = preview.fingerprints(Sheet.from_json(value)).columns
    assert all(
        row.endswith(full_names.get(name, name) + ")" * (name in full_names))
        for row, name in zip(listed[1:], OTHERS, strict=True)
    )


@pytest.mark.parametrize(
    ("objectors", "told"),
    [
        (None, "NOT CHECKED: no list of them was given"),
        (0, "a list was given; none of it is in the file"),
        (3, "3 in the file, left out"),
    ],
)
def test_sheet_distinguishes_no_objection_list_from_one_without_effect(objectors, told):
    figures = OwnFigures("notes.csv", 0.0, 12, 6, "patient", objectors, {})
    assert dict(figures.rows())["patients who object"] == told


def test_sheet_of_a_data_set_without_an_objection_list_says_so(home):
    assert dict(own_figures(PartyHome(home)).rows())["patients who object"] == NO_LIST
    proposed(home)
    value, sections = sheet(home)
    shown = dict(next(section for section in sections if section.title.startswith("Your records")).figures)
    assert shown["patients who object"] == NO_LIST
    assert dict(value["own"]["rows"])["patients who object"] == NO_LIST_AS_SIGNED


def test_sheet_s_short_part_says_that_answer_times_are_visible(home):
    proposed(home)
    value, sections = sheet(home)
    assert value["clock_bits"] > 0
    leaves = dict(next(section for section in sections if section.title == "In short").figures)["What leaves"]
    assert "reads of them only opened sums, which it may publish, and each answer's time, a hint at" in leaves
    assert "blurred" in leaves
    unseen = preview.sheet_page(replace(Sheet.from_json(value), clock_bits=0.0)).sections[1]
    assert dict(unseen.figures)["What leaves"].endswith("only opened sums, which it may publish.")


@pytest.mark.parametrize(
    ("others", "colluders", "says"),
    [
        (3, 1, "While at most 1 does, those of at least 2 other hospitals stay with yours."),
        (4, 3, "While at most 3 do, those of at least 1 other hospital stay with yours."),
        (3, 0, "can subtract its own numbers from an opened sum. If all others in a sum help, yours are left alone,"),
        (2, 2, "can subtract its own numbers from an opened sum. If all others in a sum help, yours are left alone,"),
    ],
)
def test_sheet_says_how_many_others_hide_the_numbers(others, colluders, says):
    assert says in left_alone_words(blank_sheet(others=others, colluders=colluders))
    assert left_alone_words(blank_sheet(others=0, colluders=colluders)) == ""


def test_sheet_names_each_kind_of_message_that_the_operator_reads(home):
    """The messages are those of the outbox: a new kind needs a word on the sheet."""
    words_by_kind = {
        "hello": "when it is connected",
        "renewal": "its name, and the public key",
        "introduction": "which versions of program and embedding model",
        "signature": "when it approves",
        "refusal": "a Reject, a Withdraw and what your policy refuses, with the reason",
        "receipt": "your software signs a receipt",
    }
    of_every_request = {"agreed", "missing", "void_statement", "pending", "noted"}
    assert outbox.KINDS.keys() == words_by_kind.keys() | of_every_request
    proposed(home)
    (more,) = [section for section in sheet(home)[1] if section.title.startswith("More on what is asked")]
    told = dict(more.figures)["Beside the numbers"]
    assert [kind for kind, said in words_by_kind.items() if said not in told] == []


def test_rejection_reason_and_receipt_fields_are_those_the_sheet_names(home):
    manifest = proposed(home)
    command("reject", "spring", "--reason", "too much", "--home", home)
    with pytest.raises(PrivacyRefusal, match="have rejected run 'spring': too much"):
        Proposals(PartyHome(home)).reason_to_wait(manifest)
    of_attempts, of_price = {"kind", "run", "query", "attempt"}, {"manifest", "events", "question"}
    assert receipt.FIELDS["charge"] == of_attempts | of_price


def test_consent_sheet_has_no_word_of_the_implementation(home):
    proposed(home)
    value, sections = sheet(home)
    # The plan's words come from a list that holds "chain" and "grant"; they stand in threes too, to be read aloud.
    shown = repr([replace(section, aloud=()) for section in sections]).replace(value["words"], "")
    assert [word for word in INNER_WORDS if re.search(rf"\b{word}", shown)] == []


def test_sheet_stored_by_an_earlier_version_is_still_shown(home):
    proposed(home)
    value, _ = sheet(home)
    for key in ("operator", "asked", "others", "own", "remedies"):
        del value[key]
    del value["cost"]["best_guess_after"]
    assert "how many of your records have each label" in repr(preview.sheet_page(Sheet.from_json(value)).sections)


def test_budget_set_without_delta_takes_it_from_the_number_of_patients(home):
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


def test_approve_without_words_shows_the_sheet_and_says_what_is_missing(home):
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


def read_and_approve(home, manifest):
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)


def approved(home):
    manifest = proposed(home)
    read_and_approve(home, manifest)
    return manifest


def add_other_records(home):
    """Has another file take the place of the data set; returns what the command said, on one line."""
    other = write_notes(home.parent / "other.jsonl", 30)
    columns = ("--label-field", "label", "--user-field", "patient", "--home", home)
    return " ".join(command("data", "add", other, "--new-version", "--abandon-runs", *columns).split())


@pytest.mark.heavy
@pytest.mark.parametrize("has_charge", [False, True])
def test_an_approval_lapses_with_the_file_it_was_given_for(home, has_charge):
    """What the sheet says of an approval and the file; a charged run has ended, and its approval stays shown."""
    manifest = approved(home)
    if has_charge:
        ledger = Ledger.read(home / "ledger.jsonl")
        charge = Charge("spring", manifest.hash.hex(), "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
        ledger.charge(charge, at=5.0)
        ledger.send(charge, "aa" * 32, at=5.0)
    said = add_other_records(home)
    assert "the approval lapses" in choice_sections.APPROVAL_STANDS
    assert ("the approval of spring was for the data set before" in said) != has_charge
    assert Proposals(PartyHome(home)).find("spring").has_lapsed != has_charge
    assert own_figures(PartyHome(home)).records == 30
    (total,) = [total for total in Ledger.read(home / "ledger.jsonl").totals() if total.run == "spring"] or [None]
    assert (total is not None and total.closed) == has_charge


@pytest.mark.heavy
def test_a_lapsed_approval_consents_to_nothing_until_it_is_given_again(home):
    manifest = approved(home)
    add_other_records(home)
    proposals = Proposals(PartyHome(home))
    with raises(PrivacyRefusal, "plan-lapsed"):
        proposals.check(manifest)
    assert proposals.reason_to_wait(manifest) == "waits for the approval of a person at this party"
    assert "LAPSED, waits for the approval once more" in " ".join(command("requests", "--home", home).split())
    assert proposals.find("spring").lapse_words == LAPSES[OTHER_DATA]
    read_and_approve(home, manifest)
    proposals.check(manifest)


@pytest.mark.heavy
@pytest.mark.parametrize("has_changed", [False, True])
def test_an_approval_outlives_a_refresh_that_brings_the_same_records(home, has_changed):
    manifest = approved(home)
    if has_changed:
        write_notes(Path(PartyHome(home).settings.data), 30)
    said = command("data", "refresh", "--home", home)
    assert ("the approval of spring was for the data set before" in " ".join(said.split())) == has_changed
    assert (Proposals(PartyHome(home)).reason_to_wait(manifest) == "") != has_changed


def test_approval_is_refused_if_the_records_changed_since_the_sheet(home):
    manifest = proposed(home)
    command("preview", "spring", "--home", home)
    add_other_records(home)
    said = command("approve", "spring", plan_words(manifest.hash), "--home", home, code=3)
    assert "has CHANGED since it was shown: the records" in " ".join(said.split())


def test_missing_grant_file_is_refused_with_whom_to_ask(home, tmp_path):
    said = command("enroll", "--grant", tmp_path / "not-here.grant", "--home", home, code=2)
    assert "the operator's answer is not here yet" in said
    assert "Nothing is lost" in said


def test_sheet_marks_a_budget_so_large_that_it_protects_nobody(home):
    proposed(home)
    stored = Sheet.from_json(sheet(home)[0])
    assert NO_PROTECTION not in repr(preview.sheet_page(stored))
    large = preview.sheet_page(replace(stored, cost=replace(stored.cost, budget=50.0)))
    (budget,) = [section for section in large.sections if section.bar is not None]
    assert f"({NO_PROTECTION})." in budget.sentences[0]
    (for_you,) = [section for section in large.sections if section.title == preview.FOR_YOU]
    assert f"says little: the whole budget is {NO_PROTECTION}. Have a smaller one set, of a tenth" in for_you.points[1]
    (in_order,) = [section for section in large.sections if section.title == choice_sections.IN_ORDER]
    assert choice_sections.SET_BUDGET in repr(in_order)
