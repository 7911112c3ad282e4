"""Kinds of generators: one file adds one, and its tables are read, planned, tried and shown as every kind's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.doubles import foreign_package
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from tests.doubles.tiny_llama import save_tiny_llama
from tests.doubles.word_embedding import embed
from undersong_common.errors import ConfigurationError
from undersong_server.defaults import RunOptions
from undersong_server.generators import kinds
from undersong_server.generators.interface import Generator, GeneratorSettings, Surroundings
from undersong_server.generators.kinds import GeneratorTable
from undersong_server.operations import overview, runs
from undersong_server.operations.tasks import plan, try_generator, try_in_run
from undersong_server.runs import task as tasks

TABLES: list[dict[str, Any]] = [
    {"name": "book", "kind": "ngram", "corpus": "pool.jsonl"},
    {"name": "books", "kind": "ngram", "corpus": ["pool.jsonl", "pool.jsonl"], "order": 4},
    {"name": "old", "kind": "replay", "path": "pool.jsonl"},
    {"name": "far", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "K_API_KEY"},
    {"name": "near", "kind": "transformers", "path": "model"},
]
ADAPTER: TypeAdapter[GeneratorSettings] = TypeAdapter(GeneratorTable)


def build_tables(folder: Path, tables: list[dict[str, Any]]) -> list[Generator]:
    around = Surroundings(("a",), folder, embed, {"K_API_KEY": "key"})
    return [ADAPTER.validate_python(table).build(around) for table in tables]


@pytest.mark.slow
def test_generators_of_every_kind_are_built_in_the_order_of_their_tables(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text(json.dumps({"text": "a text", "label": "a"}), encoding="utf-8")
    save_tiny_llama(tmp_path / "model")
    generators = build_tables(tmp_path, TABLES)
    assert [generator.name for generator in generators] == [table["name"] for table in TABLES]
    assert all(isinstance(count, int) for generator in generators for count in generator.counts.values())


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
def test_wrong_tables_of_generators_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(table)


@pytest.mark.parametrize("table", TABLES)
def test_call_estimates_are_ranges_that_grow_with_the_number_of_calls(table: dict[str, Any]) -> None:
    settings = ADAPTER.validate_python(table)
    few, many = settings.estimate(10), settings.estimate(1000)
    assert (few.calls, many.calls) == (10, 1000)
    for small, large in ((few.tokens, many.tokens), (few.seconds, many.seconds)):
        assert small[0] <= small[1]
        assert small[0] <= large[0]
        assert small[1] <= large[1]


# A kind is one file, of this program or of another package


@pytest.fixture(params=["of this program", "of another package"])
def added(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind that docs/extending.md describes is there for one test."""
    if request.param == "of another package":
        with foreign_package.installed(foreign_package.write_package(tmp_path / "installed")):
            yield
        return
    (tmp_path / "kinds").mkdir()
    file = foreign_package.files()["sentences/generator.py"] + "\n\nKIND = Settings\n"
    (tmp_path / "kinds" / "canned.py").write_text(file, encoding="utf-8")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path / "kinds")])
    yield
    sys.modules.pop(f"{kinds.__name__}.canned", None)


@pytest.fixture
def canned_task(tmp_path: Path) -> Path:
    path = make_task(tmp_path / "task")
    head, _, _ = path.read_text(encoding="utf-8").partition("[[generators]]")
    path.write_text(f'{head}\n[[generators]]\nname = "book"\nkind = "canned"\nlines = ["One.", "Two."]\n')
    return path


@pytest.mark.heavy
@pytest.mark.usefixtures("added")
def test_generator_kind_from_a_plugin_file_works_in_plan_run_and_trial(canned_task: Path, tmp_path: Path) -> None:
    assert "canned" in kinds.names()
    read = tasks.load(canned_task)
    settings = {"name": "book", "kind": "canned", "source": "", "lines": ("One.", "Two.")}
    assert read.generators[0].model_dump() == settings
    assert read.model_dump(mode="json")["generators"] == [settings | {"lines": ["One.", "Two."]}]
    assert plan(canned_task, environment={}).figures.generators == ("book",)
    assert [each.text for each in try_generator("book", canned_task, environment={}, texts=2)] == [
        "Two. (number 1)",
        "One. (number 2)",
    ]
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma")).path
    runs.plan(home, canned_task, RunOptions(name="first"))
    (shown,) = overview.generator_usage(home, ["first"])
    assert (shown.name, shown.kind) == ("book", "canned")
    called = try_in_run(home, "first", "book", environment={}, public_cache=tmp_path / "cache.sqlite")
    assert called.answer == "Two. (number 1)"


@pytest.mark.heavy
@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("assignment", "problem", "remedy"),
    [
        ('kind="cannd"', "generators[0]: kind 'cannd' is unknown", "did you mean 'canned'?"),
        ('kind="vllm"', 'generators[0]: the kind "vllm" was removed', 'kind = "openai", base_url = "http://127.0.0.1'),
        ("lins=[]", "generators[0].lins: unknown key", "generators[0].lins: did you mean 'lines'?"),
        ("lines=3", "generators[0].lines: is not a list (given: 3)", "generators[0].lines: write a list"),
    ],
)
def test_error_for_a_wrong_generator_table_names_its_keys(
    canned_task: Path, assignment: str, problem: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tasks.load(canned_task, [f"generators.0.{assignment}"])
    assert refused.value.problem.startswith(f"{canned_task}: {problem}")
    assert remedy in refused.value.remedy


def test_an_entry_point_that_names_no_settings_is_refused(tmp_path: Path, canned_task: Path) -> None:
    folder = foreign_package.write_package(tmp_path / "installed")
    entry = folder / "undersong_sentences-1.0.dist-info" / "entry_points.txt"
    entry.write_text("[undersong.generators]\ncanned = sentences.generator:Canned\n")
    with foreign_package.installed(folder), pytest.raises(ConfigurationError) as refused:
        tasks.load(canned_task)
    assert "undersong_sentences 1.0 is no subclass of GeneratorSettings" in refused.value.problem
