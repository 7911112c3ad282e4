import io
import json

import numpy as np
import pytest
from rich.console import Console
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from tests.doubles.coded import raises
from tests.doubles.corpora import write_corpus
from undersong_common.errors import ConfigurationError
from undersong_common.text.overlap import find_overlap
from undersong_common.text.table import read_table
from undersong_server.cli.evaluation_screen import render
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.evaluation.panel import settings
from undersong_server.operations import releases
from undersong_server.operations.releases import evaluate
from undersong_server.pool import Sample

pytestmark = pytest.mark.heavy  # trains task models

TOPICS = {"chest": ["heart", "pressure", "chest", "arm"], "ankle": ["foot", "twisted", "swollen", "ankle"]}
FILLER = ["today", "patient", "says", "since", "morning", "worse", "walking", "quiet"]


def bag_of_words(texts):
    known = sorted({word for row in TOPICS.values() for word in row} | set(FILLER))
    x = np.array([[text.split().count(word) for word in known] for text in texts], dtype=np.float32) + 1e-3
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def draw_notes(count, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        label = list(TOPICS)[index % 2]
        chosen = [*rng.choice(TOPICS[label], 3), *rng.choice(FILLER, int(rng.integers(4, 9)))]
        rows.append((" ".join(map(str, chosen)), label))
    return rows


def write_labelled(path, rows, label="label"):
    path.write_text("".join(json.dumps({"text": t, label: y}) + "\n" for t, y in rows))
    return path


@pytest.fixture
def run(tmp_path):
    write_corpus(tmp_path / "run", [Sample(t, y, "ngram", 0, "zero_shot") for t, y in draw_notes(120, 0)])
    write_labelled(tmp_path / "test.jsonl", draw_notes(80, 1))
    write_labelled(tmp_path / "train.jsonl", draw_notes(60, 2))
    return tmp_path


@pytest.mark.slow
def test_evaluation_with_private_files_reports_every_measure(run):
    private = [*draw_notes(40, 3), (draw_notes(120, 0)[4][0], "chest")]
    write_labelled(run / "private.jsonl", private)
    report = evaluate(
        run / "run",
        EvaluationOptions(test=run / "test.jsonl", train_private=run / "train.jsonl", overlap=run / "private.jsonl"),
        embed=bag_of_words,
    )
    assert [each.data for each in report.trained] == ["synthetic", "private data only, no privacy"]
    assert {each.model for each in report.trained} == {"panel"}
    assert all(each.scores.figures()["accuracy"] > 0.95 for each in report.trained)
    assert [each.rows for each in report.distances] == [80, 60]
    assert report.distances[0].frechet < 0.2
    assert report.distances[0].label == 0
    near = report.distances[0]
    assert near.mauve > 0.9
    assert near.coverage > 0.8
    assert near.vendi == pytest.approx(near.reference_vendi, rel=0.2)
    assert near.next_word_after < near.next_word_before
    assert report.label_errors is not None
    assert 5 in report.overlap.verbatim
    loaded = report.to_json()
    assert loaded["private"] is False
    assert "not private" in loaded["notice"]
    assert loaded["task_models"][0]["macro_f1"] > 0.95
    assert set(loaded["task_models"][0]["models"]) == {"words", "head", "mlp"}
    assert loaded["overlap"]["verbatim"]["count"] == len(report.overlap.verbatim)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(report))
    shown = console.export_text()
    assert "not private" in shown
    assert "macro-F1" in shown
    assert " ".join(settings().split()[:8]) in " ".join(shown.split())
    assert not any(text in shown + json.dumps(report.to_json()) for text, _ in private + draw_notes(80, 1))


@pytest.mark.slow
def test_evaluation_reports_repeats_groups_copies_and_personal_data(run, monkeypatch):
    rows = draw_notes(80, 1)
    (run / "test.jsonl").write_text(
        "".join(json.dumps({"text": t, "label": y, "site": "abc"[i % 3]}) + "\n" for i, (t, y) in enumerate(rows))
    )
    finder = (lambda text: [("names", word) for word in text.split() if word == "heart"], "hearts")
    monkeypatch.setattr("undersong_server.evaluation.evaluate.presidio", lambda: finder)
    report = evaluate(
        run / "run",
        EvaluationOptions(
            test=run / "test.jsonl",
            train_private=run / "train.jsonl",
            overlap=run / "train.jsonl",
            membership=(run / "train.jsonl", run / "test.jsonl"),
            head="mlp",
            group_field="site",
            repeats=2,
            personal_data=True,
        ),
        embed=bag_of_words,
    )
    trained = report.trained[0]
    assert len(trained.runs) == 2
    assert [each.model.split()[0] for each in report.trained] == ["panel", "MLP", "panel", "MLP"]
    assert trained.scores.figures()["accuracy"] == trained.runs[0].figures()["accuracy"]
    assert {name: runs[0].rows for name, runs in trained.groups.items()} == {"a": 27, "b": 27, "c": 26}
    for model in ("words", "head", "mlp"):
        whole = sum(int(np.trace(runs[1].models[model].confusion)) for runs in trained.groups.values())
        assert whole == int(np.trace(trained.runs[1].models[model].confusion))
    loaded = report.to_json()
    assert loaded["task_models"][0]["over_seeds"]["seeds"] == 2
    assert loaded["task_models"][0]["groups"]["a"]["accuracy"]["mean"] > 0.9
    assert loaded["membership"][0]["attacks"][0]["auc_over_seeds"]["low"] <= 1.0
    assert loaded["label_errors"]["share_over_seeds"]["value"] == pytest.approx(np.mean(report.label_error_shares))
    assert report.closest.records == 60
    assert report.personal.found["names"] == report.personal.in_private["names"] * len(
        [word for text, _ in draw_notes(120, 0) for word in text.split() if word == "heart"]
    )
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(render(report))
    shown = console.export_text()
    for words in (
        "means of 2 seeds",
        "by group of the test file",
        "closest of 60",
        "AUC over the seeds",
        "hearts",
        "proves nothing",
    ):
        assert words in shown


def test_group_column_without_a_test_file_that_has_it_is_refused(run):
    with raises(ConfigurationError, "test-file-missing"):
        evaluate(
            run / "run",
            EvaluationOptions(overlap=run / "train.jsonl", group_field="site"),
            embed=bag_of_words,
        )
    with pytest.raises(ConfigurationError, match="no column 'site'"):
        evaluate(run / "run", EvaluationOptions(test=run / "test.jsonl", group_field="site"), embed=bag_of_words)


def test_evaluation_runs_numeric_libraries_on_one_thread(run, monkeypatch):
    seen = []

    def watched(*texts):
        seen.extend(threadpool_info())
        return find_overlap(*texts)

    monkeypatch.setattr("undersong_server.evaluation.evaluate.find_overlap", watched)
    with threadpool_limits(2):
        evaluate(run / "run", EvaluationOptions(overlap=run / "train.jsonl"), embed=bag_of_words)
    assert {pool["num_threads"] for pool in seen if pool["user_api"] == "blas"} == {1}


@pytest.mark.slow
def test_file_named_by_several_evaluation_options_is_read_once(run, monkeypatch):
    read = []

    def counted(path, *columns, **further):
        read.append(path.name)
        return read_table(path, *columns, **further)

    for module in ("operations.releases", "evaluation.evaluate"):
        monkeypatch.setattr(f"undersong_server.{module}.read_table", counted)
    train = run / "train.jsonl"
    report = evaluate(
        run / "run", EvaluationOptions(test=run / "test.jsonl", train_private=train, overlap=train), embed=bag_of_words
    )
    assert sorted(read) == ["synthetic.jsonl", "test.jsonl", "train.jsonl"]
    assert report.trained[1].data == "private data only, no privacy"  # read with its labels
    assert report.overlap.rows == 120


def test_evaluation_without_labels_has_distances_but_no_task_model(run):
    write_corpus(run / "plain", [Sample(t, "", "ngram", 0, "zero_shot") for t, _ in draw_notes(50, 0)])
    report = evaluate(
        run / "plain",
        EvaluationOptions(test=run / "test.jsonl", label_field=None),
        embed=bag_of_words,
    )
    assert report.trained == ()
    assert report.distances[0].label is None
    assert "no task model" in report.notes[0]
    report = evaluate(run / "plain", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words)
    assert "fewer than two labels" in report.notes[0]


@pytest.mark.slow
def test_evaluation_names_a_label_without_any_synthetic_text(run):
    write_labelled(run / "test.jsonl", [*draw_notes(20, 1), ("quiet heart", "fever")])
    report = evaluate(run / "run", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words)
    assert any("fever" in note for note in report.notes)


@pytest.mark.slow
def test_markup_in_a_label_is_shown_not_interpreted(run):
    rows = [(t, f"[red]{y}[/red]") for t, y in draw_notes(40, 0)]
    write_corpus(run / "run", [Sample(t, y, "ngram", 0, "zero_shot") for t, y in rows])
    write_labelled(run / "test.jsonl", rows)
    report = evaluate(run / "run", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render(report))
    assert "[red]chest[/red]" in console.export_text()


@pytest.mark.slow
def test_evaluation_of_tiny_sets_omits_figures_instead_of_failing(run):
    write_labelled(run / "test.jsonl", draw_notes(2, 1))
    report = evaluate(run / "run", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words)
    assert report.to_json()["distances"][0]["precision"] is None


@pytest.mark.parametrize("public_data", [False, True])
def test_evaluation_keeps_embeddings_on_the_disk_only_of_public_data(run, monkeypatch, public_data):
    caches = []

    def note_cache(_model, _cluster, public_cache):
        caches.append(public_cache)
        return bag_of_words

    monkeypatch.setattr(releases, "embedder", note_cache)
    options = {"public_data": True} if public_data else {}
    evaluate(run / "run", EvaluationOptions(overlap=run / "train.jsonl", **options))
    assert [cache is not None for cache in caches] == [public_data]


def test_evaluation_error_names_missing_files(run):
    with raises(ConfigurationError, "folder-missing"):
        evaluate(run / "nowhere", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words)
    (run / "begun").mkdir()
    with raises(ConfigurationError, "run-unfinished"):
        evaluate(run / "begun", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words)
    with pytest.raises(ConfigurationError, match=r"gone\.jsonl"):
        evaluate(run / "run", EvaluationOptions(test=run / "gone.jsonl"), embed=bag_of_words)
    with pytest.raises(ConfigurationError, match="label column"):
        evaluate(run / "run", EvaluationOptions(test=run / "test.jsonl", label_field="labels"), embed=bag_of_words)


def test_a_corpus_of_an_earlier_version_is_read_without_its_weights(run):
    """As a stranger reads it: two contradicting labels of a text are two rows that count alike."""
    rows = [{"text": t, "label": y, "weight": w} for t, y in draw_notes(120, 0) for w in (1.0,)]
    wrong = {"chest": "ankle", "ankle": "chest"}
    rows += [{**row, "label": wrong[row["label"]], "weight": 0.01} for row in rows]
    (run / "run" / "synthetic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [trained] = evaluate(run / "run", EvaluationOptions(test=run / "test.jsonl"), embed=bag_of_words).trained
    assert trained.scores.figures()["accuracy"] < 0.8
