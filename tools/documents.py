"""Checks of the documents, run by ``make check``.

Links resolve, with their anchors; what code, tests and pages cite (a page below docs/ with a "Section" or a number)
is there, as is every file of Python that a page names; every command of every program is documented, and what a page, a
script or a message types is a command with the options that it has. An option that stands alone belongs to a command
that its section names. No page that a program writes is tracked.
"""

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
SECTION = re.compile(r"^#+ ", re.MULTILINE)
MESSAGE = re.compile(r"(?<!`)`(?!`)([^`\n]+\n?[^`\n]*)`(?!`)|<code>([^<]+)</code>")
SOURCE_NAME = re.compile(r"`([\w/]+\.py)`")
CODE_SPAN = re.compile(r"`([^`]+)`")
COMMAND_LINE = re.compile(r"(?:^|[;&|(]|/bin/|\$ |\bdo )\s*(undersong(?:-party)?) ([^;&|#)\n]*)", re.MULTILINE)
SUBCOMMAND = re.compile(r"[a-z]+(?:-[a-z]+)*")
OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")
SCRIPTS = ("*.sh", "*.service", "Makefile", "*.yaml", "*Dockerfile*")
OTHER_PROGRAMS = {  # options that stand alone and are of pytest, the benchmarks, the harness, Flower, vLLM or llama.cpp
    *(
        "--durations",
        "--summary",
        "--quick",
        "--examples",
        "--node-config",
        "--root-certificates",
        "--insecure",
        "--parallel",
    ),
    *("--auth-supernode-private-key", "--disable-runtime-dependency-installation", "--max-model-len"),
}
CITING = ("*.md", "*.py", "*.proto", "*.toml", "*.sh", "*.service", "Makefile", "*.yaml")


def documents() -> list[Path]:
    return tracked("*.md")


def tracked(*patterns: str) -> list[Path]:
    git_output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / line for line in git_output.stdout.splitlines() if (ROOT / line).exists()]


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
    """Yields a sentence for each page, section or number that is cited and does not exist."""
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


def unknown_sources() -> Iterator[str]:
    """Yields every file of Python that a page names in code and that this repository does not have."""
    sources = {str(source.relative_to(ROOT)) for source in tracked("*.py")}
    for document in documents():
        text = FENCED.sub("", document.read_text(encoding="utf-8"))
        for name in sorted(set(SOURCE_NAME.findall(text))):
            if not any(f"/{source}".endswith(f"/{name}") for source in sources):
                yield f"{document.relative_to(ROOT)}: names `{name}`, which does not exist"


def headings(page: Path) -> list[str]:
    return [heading.replace("`", "") for heading in HEADING.findall(page.read_text(encoding="utf-8"))]


def tracked_generated_pages() -> Iterator[str]:
    """Yields every tracked file that `make docs` writes from the programs' tables, and tables left at its marks."""
    from tools import generated_pages

    committed = {str(path.relative_to(ROOT)) for path in documents()}
    pages = generated_pages.pages()
    for page in sorted(committed & {f"docs/{page}" for page in pages}):
        yield f"{page}: is written by make docs, so remove it from git"
    lines = {line for text in [*pages.values(), *generated_pages.parts()] for line in text.split("\n") if _is_row(line)}
    for document in documents():
        copies = lines.intersection(document.read_text(encoding="utf-8").split("\n"))
        if copies:
            yield f"{document.relative_to(ROOT)}: has a row that make docs writes: {min(copies)[:80]}"


def _is_row(line: str) -> bool:
    return line.startswith("| ") and len(line) > len("| option | meaning |")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def undocumented_commands() -> Iterator[str]:
    """Yields a sentence for each command that is not named, as it is typed, in the README or below docs/."""
    text = "\n".join(document.read_text(encoding="utf-8") for document in documents())
    for program, tree in command_trees().items():
        for command, _ in named_commands(program, tree):
            if command not in text:
                yield f"`{command}` is in no document"


def unknown_command_lines() -> Iterator[str]:
    """Yields each command line of a page, message or script whose command or option a program does not have."""
    trees = command_trees()
    typed_code = [(page, _code(page.read_text(encoding="utf-8"))) for page in documents()]
    typed_code += [(source, _messages(source.read_text(encoding="utf-8"))) for source in tracked("*.py", "*.j2")]
    typed_code += [
        (script, [_join_continued_lines(script.read_text(encoding="utf-8"))]) for script in tracked(*SCRIPTS)
    ]
    for source, code in typed_code:
        for program, typed in (command_line for text in code for command_line in COMMAND_LINE.findall(text)):
            if problem := _describe_unknown(trees.get(program), typed.split()):
                yield f"{source.relative_to(ROOT)}: `{program} {typed}`: {problem}"


def unknown_options() -> Iterator[str]:
    """Yields each option that stands alone in code and belongs to no command that its section names.

    In a section that names no command, the options of all commands are allowed.
    """
    options: dict[str, set[str]] = {}
    for program, tree in command_trees().items():
        for name, command in named_commands(program, tree):
            options.setdefault(name.partition(" ")[2], set()).update(_options(command))
    for document in documents():
        for section in SECTION.split(document.read_text(encoding="utf-8")):
            code = _code(section)
            commands = [
                name for name in options if any(re.search(rf"(?<![\w-]){name}(?![\w-])", text) for text in code)
            ]
            known_options = OTHER_PROGRAMS.union(*(options[name] for name in commands or options))
            lone_options = {match[0] for text in code if not text.startswith(" ") and (match := OPTION.match(text))}
            for option in sorted(lone_options - known_options):
                of_commands = f"of {', '.join(sorted(commands))}" if commands else "of a command"
                yield f"{document.relative_to(ROOT)}: `{option}` is no option {of_commands}: name the command beside it"


def _code(text: str) -> list[str]:
    """Returns a page's blocks of code and spans of code."""
    joined = _join_continued_lines(text)
    spans = [span.replace("\n", " ") for span in CODE_SPAN.findall(FENCED.sub("", text))]
    return [*FENCED.findall(joined), *INDENTED.findall(joined), *spans]


def _messages(text: str) -> list[str]:
    """Returns the spans of code in a program's messages and docstrings."""
    return ["".join(span).replace("\n", " ") for span in MESSAGE.findall(text)]


def _join_continued_lines(text: str) -> str:
    return text.replace("\\\n", " ")


def _describe_unknown(command: object, words: list[str]) -> str:
    """Returns the unknown subcommand or options of a command line, in words; "" if all its words are known."""
    subcommands = getattr(command, "commands", None)
    if subcommands and words and (words[0] in subcommands or SUBCOMMAND.fullmatch(words[0])):
        return (
            _describe_unknown(subcommands[words[0]], words[1:]) if words[0] in subcommands else f"no command {words[0]}"
        )
    if getattr(command, "context_settings", {}).get("ignore_unknown_options"):
        return ""  # The command passes its other words on to another program.
    known_options = _options(command)
    typed_options = (match[0] for word in words if (match := OPTION.match(word)))
    return ", ".join(f"no option {option}" for option in typed_options if option not in known_options)


def _options(command: object) -> set[str]:
    params = getattr(command, "params", ())
    return {"--help", *(name for parameter in params for name in (*parameter.opts, *parameter.secondary_opts))}


def programs() -> list[tuple[str, typer.Typer]]:
    import undersong.cli

    apps = [("undersong", undersong.cli.app)]
    if (ROOT / "client" / "undersong_client" / "cli" / "app.py").exists():
        import undersong_client.cli.app

        apps.append(("undersong-party", undersong_client.cli.app.app))
    return apps


def command_trees() -> dict[str, object]:
    return {program: typer.main.get_command(app) for program, app in programs()}


def named_commands(name: str, command: object) -> Iterator[tuple[str, object]]:
    """Yields each command as it is typed, with its definition."""
    subcommands = getattr(command, "commands", None)
    if not subcommands:
        yield name, command
        return
    for word, child in subcommands.items():
        yield from named_commands(f"{name} {word}", child)


def main() -> None:
    checks = (
        broken_links,
        broken_citations,
        unknown_sources,
        tracked_generated_pages,
        undocumented_commands,
        unknown_command_lines,
        unknown_options,
    )
    problems = [problem for check in checks for problem in check()]
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
