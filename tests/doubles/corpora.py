"""A corpus on disk as a finished run leaves it, and nothing else of the run."""

from collections.abc import Sequence
from pathlib import Path

from undersong_server.pool import Sample
from undersong_server.release.files import JSONL_NAME, PARQUET_NAME, corpus_files, write_files


def write_corpus(folder: Path, samples: Sequence[Sample]) -> tuple[Path, Path]:
    """Writes ``synthetic.jsonl`` and ``synthetic.parquet`` and returns their paths."""
    write_files(folder, corpus_files(samples))
    return folder / JSONL_NAME, folder / PARQUET_NAME
