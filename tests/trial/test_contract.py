"""Each sentence of the contract of the pages has tests, and these tests are there (contract.toml)."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.doubles.processes import ROOT
from undersong_client.storage.own_figures import proposed_delta
from undersong_server.operations import form

SENTENCES = tomllib.loads((Path(__file__).parent / "contract.toml").read_text(encoding="utf-8"))["sentence"]
OWN_TABLES = ("For the officer, too", "For the operator, too", "For whoever receives a corpus, too")
MOST_WORDS = 25  # of a reader's glossary


@cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def missing_tests(sentence: dict[str, list[str]]) -> list[str]:
    return [
        test for test in sentence["tests"] if test.partition("::")[2] not in names_of_tests(test.partition("::")[0])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: re.sub(r"\W+", " ", sentence["says"])[:60].strip())
def test_each_promised_sentence_of_the_contract_names_existing_tests(sentence):
    assert sentence["place"]
    assert sentence["tests"]
    assert missing_tests(sentence) == []


def test_contract_check_notices_a_named_test_that_does_not_exist():
    own = f"tests/trial/{Path(__file__).name}::"
    assert missing_tests({"tests": [f"{own}test_of_nobody"]}) == [f"{own}test_of_nobody"]
    assert len(SENTENCES) == len({(sentence["place"], sentence["says"]) for sentence in SENTENCES}) >= 80


def test_glossary_for_each_kind_of_reader_has_at_most_25_words():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    tables = {part.partition("\n")[0]: part.count("\n| ") - 1 for part in page.split("\n## ")[1:]}
    for own in OWN_TABLES:
        assert tables[own] > 0
        assert tables["For every reader"] + tables[own] <= MOST_WORDS, own


def test_docs_form_and_template_give_the_same_example_of_delta():
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("hospital.md", "federation.md")]
    examples = {float(delta) for page in pages for delta in re.findall(r"--delta ([\d.e-]+)", page)}
    templates = tomllib.loads((Path(form.__file__).parent / "new_task.toml").read_text(encoding="utf-8"))
    examples |= {template["privacy"]["delta"] for template in templates.values() if "privacy" in template}
    assert examples == {proposed_delta(100)}
