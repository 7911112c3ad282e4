"""The commands for runs: ``run plan|start|pause|resume|stop|watch|list|show``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common import entry
from undersong_common.errors import PrivacyRefusal
from undersong_common.printable import printable_lines
from undersong_common.rows import screen, show_rows
from undersong_server import defaults
from undersong_server.cli import side_by_side
from undersong_server.cli.options import (
    DEFAULT_HOME,
    AsJson,
    Assignments,
    CacheFile,
    HomeFolder,
    RunName,
    TaskFile,
    print_json,
    say_whether_served,
    with_cache,
)

if TYPE_CHECKING:
    from undersong_server.operations.runs import ActionRequest

run_app = typer.Typer(help="Plans, starts and watches runs.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.add_typer(run_app, name="run")
    side_by_side.mount(run_app)


@run_app.command()
def plan(
    task_file: TaskFile,
    name: Annotated[
        str | None, typer.Option(help="The run's name, used once (else the task's name and a number).")
    ] = None,
    parties: Annotated[
        str | None, typer.Option(help="Names of those who take part, separated by commas (else all enrolled).")
    ] = None,
    assignments: Assignments = None,
    cache: CacheFile = None,
    seed: Annotated[int, typer.Option(help="Fixes everything but noise, keys and masks.", min=0)] = 0,
    patience: Annotated[
        float, typer.Option(help="Seconds a request waits for a party before the run goes on without it.", min=1)
    ] = defaults.PATIENCE_S,
    insecure_noise_seed: Annotated[
        int | None,
        typer.Option(help="TESTS ONLY: the parties run with this seed; the output is marked as not private.", min=0),
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Fixes a run: its task, parties, private sums and noise. Its [data] paths are ignored; nobody is asked yet."""
    from undersong_server.operations import audit, runs
    from undersong_server.operations.enrolment import party_names

    planned = runs.plan(
        home,
        task_file,
        name=name,
        parties=None if parties is None else party_names(parties),
        assignments=with_cache(task_file, assignments or (), cache),
        seed=seed,
        patience_s=patience,
        insecure_noise_seed=insecure_noise_seed,
    )
    audit.note_command(home, "run plan", planned.run)
    if as_json:
        print_json(planned.to_json())
        return
    if quiet:
        print(planned.run)
        return
    from undersong_server.cli.plan_screen import render

    screen().print(render(planned.figures))
    names = ", ".join(planned.parties)
    for party, why in planned.refusals:
        print(f"{party} would refuse this, by the policy that it shares: {why}")
    print(f"planned {planned.run!r} with {names}; start it with: undersong run start {planned.run!r}")


@run_app.command()
def start(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Starts a planned run. The serving process asks the parties, waits for their approval and goes on by itself."""
    from undersong_server.operations import runs

    _print_request(
        home, "start", runs.start(home, name), "is to go on; follow it with: undersong run watch", as_json, quiet
    )


@run_app.command()
def pause(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Holds a run at its next step; nothing is lost."""
    from undersong_server.operations import runs

    _print_request(home, "pause", runs.pause(home, name), "is to pause at its next step", as_json, quiet)


@run_app.command()
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
    """Goes on with a run that was paused, or that failed for a reason that has been mended."""
    from undersong_server.operations import runs

    requested = runs.resume(home, name, assignments or ())
    _print_request(home, "resume", requested, "is to go on; follow it with: undersong run watch", as_json, quiet)


@run_app.command()
def stop(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Ends a run for good. What the parties were charged stays charged."""
    from undersong_server.operations import runs

    _print_request(home, "stop", runs.stop(home, name), "is to end for good at its next step", as_json, quiet)


def _print_request(
    home: Path, command: str, requested: ActionRequest, consequence: str, as_json: bool, quiet: bool
) -> None:
    from undersong_server.operations import audit

    audit.note_command(home, f"run {command}", requested.run)
    if as_json:
        print_json(requested.to_json())
    elif not quiet:
        when = (
            "" if requested.served else "; it takes effect once the coordinator is served: undersong coordinator serve"
        )
        print(f"run {requested.run!r} {consequence}{when}")


@run_app.command()
def watch(
    name: RunName,
    timeout: Annotated[float | None, typer.Option(help="Give up watching after so many seconds (exit code 6).")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Shows what a run does until it ends: for whom it waits, people or machines, and with which quorum it goes on.

    It tells who refused what, as it happens. On a terminal the last line renews itself; in a pipe each event is a line.
    Ctrl-C ends the watching, not the run. Exit code 0 when it finished, that of its error when it failed, 3 when it was
    stopped.
    """
    from undersong_server.cli.watch_screen import WatchScreen
    from undersong_server.operations import watching
    from undersong_server.operations.runs import LOG_LINES

    log: list[str] = []
    event = None
    try:
        with WatchScreen(name, silent=as_json or quiet) as shown:
            for event in watching.watch(home, name, timeout_s=timeout):
                log += event.lines
                shown.show(event)
    except KeyboardInterrupt:
        goes_on = "goes on" if event is None or event.served else "goes on when the coordinator is served again"
        raise entry.Interruption(f"the watching ends; run {name!r} {goes_on}") from None
    assert event is not None
    status = event.status
    if as_json:
        print_json({"run": name, **status.to_json(), "log": log[-LOG_LINES:]})
    elif quiet:
        print(status.state)
    if status.error is not None:
        if not as_json:
            remedy = f"\n  remedy: {status.error.remedy}" if status.error.remedy else ""
            print(printable_lines(f"error: {status.error.problem}{remedy}"), file=sys.stderr)
        raise typer.Exit(status.error.exit_code)
    if status.state == "stopped":
        raise typer.Exit(PrivacyRefusal.exit_code)


@run_app.command(name="list")
def list_runs(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Every run and how it stands."""
    from undersong_server.operations import runs

    found = runs.list_runs(home)
    if as_json:
        print_json([run.to_json() for run in found])
        return
    show_rows(
        ("run", "state", "what it does"),
        [(run.run, run.status.state, run.status.words) for run in found],
        "no run is planned: undersong run plan TASK.toml",
    )
    if found:
        say_whether_served(home)


@run_app.command()
def show(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """One run: its plan, its parties, how it stands."""
    from undersong_server.operations import runs

    details = runs.show(home, name)
    if as_json:
        print_json(details.to_json())
        return
    from undersong_server.cli.plan_screen import render

    screen().print(render(details.figures))
    print(f"parties: {', '.join(details.parties)}")
    print(printable_lines("\n".join(details.log)))
    print(printable_lines(details.status.words))
    if details.status.error is not None and details.status.error.remedy:
        print(printable_lines(f"  remedy: {details.status.error.remedy}"))
