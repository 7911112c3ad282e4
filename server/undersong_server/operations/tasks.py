"""Task files and method packages: write a new one, and compute the cost of a task's run."""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from undersong_common import plugins
from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError
from undersong_common.table import UTF_8, column_names, read_table
from undersong_server import methods
from undersong_server.runs import task
from undersong_server.runs.plan_figures import PlanFigures, cap_faults, plan_figures
from undersong_server.runs.planning import plan_run
from undersong_server.runs.tables import task_faults

METHOD_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
LARGEST_LABEL_COUNT = 100
TEMPLATES = Path(__file__).parent / "new_method"


def write_template(
    out: Path,
    source: Path | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    encoding: str = UTF_8,
) -> None:
    """Writes a task file (TOML) with every key explained; columns and labels come from the table ``source`` if given.

    Args:
        text, label, user: columns; None looks for the usual names (and for no user).
        encoding: of a CSV, TSV or JSONL source.

    Raises ConfigurationError if ``out`` exists, and for a source that cannot be read, or without such a column. Labels
    of a source become public in this file, which states that.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: exists already", "choose another --out, or remove it", code="file-exists")
    folder = out.absolute().parent
    named = {"text": text, "label": label}
    columns = {role: column or role for role, column in named.items()}
    labels = ["first label", "second label"]
    name, path = "my task", "private.jsonl"
    if source is not None:
        found = column_names(source, encoding)
        columns = {role: column or _column(found, role, source) for role, column in named.items()}
        table = read_table(source, columns["text"], columns["label"], user, encoding=encoding)
        labels = sorted(set(table.labels or ()))
        if len(labels) > LARGEST_LABEL_COUNT:
            raise ConfigurationError(
                f"{source}: column {columns['label']!r} has {len(labels)} different values",
                "name the column of labels with --label-field, or write the task file by hand",
            )
        name = source.stem
        absolute = source.absolute()
        path = str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)
    template = resources.files("undersong_server.runs").joinpath("task_template.txt").read_text(encoding="utf-8")
    written = template.format(
        name=json.dumps(name),
        labels=json.dumps(labels, ensure_ascii=False),
        path=json.dumps(path),
        text=json.dumps(columns["text"]),
        label=json.dumps(columns["label"]),
        user='# user = "patient"' if user is None else f"user = {json.dumps(user)}",
        encoding="" if encoding == UTF_8 else f"encoding = {json.dumps(encoding)}\n",
        output=json.dumps(f"runs/{name.replace(' ', '-')}"),
    )
    out.write_text(written, encoding="utf-8")


def _column(found: list[str], role: str, source: Path) -> str:
    synonyms = {
        "text": ("text", "note", "content", "sentence", "document"),
        "label": ("label", "class", "category", "intent"),
    }
    for candidate in synonyms[role]:
        if candidate in found:
            return candidate
    raise ConfigurationError(
        f"{source}: no column looks like the {role}",
        f"name one with --{role}-field; {nearest(role, found)}",
        code="no-such-column",
    )


@dataclass(frozen=True)
class TaskPlan:
    """A task's plan.

    Attributes:
        unready: reasons why a simulation would refuse the task, one sentence each; a coordinator needs none of it.
        remarks: parts of the task file that this plan ignores.
    """

    figures: PlanFigures
    unready: tuple[str, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.figures.to_json(), "unready": list(self.unready), "remarks": list(self.remarks)}


def plan(task_file: Path, assignments: Sequence[str] = ()) -> TaskPlan:
    """Computes every private sum of a run of the task, its noise, and the generators' calls. Spends nothing.

    Reads every file that a simulation reads, by the same rule; it reports only counts of private rows.

    Args:
        assignments: ``section.key=value`` overrides.

    Raises ConfigurationError that names file, key, value and remedy; every file at fault and every cap at once.
    """
    read = task.load(task_file, assignments)
    run_plan = plan_run(read)
    figures = plan_figures(run_plan)
    ConfigurationError.raise_together([*task_faults(read, run_plan.plan), *cap_faults(run_plan)])
    unready = () if read.data.path else ("data.path names no private records (a coordinator needs none)",)
    return TaskPlan(figures, unready, read.remarks)


def new_method(name: str, folder: Path) -> tuple[str, ...]:
    """Writes a package that declares the method ``name`` into ``folder``; returns its files, relative to it.

    The package holds the method with its plan, a test, and the entry point.

    Raises ConfigurationError for a name that is invalid or taken, and for a folder that holds anything.
    """
    module = name.replace("-", "_")
    if not METHOD_NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ConfigurationError(
            f"{name!r} cannot name a method",
            "use small letters, digits and hyphens, and begin with a letter",
            code="invalid-name",
        )
    if name in methods.own_names() or plugins.find("methods", name) is not None:
        raise ConfigurationError(f"there is a method {name!r} already", "choose another name", code="name-taken")
    if module in sys.stdlib_module_names:
        raise ConfigurationError(f"{module!r} is a module of Python's own", "choose another name", code="name-taken")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{folder}: exists already", "choose another --out, or remove it", code="folder-exists"
        )
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python and TOML are written, of a name that was checked
    )
    words = {"name": name, "module": module}
    files = {"pyproject.toml": "pyproject.toml", f"src/{module}.py": "method.py", f"tests/test_{module}.py": "test.py"}
    for target, template in files.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(f"{template}.j2").render(words), encoding="utf-8")
    return tuple(files)
