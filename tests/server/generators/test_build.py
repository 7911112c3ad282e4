"""Settings as a task file has them, and the generators that they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.doubles.tiny_llama import save_tiny_llama
from tests.doubles.word_embedding import embed
from undersong_common.errors import ConfigurationError
from undersong_server.generators import Generator, GeneratorSettings, build_generators

TABLES: list[dict[str, Any]] = [
    {"name": "book", "kind": "ngram", "corpus": "pool.jsonl"},
    {"name": "books", "kind": "ngram", "corpus": ["pool.jsonl", "pool.jsonl"], "order": 4},
    {"name": "old", "kind": "replay", "path": "pool.jsonl"},
    {"name": "far", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "K_API_KEY"},
    {"name": "near", "kind": "transformers", "path": "model"},
]
ADAPTER: TypeAdapter[GeneratorSettings] = TypeAdapter(GeneratorSettings)


def made(folder: Path, tables: list[dict[str, Any]]) -> list[Generator]:
    settings = [ADAPTER.validate_python(table) for table in tables]
    return build_generators(settings, labels=("a",), folder=folder, embed=embed, environment={"K_API_KEY": "key"})


@pytest.mark.heavy
def test_every_kind_is_built_by_its_table_in_order(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text(json.dumps({"text": "a text", "label": "a"}), encoding="utf-8")
    save_tiny_llama(tmp_path / "model")
    generators = made(tmp_path, TABLES)
    assert [generator.name for generator in generators] == [table["name"] for table in TABLES]
    assert all(isinstance(count, int) for generator in generators for count in generator.counts.values())


def test_two_generators_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'old' occurs twice"):
        made(tmp_path, [TABLES[2], TABLES[2]])


@pytest.mark.parametrize(
    "table",
    [
        {"name": "x", "kind": "magic"},
        {"name": "x", "kind": "ngram"},
        {"name": "x", "kind": "ngram", "corpus": []},
        {"name": "x", "kind": "ngram", "corpus": "c", "order": 1},
        {"name": "x", "kind": "ngram", "corpus": "c", "penalty": 1.0},
        {"name": "x", "kind": "replay", "path": "c", "temperature": 0},
        {"name": "x", "kind": "replay", "path": "c", "corpus": "c"},
        {"name": "x/y", "kind": "replay", "path": "c"},
        {"name": "x", "kind": "openai", "model": "m", "base_url": "localhost:80"},
        {"name": "x", "kind": "openai", "model": "m", "api_key_env": "sk-my own key"},
        {"name": "x", "kind": "openai", "model": "m", "n": 2},
        {"name": "x", "kind": "transformers", "path": "m", "device": "tpu"},
    ],
)
def test_wrong_tables_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(table)


@pytest.mark.parametrize("table", TABLES)
def test_estimates_are_ranges_that_grow_with_the_calls(table: dict[str, Any]) -> None:
    settings = ADAPTER.validate_python(table)
    few, many = settings.estimate(10), settings.estimate(1000)
    assert (few.calls, many.calls) == (10, 1000)
    for small, large in ((few.tokens, many.tokens), (few.seconds, many.seconds)):
        assert small[0] <= small[1]
        assert small[0] <= large[0]
        assert small[1] <= large[1]
