"""Evaluation of a run's folder against files or tables that the caller holds."""

import os
from pathlib import Path

from undersong_common import embedders
from undersong_common.embedding import Embed, MemoryCache, PublicFileCache
from undersong_common.errors import ConfigurationError
from undersong_common.table import Table, read_column, read_table
from undersong_server.cluster import Cluster, connected, spread
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation.evaluate import EvaluationReport, evaluate_tables, read_sequences
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.release.files import JSONL_NAME, SEQUENCES_NAME


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


def evaluate(folder: Path, options: EvaluationOptions, embed: Embed | None = None) -> EvaluationReport:
    """Evaluates the synthetic texts in ``folder``, the output of a finished run.

    Args:
        embed: texts to float32 unit vectors [n, d], in this process; None loads the embedder of the options.

    Raises ConfigurationError where a file is missing or not usable.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"{folder}: no such folder", "name the output folder of a finished run", code="folder-missing"
        )
    if not (folder / JSONL_NAME).is_file():
        raise ConfigurationError(
            f"{folder}: holds no {JSONL_NAME}",
            "name the output folder of a finished run; one that was stopped continues when it is started again",
            code="run-unfinished",
        )
    synthetic = _read_synthetic(folder / JSONL_NAME)
    compared = (options.test, options.train_private, options.overlap, options.membership)
    if all(each is None for each in compared) and not options.personal_data:
        raise ConfigurationError(
            f"{folder}: nothing to compare with", "name a file with --test or --overlap", code="nothing-to-compare"
        )
    if options.group_field and not isinstance(options.test, Path):
        raise ConfigurationError(
            "a group column is the test file's, and no test file is named",
            "name it with --test",
            code="test-file-missing",
        )
    groups = read_column(options.test, options.group_field) if options.group_field else None  # type: ignore[arg-type]
    sequences = read_sequences(folder / SEQUENCES_NAME) if options.sequences else None
    with connected(options.ray) as cluster:
        public_cache = public_cache_path(os.environ) if options.public_data else None
        return evaluate_tables(
            str(folder),
            synthetic,
            options,
            embed=embed or embedder(options.embedder, cluster, public_cache),
            sequences=sequences,
            groups=groups,
        )


def _read_synthetic(path: Path) -> Table:
    """The run's texts. Rows are few enough to read twice where the task has no labels (all are "")."""
    try:
        return read_table(path, "text", "label")
    except ConfigurationError as error:
        if "is empty or not a label" not in error.problem:
            raise
        return read_table(path, "text")
