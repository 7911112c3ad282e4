"""The tables of the papers: pages follow from them; rows name code and tests that exist; commands can be planned."""

import re
import shlex
from pathlib import Path

import pytest
from typer import Context

from benchmarks import paper_tables
from benchmarks import papers as measured
from tests.doubles.pace import slow_but
from tests.trial.stranger import command_of
from tools import papers as pages
from undersong.comparison import reference_methods
from undersong.comparison.cell import Variant
from undersong_server import methods
from undersong_server.methods.parts import papers
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "protocol/undersong_protocol",
    "client/undersong_client",
    "server/undersong_server",
    "simulation/undersong",
    "benchmarks",
)
CODE = {
    str(path): path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")
} | {str(path): path.read_text(encoding="utf-8") for path in (ROOT / "common").rglob("*.py")}
CALIBRATED_LONG = "Table 2 and Fig. 4"  # of DP-KPS: its sub-sampled votes take seconds to calibrate
COMMANDS = [
    (name, each["name"], each["command"])
    for name in pages.methods()
    for each in pages.table_of(name).get("tables", [])
    if "command" in each
]


@pytest.mark.slow
@pytest.mark.parametrize("name", pages.methods())
def test_method_page_shows_every_element_and_value_of_its_preset(name):
    rows = [line for line in pages.page(name).split("\n") if line.startswith("| ")]
    for element in pages.table_of(name)["elements"]:
        row = next(line for line in rows if element["element"].replace("|", "\\|") in line)
        assert element["here"].replace("|", "\\|") in row
        assert f"| {element['verdict']} |" in row
        assert all(f"`{key.removeprefix('method.')} = " in row for key in element.get("set", {}))


@pytest.mark.slow
def test_overview_of_methods_links_to_the_page_of_every_paper():
    assert re.findall(r"\((papers/[\w-]+\.md)\)", pages.overview()) == list(pages.pages())


def test_every_method_of_a_paper_has_a_table():
    named = {*methods.own_names(), *reference_methods.names()}
    assert {"wasp", "augpe", "pretext", "fusegen", *reference_methods.names()} <= set(pages.methods()) <= named


@pytest.mark.parametrize("name", pages.methods())
def test_method_table_rows_name_existing_code_and_tests(name: str) -> None:
    for row in pages.table_of(name)["elements"]:
        assert row["verdict"] in pages.VERDICTS
        assert row["where"]
        assert row["here"]
        if "code" in row:
            path, _, symbol = row["code"].partition("::")
            places = [text for file, text in CODE.items() if file.endswith(f"/{path}")]
            assert any(re.search(rf"^ *(class|def) {symbol}\b", text, re.M) for text in places), row["code"]
        if "test" in row:
            path, _, test = row["test"].partition("::")
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", source, re.M), row["test"]
        assert row["verdict"] not in ("faithful", "as written") or {"code", "test"} <= row.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("dpsgd_installed")
@pytest.mark.parametrize(
    ("name", "table", "command"),
    slow_but(COMMANDS, [command for command in COMMANDS if not command[1].startswith(CALIBRATED_LONG)]),
    ids=lambda each: each[:30],
)
def test_commands_that_reproduce_papers_tables_can_be_planned(
    name: str, table: str, command: str, tmp_path: Path
) -> None:
    for line in command.replace("\\\n", " ").strip().splitlines():
        words = shlex.split(line)
        assert words[0] == "undersong" or words[:3] == ["python", "-m", "benchmarks.papers"]
        if words[0] == "python":
            assert measured.main([*words[3:], "--page"]) == 0
            chosen = words[words.index("--tables") + 1]
            assert any(each["name"].startswith(chosen) for each in paper_tables.read_plan()[name]["tables"])
        else:
            own, _, given = command_of("undersong", words[1:])
            own.make_parser(Context(own)).parse_args(given)
        if words[1] in ("compare", "simulate"):
            plan_command(words, tmp_path)


def plan_command(words: list[str], tmp_path: Path) -> None:
    given = {key: value for key, value in zip(words[3::2], words[4::2], strict=True) if key != "--set"}
    sets = [value for key, value in zip(words[3::2], words[4::2], strict=True) if key == "--set"]
    sets = [each for each in sets if not re.search(r"=[A-Z_]+$", each)] + [f"data.root={tmp_path}"]  # the reader's
    sets += [f"federation.parties={given['--parties'].split(',')[-1]}"] if "--parties" in given else []
    epsilon = given.get("--epsilon", "4").split(",")[-1]
    asked = given.get("--methods", given.get("--method", "")).split(",")
    for text in asked:
        if text == "private-only":
            continue
        variant = Variant.parse(text) if text else Variant("", "")
        changes = [f"method.{key}={value}" for key, value in variant.options]
        chosen = [f'method.name="{variant.method}"'] if variant.method else []
        if variant.training is not None:
            continue
        task = load(ROOT / words[2], [*chosen, *sets, f"privacy.epsilon={epsilon}", *changes])
        assert not variant.generator or variant.generator in {each.name for each in task.generators}
        if isinstance(task.options, papers.PresetOptions):
            assert task.options.preset
            theirs = papers.sections(task.method.name, task.options.preset)["method"]
            named = {each.partition("=")[0].removeprefix("method.") for each in [*changes, *sets]}
            for key, value in (task.method.model_extra or {}).items():  # the file's own change nothing of the paper
                assert key in named or theirs.get(key, value) == value, key
                assert key != "samples" or key in named | theirs.keys()
        plan_run(task)
