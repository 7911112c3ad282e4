"""The synthetic corpus as files: JSONL and Parquet with the same rows."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

from undersong_server.pool import Sample
from undersong_server.release.files import JSONL_NAME, PARQUET_NAME

COLUMNS = ("text", "label", "generator", "round", "prompt_kind")


def corpus_files(samples: Sequence[Sample]) -> dict[str, bytes | str]:
    """The corpus in both formats, by file name. The same samples give the same bytes."""
    rows = [_row(sample) for sample in samples]
    return {JSONL_NAME: _jsonl(rows), PARQUET_NAME: _parquet(rows)}


def _row(sample: Sample) -> tuple[str, str, str, int, str]:
    # A lone surrogate (half an emoji, from a broken answer) is no text and would stop either format.
    text = sample.text.encode("utf-8", "replace").decode("utf-8")
    return (text, sample.label, sample.generator, sample.round, sample.kind)


def _jsonl(rows: Sequence[tuple[str, str, str, int, str]]) -> bytes:
    lines = [json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows]
    return "".join(lines).encode("utf-8")


def _parquet(rows: Sequence[tuple[str, str, str, int, str]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    kinds = (pyarrow.string(), pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.string())
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    arrays = [pyarrow.array(column, type=kind) for column, kind in zip(columns, kinds, strict=True)]
    table = pyarrow.Table.from_arrays(arrays, names=list(COLUMNS))
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()
