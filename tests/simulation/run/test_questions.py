"""The first sentence on what a hospital is asked, for the plan of every method: its questions, and no other."""

import html
from pathlib import Path

import pytest

from tests.doubles.sheets import blank_sheet
from tests.examples.test_task_files import CLINIC
from undersong_client.consent.preview import sheet_page
from undersong_client.consent.question_sections import ALL_QUESTIONS, list_sections
from undersong_client.consent.sheet import ReleaseGroup, StatedTask
from undersong_protocol.agreement import words
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, plan_sums
from undersong_protocol.statistics.support import WRITER_ASIDE
from undersong_server import methods
from undersong_server.methods.interface import Setting
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_figures, plan_run

pytestmark = pytest.mark.heavy

OPTIONS = {
    "dpga": ["method.samples=150", "method.rounds=2", "method.embedding_size=48"],
    "discriminator": ["method.samples=120", "method.queries=20", "method.contrast=20", "method.embedding_size=48"],
    "dpkps": ["method.samples=60", "method.length=3"],
    "mixture": ["method.samples=60"],
    "mixture+labels": ["method.samples=60"],
    "cleaned-mixture": ["method.samples=60"],
}


# A task of these two needs the files of a model that the generators and the embedder share.
OF_LOCAL_MODELS = {"tuned", "vector"}


def plan_example(method: str, folder: Path, *settings: str) -> RunPlan:
    options = [*OPTIONS.get(method, ["method.samples=60", "method.rounds=3"]), *settings]
    if method == "dpkps":
        (folder / "words.txt").write_text("fever\ncough\n")
        options = [*options, f"method.vocabulary={folder / 'words.txt'}"]
    no_noise = "privacy.epsilon=inf"  # calibrating noise takes long, and no question depends on it
    return plan_run(tasks.load(CLINIC, [f'method.name="{method}"', no_noise, *options]))


def plan_by_method(method: str, folder: Path) -> Plan:
    return plan_of_model(method, folder) if method in OF_LOCAL_MODELS else plan_example(method, folder).plan


def plan_of_model(method: str, folder: Path) -> Plan:
    """The plan of a method whose generator and embedder are one model, of which it reads the settings alone."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    promise, quorum = Privacy(float("inf"), 1e-5), Quorum(1, 1, 0, 0)
    setting = Setting(
        ("x", "y"),
        ("one",),
        folder=folder,
        privacy=promise,
        quorum=quorum,
        embedder=str(model),
        expected_records=300,
        steerable=("model",),
    )
    loaded = methods.load(method)
    return plan_sums(loaded.plan(loaded.Options(), setting), promise, quorum)


@pytest.mark.parametrize("method", sorted(set(methods.names()) - OF_LOCAL_MODELS))
def test_first_sentence_of_every_method_names_its_plan_s_questions(method, tmp_path):
    plan = plan_example(method, tmp_path)
    figures = plan_figures(plan)
    assert figures.questions == tuple(dict.fromkeys(planned.build().asks for planned in plan.plan.sums))
    named, rest = figures.questions[: words.MOST_QUESTIONS], figures.questions[words.MOST_QUESTIONS :]
    clauses = [clause.removeprefix("and ") for clause in figures.asks.split("; ")]
    expected = [clause.replace("your records", "its records") for clause in named] or ["nothing about records"]
    assert clauses == expected + [f"{len(rest)} more, below"] * bool(rest)


@pytest.mark.parametrize("method", methods.names())
def test_sheet_begins_with_three_questions_and_lists_all_further_below(method, tmp_path):
    plan = plan_by_method(method, tmp_path)
    clauses = dict.fromkeys(planned.build().asks.replace(f" {WRITER_ASIDE}", "") for planned in plan.sums)
    named, rest = list(clauses)[:3], list(clauses)[3:]
    if rest:
        named.append(f"and {len(rest)} more, below")
    elif len(named) > 1:
        named[-1] = f"and {named[-1]}"
    sentence = f"The operator asks: {'; '.join(named) or 'nothing about records'}."
    page = sheet_page(blank_sheet(asked=words.questions(plan)))
    assert page.sections[0].sentences == (sentence,)
    assert page.lines()[3].strip() == sentence
    for shown_html in (page.html(at="noon"), page.body(3)):
        first_paragraph = html.unescape(shown_html).partition("What is asked")[2].partition("<p>")[2]
        assert first_paragraph.startswith(sentence)
    listed = [point for section in page.sections[1:] if section.title == ALL_QUESTIONS for point in section.points]
    assert [clause for clause, point in zip(clauses, listed, strict=True) if not point.startswith(clause)] == []


def listed_questions(method: str, plan: Plan) -> list[str]:
    """The questions that the sheet of a plan lists, with what explains them."""
    releases = [
        ReleaseGroup(planned.statistic, words.question(planned), planned.source, 1, (planned.dimension,), 1.0, 1.0, "")
        for planned in plan.sums
    ]
    task = StatedTask("triage", None, None, None, None, ("handbook (a model)", "mixed"), None)
    sheet = blank_sheet(method=method, asked=words.questions(plan), releases=releases, task=task)
    return [point for section in list_sections(sheet) for point in section.points]


@pytest.mark.parametrize("method", methods.names())
def test_sheet_of_every_method_explains_only_the_two_compared_sets(method, tmp_path):
    plan = plan_by_method(method, tmp_path)
    listed = listed_questions(method, plan)
    explained = [". Both sets are texts of this run's writers (handbook, mixed)." in point for point in listed]
    assert explained == ["two sets" in question for question in words.questions(plan)]
    assert listed_questions("a method of another package", plan) == [point.partition(". Both")[0] for point in listed]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            (),
            "finds it better, else the first. The answer also serves to state, in card and report, how well",
        ),
        (("method.score=false",), "published if this answer finds it better, else the first."),
        (
            ("task.labels=[]", "data.label=''"),
            "The answer decides nothing: it serves to state, in card and report, how near",
        ),
    ],
)
def test_sheet_says_why_the_method_compares_two_sets_of_texts(settings, says, tmp_path):
    plan = plan_example("undersong", tmp_path, *settings).plan
    (compared,) = [point for point in listed_questions("undersong", plan) if "two sets" in point]
    assert says in compared
    assert ("card and report" in compared) == ("card and report" in says)
