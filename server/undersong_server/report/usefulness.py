"""Computes the figures of a finished run's corpus on the task's public test file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed
from undersong_common.models.model_files import PACKAGED
from undersong_common.printable import joined
from undersong_common.text.table import Table, read_table
from undersong_server.evaluation.evaluate import NO_PRIVACY, evaluate_tables
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.evaluation.panel import FIGURES, TrainedModels
from undersong_server.generators.author import Author
from undersong_server.methods import mixture
from undersong_server.pool import Sample
from undersong_server.report.data import ALONE, ZERO_SHOT, Accuracy, Figures, Measure, measures_of
from undersong_server.runs.planning import RunPlan
from undersong_server.runs.task import Task

OURS = "synthetic"
FREE_KINDS = ("ngram", "replay")  # a comparison may ask these again at no cost


def read_test_file(task: Task) -> Table | None:
    """Reads the public test file, with labels if the task has labels; None if the task names no test file.

    Raises ConfigurationError, with file and row, if the file cannot be read or used.
    """
    if task.evaluation.test is None:
        return None
    path = task.locate(task.evaluation.test)
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file (evaluation.test)", "check the path")
    if not task.task.labels:  # No task model is trained then; the other figures need no labels.
        return read_table(path, task.data.text)
    if task.data.label is None:
        raise ConfigurationError(
            "evaluation.test is a file with labels, but data.label names no column",
            "name the column, or leave the test out",
        )
    return read_table(path, task.data.text, task.data.label, labels=task.task.labels)


def table_of(samples: Iterable[Sample]) -> Table:
    """Makes a table of the texts, labels and attributes of samples."""
    sample_list = list(samples)
    attribute_names = dict.fromkeys(name for sample in sample_list for name, _ in sample.attributes)
    attribute_rows = [dict(sample.attributes) for sample in sample_list]
    return Table(
        tuple(sample.text for sample in sample_list),
        tuple(sample.label for sample in sample_list),
        None,
        {name: tuple(row_attributes.get(name, "") for row_attributes in attribute_rows) for name in attribute_names},
    )


def writes_baseline(run_plan: RunPlan, test: Table) -> bool:
    """True if the baseline can be written and judged: its texts cost nothing, and the test file has labels."""
    return test.labels is not None and all(generator.kind in FREE_KINDS for generator in run_plan.task.generators)


def write_baselines(run_plan: RunPlan, corpus: Sequence[Sample], make_author: Callable[[], Author]) -> dict[str, Table]:
    """Writes texts that no record has steered, as many orders as the corpus has texts: tables by name.

    They are zero-shot texts of the same generators in equal parts. Where some generators wrote nothing of the corpus,
    there is a second table, of the others alone: somebody who drops the former after reading a few texts gets as much
    without a record.

    Args:
        make_author: builds a fresh author; its answers are journaled too.
    """
    setting = run_plan.setting
    corpus_authors = {sample.generator for sample in corpus}
    published_names = tuple(name for name in setting.generators if name in corpus_authors)
    setting_by_step = {"comparison": (ZERO_SHOT, setting)}
    if published_names and published_names != setting.generators:
        setting_by_step["comparison/published"] = (
            ALONE.format(joined(published_names)),
            replace(setting, generators=published_names),
        )
    tables: dict[str, Table] = {}
    for step, (name, step_setting) in setting_by_step.items():
        orders = mixture.orders(mixture.Options(samples=len(corpus)), step_setting)
        tables[name] = table_of(sample for sample in make_author().write(step, 0, orders) if sample is not None)
    return tables


def figures(
    task: Task,
    corpora: Mapping[str, Table],
    test: Table,
    *,
    embed: Embed,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Figures:
    """Trains the panel on each corpus and tries it on the test file; other figures are of the corpus ``OURS`` alone.

    Args:
        corpora: tables by name; that of this run is ``OURS``.
        embed: texts to float32 unit vectors [n, d].
        on_progress: told how many of the corpora are done.
    """
    if test.labels is None:
        report = evaluate_tables(OURS, corpora[OURS], EvaluationOptions(test=test, seed=seed), embed=embed)
        return (), measures_of(report)
    settings = task.evaluation
    options = EvaluationOptions(
        test=test,
        head=settings.head,
        bert=None if settings.encoder is None else _locate_encoder(task, settings.encoder),
        epochs=settings.epochs,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        max_tokens=settings.max_tokens,
        repeats=settings.repeats,
        seed=seed,
    )
    accuracies: list[Accuracy] = []
    text_measures: tuple[Measure, ...] = ()
    for corpus_number, (data_name, corpus) in enumerate(corpora.items()):
        on_progress(corpus_number, len(corpora))
        if len(set(corpus.labels or ())) < 2:
            continue
        report = evaluate_tables(data_name, corpus, options, embed=embed, only_task_models=data_name != OURS)
        if data_name == OURS:
            text_measures = measures_of(report)
        accuracies += [
            _make_accuracy(data_name, trained_models, panel=trained_models is report.trained[0])
            for trained_models in report.trained
        ]
    return tuple(accuracies), text_measures


def _make_accuracy(data_name: str, trained_models: TrainedModels, *, panel: bool) -> Accuracy:
    interval_by_figure = {name: trained_models.interval(name) for name in FIGURES}
    return Accuracy(
        data_name,
        **{name: figure_interval.value for name, figure_interval in interval_by_figure.items()},
        ours=data_name == OURS and panel,
        reads_private=data_name == NO_PRIVACY,
        by_texts=trained_models.accuracy_by_texts,
        reference=panel and data_name not in (OURS, NO_PRIVACY),
        model=trained_models.description,
        by_model=trained_models.accuracy_by_model,
        by_label=trained_models.accuracy_by_label,
        interval=interval_by_figure["accuracy"] if len(trained_models.runs) > 1 else None,
    )


def _locate_encoder(task: Task, encoder: str) -> Path:
    return Path(encoder) if encoder == PACKAGED else task.locate(encoder)
