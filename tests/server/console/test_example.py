"""A first run from nothing: the example that a new run begins with, and its generators in another draft."""

from __future__ import annotations

import pytest

from tests.doubles.forms import fields_of
from tests.doubles.one_page import next_step_of
from tests.doubles.processes import ROOT
from tests.doubles.stream import make_home
from tests.server.console.test_said_to_operators import visible
from undersong_server.operations import drafts, overview, uploads

CLINIC = ROOT / "examples" / "clinic" / "data"
PACKAGED = ROOT / "server" / "undersong_server" / "operations" / "example"


@pytest.mark.parametrize("name", ["corpora/handbook.jsonl", "corpora/mixed.jsonl", "test.jsonl"])
def test_packaged_example_files_equal_those_of_examples_clinic(name):
    assert (PACKAGED / name.rpartition("/")[2]).read_bytes() == (CLINIC / name).read_bytes()


@pytest.mark.slow
def test_example_run_can_be_planned_with_two_clicks(tmp_path, entered):
    made = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    made.change(operator="North Hospital", contact="Dr. Holm, 01 234 567")
    console = entered(made.path)
    begin = console.get("/runs/new").text
    assert ", ".join(drafts.example_task()["task"]["labels"]) in visible(begin)
    address = console.led(console.post("/runs/new", source="example"))
    page = console.get(address).text
    assert "This is the example, ready to be planned" in visible(page)
    assert "Still missing" not in page
    planned = console.led(console.post(address, {**fields_of(page), "do": "plan"}))
    assert planned.startswith("/runs/one/")
    task = made.run(overview.list_runs(made.path)[0].run).planned().task
    assert (made.path / "console" / "uploads" / task["evaluation"]["test"]).exists()
    files = [generator["corpus"] for generator in task["generators"]]
    assert files == ["example-handbook.jsonl", "example-mixed.jsonl"]
    sources = [*(generator["source"] for generator in task["generators"]), task["evaluation"]["test_source"]]
    assert sources == ["Invented texts of Undersong's example, Apache-2.0."] * 3


@pytest.mark.slow
def test_example_generators_can_be_added_to_a_draft_without_generators(tmp_path, entered):
    made = make_home(tmp_path / "home", ("alpha",))
    console = entered(made.path)
    address = console.led(console.post("/runs/new", source="template free text"))
    page = console.get(address).text
    assert page.index(">openai: a language model") < page.index(">ngram: ")
    console.post(address, {**fields_of(page), "do": "example"})
    page = console.get(address).text
    assert fields_of(page)["key generators.0.name"] == ["handbook"]
    assert "Add the example" not in page
    assert sorted(path.name for path in uploads.uploads_folder(made.path).iterdir()) == [
        "example-handbook.jsonl",
        "example-mixed.jsonl",
    ]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/runs/new", "Take the example above, or choose what to begin with and press Begin."),
        ("/parties/invite", "Name the hospital above, then press Invite."),
        ("/parties/sign", "Choose the request above, type the fingerprint that the hospital reads to you, and sign."),
    ],
)
def test_screen_with_a_form_names_the_forms_own_next_step(console, path, words):
    page = console.get(path).text
    assert next_step_of(page) == words
    assert "<a " not in page.partition("What comes next")[2].partition("</section>")[0]
