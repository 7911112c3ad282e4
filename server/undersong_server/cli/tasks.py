"""The commands for task files and packages: ``init``, ``plan``, ``try``, ``new method``."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from undersong_common.errors import GenerationError
from undersong_common.printable import printable_lines, shell_path
from undersong_common.program import entry
from undersong_common.program.options import AsJson, Output, with_options
from undersong_common.program.terminal import screen, show_lines
from undersong_server import operations
from undersong_server.cli.options import (
    Assignments,
    RayAddress,
    RunChanges,
    TaskChanges,
    TaskFile,
    print_json,
    print_result,
)
from undersong_server.evaluation.options import EvaluationOptions

app = typer.Typer()
new_app = typer.Typer(help="Begin a package that adds something to Undersong.", no_args_is_help=True)


@app.command()
@with_options()
def init(
    output: Output,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A table whose columns and labels fill the file.")
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="Its column of texts (else one with a usual name).")] = None,
    label_field: Annotated[str | None, typer.Option(help="Its column of labels (else one with a usual name).")] = None,
    user_field: Annotated[str | None, typer.Option(help="Its column of user ids, such as a patient's.")] = None,
    encoding: Annotated[str, typer.Option(help="Of a CSV, TSV or JSONL file, for example latin-1.")] = "utf-8",
    out: Annotated[Path, typer.Option("--out", help="The task file to write.")] = Path("task.toml"),
) -> None:
    """Writes a commented task file."""
    operations.tasks.write_template(out, source, text=text_field, label=label_field, user=user_field, encoding=encoding)
    task_path = shell_path(out)
    first_words = f"wrote {out}: name your corpus or model under [[generators]]"
    words = f"{first_words}, then `undersong plan {task_path}` and `undersong simulate {task_path}`"
    print_result({"task_file": str(out)}, words, as_json=output.as_json, quiet=output.quiet)


@app.command()
@with_options()
def plan(
    task_file: TaskFile,
    changes: RunChanges,
    check: Annotated[bool, typer.Option("--check", help="Order one text from each generator; may cost money.")] = False,
    assignments: Assignments = None,
    as_json: AsJson = False,
    debug: entry.Debug = False,
) -> None:
    """Shows every private sum of a run, its noise, and the generators' calls. Spends nothing without --check."""
    assignment_list = [*changes.assignments(), *(assignments or ())]
    planned = operations.tasks.plan(task_file, assignment_list, environment=os.environ)
    if check:
        answers = operations.tasks.ask_each_generator(task_file, assignment_list, environment=os.environ)
    else:
        answers = {}
    if as_json:
        print_json({**planned.to_json(), **({"answers": answers} if check else {})})
        return
    from undersong_server.cli.display import render_plan

    screen().print(render_plan(planned.figures))
    costs = [f"{name} answers: one text in {operations.tasks.cost_of([answer])}" for name, answer in answers.items()]
    refusals = [f"`undersong simulate` would refuse this: {refusal}" for refusal in planned.unready]
    show_lines([*planned.remarks, *refusals, *costs])


@app.command(name="try")
@with_options()
def try_(
    generator: Annotated[str, typer.Argument(metavar="GENERATOR", help="Its name in the task file.")],
    task_file: TaskFile,
    changes: TaskChanges,
    texts: Annotated[int, typer.Option(help="Number of texts to order.", min=1, max=1000)] = 5,
    kind: Annotated[str, typer.Option(help="Kind of the prompts: zero_shot, random or metadata.")] = "zero_shot",
    as_json: AsJson = False,
    debug: entry.Debug = False,
) -> None:
    """Orders a few texts from one generator: prompts, raw answers, cleaned texts, cost. Reads nothing private."""
    tried = operations.tasks.try_generator(
        generator, task_file, changes.of(task_file), environment=os.environ, kind=kind, texts=texts
    )
    lines = []
    for number, trial in enumerate(tried, start=1):
        lines.append(f"=== {number}. {trial.label or 'a text'}: {trial.fault or 'kept'}")
        parts = {"system": trial.system, "prompt": trial.prompt, "answer": trial.answer, "text": trial.text}
        lines += [f"--- {part}\n{words}" for part, words in parts.items() if words]
    usable_count = sum(not trial.fault for trial in tried)
    summary = f"\n{usable_count} of {len(tried)} kept, {operations.tasks.cost_of(tried)}"
    report = {"texts": [asdict(trial) for trial in tried]}
    if usable_count or not as_json:  # With --json the error is the one object that is printed.
        print_result(report, *map(printable_lines, lines), summary, as_json=as_json)
    if not usable_count:
        error = GenerationError(
            f"generator {generator}: none of its answers is a text",
            "read them above, and mend what the endpoint names or the prompts",
            code="answers-useless",
        )
        error.report = report
        raise error


@app.command()
@with_options(EvaluationOptions)
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output folder of a finished run.")],
    options: EvaluationOptions,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Trains small classifiers on a run's corpus, tests them, and compares with files that the caller holds."""
    from undersong_server.cli.evaluation_screen import render

    report = operations.releases.evaluate(folder, replace(options, ray=ray))
    print_result(report.to_json(), render(report), as_json=as_json)


@new_app.callback()
def group() -> None: ...


@new_app.command("method")
def new_method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the method: small letters, digits, hyphens.")],
    out: Annotated[Path | None, typer.Option("--out", help="The package's folder (else NAME).")] = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Writes a package with a method that runs, its plan, its test and its entry point."""
    out = out or Path(name)
    files = operations.tasks.new_method(name, out)
    folder = shell_path(out)
    print_result(
        {"folder": out, "files": files},
        f"wrote {', '.join(files)} into {out}",
        f"next: pip install -e '{folder}[test]', then pytest {folder}; undersong plan TASK.toml --method {name}",
        as_json=as_json,
        quiet=quiet,
    )
