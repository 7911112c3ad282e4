"""The operator's commands for runs: ``run plan|start|pause|resume|stop|watch|list|show``, ``export``, ``verify``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from undersong_common import configuration
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.printable import json_text
from undersong_common.rows import screen, show_rows
from undersong_server.cli.coordinator import DEFAULT_HOME, AsJson, HomeFolder
from undersong_server.coordinator.service import CoordinatorHome
from undersong_server.runs.folder import ENDED, PATIENCE_S, Action, Planned, RunFolder

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name (`undersong run list`).")]
WATCH_POLL_S = 0.2
LOG_LINES = 20  # of a run's log that are shown with it
TOLD = {
    "run": "is to go on; follow it with: undersong run watch",
    "pause": "is to pause at its next step",
    "stop": "is to end for good at its next step",
}
FINAL = ("finished", "stopped")  # no wish of the operator changes these any more

run_app = typer.Typer(help="Plans, starts and watches runs.", no_args_is_help=True, add_completion=False)


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.add_typer(run_app, name="run")
    app.command()(export)
    app.command()(verify)


@run_app.command()
def plan(
    task_file: Annotated[Path, typer.Argument(metavar="TASK.toml", help="A task file; its [data] paths are ignored.")],
    name: Annotated[
        str | None, typer.Option(help="The run's name, used once (else the task's name and a number).")
    ] = None,
    parties: Annotated[
        str | None, typer.Option(help="Names of those who take part, separated by commas (else all enrolled).")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the task file; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes everything but noise, keys and masks.", min=0)] = 0,
    patience: Annotated[
        float, typer.Option(help="Seconds a request waits for a party before the run goes on without it.", min=1)
    ] = PATIENCE_S,
    insecure_noise_seed: Annotated[
        int | None,
        typer.Option(help="TESTS ONLY: the parties run with this seed; the output is marked as not private.", min=0),
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Fixes a run: its task, parties, private sums and noise. Asks nobody anything yet."""
    from undersong_server.cli.plan_screen import render
    from undersong_server.runs import planning
    from undersong_server.runs.folder import coordinator_task
    from undersong_server.runs.plan_figures import plan_figures

    opened = CoordinatorHome(home)
    roster = enrolled_roster(opened, parties)
    data = configuration.override(configuration.read_toml(task_file), assignments or ())
    folder = task_file.absolute().parent
    run_plan = planning.plan_run(coordinator_task(data, folder, roster))
    task_name = run_plan.task.task.name
    if name is None:
        suffix = os.urandom(4).hex() if insecure_noise_seed is None else f"insecure-{insecure_noise_seed}"
        name = f"{task_name} {suffix}"
    planned = Planned(name, data, str(folder), roster, seed, insecure_noise_seed, patience)
    opened.run(name).create(planned)
    figures = plan_figures(run_plan)
    if as_json:
        _print_json({"run": name, "parties": list(roster), **figures.to_json()})
        return
    screen().print(render(figures))
    print(f"planned {name!r} with {', '.join(roster)}; start it with: undersong run start {name!r}")


@run_app.command()
def start(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Starts a planned run. The serving process asks the parties, waits for their approval and goes on by itself."""
    _want(home, name, "run", as_json)


@run_app.command()
def pause(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Holds a run at its next step; nothing is lost."""
    _want(home, name, "pause", as_json)


@run_app.command()
def resume(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Goes on with a run that was paused, or that failed for a reason that has been mended."""
    _want(home, name, "run", as_json)


@run_app.command()
def stop(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Ends a run for good. What the parties were charged stays charged."""
    _want(home, name, "stop", as_json)


@run_app.command()
def watch(
    name: RunName,
    timeout: Annotated[float | None, typer.Option(help="Give up watching after so many seconds (exit code 6).")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Shows what a run does until it ends: for whom it waits, how long, and when it goes on with which quorum.

    Who refused what is told as it happens. Exit code 0 when it finished, that of its error when it failed, 3 when it
    was stopped.
    """
    from undersong_common.errors import TransportError

    opened = CoordinatorHome(home)
    run = opened.run(name)
    run.planned()
    begun, shown, told = time.monotonic(), "", max(0, len(run.log()) - LOG_LINES)
    while True:
        status = run.status()
        lines = run.log()[told:]
        told += len(lines)
        words = _words(status)
        if not as_json:
            for line in lines:
                print(line, flush=True)
            if words != shown:
                print(words, flush=True)
        shown = words
        if status["state"] in FINAL:
            break
        number = run.wanted()[1]
        if status["state"] in ENDED and int(status.get("number", number)) >= number:
            break
        if timeout is not None and time.monotonic() - begun > timeout:
            raise TransportError(f"run {name!r} did not end within {timeout:g} s", "it goes on; watch it again")
        time.sleep(WATCH_POLL_S)
    if as_json:
        _print_json({**status, "log": run.log()[-LOG_LINES:]})
    error = status.get("error")
    if status["state"] == "failed" and error:
        print(
            f"error: {error['problem']}" + (f"\n  remedy: {error['remedy']}" if error["remedy"] else ""),
            file=sys.stderr,
        )
        raise typer.Exit(int(error["exit_code"]))
    if status["state"] == "stopped":
        raise typer.Exit(PrivacyRefusal.exit_code)


@run_app.command(name="list")
def list_runs(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Every run and how it stands."""
    rows = [
        {"run": run.name, **run.status(), "parties": list(run.planned().roster)} for run in CoordinatorHome(home).runs()
    ]
    if as_json:
        _print_json(rows)
        return
    show_rows(
        ("run", "state", "what it does"),
        [(row["run"], row["state"], _words(row)) for row in rows],
        "no run is planned: undersong run plan TASK.toml",
    )


@run_app.command()
def show(name: RunName, home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """One run: its plan, its parties, how it stands."""
    from undersong_server.cli.plan_screen import render
    from undersong_server.runs.plan_figures import plan_figures

    run = CoordinatorHome(home).run(name)
    planned = run.planned()
    figures = plan_figures(planned.load())
    status = run.status()
    if as_json:
        log = run.log()[-LOG_LINES:]
        _print_json(
            {"run": name, "parties": list(planned.roster), "status": status, "log": log, "plan": figures.to_json()}
        )
        return
    screen().print(render(figures))
    print(f"parties: {', '.join(planned.roster)}")
    print("\n".join(run.log()[-LOG_LINES:]))
    print(_words(status))
    if status.get("error", {}).get("remedy"):
        print(f"  remedy: {status['error']['remedy']}")


def export(
    name: RunName,
    out: Annotated[Path, typer.Option("--out", help="The folder to write into.")],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Copies a finished run's corpus, card, report, manifest with receipts and ledgers into a folder of yours."""
    from undersong_server.release.files import copy_outputs

    run = CoordinatorHome(home).run(name)
    run.planned()
    if run.status()["state"] != "finished":
        raise ConfigurationError(f"run {name!r} is {run.status()['state']}", "export it when it has finished")
    written = copy_outputs(run.output, out)
    if as_json:
        _print_json({"run": name, "folder": str(out), "files": written})
    else:
        print(f"wrote {', '.join(written)} into {out}; check it with: undersong verify {out}")


def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A published data set (its manifest.json).")],
    fingerprint: Annotated[
        str | None,
        typer.Option(help="Of the coordinator that must have signed it; refused if another one or none did."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recomputes the whole (epsilon, delta) of a published data set offline, and says who took part.

    Exit code 3 where anything does not hold; what it is, is named.
    """
    from undersong_server.release.verify import verify as recompute

    verdict = recompute(folder, fingerprint=fingerprint)
    if as_json:
        _print_json(verdict.to_json())
    else:
        print("\n".join(verdict.lines()))
    if verdict.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)


def enrolled_roster(home: CoordinatorHome, parties: str | None) -> tuple[str, ...]:
    """The named parties (separated by commas), or everyone enrolled. Raises ConfigurationError for a stranger."""
    registry = home.registry()
    enrolled = registry.enrolled()
    registry.close()
    if parties is None:
        if not enrolled:
            raise ConfigurationError("no party is enrolled", "invite and sign them first: undersong invite NAME")
        return tuple(enrolled)
    wanted = sorted({name.strip() for name in parties.split(",") if name.strip()})
    strangers = [name for name in wanted if name not in enrolled]
    if strangers or not wanted:
        raise ConfigurationError(
            f"not enrolled: {', '.join(strangers) or 'nobody was named'}", "see `undersong parties`"
        )
    return tuple(wanted)


def _want(home: Path, name: str, action: Action, as_json: bool) -> None:
    opened = CoordinatorHome(home)
    run: RunFolder = opened.run(name)
    run.planned()
    state = run.status()["state"]
    if state in FINAL:
        raise ConfigurationError(f"run {name!r} is {state}", "plan a new one: undersong run plan")
    run.want(action)
    served = opened.served
    if as_json:
        _print_json({"run": name, "wanted": action, "served": served})
        return
    when = "" if served else "; it takes effect once the coordinator is served: undersong coordinator serve"
    print(f"run {name!r} {TOLD[action]}{when}")


def _words(status: dict[str, Any]) -> str:
    """How a run stands, in one line."""
    parts = [status["state"]]
    if status.get("phase"):
        parts.append(f"{status['phase']} {status.get('done', 0)}/{status.get('total', 0)}")
    if status.get("waiting"):
        parts.append(status["waiting"]["words"])
    if status.get("error"):
        parts.append(status["error"]["problem"])
    return ": ".join(parts)


def _print_json(value: Any) -> None:
    print(json_text(value))
