"""The check of the documents finds what it is there to find."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles.pace import slow_after
from tools import command_options, documents, generated_pages, papers

TREES = documents.command_trees()
Repository = Callable[[dict[str, str]], None]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(documents, "ROOT", tmp_path)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")

    return write


WHERE = "docs" + "/"  # apart, so that the check does not follow this file's own examples
OPEN = "<" + "code>"  # likewise
PAGE = "# Privacy\n\n## Noise\n\n1. the first\n2. the second\n"


CITATION, COMMAND = documents.broken_citations, documents.unknown_command_lines
CASES = [
    (CITATION, "code.py", f'# see {WHERE}privacy.md, "Noise"', None),
    (CITATION, "code.py", f'# see {WHERE}privacy.md,\n# "Noise"', None),
    (CITATION, "code.py", f"# {WHERE}privacy.md, number 2", None),
    (CITATION, "code.py", f'# see {WHERE}privacy.md, "Ring"', "no such section"),
    (CITATION, "code.py", f"# {WHERE}privacy.md, number 7", "number 7"),
    (CITATION, "code.py", f"# {WHERE}nowhere.md", "does not exist"),
    (documents.broken_links, f"{WHERE}index.md", "[there](privacy.md#noise)", None),
    (documents.broken_links, f"{WHERE}index.md", "[there](privacy.md#ring)", "no such section"),
    (documents.broken_links, f"{WHERE}index.md", "[there](absent.md)", "does not exist"),
    (documents.broken_links, f"{WHERE}index.md", "[there](#here)", "no such section"),
    (documents.unknown_sources, f"{WHERE}index.md", "`page.py` holds it, and `none.py` in code", "`none.py`"),
    (COMMAND, "README.md", "    undersong simulate TASK.toml --out runs/mine", None),
    (
        COMMAND,
        "README.md",
        "    for n in 1 2; do undersong simulate T.toml --seeed $n; done",
        "no option --seeed",
    ),
    (COMMAND, "README.md", "    undersong simulate TASK.toml \\\n        --uot runs/mine", "no option --uot"),
    (COMMAND, "README.md", "```console\n$ undersong run strat spring\n```", "no command strat"),
    (
        COMMAND,
        "README.md",
        "`undersong-party policy duty NAME`, or\n`undersong-party\npolicy dutty`",
        "command dutty",
    ),
    (COMMAND, "README.md", "`import undersong as us`, and undersong simulates in prose", None),
    (COMMAND, "start.sh", "undersong coordinator init \\\n    --address HOST --metrics HOST\n", None),
    (COMMAND, "start.sh", "undersong coordinator serve \\\n    --days 3\n", "no option --days"),
    (COMMAND, "errors.py", '"""Raises; see `undersong\nverify --strict`."""\n', "no option --strict"),
    (COMMAND, "page.html.j2", f"<p>Read {OPEN}undersong-party reqests</code>.</p>\n", "no command reqests"),
    (COMMAND, "errors.py", 'TAG = "undersong receipt"\n', None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "name", "text", "problem"), CASES)
def test_document_check_follows_citations_links_and_command_lines(
    repository: Repository,
    check: Callable[[], Iterator[str]],
    name: str,
    text: str,
    problem: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "command_trees", lambda: TREES)
    repository({f"{WHERE}privacy.md": PAGE, "client/page.py": "", name: text})
    found = list(check())
    assert (found == []) if problem is None else (len(found) == 1 and problem in found[0])


@pytest.mark.parametrize(
    ("section", "unknown"),
    [
        ("`undersong coordinator show`: figures answer on `--metrics`", ["--metrics"]),
        ("`undersong coordinator init`: figures answer on `--metrics`", []),
        ("figures answer on `--metrics`", []),  # of some command
        ("figures answer on `--metricks HOST`", ["--metricks"]),
        ("    undersong coordinator show\n\n## Others\n\n`undersong coordinator init` and `--metrics`", []),
    ],
)
def test_document_check_finds_an_option_in_the_commands_of_its_section(
    repository: Repository, section: str, unknown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "command_trees", lambda: TREES)
    repository({"README.md": f"# A page\n\n{section}\n"})
    assert [found.split("`")[1] for found in documents.unknown_options()] == unknown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "problem"),
    slow_after(
        [
            (f"{WHERE}reference/task.md", "# Keys", "remove it from git"),
            (f"{WHERE}papers/wasp.md", "# WASP", "remove it from git"),
            (f"{WHERE}wasp.md", f"# WASP\n\n{papers.overview()}\n", "a row that make docs writes"),
            (f"{WHERE}wasp.md", "# WASP\n\n| key | value |\n|---|---|\n| of our own | 1 |\n", None),
        ],
        2,
    ),
)
def test_generated_page_or_row_may_not_be_tracked_in_git(repository, name, text, problem):
    repository({name: text})
    problems = list(documents.tracked_generated_pages())
    assert (problems == []) if problem is None else (len(problems) == 1 and problem in problems[0])


def test_every_command_and_option_stands_in_the_reference():
    sections = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", command_options.page(), re.MULTILINE))
    for program, tree in TREES.items():
        for typed, command in documents.named_commands(program, tree):
            options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
            assert all(f"`{option.opts[0]}`" in sections[typed] for option in options), typed


def test_generated_part_of_a_page_is_filled_in_or_refused_if_unknown():
    assert generated_pages.fill("before\n<!-- generated: papers -->\n") == f"before\n{papers.overview()}\n"
    with pytest.raises(KeyError):
        generated_pages.fill("<!-- generated: nothing -->")
    marks = [mark for page in documents.documents() for mark in generated_pages.MARK.findall(page.read_text())]
    assert sorted(marks) == sorted(generated_pages.PARTS)
