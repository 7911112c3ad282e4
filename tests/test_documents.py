"""The check of the documents finds what it is there to find."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import documents

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


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (f'# see {WHERE}privacy.md, "Noise"', None),
        (f'# see {WHERE}privacy.md,\n# "Noise"', None),
        (f"# {WHERE}privacy.md, number 2", None),
        (f'# see {WHERE}privacy.md, "Ring"', "no such section"),
        (f"# {WHERE}privacy.md, number 7", "number 7"),
        (f"# {WHERE}nowhere.md", "does not exist"),
    ],
)
def test_a_citation_is_followed(repository: Repository, source: str, problem: str | None) -> None:
    repository({"docs/privacy.md": PAGE, "code.py": source + "\n"})
    found = list(documents.broken_citations())
    assert (found == []) if problem is None else (len(found) == 1 and problem in found[0])


@pytest.mark.parametrize(
    ("link", "broken"), [("privacy.md#noise", False), ("privacy.md#ring", True), ("absent.md", True), ("#here", True)]
)
def test_a_link_is_followed_to_its_section(repository: Repository, link: str, broken: bool) -> None:
    repository({"docs/privacy.md": PAGE, f"{WHERE}index.md": f"# Index\n\n[there]({link})\n"})
    assert bool(list(documents.broken_links())) is broken


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("    undersong simulate TASK.toml --out runs/mine", None),
        ("    for seed in 1 2; do undersong simulate TASK.toml --seeed $seed; done", "no option --seeed"),
        ("    undersong simulate TASK.toml \\\n        --uot runs/mine", "no option --uot"),
        ("```console\n$ undersong run strat spring\n```", "no command strat"),
        ("read `undersong-party policy trust NAME SHA256`, or\n`undersong-party\npolicy thrust`", "no command thrust"),
        ("`import undersong as us`, and undersong simulates in prose", None),
    ],
)
def test_a_command_line_of_a_page_is_one_of_the_programs(
    repository: Repository, page: str, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "command_trees", lambda: TREES)
    repository({"README.md": f"# A page\n\n{page}\n"})
    found = list(documents.unknown_command_lines())
    assert (found == []) if problem is None else (len(found) == 1 and problem in found[0])


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("start.sh", "undersong coordinator init \\\n    --address HOST --metrics HOST\n", None),
        ("start.sh", "undersong coordinator serve \\\n    --metrics HOST\n", "no option --metrics"),
        ("errors.py", '"""Raises; see `undersong\nverify --strict`."""\n', "no option --strict"),
        ("page.html.j2", f"<p>Read {OPEN}undersong-party reqests</code>.</p>\n", "no command reqests"),
        ("errors.py", 'TAG = "undersong receipt"\n', None),
    ],
)
def test_a_command_line_of_a_script_or_a_message_is_one_of_the_programs(
    repository: Repository, name: str, text: str, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "command_trees", lambda: TREES)
    repository({name: text})
    found = list(documents.unknown_command_lines())
    assert (found == []) if problem is None else (len(found) == 1 and problem in found[0])


@pytest.mark.parametrize(
    ("section", "unknown"),
    [
        ("`undersong coordinator serve`: figures answer on `--metrics`", ["--metrics"]),
        ("`undersong coordinator init`: figures answer on `--metrics`", []),
        ("figures answer on `--metrics`", []),  # of some command
        ("figures answer on `--metricks HOST`", ["--metricks"]),
        ("    undersong coordinator serve\n\n## Others\n\n`undersong coordinator init` and `--metrics`", []),
    ],
)
def test_an_option_alone_is_of_a_command_of_its_section(
    repository: Repository, section: str, unknown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "command_trees", lambda: TREES)
    repository({"README.md": f"# A page\n\n{section}\n"})
    assert [found.split("`")[1] for found in documents.unknown_options()] == unknown
