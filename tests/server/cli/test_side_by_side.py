"""What the console shows of several runs, on the command line, and the log in which both write their changes."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.hospitals import operator
from tests.doubles.parties import embed
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_common.pages.accounts import Accounts
from undersong_common.pages.store import PageStore
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.evaluation.metrics import distinct_n
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import comparison, coordinator, runs
from undersong_server.operations.beginning import step_of_comparison
from undersong_server.operations.releases import evaluate_run
from undersong_server.report.evaluations import (
    EVALUATION_FILE,
    HELP_FILE,
    Evaluated,
    KeptMeasure,
    evaluated,
    keep_evaluation,
    kept_help,
)
from undersong_server.report.verdict import ABOVE_GUESSING, BETTER, HELP, RecordsHelp
from undersong_server.runs.folder import Annotations, RunStatus, replace_json

USED = {"calls": 9, "kept": 7, "retried": 2, "dropped": 0, "cut": 0, "price_usd": 0.25, "faults": {"duplicate": 2}}


@pytest.fixture
def home(tmp_path):
    make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    task = make_task(tmp_path)
    for name in ("first", "second"):
        runs.plan(tmp_path / "home", task, RunOptions(name=name))
        folder = CoordinatorHome(tmp_path / "home").run(name)
        generator = folder.planned().task["generators"][0]["name"]
        tokens = {"prompt_tokens": 10, "completion_tokens": 5}
        folder.tell("usage", {"usage": {generator: {**USED, **tokens, "counted": {"calls": 9, "slowed_down": 2}}}})
    return tmp_path / "home"


def test_compare_and_generators_commands_print_calls_and_price_of_runs(home):
    found = json.loads(operator("run", "compare", "first", "second", "--home", home, "--json"))
    assert [(each["run"], each["calls"], each["price_usd"]) for each in found] == [
        ("first", 9, 0.25),
        ("second", 9, 0.25),
    ]
    assert "second" in operator("run", "compare", "first", "second", "--home", home)
    operator("run", "compare", "nowhere", "--home", home, code=2)
    counted = json.loads(operator("run", "generators", "--home", home, "--json"))
    assert {each["counts"]["calls"] for each in counted if each["counts"]} == {18}
    shown = operator("run", "generators", "--home", home)
    assert "duplicate 4" in shown
    assert "slowed down 4" in " ".join(shown.split())


def test_compare_names_the_privacy_unit_in_words(home):
    line = next(line for line in operator("run", "compare", "first", "--home", home).splitlines() if "unit" in line)
    assert "patient" in line or "record" in line
    assert "user" not in line
    assert "sample" not in line


def test_generators_test_option_prints_one_text_of_the_named_generator(home):
    name = CoordinatorHome(home).run("first").planned().task["generators"][0]["name"]
    tried = json.loads(operator("run", "generators", "--test", name, "--home", home, "--json"))
    assert tried["text"]
    assert tried["fault"] == ""
    operator("run", "generators", "--test", "nobody", "--home", home, code=2)


def test_search_prints_matching_texts_and_counts_by_label_and_generator(home):
    folder = CoordinatorHome(home).run("first")
    operator("run", "search", "first", "--home", home, code=2)  # not finished
    folder.write_status(RunStatus("finished", 1))
    folder.output.mkdir()
    rows = [("A red\x1b[2J car", "a", "g"), ("a RED hat", "b", "g"), ("a blue hat", "b", "h")]
    lines = (json.dumps({"text": text, "label": label, "generator": by}) for text, label, by in rows)
    (folder.output / "synthetic.jsonl").write_text("\n".join(lines))
    found = json.loads(operator("run", "search", "first", "--find", "red", "--label", "b", "--home", home, "--json"))
    assert [row["text"] for row in found["texts"]] == ["a RED hat"]
    assert found["labels"] == {"a": 1, "b": 1}
    assert found["generators"] == {"g": 1}
    shown = operator("run", "search", "first", "--home", home)
    assert "3 of 3 texts" in shown
    assert "\x1b" not in shown


def test_audit_log_lists_changing_commands_and_detects_its_alteration(home, tmp_path):
    operator("invite", "delta", "--out", tmp_path / "delta.package", "--home", home)
    operator("run", "start", "first", "--home", home)
    operator("run", "stop", "first", "--home", home)
    operator("revoke", "delta", "--home", home)
    noted = json.loads(operator("console", "audit", "--home", home, "--json"))
    assert [(each["what"], each["about"]) for each in noted] == [
        ("invite", "delta"),
        ("run start", "first"),
        ("run stop", "first"),
        ("revoke", "delta"),
    ]
    assert all(each["who"].endswith("at the terminal") for each in noted)
    log = home / "console" / "audit.jsonl"
    log.write_text(log.read_text().replace("delta", "gamma", 1))
    operator("console", "audit", "--home", home, code=3)


@pytest.mark.heavy
def test_console_commands_manage_people_links_tokens_and_support_bundle(home, tmp_path):
    first = operator("console", "link", "ada", "--home", home)
    assert "/enter#" in first
    assert "lets ada (administrator) in once" in first
    operator("console", "link", "vera", "--role", "viewer", "--home", home)
    assert [each["role"] for each in json.loads(operator("console", "people", "--home", home, "--json"))] == [
        "administrator",
        "viewer",
    ]
    assert operator("console", "sessions", "--home", home).strip() == "nobody is logged in"
    made = operator("console", "tokens", "--make", "vera", "--label", "nightly", "--home", home).strip()
    with contextlib.closing(PageStore(coordinator.console_folder(home))) as store:
        accounts = Accounts(store)
        assert accounts.by_token(made).name == "vera"
        accounts.begin("ada", address="192.0.2.7")
    (session,) = json.loads(operator("console", "sessions", "--home", home, "--json"))
    assert (session["person"], session["address"]) == ("ada", "192.0.2.7")
    operator("console", "sessions", "--end", session["number"], "--home", home)
    assert json.loads(operator("console", "sessions", "--home", home, "--json")) == []
    (token,) = json.loads(operator("console", "tokens", "--home", home, "--json"))["tokens"]
    assert token["label"] == "nightly"
    operator("console", "tokens", "--end", token["identity"], "--home", home)
    assert "no token" in operator("console", "tokens", "--home", home)
    done = [each["what"] for each in json.loads(operator("console", "audit", "--home", home, "--json"))]
    assert {"make token", "end session", "end token"} <= set(done)
    assert made not in json.dumps(operator("console", "audit", "--home", home, "--json"))
    operator("console", "people", "--remove", "ada", "--home", home, code=2)  # the only administrator
    operator("console", "people", "--remove", "vera", "--home", home)
    assert "vera" not in operator("console", "people", "--home", home)
    operator("console", "support", "--out", tmp_path / "support.zip", "--home", home)
    assert (tmp_path / "support.zip").stat().st_size > 300
    operator("console", "link", "ada", "--home", tmp_path / "nowhere", code=2)


def test_compare_shows_stored_evaluation_figures_of_a_run(home):
    with raises(ConfigurationError, "run-not-finished"):
        evaluate_run(home, "first", EvaluationOptions(test=Path("test.jsonl")))
    folder = CoordinatorHome(home).run("first")
    replace_json(
        folder.path / EVALUATION_FILE, asdict(Evaluated("test.jsonl, 0123abcd", {"accuracy": "87.5 %"})), durable=False
    )
    found = comparison.compare(home, ["first", "second"])
    first, second = found.runs
    assert (first.evaluated.figures, second.evaluated) == ({"accuracy": "87.5 %"}, None)
    shown = operator("run", "compare", "first", "second", "--home", home)
    assert "test.jsonl, 0123abcd" in " ".join(shown.split())
    assert "87.5 %" in shown
    (figure,) = [each for each in found.figures if each.name == "accuracy"]
    assert not figure.compares  # an earlier version took all texts: the size may make it


def publish(home, name, texts):
    folder = CoordinatorHome(home).run(name)
    folder.write_status(RunStatus("finished", 1))
    folder.output.mkdir(exist_ok=True)
    rows = (json.dumps({"text": text, "label": "a", "generator": "g"}) for text in texts)
    (folder.output / "synthetic.jsonl").write_text("".join(f"{row}\n" for row in rows))


def figure_of(found, name):
    return next(figure for figure in found.figures if figure.name == name)


def invented(count, seed=0):
    """Texts of one source: their words follow Zipf's law, so that pairs repeat the more, the more texts there are."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in rng.zipf(1.4, 40) % 500) for _ in range(count)]


@pytest.mark.slow
def test_compared_text_figures_do_not_depend_on_corpus_size(home):
    texts = invented(4000)
    publish(home, "first", texts)
    publish(home, "second", texts[:300])
    found = comparison.compare(home, ["first", "second"])
    assert found.drawn == 300
    large, small = figure_of(found, comparison.WORD_PAIRS).cells
    assert abs(distinct_n(texts, 2) - distinct_n(texts[:300], 2)) > 0.1  # which all texts would have shown
    assert large.interval.low < small.interval.high
    assert small.interval.low < large.interval.high
    assert abs(large.value - small.value) < 0.04
    assert [cell.value for cell in figure_of(found, comparison.CORPUS_TEXTS).cells] == [4000, 300]
    assert found.size_words == ""
    CoordinatorHome(home).run("second").annotate(Annotations(marked=(1, 2)))
    score = {"value": 0.7, "low": 0.6, "high": 0.8, "noise": 0.01, "sample": 0.04}
    for name in ("first", "second"):
        CoordinatorHome(home).run(name).tell("record", {"name": "score", "round": 0, "value": score})
    found = comparison.compare(home, ["first", "second"])
    assert [cell.words for cell in figure_of(found, comparison.CORPUS_TEXTS).cells] == ["4000", "298"]
    assert found.size_words.startswith("The corpora have 4000 and 298 texts. The private score judges each corpus")


@pytest.mark.heavy
def test_compare_samples_at_most_a_thousand_texts_of_each_run(home):
    publish(home, "first", invented(1500))
    publish(home, "second", invented(1200, seed=1))
    assert comparison.compare(home, ["first", "second"]).drawn == comparison.DRAWN_TEXTS == 1000
    assert comparison.compare(home, ["first"]).drawn == 1000


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 105])
def test_figure_of_fewer_than_20_texts_has_no_interval(home, count):
    publish(home, "first", invented(count))
    (cell,) = figure_of(comparison.compare(home, ["first"]), comparison.WORD_PAIRS).cells
    assert math.isfinite(cell.value)
    assert (cell.interval is None) == (count < 20)


def kept(value, texts=300, test="t.jsonl, 00"):
    measure = KeptMeasure(value, "high", percent=True, interval=(value - 0.05, value + 0.05))
    return Evaluated(test, {"panel score": f"{100 * value:.1f} %"}, {"panel score": measure}, texts)


def keep(home, name, evaluated):
    replace_json(CoordinatorHome(home).run(name).path / EVALUATION_FILE, asdict(evaluated), durable=False)


def test_doubtful_labels_keep_their_key_in_files_and_as_a_sort(home):
    for name, share in (("first", 0.4), ("second", 0.1)):
        measure = KeptMeasure(share, "low", percent=True)
        evaluation = Evaluated("t.jsonl, 00", {"doubtful labels": "x"}, {"doubtful labels": measure}, 9)
        folder = CoordinatorHome(home).run(name)
        keep_evaluation(folder, evaluation)
        assert list(json.loads((folder.path / EVALUATION_FILE).read_text())["measures"]) == ["wrong labels"]
        assert evaluated(folder) == evaluation
    found = comparison.compare(home, ["first", "second"], sort="wrong labels")
    assert [compared.run for compared in found.runs] == ["second", "first"]


def test_compared_runs_can_be_sorted_by_a_figure_with_the_best_first(home):
    keep(home, "first", kept(0.6))
    keep(home, "second", kept(0.8))
    found = comparison.compare(home, ["first", "second"], sort="panel score")
    assert [run.run for run in found.runs] == ["second", "first"]
    assert figure_of(found, "panel score").cells[0].words == "80.0 % (75.0 to 85.0)"
    assert found.leading.figure.name == "panel score"
    assert "second 80.0 % (75.0 to 85.0); first" in found.chart
    shown = operator("run", "compare", "first", "second", "--sort", "panel score", "--home", home)
    assert shown.index("second") < shown.index("first")
    assert "You chose this figure." in shown
    assert found.best_words == "Best by it: second, 80.0 % (75.0 to 85.0)."
    with raises(ConfigurationError, "unknown-figure"):
        comparison.compare(home, ["first", "second"], sort="calls")


def test_word_pair_interval_hardly_changes_for_a_sorted_corpus(home):
    texts = [
        f"{label} {words}" for label in "abcdef" for words in [f"{label}{n % 3} {label}{n % 7}" for n in range(100)]
    ]
    publish(home, "first", texts)
    publish(home, "second", texts[:592])
    alone, beside = (
        figure_of(comparison.compare(home, names), comparison.WORD_PAIRS).cells[0]
        for names in (["first"], ["first", "second"])
    )
    assert abs(alone.value - beside.value) < 0.03
    assert alone.half == pytest.approx(beside.half, rel=0.6)


@pytest.mark.parametrize(("texts", "compares"), [(592, True), (546, True), (545, False)])
def test_figures_are_compared_only_when_their_text_counts_are_close(home, texts, compares):
    keep(home, "first", kept(0.6, texts=600))
    keep(home, "second", kept(0.8, texts=texts))
    found = comparison.compare(home, ["first", "second"])
    assert figure_of(found, "panel score").compares is compares
    assert [cell.words for cell in figure_of(found, "texts drawn for it").cells] == ["600", str(texts)]


def test_runs_are_compared_on_a_test_file_that_all_were_evaluated_on(home):
    for name, own in (("first", "t.jsonl, 00"), ("second", "u.jsonl, 11")):
        folder = CoordinatorHome(home).run(name)
        keep_evaluation(folder, kept(0.6, test=own))
        keep_evaluation(folder, kept(0.9, test="v.jsonl, 22"))
        assert evaluated(folder).test == own
    found = comparison.compare(home, ["first", "second"])
    assert [cell.words for cell in figure_of(found, "test file").cells] == ["v.jsonl, 22"] * 2
    assert comparison.compare(home, ["first"]).runs[0].evaluated.test == "t.jsonl, 00"
    ((beside, figures),) = comparison.beside_figures(home, "first")
    assert (beside.test, [figure.name for figure in figures]) == ("v.jsonl, 22", ["panel score"])


def test_compared_figures_have_unique_names_and_state_reference_values(home):
    for name in ("first", "second"):
        publish(home, name, invented(300))
        pairs = KeptMeasure(0.4, "beside", percent=True, mark="45.0 %, the test texts'")
        keep(home, name, Evaluated("t.jsonl, 00", {"different word pairs": "40 %"}, {"different word pairs": pairs}, 9))
    found = comparison.compare(home, ["first", "second"])
    names = [figure.name for figure in found.figures]
    assert len(names) == len(set(names))
    assert figure_of(found, "different word pairs").good_words == "good near 45.0 %, the test texts'"
    assert figure_of(found, "different word pairs").cells[0].words == "40 %"
    pairs = replace(pairs, mark="44.0 %, the test texts'")
    keep(home, "first", Evaluated("t.jsonl, 00", {"different word pairs": "40 %"}, {"different word pairs": pairs}, 9))
    figure = figure_of(comparison.compare(home, ["first", "second"]), "different word pairs")
    assert figure.good_words == comparison.NEAR_REAL
    assert [cell.words for cell in figure.cells] == [
        f"40 % (beside {mark} %, the test texts')" for mark in (44.0, 45.0)
    ]
    keep(home, "first", Evaluated("t.jsonl, 00", {"density": "1"}, {"density": KeptMeasure(1, "beside", False)}, 9))
    assert figure_of(comparison.compare(home, ["first"]), "density").good_words == ""  # no value to compare with


def test_comparison_headline_has_three_figures_each_with_a_verdict(home):
    keep(home, "first", kept(0.6))
    keep(home, "second", kept(0.8))
    found = comparison.compare(home, ["first", "second"])
    verdicts = {figure.name: figure.verdict for figure in found.headline}
    assert verdicts == {"panel score": "best: run 2", "promised epsilon": "equal", "money, US$": "equal"}
    keep(home, "second", kept(0.62))
    (panel, *_) = comparison.compare(home, ["first", "second"]).headline
    assert panel.verdict == "not certain which run is best"


def test_comparison_leads_with_one_figure_and_the_reason_for_it(home):
    publish(home, "first", invented(300))
    publish(home, "second", invented(300, seed=1))
    nothing = comparison.compare(home, ["first", "second"]).leading
    assert nothing.figure.name == comparison.WORD_PAIRS
    assert "No figure says yet how good" in nothing.reason
    assert comparison.leading_figure(comparison.how_good(home, "first")) is None
    keep(home, "first", kept(0.78))
    keep(home, "second", kept(0.8))
    found = comparison.compare(home, ["first", "second"])
    assert found.leading.figure.name == "panel score"
    assert found.best_words.endswith("It is better than first, but the intervals overlap: not certain.")
    keep(home, "second", kept(0.78))
    assert comparison.compare(home, ["first", "second"]).best_words.endswith("As good by it: second.")
    keep(home, "second", kept(0.8))
    score = {"value": 0.7, "low": 0.6, "high": 0.8, "noise": 0.01, "sample": 0.04}
    CoordinatorHome(home).run("first").tell("record", {"name": "score", "round": 0, "value": score})
    leading = comparison.leading_figure(comparison.how_good(home, "first"))
    assert (leading.figure.name, "hospitals' own records" in leading.reason) == ("private score", True)
    CoordinatorHome(home).run("second").tell("record", {"name": "score", "round": 0, "value": score})
    scored = comparison.compare(home, ["first", "second"])
    other_records = "Their hospitals differ, so each score is measured on other records."
    assert other_records not in scored.conclusion
    differing = replace(scored, differences=((comparison.change_words("parties"), ("a, b", "a")),))
    assert other_records in differing.conclusion


def test_comparison_begins_with_a_conclusion_that_its_next_step_matches(home):
    assert comparison.compare(home, ["first"]).conclusion == ""
    nothing = comparison.compare(home, ["first", "second"])
    assert nothing.conclusion.startswith("No measured figure says which run is ahead.")
    assert step_of_comparison(nothing, len) is None
    for name, value, sign in (("first", 0.6, 1), ("second", 0.8, 0)):
        publish(home, name, ["a b c"])
        keep(home, name, kept(value))
        folder = CoordinatorHome(home).run(name)
        replace_json(folder.path / HELP_FILE, asdict(RecordsHelp("x", sign)), durable=False)
    certain = comparison.compare(home, ["first", "second"])
    assert certain.conclusion == (
        "Run 2 is ahead by panel score: run 2 has 80.0 % (75.0 to 85.0) and run 1 has 60.0 % (55.0 to 65.0)."
        " Effect of the records on quality, better: run 1. Effect of the records on quality, within chance: run 2."
        " All of them promise epsilon 4."
    )
    assert certain.conclusion in " ".join(operator("run", "compare", "first", "second", "--home", home).split())
    assert step_of_comparison(certain, len).words == "Read what is open on the result of second, which is ahead"
    keep(home, "second", kept(0.62))
    close = comparison.compare(home, ["first", "second"])
    assert close.conclusion.startswith("The runs are not told apart by panel score: run 2 has 62.0 %")
    step = step_of_comparison(close, {"first": 5, "second": 5}.get).words
    assert step == (
        "Read the result of second: no run is shown to be ahead, and promise, cost and the number of open points are"
        " equal"
    )
    step = step_of_comparison(close, {"first": 5, "second": 4}.get).words
    assert step.startswith("Choose by the number of open points, since no run is shown to be ahead")
    cheap = replace(close, runs=(close.runs[0], replace(close.runs[1], price_usd=2.0, epsilon=1.0)))
    assert step_of_comparison(cheap, {"first": 5, "second": 5}.get).words.startswith("Choose by promise and cost,")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (kept(0.8, texts=300), "high is good"),
        (kept(0.8, texts=600), "not comparable: small models learned from 300 and 600 texts"),
        (kept(0.8, test="u.jsonl, 11"), "not comparable: on different test files"),
    ],
)
def test_comparison_row_says_when_test_file_figures_are_not_comparable(home, other, words):
    keep(home, "first", kept(0.6))
    keep(home, "second", other)
    assert figure_of(comparison.compare(home, ["first", "second"]), "panel score").good_words == words


def test_long_run_names_are_not_shortened_in_the_comparison_chart(home, monkeypatch):
    keep(home, "first", kept(0.6))
    keep(home, "second", kept(0.8))
    found = comparison.compare(home, ["first", "second"])
    long_names = [f"triage at night epsilon 4 2026-11-30 revised {number}" for number in (1, 2)]
    runs_named = tuple(replace(run, run=name) for run, name in zip(found.runs, long_names, strict=True))
    chart = str(replace(found, runs=runs_named).chart)
    assert "…" not in chart
    assert all(f'<th scope="row">{name}</th>' in chart for name in long_names)


def test_comparison_names_the_plan_options_in_which_its_runs_differ(home, tmp_path):
    alike = comparison.compare(home, ["first", "second"])
    assert alike.difference_words.startswith("These runs have the same task file and hospitals")
    assert comparison.compare(home, ["first"]).difference_words == ""
    changes = ["privacy.epsilon=1.5", "method.samples=40"]
    runs.plan(home, next(tmp_path.glob("*.toml")), RunOptions(name="third"), assignments=changes)
    task = CoordinatorHome(home).run("first").planned().task
    epsilon, samples = task["privacy"]["epsilon"], task["method"]["samples"]
    words = f"Epsilon (1: {epsilon}; 2: 1.5) and Samples (1: {samples}; 2: 40)"
    compared = comparison.compare(home, ["first", "third"])
    assert compared.difference_words.lower() == f"These runs differ in {words}.".lower()
    assert f"Epsilon (1: {epsilon}; 2: 1.5)" in operator("run", "compare", "first", "third", "--home", home)


def test_comparison_names_a_generator_that_one_run_lacks_once(home):
    stored = CoordinatorHome(home).run("first").planned()
    _, *others = stored.task["generators"]
    fewer = replace(stored, task={**stored.task, "generators": others})
    names = [table["name"] for table in stored.task["generators"]]
    assert runs.plan_differences((stored, fewer)) == (("generators", (names, names[1:])),)


def test_sorted_corpus_is_shuffled_before_its_interval_is_computed(home):
    texts = [f"{label} {number} {label} {number // 2}" for label in "abcdefghij" for number in range(30)]
    publish(home, "first", texts)
    found = comparison.compare(home, ["first"])
    cell = figure_of(found, "different word pairs, drawn texts alone").cells[0]
    publish(home, "second", texts[:-2])
    beside = comparison.compare(home, ["first", "second"])
    assert abs(figure_of(beside, "different word pairs, drawn texts alone").cells[0].value - cell.value) < 0.05


@pytest.mark.parametrize(
    ("records_help", "words"),
    [
        (RecordsHelp("Better than as many texts of a.", 1), "better"),
        (RecordsHelp("Within chance of as many texts of a.", 0), "within chance"),
        (RecordsHelp("Worse than as many texts of a.", -1), "worse"),
        (
            RecordsHelp("x, so their choice is not published.", -1, is_of_choice=True),
            "worse, so their choice is not published",
        ),
        (RecordsHelp("Whether the records helped was not measured.", None), "not measured"),
        (None, "–"),
    ],
)
def test_comparison_repeats_the_cards_verdict_on_the_records_help(home, records_help, words):
    publish(home, "first", ["a b c"])
    keep(home, "first", kept(0.8))
    if records_help is not None:
        folder = CoordinatorHome(home).run("first")
        replace_json(folder.path / HELP_FILE, asdict(records_help), durable=False)
        assert kept_help(folder) == records_help
    found = comparison.compare(home, ["first"])
    assert figure_of(found, HELP).cells[0].words == words
    expected = f"first: {BETTER}" if records_help is None else f"first: {ABOVE_GUESSING} {records_help.words}"
    assert comparison.compare(home, ["first", "second"]).judgements == (expected,)
    assert expected in " ".join(operator("run", "compare", "first", "second", "--home", home).split())


def test_comparison_chart_has_round_numbers_on_its_axis(home):
    for name, share in (("first", 0.154), ("second", 0.537)):
        keep(home, name, kept(share))
    chart = str(comparison.compare(home, ["first", "second"]).chart)
    assert re.findall(r'class="tick end">([^<]+ %)<', chart) == ["0 %", "20 %", "40 %", "60 %"]


@pytest.mark.parametrize("other", [kept(0.8, texts=1000), kept(0.8, test="u.jsonl, 11")])
def test_figures_from_different_test_files_or_text_counts_are_not_compared(home, other):
    keep(home, "first", kept(0.6))
    keep(home, "second", other)
    found = comparison.compare(home, ["first", "second"])
    assert not figure_of(found, "panel score").compares
    with raises(ConfigurationError, "unknown-figure"):
        comparison.compare(home, ["first", "second"], sort="panel score")


def test_comparison_shows_a_private_score_with_its_interval(home):
    score = {"value": 0.7, "low": 0.6, "high": 0.8, "noise": 0.01, "sample": 0.04}
    CoordinatorHome(home).run("first").tell("record", {"name": "score", "round": 0, "value": score})
    found = comparison.compare(home, ["first", "second"])
    assert [cell.words for cell in figure_of(found, "private score").cells] == ["70.0 % (60.0 to 80.0)", "–"]


def test_comparison_shows_a_weight_with_the_interval_of_its_noise(home):
    folder = CoordinatorHome(home).run("first")
    names = [generator["name"] for generator in folder.planned().task["generators"]]
    folder.tell("record", {"name": "weights", "round": 0, "value": [0.4, 0.6]})
    found = comparison.compare(home, ["first", "second"])
    assert [cell.words for cell in figure_of(found, f"weight of {names[0]}, last round").cells] == ["40.0 %", "–"]
    folder.tell("record", {"name": "weights noise", "round": 0, "value": [0.1, 0.1]})
    found = comparison.compare(home, ["first", "second"])
    assert figure_of(found, f"weight of {names[0]}, last round").cells[0].words == "40.0 % (20.4 to 59.6)"


def test_csv_export_escapes_cells_that_a_spreadsheet_would_compute(home, tmp_path):
    keep(home, "first", Evaluated("=1+1, 00", {"@x": "=2"}))
    file = tmp_path / "runs.csv"
    operator("run", "compare", "first", "second", "--csv", file, "--home", home)
    rows = list(csv.reader(file.read_text().splitlines()))
    assert rows[0] == ["group", "figure", "good", "first", "second"]
    assert ["How good", "test file", "", "'=1+1, 00", "not measured"] in rows
    assert ["How good", "'@x", "", "'=2", "–"] in rows
    assert ["Promise", "promised epsilon", "low is good"] in [row[:3] for row in rows]


@pytest.mark.slow
def test_evaluate_command_scores_a_finished_run_and_compare_shows_it(home, tmp_path, monkeypatch):
    monkeypatch.setattr("undersong_server.operations.releases.embedder", lambda *_given: embed)
    test = tmp_path / "test.jsonl"
    rows = [{"text": f"a text number {n}", "label": "ab"[n % 2]} for n in range(30)]
    test.write_text("".join(json.dumps(row) + "\n" for row in rows))
    operator("run", "evaluate", "first", "--test", test, "--home", home, code=2)  # it has not finished
    folder = CoordinatorHome(home).run("first")
    folder.write_status(RunStatus("finished"))
    folder.output.mkdir()
    (folder.output / "synthetic.jsonl").write_text(test.read_text())
    with raises(ConfigurationError, "test-file-written"):
        evaluate_run(home, "first", EvaluationOptions(test=test))
    (folder.output / "synthetic.jsonl").write_text(test.read_text().replace('"text": "', '"text": "invented: '))
    kept = json.loads(operator("run", "evaluate", "first", "--test", test, "--home", home, "--json"))
    assert kept["test"].startswith("test.jsonl, ")
    assert "%" in kept["figures"]["panel score"]
    found = json.loads(operator("run", "compare", "first", "second", "--home", home, "--json"))
    assert [each["evaluated"] for each in found] == [kept, None]
    assert kept["texts"] == 30
    (cell,) = figure_of(comparison.compare(home, ["first"]), "panel score").cells
    assert kept["figures"]["panel score"] in cell.words
    assert cell.interval.low <= cell.value <= cell.interval.high
