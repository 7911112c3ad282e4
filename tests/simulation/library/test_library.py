"""The library as a notebook uses it: a task from DataFrames, its plan, its simulation, figures that print."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import inspect
import re
import stat
import zlib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import undersong as us
from tests.doubles.cluster import PickledCalls
from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import LABELS, sentence
from undersong.library import functions as front
from undersong.library import task_files
from undersong.library.functions import NotebookProgress
from undersong.library.results import Money
from undersong.library.task_files import Task
from undersong.run import simulation
from undersong.run.options import ComparisonOptions
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.models import embedders
from undersong_common.models.embedding import Embedder
from undersong_common.text.row_files import Row
from undersong_common.text.table import Columns, table_of
from undersong_protocol.statistics import LabelHistogram
from undersong_server import methods
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.generators.kinds import function
from undersong_server.operations.tasks import read_private_files
from undersong_server.progress import Silent
from undersong_server.runs import execution

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")


@pytest.fixture(autouse=True)
def no_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))


def frame(rows: int):
    import pandas

    rng = np.random.default_rng(rows)
    labels = [LABELS[row % 2] for row in range(rows)]
    return pandas.DataFrame({"note": [sentence(rng, label) for label in labels], "topic": labels})


def make_notebook_task(**changes) -> Task:
    generators = [{"name": name, "kind": "ngram", "corpus": frame(60)} for name in ("good", "poor")]
    options = {"samples": 8, "rounds": 2, "votes": 2, "examples": 2, "shortlist": 2}
    given: dict[str, Any] = {
        "text": "note",
        "label": "topic",
        "description": "a short remark",
        "epsilon": 4.0,
        "method": "wasp",
    }
    given |= {"options": options, "generators": generators, "parties": 2}
    return us.Task.from_frame(changes.pop("records", frame(12)), **(given | changes))


def test_ray_cluster_beside_the_flower_engine_is_refused():
    with raises(ConfigurationError, "two-clusters"):
        us.simulate(make_notebook_task(), engine="flower", ray="")


@pytest.mark.slow
def test_ray_cluster_changes_no_byte_of_a_run_and_no_figure_of_evaluation(monkeypatch, tmp_path):
    cluster = PickledCalls()
    spread = functools.partial(simulation.spread, fewest=1)
    for module in (simulation, front.releases):
        monkeypatch.setattr(module, "spread", spread)
    for module in (front, front.releases):
        monkeypatch.setattr(module, "connected", lambda ray: contextlib.nullcontext(None if ray is None else cluster))
    given = {"progress": Silent(), "insecure_noise_seed": 1}
    here = us.simulate(make_notebook_task(), tmp_path / "here", **given)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "another cache"))
    there = us.simulate(make_notebook_task(), tmp_path / "there", ray="", **given)
    assert (here.folder / "synthetic.jsonl").read_bytes() == (there.folder / "synthetic.jsonl").read_bytes()
    assert cluster.asked
    asked = len(cluster.asked)
    figures = [us.evaluate(here, test=frame(10), head="linear", ray=ray).to_json() for ray in (None, "")]
    assert figures[0] == figures[1]
    assert len(cluster.asked) > asked


def test_every_public_name_is_there_and_documented():
    for name in set(us.__all__) - {"__version__"}:
        assert getattr(us, name).__doc__, name
    assert set(us.__all__) <= set(dir(us))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = us.simulat


@pytest.mark.parametrize(("name", "options"), [("compare", ComparisonOptions), ("evaluate", EvaluationOptions)])
def test_signature_and_help_list_every_option(name, options):
    shown = inspect.signature(getattr(us, name)).parameters
    for each in fields(options):
        assert each.name in shown
        assert re.search(rf"\b{each.name}\b", us.__dict__[name].__doc__), each.name
    assert "options" not in shown
    assert shown["test"].default is None


@pytest.mark.heavy
def test_library_plan_states_epsilon_model_calls_and_money():
    plan = us.plan(make_notebook_task())
    assert (plan.epsilon, plan.promise.unit, int(plan.calls)) == (4.0, "sample", 8)
    assert str(plan.calls).startswith("8 calls of good, poor, ")
    assert 0 < plan.calls.time_s[0] < plan.calls.time_s[1]
    assert str(plan.money) == "nothing"
    assert [str(Money(usd)) for usd in (None, (0.1, 0.25))] == ["unknown: no price is configured", "US$ 0.10 to 0.25"]
    assert list(plan.sums["statistic"]) == ["top_q_votes"]
    assert "Promise: epsilon 4, delta 1e-05 for one sample" in str(plan)
    assert "top_q_votes" in plan._repr_html_()
    assert us.plan(make_notebook_task().override("privacy.epsilon=1")).epsilon == 1.0


def test_plan_of_the_library_prices_paid_calls():
    paid = {"name": "big", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1/v1", "api_key_env": ""}
    paid |= {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 2.0}
    plan = us.plan(make_notebook_task(generators=[paid]))
    low, high = plan.money.usd
    assert 0 < low < high
    assert "tokens" in str(plan.calls)


@pytest.mark.slow
def test_simulation_returns_corpus_weights_ledger_report_and_evaluation():
    made = make_notebook_task(test=frame(10))
    run = us.simulate(made, insecure_noise_seed=1, progress=Silent())
    assert {"text", "label", "generator", "round", "prompt_kind"} <= set(run.corpus.columns)
    assert set(run.corpus["label"]) <= set(LABELS)
    assert list(run.weights.columns) == ["good", "poor"]
    assert run.weights.sum(axis=1).tolist() == pytest.approx([1.0] * len(run.weights))
    assert set(run.ledger["party"]) == {"party-1", "party-2"}
    assert "iframe" in run.report._repr_html_()
    assert run.epsilon == float("inf")  # its noise came from a seed
    assert f"look at   {run.folder}" in str(run)
    found = us.evaluate(run, test=frame(10), train_private=frame(12))
    assert found.scores["model"].tolist() == ["panel", "panel"]
    assert list(found.distances["reference"]) == ["test file", "private training file"]
    verification = us.verify(run)
    assert verification.holds
    assert verification.to_json()["kind"] == "simulation"
    assert str(verification).startswith("SIMULATION, CONFIRMED")
    assert "took part: party-1, party-2" in str(verification)


def read_as_a_stranger(corpus, test) -> float:
    """Accuracy of a usual text classifier, from the published file and scikit-learn alone."""
    import pandas
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    read = pandas.read_json(corpus, lines=True) if corpus.suffix == ".jsonl" else pandas.read_parquet(corpus)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    model = make_pipeline(make_union(words, letters), LogisticRegression(C=3, max_iter=300))
    return model.fit(read["text"], read["label"]).score(test["note"], test["topic"])


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_after(["undersong", "wasp"], 1))
def test_classifier_on_published_files_scores_as_the_evaluation_does(method):
    test = frame(50)
    made = make_notebook_task(method=method, options={"samples": 40, "rounds": 2}, records=frame(40))
    run = us.simulate(made, insecure_noise_seed=1, progress=Silent())
    assert run.corpus["text"].is_unique
    assert "weight" not in run.corpus.columns
    words = us.evaluate(run, test=test).to_json()["task_models"][0]["models"]["words"]["accuracy"]
    for name in ("synthetic.jsonl", "synthetic.parquet"):
        assert read_as_a_stranger(run.folder / name, test) == pytest.approx(words, abs=0.021)  # one text of 50


@pytest.mark.heavy
def test_text_that_a_method_returns_repeatedly_is_published_once(monkeypatch):
    """Under the label that it has most often, whoever wrote the method."""
    plugged = methods.load("mixture")

    def repeating(options, run):
        samples = plugged.run(options, run)
        first = samples[0]
        other = next(label for label in LABELS if label != first.label)
        return [first, replace(first, label=other), *samples[1:], replace(first, label=other)]

    def published(method):
        monkeypatch.setattr(execution.methods, "load", lambda name: method)
        made = make_notebook_task(method="mixture", options={"samples": 8})
        return us.simulate(made, insecure_noise_seed=1, progress=Silent()).corpus

    repeated, once = published(replace(plugged, run=repeating)), published(plugged)
    assert repeated["text"].tolist() == once["text"].tolist()
    assert (repeated["label"] != once["label"]).tolist() == [True] + [False] * (len(once) - 1)


@pytest.mark.heavy
@pytest.mark.parametrize("returned", [None, "a text", ["a text"], [None], {"a": 1}])
def test_method_that_returns_something_else_than_samples_is_refused(monkeypatch, returned):
    plugged = replace(methods.load("mixture"), run=lambda _options, _run: returned)
    monkeypatch.setattr(execution.methods, "load", lambda name: plugged)
    with raises(ConfigurationError, "method-return"):
        us.simulate(
            make_notebook_task(method="mixture", options={"samples": 8}), insecure_noise_seed=1, progress=Silent()
        )


class Said(Silent):
    def __init__(self):
        self.words = []

    def say(self, words):
        self.words.append(words)


def simulated_by(monkeypatch, method, progress, name="mixture"):
    monkeypatch.setattr(execution.methods, "load", lambda _name: method)
    return us.simulate(
        make_notebook_task(method=name, options={"samples": 8}), insecure_noise_seed=1, progress=progress
    )


@pytest.mark.heavy
def test_error_of_another_package_s_method_is_attributed_to_it(monkeypatch):
    def fails(_options, _run):
        raise KeyError("an author's slip")

    plugged = replace(methods.load("mixture"), run=fails)
    with pytest.raises(KeyError):
        simulated_by(monkeypatch, plugged, Silent())
    monkeypatch.setattr(execution.methods, "own_names", lambda: ())
    with raises(ConfigurationError, "method-fails") as refused:
        simulated_by(monkeypatch, plugged, Silent())
    assert "KeyError at test_library.py" in refused.value.problem
    assert isinstance(refused.value.__cause__, KeyError)  # whose traceback --debug shows


@pytest.mark.heavy
def test_method_that_orders_more_texts_than_planned_gives_a_warning(monkeypatch):
    plugged, kept, told = methods.load("mixture"), Said(), Said()
    simulated_by(monkeypatch, plugged, kept)
    simulated_by(monkeypatch, replace(plugged, generator_calls=lambda _options, _setting: 2), told)
    assert not any("its plan says" in words for words in kept.words)
    assert sum("ordered 8 texts, its plan says 2" in words for words in told.words) == 1


def test_statistic_that_raises_at_a_record_stops_a_simulation(monkeypatch):
    """Without the party the corpus would be another, and would say something of that record."""

    def fails(*_):
        raise ValueError("the words of a record")

    monkeypatch.setattr(LabelHistogram, "rows", fails)
    made = make_notebook_task(method="mixture+labels", options={"samples": 8})
    with raises(UndersongError, "statistic-fails") as stopped:
        us.simulate(made, insecure_noise_seed=1, progress=Silent())
    assert "label_histogram" in stopped.value.problem
    assert "the words" not in str(stopped.value)


@pytest.mark.slow
def test_comparison_of_the_library_gives_a_table(tmp_path):
    found = us.compare(
        make_notebook_task(),
        ["mixture"],
        test=frame(10),
        seeds=1,
        out=tmp_path / "cells",
        insecure_noise_seed=1,
        progress=Silent(),
    )
    assert list(found.table["method"]) == ["mixture"]
    assert found.to_json()["seeds"] == [0]
    assert found.cells[["method", "seed"]].to_numpy().tolist() == [["mixture", 0]]
    assert found.cells["accuracy"].tolist() == found.table["accuracy_mean"].tolist()
    assert found.markdown.startswith("# notebook: mixture")
    assert max(map(len, str(found).split("\n"))) <= 160
    assert f"{100 * found.table['accuracy_mean'][0]:.2f}" in str(found)


@pytest.mark.slow
def test_temporary_task_folder_is_private_and_deleted_with_its_task():
    made = make_notebook_task()
    folder = made.file.parent
    assert stat.S_IMODE((folder / "private" / "records.jsonl").stat().st_mode) == 0o600
    other = made.override("privacy.epsilon=2")
    del made
    gc.collect()
    assert other.file.exists()
    del other
    gc.collect()
    assert not folder.exists()


def test_named_task_folder_refuses_a_task_that_differs(tmp_path):
    first = make_notebook_task(folder=tmp_path / "mine")
    assert make_notebook_task(folder=tmp_path / "mine").file == first.file  # the cell is run again
    assert us.Task.load(first.file).settings().parties == 2
    with raises(ConfigurationError, "other-task") as refused:
        make_notebook_task(folder=tmp_path / "mine", epsilon=2.0)
    assert "'epsilon = 4.0' there, 'epsilon = 2.0' here" in refused.value.problem
    with raises(ConfigurationError, "other-task") as refused:
        make_notebook_task(folder=tmp_path / "mine", records=frame(14))
    assert refused.value.problem.endswith("(private/records.jsonl differs)")  # no line of a record


def test_data_frames_of_several_parties_are_written_to_a_file_each():
    made = make_notebook_task(records={"north": frame(6), "south": frame(8)}, parties=None, user=None)
    assert [path.stem for path in made.settings().files] == ["north", "south"]
    with raises(ConfigurationError, "argument") as refused:
        make_notebook_task(records={"north": frame(6), "south": frame(8)}, parties=3)
    assert refused.value.problem == "parties= is 3, but records= holds 2 frames, one per party"


def test_sections_argument_overrides_the_other_arguments():
    task = make_notebook_task(epsilon=4.0, sections={"privacy": {"epsilon": 1.0}})
    assert task.settings().privacy.epsilon == 1.0


def test_an_error_names_a_folder_only_if_the_caller_named_it(tmp_path):
    for folder, begun in ((None, "privacy.epsilon: "), (tmp_path, f"{tmp_path}/task.toml: privacy.epsilon: ")):
        with pytest.raises(ConfigurationError) as refused:
            make_notebook_task(folder=folder, epsilon=0.0)
        assert refused.value.problem.startswith(begun)
        assert str(refused.value).startswith(begun)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text": "notes"}, "has no column 'notes'"),
        ({"options": {"round": 3}}, "round"),
        ({"method": "wsap"}, "wsap"),
        ({"sections": {"privacy": {"unit": "patient"}}}, "patient"),
    ],
)
def test_wrong_arguments_of_the_library_are_refused_at_once(changes, problem):
    with pytest.raises(ConfigurationError, match=problem):
        make_notebook_task(**changes)


def test_further_columns_of_a_data_frame_are_attributes():
    records = frame(12)
    records["sex"] = ["f", "m", None] * 4
    attributes = [{"name": "gender", "values": ["f", "m"], "column": "sex"}]
    made = make_notebook_task(records=records, attributes=attributes, method="undersong", options={"samples": 8})
    (table,) = read_private_files(made.settings())
    assert table.columns == {"gender": ("f", "m", "") * 4}
    with pytest.raises(ConfigurationError, match="no column 'sex'"):
        make_notebook_task(attributes=attributes, method="undersong", options={"samples": 8})


def test_rows_of_a_data_frame_are_checked_as_those_of_a_file():
    rows = [{"text": "a", "label": "x"}, {"text": " ", "label": "x"}]
    with pytest.raises(ConfigurationError, match="the frame: row 2: its text is empty"):
        table_of(
            [Row(f"the frame: row {number}", row) for number, row in enumerate(rows, start=1)],
            "the frame",
            Columns("text", "label"),
        )
    with pytest.raises(ConfigurationError, match="records: row 1: its text is empty"):
        make_notebook_task(records=frame(3).assign(note=None))


@pytest.mark.heavy
@pytest.mark.parametrize("missing", [float("nan"), None, "NA", ""])
@pytest.mark.parametrize("labels", [None, LABELS])
def test_missing_label_of_a_data_frame_is_refused(missing, labels):
    import pandas

    rows = frame(4)
    dtype = "string" if missing == "NA" else object
    rows["topic"] = pandas.Series([*rows["topic"][:3], pandas.NA if missing == "NA" else missing], dtype=dtype)
    with pytest.raises(ConfigurationError, match="records of north: row 4: the label column 'topic' is empty"):
        make_notebook_task(records={"south": frame(6), "north": rows}, labels=labels, parties=None)


def test_unknown_simulation_engine_is_refused():
    with raises(ConfigurationError, "argument") as refused:
        us.simulate(make_notebook_task(), engine="spark")
    assert "inprocess" in refused.value.remedy


def test_a_notebook_s_progress_is_one_line_and_escapes_what_it_shows():
    drawn: list[str] = []
    now = [0.0]
    progress = NotebookProgress(drawn.append, clock=lambda: now[0])
    with progress:
        progress.say("<b>continuing</b>")
        progress.update("texts", 1, 4)
        progress.update("texts", 2, 4)  # too soon
        now[0] = 1.0
        progress.update("texts", 3, 4)
    assert len(drawn) == 4
    assert "&lt;b&gt;continuing" in drawn[0]
    assert 'texts 3/4 <progress value="3" max="4">' in drawn[2]
    assert "progress" not in drawn[-1]


def shout(prompt: str) -> str:
    """A generator: another text for every prompt, of the label that the prompt names."""
    label = next((each for each in LABELS if each in prompt), LABELS[0])
    return sentence(np.random.default_rng(zlib.crc32(prompt.encode())), label)


def three(text: str) -> list[float]:
    values = np.random.default_rng(zlib.crc32(text.encode())).normal(size=3)
    return list(values)


@pytest.mark.heavy
def test_functions_as_generator_and_embedder_run_in_this_process(monkeypatch):
    monkeypatch.undo()  # no packaged weights are loaded at all
    made = make_notebook_task(generators=[shout, shout], embedder=three)
    assert us.plan(made).calls.generators == ("shout", "shout-2")
    run = us.simulate(made, insecure_noise_seed=1, progress=Silent())
    assert set(run.corpus["generator"]) <= {"shout", "shout-2"}
    assert us.verify(run).holds
    read = us.load(run.folder)
    assert read.corpus.equals(run.corpus)
    assert "texts in" in str(read)
    tried = us.try_(made, "shout", texts=2)
    assert list(tried["fault"]) == ["", ""]


@pytest.mark.parametrize(("answer", "cause"), [(lambda _: 3, None), (lambda _: 1 // 0, ZeroDivisionError)])
def test_generator_function_that_raises_stops_the_run_with_its_error(answer, cause):
    with pytest.raises(ConfigurationError, match="the function") as caught:
        us.simulate(make_notebook_task(generators=[answer], embedder=three), progress=Silent())
    assert type(caught.value.__cause__) is (cause or type(None))


def test_task_whose_function_is_missing_in_this_process_is_refused(monkeypatch):
    made = make_notebook_task(generators=[shout], embedder=three)
    monkeypatch.setattr(function, "FUNCTIONS", {})
    with pytest.raises(ConfigurationError, match="this process has no function"):
        us.simulate(made, progress=Silent())


def test_task_folder_accepts_its_function_from_another_module(monkeypatch, tmp_path):
    monkeypatch.setattr(task_files, "FUNCTIONS", {})
    monkeypatch.setattr(embedders, "FUNCTIONS", {})

    def named(module):
        def clerk(given):
            return "a text"

        clerk.__module__ = module
        return clerk

    make_notebook_task(folder=tmp_path / "mine", generators=[named("__main__")], embedder=named("__main__"))
    with raises(ConfigurationError, "other-function"):  # a task of this process would ask the other one
        make_notebook_task(generators=[named("ten")])
    with raises(ConfigurationError, "other-function"):
        make_notebook_task(embedder=named("ten"))
    task_files.FUNCTIONS.clear()  # as a new process begins
    embedders.FUNCTIONS.clear()
    make_notebook_task(folder=tmp_path / "mine", generators=[named("ten")], embedder=named("ten"))


def test_a_daemon_refuses_a_notebooks_embedder():
    with pytest.raises(ConfigurationError, match="only a simulation can use"):
        embedders.check_pinned("function:three")


def test_library_errors_name_python_arguments_and_not_options(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(ConfigurationError) as caught:
        us.simulate(make_notebook_task(), tmp_path / "taken", progress=Silent())
    assert "out=" in caught.value.remedy
    assert "--" not in str(caught.value)

    @front.public
    def refuse() -> None:
        raise ConfigurationError("another run", "name another folder with --out, or start over with --fresh")

    with pytest.raises(ConfigurationError, match=r"folder with out=, or start over with fresh=True$"):
        refuse()
    with raises(ConfigurationError, "unknown-argument"):
        us.compare(make_notebook_task(), ["wasp"], baselin="wasp")
    with pytest.raises(ConfigurationError, match=r"synthetic\.jsonl"):
        us.load(tmp_path)


@pytest.fixture(scope="module")
def some_task(tmp_path_factory):
    return make_notebook_task(folder=tmp_path_factory.mktemp("some"))


UNFIT = {
    "simulate": [
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"out": 3},
        {"fresh": "yes"},
        {"progress": 1},
        {"sead": 1},
    ],
    "try_": [{}, {"generator": 3}, *({"generator": "good", "texts": each} for each in ("3", 0, 1001, None, True))],
    "audit": [{"canaries": "x"}, {"runs": 1}, {"runs": 2.0}, {"jobs": 0}, {"seed": "0"}],
    "compare": [
        {},
        *({"methods": each} for each in (3, None, ["wasp", 3])),
        *({"methods": "wasp", "seeds": each} for each in (0, "3", 1.5, [0.5])),
        *({"methods": "wasp", **each} for each in ({"epsilons": 4.0}, {"jobs": -1}, {"test": 3}, {"baseline": 1})),
    ],
}


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "given"), [(name, each) for name, listed in UNFIT.items() for each in listed])
def test_unfit_argument_of_a_task_function_is_refused_by_its_name(some_task, name, given):
    with raises(ConfigurationError, "argument") as caught:
        getattr(us, name)(some_task, **given)
    assert all(f"{each}=" in caught.value.problem for each in list(given)[-1:] if each != "sead")
    assert "--" not in str(caught.value)


GRIDS = [
    *({"seeds": each} for each in (range(2), {1, 0}, np.arange(2), np.int64(2), (np.int32(0), np.int64(1)))),
    {"seeds": range(2), "parties": range(3, 4), "records": {30}, "epsilons": np.array([1, 4])},
    {"seeds": range(2), "parties": [np.int64(3)], "records": np.array([30]), "epsilons": {4.0, np.float32(1)}},
]


@pytest.mark.parametrize("given", [*GRIDS, {"seeds": (seed for seed in (0, 1)), "epsilons": iter([1, 4])}])
def test_ranges_arrays_and_iterators_are_taken_as_grid_axes(some_task, monkeypatch, given):
    taken = []
    monkeypatch.setattr(front, "compare_by", lambda _task, options, *_: taken.append(options))
    us.compare(some_task, iter(["wasp", "mixture"]), **given)
    options = taken[0]
    assert (list(options.methods), list(options.every_seed)) == (["wasp", "mixture"], [0, 1])
    axes = [list(options.epsilons), list(options.parties), list(options.records)]
    assert all(axis in ([], wanted) for axis, wanted in zip(axes, ([1, 4], [3], [30]), strict=True))
    assert {type(each) for axis in (options.every_seed, *axes) for each in axis} <= {int, float}


def test_numpy_numbers_and_labels_are_accepted_as_arguments():
    made = make_notebook_task(parties=np.int64(3), epsilon=np.float32(4), labels=frame(2)["topic"].unique())
    assert made.settings().task.labels == LABELS
    assert us.try_(made, "good", texts=np.int64(2))["label"].tolist() == list(LABELS)


UNFIT_ELSEWHERE: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    *((each, (3,), {}) for each in (us.plan, us.load, us.verify, us.Task.load)),
    (lambda each: make_notebook_task().override(each), (3,), {}),
    *(
        (make_notebook_task, (), each)
        for each in ({"epsilon": "4"}, {"generators": [3]}, {"labels": "ab"}, {"parties": 2.5})
    ),
    *((make_notebook_task, (), each) for each in ({"test": 1}, {"records": 3}, {"options": 3})),
    *((us.evaluate, (".",), each) for each in ({"test": 3}, {"head": 3}, {"repeats": 0}, {"text": 5})),
    *((us.evaluate, (".",), each) for each in ({"membership": 3}, {"membership": ("a",)}, {"epochs": "4"})),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("function", "given", "named"), UNFIT_ELSEWHERE)
def test_unfit_arguments_of_other_library_functions_are_refused(function, given, named):
    with raises(ConfigurationError, "argument"):
        function(*given, **named)


def test_error_about_an_unfit_data_frame_shows_none_of_its_values(tmp_path):
    with raises(ConfigurationError, "argument") as caught:
        us.evaluate(tmp_path, label=frame(3))
    assert sentence(np.random.default_rng(3), LABELS[0]) not in str(caught.value)
    with raises(ConfigurationError, "argument") as caught:
        us.audit(make_notebook_task(), seed="a private note")
    assert "private note" not in str(caught.value)


def test_comparison_of_one_method_is_allowed(some_task):
    with raises(ConfigurationError, "no-test-set"):
        us.compare(some_task, "mixture")


def test_an_interrupted_notebook_is_told_how_to_continue(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(front, "in_notebook", lambda: True)
    with pytest.raises(KeyboardInterrupt) as caught:
        front.public(interrupted)()
    assert len(caught.value._render_traceback_()) == 3
    monkeypatch.setattr(front, "in_notebook", lambda: False)
    with pytest.raises(KeyboardInterrupt) as caught:
        front.public(interrupted)()
    assert type(caught.value) is KeyboardInterrupt
