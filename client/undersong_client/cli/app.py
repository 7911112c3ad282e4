"""The hospital's command line, ``undersong-party``. Every command can be scripted; none asks where a flag would do."""

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_client import operations
from undersong_client.cli import data, joining, rules, runs, service
from undersong_client.cli.options import (
    HomeFolder,
    checkpoints_folder,
    home_of,
    local_time,
    mark_drill,
    print_json,
    print_result,
)
from undersong_client.home import CLOCK_TOLERANCE_S, PartyHome, clock_words, read_grant
from undersong_common.errors import ConfigurationError, MachineFault, UndersongError
from undersong_common.files import replace_file
from undersong_common.models.model_files import MAX_WINDOWS
from undersong_common.pages.options import OrganisationLogin, PageAddress, Port
from undersong_common.printable import printable, shell_path, that_hold
from undersong_common.program import entry, logs
from undersong_common.program.machine import check_descriptors, rights_that_pass
from undersong_common.program.options import AsJson, Output, with_options
from undersong_common.program.terminal import show_lines, show_rows

if TYPE_CHECKING:
    from undersong_client.operations.daemon import DaemonStatus

app = typer.Typer(
    name="undersong-party",
    help="A hospital's side of Undersong: its records stay here, and what leaves is approved, noised and written down.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # Typer's tracebacks print local variables.
    context_settings=entry.HELP_OPTIONS,
)


@app.callback()
def program(version: entry.ShowVersion = False) -> None: ...


joining.mount(app)
data.mount(app)
rules.mount(app)
runs.mount(app)
service.mount(app)

NOT_CONNECTED = 6  # exit code
PAGE_PORT = 8701
REFUSALS_SHOWN = 3  # last refusals that `status` shows


@app.command()
@with_options()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The party's name, as agreed with the operator.")],
    output: Output,
    embedder: Annotated[str, typer.Option(help='"packaged", or the folder of a local model.')] = "packaged",
    max_windows: Annotated[
        int, typer.Option(help="Of a long text, that the embedder reads; as the operator's task files state.", min=1)
    ] = MAX_WINDOWS,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="TESTS ONLY: reproducible keys and noise, no privacy.", hidden=True, min=0)
    ] = None,
    drill: Annotated[
        bool,
        typer.Option("--drill", help="A rehearsal's folder (by default the usual one with -drill): invented records."),
    ] = False,
    home: HomeFolder = None,
) -> None:
    """Makes this party's folder, keys and a policy that allows nothing yet. Private keys never leave it."""
    folder = home_of(home)
    if drill and home is None:
        folder = folder.with_name(f"{folder.name}-drill")
    party_home = operations.joining.create(
        folder,
        name,
        embedder=embedder,
        max_windows=max_windows,
        insecure_noise_seed=insecure_noise_seed,
        drill=drill,
    )
    mark_drill(folder)
    fingerprint = operations.joining.own_fingerprint(party_home)
    home_option = f"--home {shell_path(party_home.path)}"
    records_option = f"{shell_path(party_home.drill_records)} --text-field text --label-field label --user-field keeper"
    drill_steps = (
        f"next, with {home_option} on every command: undersong-party data add {records_option} {home_option}",
        f"then: undersong-party budget set --epsilon 8 --delta 1e-4 {home_option}",
    )
    print_result(
        output.as_json,
        {"home": str(party_home.path), "party": name, "fingerprint": fingerprint, "drill": drill},
        f"made {party_home.path}; {operations.joining.BACKUP}",
        f"this party's fingerprint, for the operator: {fingerprint}",
        *(drill_steps if drill else ()),
        "next: undersong-party enroll PACKAGE --fingerprint WORDS",
        quiet=fingerprint if output.quiet else None,
    )


@app.command()
def check(
    offline: Annotated[bool, typer.Option("--offline", help="Leave out what needs the coordinator.")] = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> int:
    """Checks everything that may stop this party; shows each problem with its remedy. Exit code 2 if there is any."""
    if "grpc" not in sys.modules:
        entry.only_tls_1_3()
    findings = []
    folder = home_of(home)
    for finding in operations.daemon.check(folder, checkpoints=checkpoints_folder(folder), offline=offline):
        findings.append(finding)
        if not as_json and not (quiet and finding.grade == "ok"):
            print(f"{finding.grade:8} {finding.name}: {printable(finding.says)}", flush=True)
            if finding.remedy:
                print(f"         remedy: {finding.remedy}")
    problem_count = sum(finding.grade == "problem" for finding in findings)
    if as_json:
        print_json({"problems": problem_count, "findings": [asdict(finding) for finding in findings]})
    if problem_count:
        return ConfigurationError.exit_code
    return 0


@app.command()
@rights_that_pass()
def run(
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    proxy: Annotated[bool, typer.Option("--proxy/--no-proxy", help="Dial through the configured proxy.")] = True,
    warm: Annotated[bool, typer.Option("--warm/--no-warm", help="Embed the records before a run asks for it.")] = True,
    grant: Annotated[
        Path | None, typer.Option(help="The operator's answer, put to use if there is no certificate yet.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--metrics", help="A file for Prometheus's textfile collector, written every 5 s.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log more (never private data).")] = False,
    home: HomeFolder = None,
) -> None:
    """The daemon: connects to the coordinator, answers approved runs, until SIGTERM. Opens no port."""

    if log_format not in ("text", "json"):
        raise ConfigurationError(f"log format {log_format!r} is unknown", "use text or json")
    set_up_log = partial(
        logs.to_stderr,
        ("undersong_common", "undersong_protocol", "undersong_client"),
        as_json=log_format == "json",
        debug=debug,
    )
    set_up_log()
    entry.only_tls_1_3()
    party_home = PartyHome(home_of(home))
    if grant is not None:
        from undersong_client import keys

        if not keys.is_enrolled(party_home):
            operations.joining.install(party_home.path, read_grant(grant))
    with party_home.running():
        from undersong_client.answering.assemble import assemble
        from undersong_client.link.daemon import Daemon, check_start

        try:
            check_descriptors()
            check_start(party_home, use_proxy=proxy)
            assembled_party = assemble(
                party_home, checkpoints=checkpoints_folder(party_home.path), clock=time.time, set_up_logs=set_up_log
            )
        except UndersongError as refusal:
            party_home.note_refused_start(refusal.problem, refusal.remedy, at=time.time())
            raise
        daemon = Daemon(party_home, assembled_party, use_proxy=proxy, warm=warm, figures=figures)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, lambda *_: daemon.stop())
        daemon.run()


@app.command()
def status(home: HomeFolder = None, as_json: AsJson = False) -> int:
    """Shows what the daemon is doing. Exit code 0: connected or paused; 75: its machine lacks something; else 6."""
    daemon_status = operations.daemon.status(home_of(home))
    print_result(as_json, daemon_status.to_json(), *_status_lines(daemon_status))
    if daemon_status.held_up:
        return MachineFault.exit_code
    if daemon_status.well:
        return 0
    return NOT_CONNECTED


def _status_lines(daemon_status: "DaemonStatus") -> Iterator[str]:
    """Yields what the daemon says of itself and what others have told it, as printable lines."""
    status_facts = daemon_status.facts
    pause_words = ""
    if daemon_status.paused and daemon_status.state != "paused":
        pause_words = " (paused)"
    yield f"{daemon_status.party}: {daemon_status.state}{pause_words}"
    yield from (f"  {sentence}" for sentence in that_hold((daemon_status.silence, daemon_status.silence)))
    yield from (f"  {printable(held_step.words)}" for held_step in daemon_status.held_up)
    changes_by_run = {
        printable(run_change["run"]): printable("; ".join(run_change["changes"]))
        for run_change in status_facts.get("changed", ())
    }
    clock_offset_s = status_facts.get("clock_offset_s", 0.0)
    last_answer = f"{printable(status_facts.get('answered', ''))} at {local_time(status_facts.get('answered_s', 0.0))}"
    facts_in_words = that_hold(
        (status_facts.get("address"), f"coordinator at {printable(str(status_facts.get('address')))}"),
        (
            status_facts.get("coordinator_software"),
            f"it runs {printable(str(status_facts.get('coordinator_software')))}",
        ),
        (status_facts.get("problem"), f"last problem: {printable(str(status_facts.get('problem')))}"),
        (status_facts.get("remedy"), f"remedy: {printable(str(status_facts.get('remedy')))}"),
        (status_facts.get("answered"), f"last answered {last_answer}"),
        (daemon_status.former_trust, daemon_status.former_trust),
        *(
            (True, f"refused at {local_time(refusal['at_s'])}: {printable(refusal['problem'])}")
            for refusal in status_facts.get("refused", ())[-REFUSALS_SHOWN:]
        ),
        *(
            (True, f"caution in run {printable(run)}, told to nobody else: {caution}")
            for run, cautions in status_facts.get("cautions", {}).items()
            for caution in cautions
        ),
        (
            abs(clock_offset_s) > CLOCK_TOLERANCE_S,
            f"this machine's clock was {clock_words(clock_offset_s)} when it connected",
        ),
        *(
            (True, f"run {run!r} is proposed with ANOTHER PLAN than before: {change}")
            for run, change in changes_by_run.items()
        ),
        (
            status_facts.get("waiting"),
            f"{status_facts.get('waiting')} run(s) wait for your decision: undersong-party requests",
        ),
        (
            status_facts.get("certificate_until"),
            f"certificate valid until {status_facts.get('certificate_until', '')[:10]}",
        ),
    )
    yield from (f"  {fact_line}" for fact_line in facts_in_words)


@app.command()
def outbox(
    entry_number: Annotated[
        int | None, typer.Option("--entry", help="Show one message, in plain words; --json decodes every field.")
    ] = None,
    raw: Annotated[Path | None, typer.Option(help="With --entry: write its exact bytes to this file.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Of one run only.")] = None,
    last: Annotated[int | None, typer.Option(help="The last ones only.", min=1)] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """The exact bytes that left this building, in order; each can be decoded."""
    if entry_number is not None:
        message = operations.outbox.message(home_of(home), entry_number)
        if raw is not None:
            replace_file(raw, message.data)
        if as_json:
            print_json(message.to_json())
            return
        sending_words = f"sent first at {local_time(message.entry.at)}; SHA-256 {message.entry.sha256}"
        show_lines([*message.words(), sending_words, "every field of it: add --json; its exact bytes: --raw FILE"])
        return
    outbox_entries = operations.outbox.entries(home_of(home), run=run, last=last)
    if as_json:
        print_json({"entries": [asdict(entry) for entry in outbox_entries]})
        return
    show_rows(
        ("number", "when", "kind", "in answer to", "run", "sum", "attempt", "bytes", "times"),
        [
            (
                str(entry.number),
                local_time(entry.at),
                entry.kind,
                entry.answer_to,
                entry.run,
                entry.query,
                str(entry.attempt) if entry.attempt >= 0 else "",
                str(entry.bytes),
                str(entry.times),
            )
            for entry in outbox_entries
        ],
        "nothing has left yet",
    )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def supernode(
    ctx: typer.Context,
    fab_hash: Annotated[
        list[str], typer.Option("--fab-hash", help="SHA-256 of an app bundle that may run here; repeatable.")
    ],
    home: HomeFolder = None,
) -> None:
    """Runs Flower's SuperNode for this party; what follows goes to `flower-supernode`. Only pinned bundles are run."""
    from undersong_client.consent import trust
    from undersong_client.link.flower_supernode import run as run_supernode

    party_home = PartyHome(home_of(home))
    trust.trusted(party_home)
    run_supernode(fab_hash, ["--node-config", f'party-folder="{party_home.path}"', *ctx.args])


@app.command()
def notify(
    target: Annotated[
        str | None, typer.Argument(metavar="[COMMAND|URL]", help="Gets one JSON object on its input, or by POST.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Tell nobody.")] = False,
    test: Annotated[bool, typer.Option("--test", help="Tell it now that this is a test; once.")] = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> int:
    """Names a command or address that is told of waiting requests, ended runs, low budgets and refused data sets."""
    from undersong_common.program import notices

    party_home = PartyHome(home_of(home))
    if target is not None:
        notices.check_target(target)
    if target is not None or none:
        party_home.change(notify="" if none else target)
    target_json, target_words, has_arrived = notices.describe_target(
        party_home.settings.notify, party_home.settings.party, test=test
    )
    print_result(as_json, target_json, target_words)
    if has_arrived:
        return 0
    return NOT_CONNECTED


@app.command()
def pause(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Takes part in nothing until `undersong-party resume`; stays connected, answers nothing."""
    operations.daemon.pause(home_of(home))
    _say_paused(home_of(home), as_json)


@app.command()
def resume(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Takes part again after `undersong-party pause`."""
    operations.daemon.resume(home_of(home))
    _say_paused(home_of(home), as_json)


def _say_paused(home: Path, as_json: bool) -> None:
    daemon_status = operations.daemon.status(home)
    pause_state = {"party": daemon_status.party, "paused": daemon_status.paused}
    print_result(as_json, pause_state, "paused: nothing is answered" if daemon_status.paused else "takes part")


@dataclass(frozen=True)
class PartyPageAddress(PageAddress):
    """The address of the hospital's page."""

    port: Port = PAGE_PORT


@dataclass(frozen=True)
class OneTimeLink:
    """The account that a one-time link opens; ``link`` prints one for a page that runs already."""

    person: Annotated[str, typer.Option(help="Whom the one-time link lets in.")] = "hospital"
    role: Annotated[str, typer.Option(help="viewer (reads), operator (decides) or administrator.")] = "administrator"
    link: Annotated[bool, typer.Option("--link", help="Print a new link for a page that runs already, and end.")] = (
        False
    )


@dataclass(frozen=True)
class ShownFiles:
    """Files of this machine that the page shows or offers."""

    log: Annotated[Path | None, typer.Option(help="The daemon's log file, to show its last lines.")] = None
    data_folder: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder whose files an administrator may add as the data set; repeat for several. The folder"
            " `incoming` of the party's folder is always one."
        ),
    ] = None


@app.command()
@with_options()
@rights_that_pass()
def page(
    address: PartyPageAddress,
    account: OneTimeLink,
    files: ShownFiles,
    login: OrganisationLogin,
    audit: Annotated[
        bool, typer.Option("--audit", help="Print what people did on the page, its chain checked, and end.")
    ] = False,
    duties: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-duty",
            metavar="GROUP=ROLE",
            help='Role of a group under the rule of two: "privacy officer" or "IT"; repeat for several. Without it an'
            " administrator gives them (policy duty).",
        ),
    ] = None,
    home: HomeFolder = None,
) -> None:
    """Serves the hospital's page until Ctrl-C, and prints a one-time link.

    Other machines reach it only over TLS, and only with a log-in by the hospital's identity provider.

    A process of its own: whatever becomes of it, the daemon goes on.
    """
    from undersong_client.consent.people import ROLES
    from undersong_client.consent.two_people import check_namespace
    from undersong_client.page.application import PartyPaths, build
    from undersong_common.pages.accounts import roles_by_group
    from undersong_common.pages.serving import is_loopback, print_link, serve

    folder = home_of(home)
    page_folder = PartyHome(folder).page
    if audit:
        _show_page_audit(page_folder)
        return
    if account.link:
        print_link(page_folder, account.person, account.role)
        return
    check_namespace(PartyHome(folder))
    listening_address = address.listening()
    if not is_loopback(address.bind) and not login.issuer:
        raise ConfigurationError(
            f"other machines can reach the page at {address.bind}, so a password alone must not open it",
            "let people log in by the hospital's identity provider (--oidc-issuer), or listen on 127.0.0.1 (--bind)",
            code="no-issuer",
        )
    entry.only_tls_1_3()  # for `check`, before gRPC is imported
    page_listener = listening_address.open()
    port = page_listener.getsockname()[1]
    paths = PartyPaths(folder, checkpoints_folder(folder), files.log, tuple(files.data_folder or ()))
    page_site = build(paths, hosts=listening_address.hosts(port), port=port, tls=listening_address.tls)
    browser_address = listening_address.address(port)
    login.add_to(page_site, browser_address, roles_by_group(duties or (), ROLES))
    print_link(page_folder, account.person, account.role, address=browser_address)
    serve(page_site, listening_address, page_listener)


def _show_page_audit(page_folder: Path) -> None:
    """Prints what people did on the page. Raises as the audit log does where its chain was changed."""
    from undersong_common.pages.store import FILE_NAME, AuditLog

    audit_log = AuditLog(page_folder / FILE_NAME)
    show_rows(
        ("number", "when", "who", "what", "about"),
        [(str(entry.entry), local_time(entry.at), entry.who, entry.what, entry.about) for entry in audit_log.entries()],
        "nobody has done anything on the page yet",
    )


def main() -> None:
    """Entry point."""
    entry.run(lambda: app(prog_name="undersong-party", standalone_mode=False))


if __name__ == "__main__":
    main()
