"""The site's page of every command and its options. ``python -m tools.command_options`` prints it."""

from __future__ import annotations

import re

import click

from tools import documents

PAGE = "reference/commands.md"  # its place below docs/
HEAD = """# Commands and their options

Every command of both programs, as `--help` prints it.
"""


def page() -> str:
    """Returns the whole page."""
    lines = [HEAD]
    for program, tree in documents.command_trees().items():
        for typed, command in documents.named_commands(program, tree):
            assert isinstance(command, click.Command)
            lines += _section(typed, command)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(typed: str, command: click.Command) -> list[str]:
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = "".join(f" {parameter.human_readable_name}" for parameter in parameters if _is_argument(parameter))
    lines = [f"## {typed}", "", f"    {typed}{arguments} [OPTIONS]", "", _plain(command.help or ""), ""]
    explained = [parameter for parameter in parameters if not _is_argument(parameter) or _help_text(parameter)]
    options = [f"| {' | '.join(_cells(parameter))} |" for parameter in explained]
    return [*lines, "| option | |", "|---|---|", *options, ""] if options else lines


def _is_argument(parameter: click.Parameter) -> bool:
    return parameter.param_type_name == "argument"


def _cells(parameter: click.Parameter) -> list[str]:
    """Returns the cells of an option's line: how it is typed, and its meaning."""
    option_names = (
        [parameter.human_readable_name] if _is_argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
    )
    meaning = _help_text(parameter)
    if parameter.required and not _is_argument(parameter):
        meaning = f"{meaning} Required.".strip()
    elif isinstance(parameter.default, str | int | float) and not isinstance(parameter.default, bool):
        meaning = f"{meaning} Default: `{parameter.default}`.".strip() if parameter.default != "" else meaning
    return [", ".join(f"`{name}`" for name in option_names), meaning.replace("|", "\\|")]


def _help_text(parameter: click.Parameter) -> str:
    return _plain(getattr(parameter, "help", None) or "")


def _plain(text: str) -> str:
    """Returns a help text as one paragraph of Markdown, with ``code`` in single backquotes."""
    return re.sub(r"<([A-Z]+)>", r"\1", " ".join(text.split()).replace("``", "`"))


if __name__ == "__main__":
    print(page(), end="")
