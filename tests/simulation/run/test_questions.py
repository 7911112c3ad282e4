"""The first sentence on what a hospital is asked, for the plan of every method: its questions, and no other."""

import pytest

from tests.examples.test_task_files import CLINIC
from undersong_protocol.agreement import words
from undersong_server import methods
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_figures, plan_run

pytestmark = pytest.mark.heavy

OPTIONS = {
    "dpga": ["method.samples=150", "method.rounds=2", "method.embedding_size=48"],
    "discriminator": ["method.samples=120", "method.queries=20", "method.contrast=20", "method.embedding_size=48"],
    "dpkps": ["method.samples=60", "method.length=3"],
    "mixture": ["method.samples=60"],
    "mixture+labels": ["method.samples=60"],
    "cleaned-mixture": ["method.samples=60"],
}


# A plan of these two needs the files of a model that the generators and the embedder share.
OF_LOCAL_MODELS = {"tuned", "vector"}


@pytest.mark.parametrize("method", sorted(set(methods.names()) - OF_LOCAL_MODELS))
def test_first_sentence_of_every_method_names_its_plan_s_questions(method, tmp_path):
    options = OPTIONS.get(method, ["method.samples=60", "method.rounds=3"])
    if method == "dpkps":
        (tmp_path / "words.txt").write_text("fever\ncough\n")
        options = [*options, f"method.vocabulary={tmp_path / 'words.txt'}"]
    no_noise = "privacy.epsilon=inf"  # calibrating noise takes long, and no question depends on it
    plan = plan_run(tasks.load(CLINIC, [f'method.name="{method}"', no_noise, *options]))
    figures = plan_figures(plan)
    assert figures.questions == tuple(dict.fromkeys(planned.build().asks for planned in plan.plan.sums))
    named, rest = figures.questions[: words.MOST_QUESTIONS], figures.questions[words.MOST_QUESTIONS :]
    clauses = [clause.removeprefix("and ") for clause in figures.asks.split("; ")]
    expected = [clause.replace("your records", "its records") for clause in named] or ["nothing about records"]
    assert clauses == expected + [f"{len(rest)} more, below"] * bool(rest)
