"""What the pages tell people to type is what the programs take."""

import re
import subprocess
import sys

import pytest

from tests.doubles.processes import ROOT
from tests.trial.stranger import command_lines, command_of
from tools import papers
from undersong_common import errors
from undersong_common.errors import UndersongError
from undersong_common.program import entry
from undersong_server.cli.run_commands import UNCONFIRMED

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
MODULE = re.compile(r"python -m ((?:benchmarks|examples|tests)\.[\w.]+)((?:[^`\n\\]|\\\n)*)")
HANDED_ON = {"tests.noninterference.audit": "audit"}  # a module that gives its options to a command of ``undersong``
PROBE = """
import argparse, runpy, sys
def options(parser):
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options(each)
def parse(self, *given):
    print(*options(self))
    sys.exit()
argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = parse
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
ROW = re.compile(r"^\| `(undersong(?:-party)?(?: [a-z-]+)+)[^|]*\| (.+) \|$", re.MULTILINE)
OPTION = re.compile(r"`[^`]*?(--[a-z][a-z-]+)")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_documented_command_is_understood_by_its_program(page):
    lines = command_lines(page)
    if page in ("docs/hospital.md", "docs/federation.md"):
        assert len(lines) > 10
    for program, *words in lines:
        command, names, rest = command_of(program, words)
        assert not getattr(command, "commands", None), f"{page}: {program} {' '.join(words)} is no command"
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in rest if word.startswith("--") and word.split("=")[0] not in known]
        assert unknown in ([], ["--help"]) or names == ["supernode"], f"{page}: {program} {' '.join(words)}"


def module_options() -> dict[str, set[str]]:
    """Options that the pages type after each of our modules."""
    found: dict[str, set[str]] = {}
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    for text in [*texts, *papers.pages().values()]:
        for module, rest in MODULE.findall(text):
            found.setdefault(module, set()).update(re.findall(r"(?<=\s)--[a-z][a-z-]+", rest.split(" # ")[0]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(module_options()))
def test_documented_python_modules_exist_and_take_the_documented_options(module):
    """As far as its arguments are read: what they measure takes up to hours."""
    file = ROOT / module.replace(".", "/")
    source = file.with_suffix(".py") if file.with_suffix(".py").exists() else file / "__main__.py"
    assert "__main__" in source.read_text(encoding="utf-8"), f"{source}: is no program"
    if not (options := module_options()[module]):
        return
    done = subprocess.run([sys.executable, "-c", PROBE, module], cwd=ROOT, capture_output=True, text=True, check=True)
    known = set(done.stdout.split())
    if module in HANDED_ON:
        known |= {each for option in command_of("undersong", [HANDED_ON[module]])[0].params for each in option.opts}
    assert options - known == set()


@pytest.mark.parametrize("page", ["docs/hospital.md", "docs/federation.md"])
def test_every_documented_option_of_a_command_exists(page):
    rows = ROW.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(rows) > 12
    for typed, explained in rows:
        program, *words = typed.split()
        command, names, _ = command_of(program, words)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        # An option of another command is named together with that command, in the same quotes.
        named = OPTION.findall(explained)
        alone = [option for option in named if not re.search(rf"`undersong[^`]*{option}", explained)]
        wrong = sorted(set(alone) - known - {"--json", "--help"})
        assert wrong == [], f"{page}: {program} {' '.join(names)} has no {wrong}"


def test_the_exit_codes_of_the_pages_are_those_of_the_programs():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UndersongError)]
    codes = {kind.exit_code for kind in kinds if kind is not UndersongError} | {0, UNCONFIRMED, entry.INTERRUPTED}
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("### Exit codes")[2]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page.partition("\n## ")[0], re.MULTILINE)} == codes
    section = (ROOT / "docs" / "hospital.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
    assert {int(code) for code in re.findall(r"(?:^|; )(\d+) [a-z]", section.strip().partition(". ")[0])} <= codes
