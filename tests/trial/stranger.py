"""A stranger who has read the pages only: a place to work in, and a way to type, in this process or in real ones."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.doubles.processes import HOSPITAL, OPERATOR, ROOT, environment
from tests.doubles.typed import built
from undersong_common.program import entry

MODULES = {"undersong": OPERATOR, "undersong-party": HOSPITAL}
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```|((?:^    .+\n|^\n)+)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def type_in_process(program: str, arguments: list[str], capsys: Any, monkeypatch: Any) -> Said:
    """A command in this process, through the program's own entry point."""
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    monkeypatch.setattr(entry, "only_tls_1_3", lambda: None)  # earlier tests of this process have imported gRPC
    capsys.readouterr()
    try:
        entry.run(lambda: program_commands(program).main(arguments, prog_name=program, standalone_mode=False))
    except SystemExit as end:
        said = capsys.readouterr()
        return Said(int(end.code or 0), said.out, said.err)
    raise AssertionError("a command line always exits")


def started(program: str, arguments: list[str], folder: Path, env: dict[str, str]) -> Said:
    """A command as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", MODULES[program], *arguments],
        cwd=folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def program_commands(program: str) -> Any:
    """The program's tree of commands."""
    if program == "undersong":
        from undersong.cli import app
    else:
        from undersong_client.cli.app import app
    return built(app)


def command_lines(page: str) -> list[list[str]]:
    """Every command of ours in the code blocks of a page, split as a shell does; comments and ``&`` are left out."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for fenced, indented in BLOCK.findall(text):
        for line in (fenced or indented).replace("\\\n", " ").splitlines():
            for part in re.split(r"\s&&\s|\s&\s*$", line.split("    #")[0].split(" # ")[0].strip()):
                words = shlex.split(part) if part.count('"') % 2 == 0 and part.count("'") % 2 == 0 else part.split()
                if words and words[0] in MODULES:
                    found.append(words)
    return found


def command_of(program: str, words: list[str]) -> tuple[Any, list[str], list[str]]:
    """The command that ``words`` name, its own words, and the rest."""
    command: Any = program_commands(program)
    names: list[str] = []
    rest = list(words)
    while rest and getattr(command, "commands", None) and rest[0] in command.commands:
        names.append(rest[0])
        command = command.commands[rest.pop(0)]
    return command, names, rest


def takes(program: str, words: list[str], option: str) -> bool:
    """Whether the command has an option."""
    command, _, _ = command_of(program, words)
    return any(option in (*parameter.opts, *parameter.secondary_opts) for parameter in command.params)


def told(said: Said) -> dict[str, Any]:
    """The error object of a command with ``--json``."""
    return dict(json.loads(said.out)["error"])


def separate(folder: Path) -> dict[str, str]:
    """Variables that keep a stranger's programs to one folder."""
    names = ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    kept = {name: str(folder / name.lower()) for name in names}
    return {**kept, "UNDERSONG_CACHE": str(folder / "cache"), "PATH": os.environ["PATH"]}
