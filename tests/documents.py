"""Checks of the documents, run by ``make check``.

Links resolve, with their anchors; what code, tests and pages cite (a page below docs/ with a "Section" or a number)
is there; every command of every program is documented, and what a page types is a command with the options that it has.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import typer.main

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)
# A citation may be broken over lines, each with its comment sign.
CITATION = re.compile(r"(?:docs/|\[)([\w-]+\.md)(?:\]\([^)]*\))?(?:,\s+(?:\"([^\"]+)\"|number (\d+)))?")
COMMENT_SIGN = re.compile(r"\n\s*(?:#|//|\*)?\s*")
FENCED = re.compile(r"^```.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`]+)`")
COMMAND_LINE = re.compile(r"(?:^|[;&|(]|/bin/|\$ |\bdo )\s*(undersong(?:-party)?) ([^;&|#)\n]*)", re.MULTILINE)
SUBCOMMAND = re.compile(r"[a-z]+(?:-[a-z]+)*")
OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")
CITING = ("*.md", "*.py", "*.proto", "*.toml", "*.sh", "*.service", "Makefile", "*.yaml")


def documents() -> list[Path]:
    return tracked("*.md")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def broken_links() -> Iterator[str]:
    for document in documents():
        for target in LINK.findall(document.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            page = document.parent / path if path else document
            if not page.exists():
                yield f"{document.relative_to(ROOT)}: links to {target}, which does not exist"
            elif anchor and anchor not in {_anchor(heading) for heading in headings(page)}:
                yield f"{document.relative_to(ROOT)}: links to {target}, and the page has no such section"


def broken_citations() -> Iterator[str]:
    """Pages, sections and numbers that are cited and not there."""
    for source in tracked(*CITING):
        text = COMMENT_SIGN.sub(" ", source.read_text(encoding="utf-8"))
        for page, section, number in CITATION.findall(text):
            name, path = source.relative_to(ROOT), ROOT / "docs" / page
            if not path.exists():
                if (ROOT / page).exists():
                    continue
                yield f"{name}: cites docs/{page}, which does not exist"
            elif section and section not in headings(path):
                yield f"{name}: cites docs/{page}, {section!r}, and the page has no such section"
            elif number and not re.search(rf"^{number}\. ", path.read_text(encoding="utf-8"), re.MULTILINE):
                yield f"{name}: cites docs/{page}, number {number}, and the page has none"


def headings(page: Path) -> list[str]:
    return [heading.replace("`", "") for heading in HEADING.findall(page.read_text(encoding="utf-8"))]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def undocumented_commands() -> Iterator[str]:
    """Every command must be named, as it is typed, in the README or below docs/."""
    text = "\n".join(document.read_text(encoding="utf-8") for document in documents())
    for program, tree in command_trees().items():
        for command in _commands(program, tree):
            if command not in text:
                yield f"`{command}` is in no document"


def unknown_command_lines() -> Iterator[str]:
    """Command lines in code, within a line or in a block, whose command or option a program does not have."""
    trees = command_trees()
    for document in documents():
        for program, typed in _command_lines(document.read_text(encoding="utf-8")):
            if problem := _unknown(trees.get(program), typed.split()):
                yield f"{document.relative_to(ROOT)}: `{program} {typed}`: {problem}"


def _command_lines(text: str) -> Iterator[tuple[str, str]]:
    """Program and the rest of the line, of each command line in a page's code."""
    joined = text.replace("\\\n", " ")
    code = [*FENCED.findall(joined), *INDENTED.findall(joined)]
    code += [span.replace("\n", " ") for span in CODE_SPAN.findall(FENCED.sub("", text))]
    for each in code:
        yield from COMMAND_LINE.findall(each)


def _unknown(command: object, words: list[str]) -> str:
    """What of a command line's words is unknown; "" where nothing is."""
    below = getattr(command, "commands", None)
    if below and words and (words[0] in below or SUBCOMMAND.fullmatch(words[0])):
        return _unknown(below[words[0]], words[1:]) if words[0] in below else f"no command {words[0]}"
    if getattr(command, "context_settings", {}).get("ignore_unknown_options"):
        return ""  # the rest is another program's
    known = {
        "--help",
        *(name for each in getattr(command, "params", ()) for name in (*each.opts, *each.secondary_opts)),
    }
    asked = (found[0] for word in words if (found := OPTION.match(word)))
    return ", ".join(f"no option {each}" for each in asked if each not in known)


def programs() -> list[tuple[str, typer.Typer]]:
    import undersong.cli

    found = [("undersong", undersong.cli.app)]
    if (ROOT / "client" / "undersong_client" / "cli.py").exists():
        import undersong_client.cli

        found.append(("undersong-party", undersong_client.cli.app))
    return found


def command_trees() -> dict[str, object]:
    return {program: typer.main.get_command(app) for program, app in programs()}


def _commands(name: str, command: object) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if not below:
        yield name
        return
    for word, child in below.items():
        yield from _commands(f"{name} {word}", child)


def main() -> None:
    problems = [*broken_links(), *broken_citations(), *undocumented_commands(), *unknown_command_lines()]
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
