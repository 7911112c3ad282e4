"""The commands for task files: ``init``, ``plan``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from undersong_common import entry
from undersong_common.plurals import counted
from undersong_common.printable import printable_lines, shell_path
from undersong_common.rows import screen, show_lines
from undersong_server.cli.options import AsJson, Assignments, CacheFile, TaskFile, overrides, print_json, with_cache


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.command()(init)
    app.command()(plan)
    app.command(name="try")(try_)


def init(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A table whose columns and labels fill the file.")
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="Its column of texts (else one with a usual name).")] = None,
    label_field: Annotated[str | None, typer.Option(help="Its column of labels (else one with a usual name).")] = None,
    user_field: Annotated[str | None, typer.Option(help="Its column of user ids, such as a patient's.")] = None,
    encoding: Annotated[str, typer.Option(help="Of a CSV, TSV or JSONL file, for example latin-1.")] = "utf-8",
    out: Annotated[Path, typer.Option("--out", help="Where to write the task file.")] = Path("task.toml"),
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Writes a commented task file."""
    from undersong_server.operations import tasks

    tasks.write_template(out, source, text=text_field, label=label_field, user=user_field, encoding=encoding)
    if as_json:
        print_json({"task_file": str(out)})
    elif not quiet:
        named = shell_path(out)
        print(f"wrote {out}: edit it, then `undersong plan {named}` and `undersong simulate {named}`")


def plan(
    task_file: TaskFile,
    parties: Annotated[int | None, typer.Option(help="Deal one file to this many parties.")] = None,
    method: Annotated[str | None, typer.Option(help="Another method than the task file's.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of the whole run; inf is not private.")] = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Shows every private sum of a run, its noise, and the generators' calls. Spends nothing."""
    from undersong_server.cli.plan_screen import render
    from undersong_server.operations import tasks

    short = overrides(parties=parties, method=method, epsilon=epsilon)
    planned = tasks.plan(task_file, [*short, *(assignments or ())])
    if as_json:
        print_json(planned.to_json())
        return
    screen().print(render(planned.figures))
    show_lines([*planned.remarks, *(f"`undersong simulate` would refuse this: {why}" for why in planned.unready)])


def try_(
    generator: Annotated[str, typer.Argument(metavar="GENERATOR", help="Its name in the task file.")],
    task_file: TaskFile,
    texts: Annotated[int, typer.Option(help="How many texts to order.", min=1, max=1000)] = 5,
    kind: Annotated[str, typer.Option(help="Kind of the prompts: zero_shot, random or metadata.")] = "zero_shot",
    assignments: Assignments = None,
    cache: CacheFile = None,
    as_json: AsJson = False,
) -> None:
    """Has one generator write a few texts: prompts, raw answers, cleaned texts, cost. Touches nothing private."""
    from undersong_server.operations.trial import try_generator

    given = with_cache(task_file, assignments or (), cache)
    tried = try_generator(generator, task_file, given, environment=os.environ, kind=kind, texts=texts)
    if as_json:
        print_json({"texts": [each.to_json() for each in tried]})
        return
    for number, each in enumerate(tried, start=1):
        heading = f"{number}. {each.label or 'a text'}: {each.fault or 'kept'}"
        parts = [("system", each.system), ("prompt", each.prompt), ("answer", each.answer), ("text", each.text)]
        print(
            printable_lines("\n".join([f"=== {heading}", *(f"--- {part}\n{words}" for part, words in parts if words)]))
        )
    kept = sum(not each.fault for each in tried)
    tokens = sum(each.prompt_tokens + each.completion_tokens for each in tried)
    print(f"\n{kept} of {len(tried)} kept, {counted(tokens, 'token')}, {sum(each.price_usd for each in tried):.4f} US$")
