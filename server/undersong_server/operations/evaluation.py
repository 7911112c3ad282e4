"""Evaluation of a run's folder against files or tables that the caller holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from undersong_common import embedders
from undersong_common.embedding import Embed, MemoryCache, PublicFileCache
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.fine_tuning import FineTuning
from undersong_common.model_files import model_folder
from undersong_common.table import Table, read_column, read_table
from undersong_server.cluster import Cluster, connected, spread
from undersong_server.evaluation.evaluate import (
    Compute,
    EvaluationReport,
    Piece,
    computed,
    evaluate_tables,
    in_this_process,
)
from undersong_server.evaluation.heads import Head
from undersong_server.evaluation.personal_data import presidio
from undersong_server.evaluation.sequences import read_sequences
from undersong_server.release.files import JSONL_NAME, SEQUENCES_NAME

Source: TypeAlias = Path | Table


def embedder(model: str, cluster: Cluster | None = None, public_cache: Path | None = None) -> Embed:
    """Texts to float32 unit vectors [n, d], cached in memory only, since the texts may be private.

    Args:
        model: "packaged", a local sentence-transformers folder, or "plug-in:NAME" (docs/extending.md).
        cluster: embeds where the texts are many; they leave this process.
        public_cache: file with embeddings of public texts, from which a stopped evaluation goes on; None unless all
            texts are public.
    """
    cache = MemoryCache() if public_cache is None else PublicFileCache(public_cache)
    return spread(embedders.load(model), model, cache, cluster).encode


@contextmanager
def workplace(model: str, ray: str | None, public_cache: Path | None) -> Iterator[tuple[Embed, Compute]]:
    """What embeds and what computes an evaluation, over the Ray cluster at an address or, for None, in this process.

    Args:
        model, public_cache: as of :func:`embedder`.
    """
    with connected(ray) as cluster:
        yield embedder(model, cluster, public_cache), over(cluster)


def over(cluster: Cluster | None) -> Compute:
    """Where the pieces of an evaluation are computed: over a cluster, a core each, or in this process.

    Over a cluster the tables leave this process.
    """
    if cluster is None:
        return in_this_process

    def compute(pieces: Sequence[Piece]) -> list[Any]:
        values: list[Any] = [None] * len(pieces)
        calls = [(function, *arguments) for function, arguments in pieces]  # each argument for itself is sent once
        for number, value in cluster.each(_in_worker, calls):
            if isinstance(value, UndersongError):
                raise value
            values[number] = value
        return values

    return compute


def _in_worker(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return computed(function, arguments)
    except UndersongError as error:
        return error


def evaluate(
    folder: Path,
    *,
    test: Source | None,
    embed: Embed,
    train_private: Source | None = None,
    overlap: Source | None = None,
    adapt_to: Source | None = None,
    sequences: bool = False,
    membership: tuple[Source, Source] | None = None,
    head: Head | None = None,
    bert: Path | None = None,
    text_field: str = "text",
    label_field: str | None = "label",
    group_field: str | None = None,
    repeats: int = 1,
    personal_data: bool = False,
    seed: int = 0,
    compute: Compute = in_this_process,
) -> EvaluationReport:
    """Evaluates the synthetic texts in ``folder``, the output of a finished run.

    Args:
        test: real texts the task model is judged on and compared with; with labels unless ``label_field`` is None;
            None where the overlap or the distances to ``train_private`` are enough. Here and below a table that has
            been read counts like a file; its columns are chosen already.
        embed: texts to float32 unit vectors [n, d]; :func:`embedder` makes one.
        train_private: the real training texts, for the reference "private data only, no privacy".
        overlap: a private file to search the synthetic texts' words in.
        adapt_to: unlabelled texts of the place where the task model will work: it is adapted to them too (Deep CORAL).
        sequences: judges the keyphrase sequences of the run alone as well.
        membership: members and non-members of the private training data: the task model is attacked with them.
        head: of one more task model, beside the panel.
        bert: a local encoder folder, or "packaged", that is fine-tuned as well, where given.
        group_field: column of the test, which is a file then; task models are judged for each of its groups too.
        repeats: seeds, from ``seed`` on, with each of which every model is trained.
        personal_data: counts names, numbers and dates in the synthetic texts, and which of them ``overlap`` holds.
        compute: where the figures are computed; :func:`over` makes one.

    Raises ConfigurationError where a file is missing or not usable.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder", "name the output folder of a finished run")
    if not (folder / JSONL_NAME).is_file():
        raise ConfigurationError(
            f"{folder}: holds no {JSONL_NAME}", "the run has not finished; start it again and it continues"
        )
    synthetic = _read_synthetic(folder / JSONL_NAME)
    if test is None and train_private is None and overlap is None and membership is None and not personal_data:
        raise ConfigurationError(f"{folder}: nothing to compare with", "name a file with --test or --overlap")
    if group_field is not None and not isinstance(test, Path):
        raise ConfigurationError("a group column is the test file's, and no test file is named", "name it with --test")
    labelled = {test, train_private, *(membership or ())}

    @cache  # one file may be named for several purposes
    def read(source: Source) -> Table:
        if isinstance(source, Table):
            return source
        return read_table(source, text_field, label_field if source in labelled else None)

    tested, trained_on, searched, target = (
        None if source is None else read(source) for source in (test, train_private, overlap, adapt_to)
    )
    return evaluate_tables(
        str(folder),
        synthetic,
        test=tested,
        embed=embed,
        train_private=trained_on,
        overlap=searched,
        target=target,
        sequences=read_sequences(folder / SEQUENCES_NAME) if sequences else None,
        membership=None if membership is None else (read(membership[0]), read(membership[1])),
        head=head,
        fine_tuning=None if bert is None else FineTuning(model_folder(bert)),
        groups=read_column(test, group_field) if group_field is not None and isinstance(test, Path) else None,
        repeats=repeats,
        finder=presidio() if personal_data else None,
        seed=seed,
        compute=compute,
    )


def _read_synthetic(path: Path) -> Table:
    """The run's texts. Rows are few enough to read twice where the task has no labels (all are "")."""
    try:
        return read_table(path, "text", "label")
    except ConfigurationError as error:
        if "is empty or not a label" not in error.problem:
            raise
        return read_table(path, "text")
