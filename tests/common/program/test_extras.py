"""A package that only an extra brings is named with the extra, by every program and by the library."""

import json
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import undersong as us
from tests.doubles.coded import raises
from tests.doubles.processes import ROOT, SOURCES, command
from tools.extras import EXTRAS
from undersong.library import functions as front
from undersong_common.errors import ConfigurationError
from undersong_common.program import extras
from undersong_server.runs import planning
from undersong_server.runs import task as tasks

BARE = ROOT / "tests" / "doubles" / "bare"
OF_DEVELOPERS = ("dev", "docs", "release")
TASK = ROOT / "examples" / "clinic" / "task.toml"
ENDPOINT = [
    "--set",
    'generators.0={name = "big", kind = "openai", model = "m", base_url = "http://127.0.0.1:9/v1", api_key_env = ""}',
]
SCRIPT = """
import contextlib, io, json, sys
from undersong import cli
if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        sys.argv, said = ["undersong", *words], io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                cli.main()
        except SystemExit as ended:
            print(json.dumps([ended.code, said.getvalue()]))
"""


def runtime_packages():
    """Every package that an extra for users brings, by its canonical name."""
    texts = [text for extra, listed in EXTRAS.items() if extra not in OF_DEVELOPERS for text in listed]
    return {canonicalize_name(Requirement(text).name) for text in texts} - {"undersong"}


@pytest.mark.slow
def test_every_package_of_an_extra_is_found_by_its_module():
    modules = {}
    for module, distributions in packages_distributions().items():
        for each in distributions:
            modules.setdefault(canonicalize_name(each), set()).add(module)
    installed = runtime_packages() & modules.keys()
    assert len(installed) >= 20  # `make test-versions` has neither torch nor Flower
    for package in installed:
        assert package in {extras.package_of(module) for module in modules[package]}, package
        assert extras.extra_of(package) is not None, package


def test_missing_package_is_attributed_to_the_first_extra_that_has_it():
    extra = {
        "sklearn": "coordinator",
        "torch": "embed",
        "pyarrow": "parquet",
        "httpcore": "coordinator",
        "httpx": "page",
        "python_calamine": "xlsx",
        "striprtf": "fhir",
        "sqlalchemy": "sql",
        "presidio_analyzer": "presidio",
        "flwr": "flower",
    }
    assert {module: extras.extra_of(extras.package_of(module)) for module in extra} == extra
    assert extras.extra_of("numpy") is None


def test_extra_all_contains_every_extra_that_users_install_together():
    (everything,) = map(Requirement, EXTRAS["all"])
    apart = {"dpsgd", "presidio", "large-models", "gpu"}
    assert everything.extras == EXTRAS.keys() - apart - {"all", *OF_DEVELOPERS}


def test_table_of_extras_equals_that_of_pyproject():
    described = extras.packages_of_extras()
    assert list(described) == list(EXTRAS)
    assert described["page"] >= {"fastapi", "httpx", "authlib", "joserfc"}
    assert described["console"] == described["page"] | {"tomli-w"}  # The console writes task files.
    assert described["gpu"] == described["embed"] | described["large-models"]
    assert "torch" not in described["coordinator"] | described["console"] | described["notebook"]


def test_missing_packages_of_several_extras_are_listed_once(monkeypatch):
    assert extras.missing_packages("coordinator", "page") == []
    installed = extras.metadata.version

    def version(package):
        if package in ("fastapi", "prometheus-client", "pyarrow"):
            raise extras.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(extras.metadata, "version", version)
    assert extras.missing_packages("coordinator", "page", "parquet") == ["fastapi", "prometheus-client", "pyarrow"]


def test_missing_package_error_has_code_cause_and_extra():
    with raises(ConfigurationError, "no-package") as caught, extras.named():
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    assert 'pip install "undersong[coordinator]"' in caught.value.remedy
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_required_module_is_imported_or_refused_naming_its_extra():
    extras.require("sklearn", "json")
    with pytest.raises(ModuleNotFoundError) as caught:
        extras.require("json", "no_such_module")
    assert caught.value.name == "no_such_module"


@pytest.mark.parametrize("name", ["sklearn.no_such", "undersong_common.no_such", "mine", None])
def test_missing_module_of_no_extra_keeps_its_own_error(name):
    with pytest.raises(ModuleNotFoundError), extras.named():
        raise ModuleNotFoundError("private words", name=name)


def test_library_error_names_the_extra_of_a_missing_package():
    def missing():
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    assert all(hasattr(getattr(us, name), "__wrapped__") for name in us._FUNCTIONS)
    with raises(ConfigurationError, "no-package"):
        front.public(missing)()


@pytest.mark.parametrize(
    ("hidden", "generator", "extra"),
    [
        ("torch", '{name = "own", kind = "transformers", path = "models/none"}', "embed"),
        ("httpcore", '{name = "own", kind = "openai", model = "m", base_url = "http://127.0.0.1:9/v1"}', "coordinator"),
    ],
)
def test_packages_that_a_run_lacks_are_named_before_it_starts(hidden, generator, extra, monkeypatch):
    task = tasks.load(TASK, [f"generators.0={generator}"])
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == hidden else found(name))
    with raises(ConfigurationError, "no-package") as caught:
        planning.require_packages(planning.RunPlan(task, None, None, 0))
    assert "own" in caught.value.problem
    assert f'pip install "undersong[{extra}]"' in caught.value.remedy


def test_task_with_a_test_file_needs_torch_only_if_it_names_an_encoder(monkeypatch):
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "torch" else found(name))
    changes = [f'evaluation.test="{ROOT}/examples/clinic/data/test.jsonl"']
    planning.require_packages(planning.RunPlan(tasks.load(TASK, changes), None, None, 0))
    task = tasks.load(TASK, [*changes, 'evaluation.encoder="packaged"'])
    with raises(ConfigurationError, "no-package") as caught:
        planning.require_packages(planning.RunPlan(task, None, None, 0))
    assert "evaluation.encoder" in caught.value.problem


@pytest.mark.slow
def test_base_install_can_plan_and_names_the_extra_for_anything_else(tmp_path):
    test = ["--test", str(ROOT / "examples" / "clinic" / "data" / "test.jsonl")]
    expected = {
        "plan": (["plan", TASK], None),
        "simulate": (["simulate", TASK, "--out", tmp_path / "run", "--quiet"], "coordinator"),
        "compare": (["compare", TASK, *test, "--out", tmp_path / "cells", "--quiet"], "coordinator"),
        "audit": (["audit", TASK, "--runs", "2", "--jobs", "1", "--quiet"], "coordinator"),
        "try": (["try", "big", TASK, *ENDPOINT], "coordinator"),
        "serve": (["coordinator", "serve", "--home", tmp_path / "home"], "coordinator"),
        "init": (["coordinator", "init", "--address", "localhost:7443", "--home", tmp_path / "home"], None),
    }
    order = ["plan", "init", *(each for each in expected if each not in ("plan", "init"))]
    words = json.dumps([[str(word) for word in expected[each][0]] for each in order])
    (tmp_path / "program.py").write_text(SCRIPT)
    path = ":".join(map(str, (BARE, tmp_path, *SOURCES)))
    done = command("program", [words], env={"PYTHONPATH": path, "UNDERSONG_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    for name, line in zip(order, done.stdout.splitlines(), strict=True):
        code, said = json.loads(line)
        extra = expected[name][1]
        assert code == (0 if extra is None else ConfigurationError.exit_code), (name, said)
        assert extra is None or f'pip install "undersong[{extra}]"' in said, (name, said)
    assert not (tmp_path / "run").exists()
