"""Task files and finished runs as an operator handles them without a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.coded import raises
from tests.doubles.stream import make_home
from tests.doubles.tasks import LABELS, make_task, write_rows
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.defaults import RunOptions, public_cache_path
from undersong_server.generators.kinds.openai import generator
from undersong_server.operations import releases, runs, tasks
from undersong_server.release.files import JSONL_NAME, MANIFEST_NAME
from undersong_server.runs import task
from undersong_server.runs.folder import RunStatus


def test_init_takes_labels_from_a_table_and_overwrites_no_task_file(tmp_path):
    make_task(tmp_path)
    tasks.write_template(tmp_path / "mine.toml", tmp_path / "good.jsonl")
    assert set(task.load(tmp_path / "mine.toml", ['generators.0.corpus="good.jsonl"']).task.labels) == set(LABELS)
    with raises(ConfigurationError, "file-exists"):
        tasks.write_template(tmp_path / "mine.toml")


def plan_task(path, changed=(), **environment):
    return tasks.plan(path, changed, environment=environment)


def test_plan_figures_follow_command_line_overrides(tmp_path):
    path = make_task(tmp_path)
    assert plan_task(path, ["privacy.epsilon=8"]).figures.sums[0].sigma < plan_task(path).figures.sums[0].sigma
    assert plan_task(path, ["privacy.epsilon=inf"]).to_json()["epsilon"] is None


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (['data.path="nowhere.jsonl"'], "nowhere.jsonl: no such file (data.path)"),
        (['generators.0.corpus="no.jsonl"'], "no.jsonl: no such file (generator good)"),
        (['evaluation.test="no.jsonl"'], "no.jsonl: no such file (evaluation.test)"),
        (['data.text="txt"'], "site-0.jsonl:1: has no column 'txt' (the text column)"),
        (['data.label="category"'], "site-0.jsonl:1: has no column 'category' (the label column)"),
        (['task.labels=["kitchen", "attic"]'], "its label is not in task.labels"),
        (["embedder.model=nowhere"], "nowhere"),
        (
            ["data.path=private/site-0.jsonl", "data.file_records=2"],
            "federation.parties is 5, but data.file_records states 2",
        ),
        (["evaluation.encoder=nowhere"], "nowhere: no such folder"),
        (["data.teacher_model=private"], "private: is not a usable transformers model: it has no config.json"),
        (["prompts.folder=nowhere"], "nowhere: no such folder of prompts"),
        (
            ["method.name=discriminator", "method.discriminator=moments", "method.embedding_size=48"],
            "gives 384 coordinates, method.embedding_size is 48",
        ),
        (["method.name=dpkps", "method.vocabulary=none.txt"], "none.txt: no such file"),
        (["publication.contact=Mara Holm"], "publication.contact: the contact 'Mara Holm' has no telephone number"),
        (["task.contact='  '"], "task.contact: the contact is blank"),
    ],
)
def test_a_plan_refuses_what_a_simulation_would_refuse(tmp_path, changed, said):
    with pytest.raises(ConfigurationError) as refused:
        plan_task(make_task(tmp_path), changed)
    assert said in refused.value.problem
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("generator", "said"),
    [
        ('kind = "replay"\npath = "unlabelled.jsonl"', "unlabelled.jsonl"),
        ('kind = "replay"\npath = "others.jsonl"', "others.jsonl has no text of any of the task's labels"),
        ('kind = "transformers"\npath = "private"', "private is not the folder of a model"),
        ('kind = "transformers"\npath = "nowhere"', "nowhere: no such file (generator other)"),
        ('kind = "ngram"\ncorpus = "wordless.jsonl"', "wordless.jsonl:1: has no column 'text'"),
    ],
)
def test_plan_refuses_generator_files_that_a_generator_could_not_use(tmp_path, generator, said):
    path = make_task(tmp_path)
    write_rows(tmp_path / "unlabelled.jsonl", [{"text": "a note"}])
    write_rows(tmp_path / "others.jsonl", [{"text": "a note", "label": "attic"}])
    write_rows(tmp_path / "wordless.jsonl", [{"note": "a note", "label": LABELS[0]}])
    path.write_text(path.read_text() + f'[[generators]]\nname = "other"\n{generator}\n')
    with pytest.raises(ConfigurationError) as refused:
        plan_task(path)
    assert said in refused.value.problem


ENDPOINT = """
[[generators]]
name = "far"
kind = "openai"
model = "tiny"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "FAR_API_KEY"
"""


def test_a_plan_refuses_an_endpoint_without_its_key_and_asks_it_nothing(tmp_path):
    path = make_task(tmp_path)
    path.write_text(path.read_text() + ENDPOINT)
    with pytest.raises(ConfigurationError, match="FAR_API_KEY with its key is not set"):
        plan_task(path)
    assert "far" in plan_task(path, FAR_API_KEY="a-key").figures.generators
    with pytest.raises(ConfigurationError, match="ca_file"):
        plan_task(path, ['generators.2.ca_file="none.pem"'], FAR_API_KEY="a-key")


def test_a_checked_plan_asks_every_generator_for_one_text(tmp_path, monkeypatch):
    path = make_task(tmp_path)
    answers = tasks.ask_each_generator(path, environment={})
    assert list(answers) == ["good", "poor"]
    assert all(answer.label == LABELS[0] and answer.text for answer in answers.values())
    monkeypatch.setattr(generator, "PATIENCE_S", 0.3)
    path.write_text(path.read_text() + ENDPOINT)
    with pytest.raises(UndersongError, match="far"):  # nobody listens there
        tasks.ask_each_generator(path, environment={"FAR_API_KEY": "a-key"})


def test_plan_names_all_missing_files_and_needs_no_private_records(tmp_path):
    path = make_task(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        plan_task(path, ['data.path="nowhere.jsonl"', 'generators.0.corpus="no.jsonl"'])
    assert "nowhere.jsonl" in refused.value.problem
    assert "no.jsonl: no such file (generator" in refused.value.problem
    without = path.read_text().replace('path = "private"', "")
    path.write_text(without)
    assert "a coordinator needs none" in plan_task(path).unready[0]


def test_init_options_name_the_columns_of_the_table(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("Bericht;Klasse;Patient\nerster Text;a;1\nzweiter Text;b;2\n", encoding="latin-1")
    with raises(ConfigurationError, "no-such-column") as refused:
        tasks.write_template(tmp_path / "a.toml", rows)
    assert "--text-field" in refused.value.remedy
    names = {"text": "Bericht", "label": "Klasse", "user": "Patient"}
    tasks.write_template(tmp_path / "a.toml", rows, **names, encoding="latin-1")
    read = task.load(tmp_path / "a.toml", [])
    assert (read.data.text, read.data.label, read.data.user) == ("Bericht", "Klasse", "Patient")
    assert read.data.encoding == "latin-1"
    assert read.task.labels == ("a", "b")


@pytest.mark.parametrize(("name", "code"), [("first", "run-not-finished"), ("second", "no-run")])
def test_only_a_finished_run_has_a_dossier(tmp_path, name, code):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    with raises(ConfigurationError, code):
        releases.dossier(home.path, name, fingerprint=None, parties={}, audit=None)


def test_only_a_finished_run_is_exported(tmp_path):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    with raises(ConfigurationError, "run-not-finished"):
        releases.export(home.path, "first", tmp_path / "out")
    folder = home.run("first")
    folder.write_status(RunStatus("finished"))
    folder.output.mkdir()
    (folder.output / JSONL_NAME).write_text("{}\n")
    (folder.output / "private.txt").write_text("no output of a run")
    exported = releases.export(home.path, "first", tmp_path / "out")
    assert exported.files == (JSONL_NAME,)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [JSONL_NAME]
    (folder.output / MANIFEST_NAME).write_text('{"manifest_hash": "11"}')
    for there in ('{"manifest_hash": "22"}', "not JSON"):
        (tmp_path / "out" / MANIFEST_NAME).write_text(there)
        with raises(ConfigurationError, "another-run-there"):
            releases.export(home.path, "first", tmp_path / "out")
        assert (tmp_path / "out" / MANIFEST_NAME).read_text() == there
    releases.export(home.path, "first", tmp_path / "again")
    releases.export(home.path, "first", tmp_path / "again")  # the same run may be written again


def test_public_embeddings_are_kept_in_the_user_s_cache_folder():
    rest = Path("undersong") / "public-embeddings.sqlite"
    assert public_cache_path({"UNDERSONG_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a") / rest
    assert public_cache_path({"XDG_CACHE_HOME": "/b"}) == Path("/b") / rest
    assert public_cache_path({}) == Path.home() / ".cache" / rest


def test_archive_is_made_only_of_a_run_and_of_no_other_folder(tmp_path, monkeypatch):
    home = make_home(tmp_path / "coordinator").path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST_NAME).write_text("{}")
    for run, code in (("other", "no-run"), ("..", "invalid-name"), ("x" * 300, "invalid-name")):
        with raises(ConfigurationError, code):
            releases.archive(home, run)
