"""Checks of the documents, run by ``make check``: links resolve, and every command of every program is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import typer.main

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def broken_links() -> Iterator[str]:
    for document in documents():
        for target in LINK.findall(document.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            if "://" in target or not path:
                continue
            if not (document.parent / path).exists():
                yield f"{document.relative_to(ROOT)}: links to {target}, which does not exist"


def undocumented_commands() -> Iterator[str]:
    """Every command must be named, as it is typed, in the README or below docs/."""
    text = "\n".join(document.read_text(encoding="utf-8") for document in documents())
    for program, app in programs():
        for command in _commands(program, typer.main.get_command(app)):
            if command not in text:
                yield f"`{command}` is in no document"


def programs() -> list[tuple[str, typer.Typer]]:
    import undersong.cli

    found = [("undersong", undersong.cli.app)]
    if (ROOT / "client" / "undersong_client" / "cli.py").exists():
        import undersong_client.cli

        found.append(("undersong-party", undersong_client.cli.app))
    return found


def _commands(name: str, command: object) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if not below:
        yield name
        return
    for word, child in below.items():
        yield from _commands(f"{name} {word}", child)


def main() -> None:
    problems = [*broken_links(), *undocumented_commands()]
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
