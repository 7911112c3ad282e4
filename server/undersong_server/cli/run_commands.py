"""The commands for runs, ``run plan|start|watch|...``, and for finished ones: ``export``, ``verify``, ``dossier``."""

import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.files import replace_file
from undersong_common.printable import counted, printable, printable_lines, shell_path
from undersong_common.program import entry
from undersong_common.program.options import AsJson, Output, with_options
from undersong_common.program.terminal import show_lines
from undersong_server import defaults, operations
from undersong_server.cli.options import (
    DEFAULT_HOME,
    HomeFolder,
    RunName,
    TaskChanges,
    print_json,
    print_result,
    print_table,
    warn_if_not_served,
)
from undersong_server.evaluation.options import EvaluationOptions

if TYPE_CHECKING:
    from undersong_server.operations.releases import PrivacyVerdict
    from undersong_server.operations.runs import ActionRequest
    from undersong_server.report.evaluations import Evaluated

app = typer.Typer(help="Plans, starts and watches runs.", no_args_is_help=True)
release_app = typer.Typer()
NO_RUN = "no run is planned: undersong run plan TASK.toml"
UNCONFIRMED = 8  # exit code: manifest and files are consistent, and nothing shows who made them


@app.command()
@with_options()
def plan(
    options: defaults.RunOptions,
    changes: TaskChanges,
    output: Output,
    task_file: Annotated[
        Path | None, typer.Argument(metavar="[TASK.toml]", help="The task file; without one, that of --revises.")
    ] = None,
    revises: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The new run takes this one's place; hospitals see what has changed."),
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Fixes a run: its task, parties, private sums and noise. Its [data] paths are ignored; no party is asked yet."""
    planned = operations.runs.plan(home, task_file, options, assignments=changes.of(task_file), revises=revises)
    operations.coordinator.note_command(home, "run plan", planned.run)
    from undersong_server.cli.display import render_plan

    print_result(
        planned.to_json(),
        render_plan(planned.figures),
        *planned.remarks,
        *(f"{party} would refuse this, by the policy that it shares: {refusal}" for party, refusal in planned.refusals),
        f"planned {planned.run!r} with {', '.join(planned.parties)};"
        f" start it with: undersong run start {planned.run!r}",
        as_json=output.as_json,
        quiet=output.quiet,
        brief=planned.run,
    )


@app.command()
def start(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Starts a planned run. The serving process asks the parties, waits for their approval and continues by itself."""
    _print_request(home, "start", operations.runs.request(home, name, "run"), as_json, quiet)


@app.command()
def pause(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Pauses a run at its next step; nothing is lost."""
    _print_request(home, "pause", operations.runs.request(home, name, "pause"), as_json, quiet)


@app.command()
def resume(
    name: RunName,
    home: HomeFolder = DEFAULT_HOME,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another limit, cap or field of a generator; repeatable."),
    ] = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Continues a run that was paused, or that failed for a reason that has been fixed."""
    _print_request(home, "resume", operations.runs.request(home, name, "run", assignments or ()), as_json, quiet)


@app.command()
def stop(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Ends a run for good. What the parties were charged stays charged."""
    _print_request(home, "stop", operations.runs.request(home, name, "stop"), as_json, quiet)


@app.command()
def put_away(
    name: RunName,
    back: Annotated[bool, typer.Option("--back", help="Take it out of the archive again.")] = False,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Moves a run that is not under way into the archive, out of Home and the lists; nothing of it is lost."""
    if back:
        operations.runs.take_back(home, name)
    else:
        operations.runs.put_away(home, name)
    operations.coordinator.note_command(home, "run take back" if back else "run put away", name)


@app.command()
def note(
    name: RunName,
    text: Annotated[str | None, typer.Option(help="Your own words about the run; they replace the last ones.")] = None,
    tags: Annotated[
        str | None, typer.Option(metavar="TAG,TAG", help="The run's tags; they replace the last ones.")
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Writes a note and tags beside a run, or shows them. No hospital and no receiver sees them."""
    if text is None and tags is None:
        annotations = operations.curation.show(home, name)
    else:
        tag_list = None if tags is None else tags.split(",")
        annotations = operations.curation.describe(home, name, note=text, tags=tag_list)
        operations.coordinator.note_command(home, "run note", name)
    print_result(
        annotations,
        f"tags: {', '.join(annotations.tags) or 'none'}",
        printable_lines(annotations.note or "no note"),
        as_json=as_json,
    )


@app.command()
def mark(
    name: RunName,
    rows: Annotated[list[int], typer.Argument(metavar="ROW...", help="Texts by their row in the corpus, from 1.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the marks away.")] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Marks texts of a finished run, which `undersong export --without-marked` leaves out."""
    annotations = operations.curation.mark_texts(home, name, rows, marked=not remove)
    operations.coordinator.note_command(home, "run unmark" if remove else "run mark", f"{name}: {len(set(rows))}")
    count = len(annotations.marked)
    print_result(
        annotations, f"{counted(count, 'text')} of run {name!r} {'is' if count == 1 else 'are'} marked", as_json=as_json
    )


def _print_request(home: Path, command: str, requested: "ActionRequest", as_json: bool, quiet: bool) -> None:
    operations.coordinator.note_command(home, f"run {command}", requested.run)
    consequence = {
        "pause": "will pause at its next step",
        "stop": "will end for good at its next step",
    }.get(command, "will continue; follow it with: undersong run watch")
    if requested.served:
        condition = ""
    else:
        condition = "; this takes effect once the coordinator runs: undersong coordinator serve"
    words = f"run {requested.run!r} {consequence}{condition}"
    print_result(requested, words, as_json=as_json, quiet=quiet)


@app.command()
def watch(
    name: RunName,
    timeout: Annotated[float | None, typer.Option(help="Give up watching after so many seconds (exit code 6).")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Shows a run until it ends: the people or machines that it waits for, refusals, and the quorum.

    On a terminal the last line renews itself; in a pipe each event is a line. Ctrl-C ends the watching, not the run.
    Exit code 0 when it finished, that of its error when it failed, 3 when it was stopped.
    """
    from undersong_server.cli.display import watching

    log: list[str] = []
    event = None
    try:
        with watching(silent=as_json or quiet) as show:
            for event in operations.runs.watch(home, name, timeout_s=timeout):
                log += event.lines
                show(event)
    except KeyboardInterrupt:
        if event is None or event.served:
            outcome_words = "continues"
        else:
            outcome_words = "continues once the coordinator runs again"
        raise entry.Interruption(f"stopped watching; run {name!r} {outcome_words}") from None
    assert event is not None
    status = event.status
    if as_json:
        print_json({"run": name, **status.to_json(), "log": log[-operations.runs.LOG_LINES :]})
    elif quiet:
        print(status.state)
    if status.error is not None:
        if not as_json:
            remedy = ""
            if status.error.remedy:
                remedy = f"\n  remedy: {status.error.remedy}"
            print(printable_lines(f"error: {status.error.problem}{remedy}"), file=sys.stderr)
        raise typer.Exit(status.error.exit_code)
    if status.state == "stopped":
        raise typer.Exit(PrivacyRefusal.exit_code)


@app.command(name="list")
def list_runs(
    find: Annotated[str, typer.Option(help="Runs with these words in name, note or tags.")] = "",
    tag: Annotated[str, typer.Option(help="Runs with this tag only.")] = "",
    archive: Annotated[bool, typer.Option("--archive", help="The runs that were put away, instead.")] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Lists the runs with their status, the newest first."""
    runs = operations.overview.listed_runs(operations.overview.list_runs(home), find=find, tag=tag, archive=archive)
    print_table(
        [run.to_json() for run in runs],
        ("run", "state", "status"),
        [(run.run, run.status.state, run.status.words) for run in runs],
        "no run fits: see `undersong run list`" if find or tag or archive else NO_RUN,
        as_json=as_json,
    )
    if runs and not as_json:
        warn_if_not_served(home)


@app.command()
def show(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Shows one run: its plan, parties, log and status."""
    details = operations.runs.show(home, name)
    from undersong_server.cli.display import render_plan

    error = details.status.error
    print_result(
        details.to_json(),
        render_plan(details.figures),
        f"parties: {', '.join(details.parties)}",
        printable_lines("\n".join(details.log)),
        printable_lines(details.status.words),
        *([printable_lines(f"  remedy: {error.advice}")] if error is not None else []),
        as_json=as_json,
    )


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Two runs or more.")],
    sort: Annotated[str, typer.Option(help="A figure with a good end: the best run comes first.")] = "",
    file: Annotated[Path | None, typer.Option("--csv", help="Write the figures for a spreadsheet, too.")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Compares runs: promise, cost, how good their texts are with intervals, variety of equally many texts."""
    comparison = operations.comparison.compare(home, names, sort=sort)
    if file is not None:
        replace_file(file, comparison.csv())
    if comparison.conclusion and not as_json:
        show_lines([comparison.conclusion, comparison.difference_words])
    if not as_json:
        show_lines(comparison.judgements)
    if comparison.leading is not None and not as_json:
        figure = comparison.leading.figure
        show_lines([f"{figure.name} ({figure.good_words}). {comparison.best_words}", comparison.leading.reason])
    print_table(
        comparison.runs,
        ("figure", "", *(run.run for run in comparison.runs)),
        [
            (figure.name, figure.good_words, *(cell.words for cell in figure.cells))
            for figures in comparison.groups.values()
            for figure in figures
        ],
        "no run was named",
        as_json=as_json,
    )


@app.command()
@with_options(EvaluationOptions, "text_field", "label_field", "repeats", "embedder")
def evaluate(
    name: RunName,
    test: Annotated[Path, typer.Option("--test", metavar="FILE", help="Real texts that are public.")],
    options: EvaluationOptions,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Evaluates a finished run's texts with a public test file, and keeps the figures for `compare` and the console."""
    evaluation = operations.releases.evaluate_run(home, name, replace(options, test=test))
    place_words = operations.releases.evaluation_place(home, name, evaluation)
    print_result(
        evaluation, printable(f"{name}, by {_describe_figures(evaluation)}", 2000), place_words, as_json=as_json
    )


def _describe_figures(evaluated: "Evaluated") -> str:
    return f"{evaluated.test}: " + ", ".join(f"{name} {figure}" for name, figure in evaluated.figures.items())


@app.command()
def search(
    name: RunName,
    find: Annotated[str, typer.Option(help="Words that a text holds, in any case.")] = "",
    label: Annotated[str, typer.Option(help="Texts of this label only.")] = "",
    generator: Annotated[str, typer.Option(help="Texts of this generator only.")] = "",
    marked: Annotated[bool, typer.Option("--marked", help="Marked texts only.")] = False,
    aside: Annotated[bool, typer.Option("--set-aside", help="Texts that were set aside, with the reason.")] = False,
    mismatched: Annotated[
        bool, typer.Option("--other-label", help="Texts that read like another label than their own.")
    ] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Searches the published texts of a finished run; counts the matches per label and per generator."""
    wanted: dict[operations.releases.Texts, bool] = {"marked": marked, "aside": aside, "mismatched": mismatched}
    chosen_kinds = [texts for texts, is_wanted in wanted.items() if is_wanted]
    if len(chosen_kinds) > 1:
        raise ConfigurationError(
            "more than one of --marked, --set-aside and --other-label was given", "give one of them"
        )
    texts: operations.releases.Texts = next(iter(chosen_kinds), "")
    search_result = operations.releases.search(home, name, find=find, label=label, generator=generator, texts=texts)
    lines = [
        printable("\t".join(map(str, (number, row.get("label", ""), row.get("generator", "")))), 300)
        + ("\t" + printable(str(row["reason"]), 300) if aside else "")
        + "\t"
        + printable(str(row["text"]), 2000)
        for number, row in zip(search_result.numbers, search_result.texts, strict=True)
    ]
    lines.append(f"{len(search_result.texts)} of {search_result.corpus} texts")
    for filter_name, counts in (("labels", search_result.labels), ("generators", search_result.generators)):
        lines.append(printable(f"{filter_name}: " + ", ".join(f"{key} {count}" for key, count in counts.items()), 2000))
    print_result(search_result, *lines, as_json=as_json)


@app.command()
def generators(
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Order one text from this generator, as its newest run would.")
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Shows the usage of each generator in the last 50 runs; --test orders a text, which may cost money."""
    newest_names = [run.run for run in operations.overview.list_runs(home)[:50]]
    usages = operations.overview.generator_usage(home, newest_names)
    if test is not None:
        tested_usage = next((usage for usage in usages if usage.name == test), None)
        if tested_usage is None:
            raise ConfigurationError(f"no run has a generator {test!r}", "see `undersong run generators`")
        environment = dict(os.environ)
        cache = defaults.public_cache_path(environment)
        tried = operations.tasks.try_in_run(home, tested_usage.run, test, environment=environment, public_cache=cache)
        print_result(tried, printable(tried.answer, 2000), operations.tasks.cost_of([tried]), as_json=as_json)
        return
    overview = operations.overview
    keys = ("calls", "kept", "retried", "dropped", "cut", "prompt_tokens", "completion_tokens")
    print_table(
        usages,
        ("generator", "kind", "runs", *keys, "US$", "answers/s", "latency s", "unusable answers", "pace"),
        [
            (
                usage.name,
                usage.kind,
                str(usage.runs),
                *(f"{usage.counts.get(key, 0):g}" for key in keys),
                f"{usage.counts.get('price_usd', 0):.2f}",
                *(
                    "" if figure is None else f"{figure:.3g}"
                    for figure in (overview.answer_rate(usage.counts), overview.mean_latency_s(usage.counts))
                ),
                *(
                    ", ".join(f"{cause} {count}" for cause, count in counter.items())
                    for counter in (usage.faults, usage.counted)
                ),
            )
            for usage in usages
        ],
        "no run was planned yet",
        as_json=as_json,
    )


@release_app.command()
def export(
    name: RunName,
    out: Annotated[Path, typer.Option("--out", help="The folder to write into, or FILE.zip for one archive.")],
    without_marked: Annotated[
        bool, typer.Option("--without-marked", help="Leave the marked texts out, into FILE.zip.")
    ] = False,
    without_aside: Annotated[
        bool, typer.Option("--without-set-aside", help="Leave set-aside.jsonl out, into FILE.zip.")
    ] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Copies a finished run's corpus, card, report, manifest with receipts and ledgers into a folder of yours."""
    exported = operations.releases.export(home, name, out, without_marked=without_marked, without_aside=without_aside)
    operations.curation.note_download(home, name)
    check_words = f"check it with: undersong verify {shell_path(out)}"
    words = f"wrote {', '.join(exported.files)} into {out}; {check_words}"
    if out.suffix == ".zip":
        words = f"wrote {out}, with the dossier; unpack it to check it"
    if exported.marked:
        included_words = operations.releases.count_marks(home, name).included_words
        words += f"; {included_words}: --without-marked --out FILE.zip leaves them out"
    print_result(exported, words, as_json=as_json, quiet=quiet)


Fingerprint = Annotated[
    str | None,
    typer.Option(help="Of the coordinator that must have signed it, as one of its hospitals states it."),
]
Parties = Annotated[
    list[str] | None,
    typer.Option(
        "--party",
        metavar="NAME=FINGERPRINT",
        help="A party that must have taken part, by the fingerprint that it states; repeat for several.",
    ),
]


@release_app.command()
@with_options(EvaluationOptions, "text_field", "label_field")
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A published data set (its manifest.json).")],
    options: EvaluationOptions,
    fingerprint: Fingerprint = None,
    parties: Parties = None,
    test: Annotated[
        Path | None,
        typer.Option("--test", metavar="FILE", help="Your own labelled texts: adds the score of the corpus on them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recomputes the whole (epsilon, delta) of a published data set offline, and says who took part.

    Exit code 0 where all that is there holds, even if another file than the corpus is missing: "Files" then says
    INCOMPLETE, and --json names it in files_not_there. Exit code 3 where anything does not hold; each fault is named.
    Exit code 8 where all papers fit together and nothing shows who made them: without --fingerprint, or without a
    signature, everything in a folder may be invented. Exit code 8 also where no file of the corpus is there, so that
    nothing was checked about it. A simulation is confirmed as a simulation, and never as the work of hospitals.
    """
    from undersong_protocol.agreement.enrolment import named_party

    party_fingerprints = dict(map(named_party, parties or ()))
    privacy_verdict = operations.releases.verify(folder, fingerprint=fingerprint, parties=party_fingerprints)
    own_score = None
    value = privacy_verdict.to_json()
    if test is not None:
        own_score = operations.releases.own_score(folder, replace(options, test=test), privacy_verdict)
        value["own_score"] = own_score.to_json()
    lines = privacy_verdict.lines(own_score)
    value["label_mismatches"] = None
    if not privacy_verdict.faults:  # The rows of a changed file are not the run's.
        mismatches = operations.releases.count_mismatches(folder)
        value["label_mismatches"] = asdict(mismatches)
        lines.insert(-len(privacy_verdict.conclusion()), mismatches.sentence)
    print_result(value, *lines, as_json=as_json)
    _exit_by_verdict(privacy_verdict)


@release_app.command()
def dossier(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A finished run at this coordinator, or a published folder.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page, to print or to file.")],
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE.json", help="What `undersong audit --json` wrote.")
    ] = None,
    fingerprint: Fingerprint = None,
    parties: Parties = None,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Writes one page about a run for a privacy officer: flow, guarantee, parties, retention, how to check it.

    The exit codes are those of `verify`; the page says what they mean.
    """
    from undersong_protocol.agreement.enrolment import named_party

    party_fingerprints = dict(map(named_party, parties or ()))
    page, verdict = operations.releases.dossier(
        home, run, fingerprint=fingerprint, parties=party_fingerprints, audit=audit
    )
    page.write(out, at=time.strftime("%Y-%m-%d %H:%M %Z"))
    print(f"wrote {out}: print it from a browser, to paper or to PDF")
    _exit_by_verdict(verdict)


def _exit_by_verdict(verdict: "PrivacyVerdict") -> None:
    """Ends the program with another exit code than 0 unless the verdict holds."""
    if verdict.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)
    if not verdict.holds:
        raise typer.Exit(UNCONFIRMED)
