"""``undersong console``: the operator's console, for a browser; its people and its audit log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.rows import show_rows
from undersong_server import defaults
from undersong_server.cli.options import DEFAULT_HOME, AsJson, HomeFolder, day, print_json

if TYPE_CHECKING:
    from undersong_common.pages.accounts import Accounts

console_app = typer.Typer(help="The operator's console in a browser.", no_args_is_help=True)
PORT = 8700
SECRET_ENV = "UNDERSONG_OIDC_SECRET"  # noqa: S105 - the name of a variable


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.add_typer(console_app, name="console")


@console_app.command()
def serve(
    bind: Annotated[str, typer.Option(help="Address to listen on; beyond this machine only with TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = PORT,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further HOST or HOST:PORT under which browsers reach it.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM file.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file.")] = None,
    tasks: Annotated[
        list[Path] | None, typer.Option("--tasks", help="A folder whose task files are offered; repeat for several.")
    ] = None,
    person: Annotated[str, typer.Option(help="Whom the one-time link lets in.")] = "operator",
    role: Annotated[str, typer.Option(help="viewer, operator or administrator.")] = "administrator",
    issuer: Annotated[str, typer.Option("--oidc-issuer", help="Address of an identity provider.")] = "",
    client: Annotated[str, typer.Option("--oidc-client", help="This console's name there.")] = "",
    secret_env: Annotated[
        str, typer.Option("--oidc-secret-env", help="Environment variable with this console's secret there.")
    ] = SECRET_ENV,
    claim: Annotated[
        str, typer.Option("--oidc-claim", help="Which of the provider's words names an account here.")
    ] = "email",
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Serves the console until Ctrl-C, and prints a one-time link.

    A process of its own: whatever becomes of it, the process that serves the parties goes on.
    """
    try:
        from undersong_common.pages.oidc import Provider, mount_oidc
        from undersong_common.pages.serving import Listening, print_link
        from undersong_common.pages.serving import serve as serve_page
        from undersong_server.console.application import build
        from undersong_server.console.context import ConsoleContext
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the console needs the package {error.name}", "install it: pip install 'undersong[coordinator,console]'"
        ) from None
    from undersong_server.operations import audit
    from undersong_server.operations.caches import public_cache_path

    listening = Listening(bind, port, tuple(name or ()), certificate, key)
    environment = dict(os.environ)
    context = ConsoleContext(home, tuple(tasks or ()), environment, public_cache_path(environment))
    listener = listening.open()
    port = listener.getsockname()[1]
    site = build(context, hosts=listening.hosts(port), port=port, tls=listening.tls)
    if issuer:
        own = listening.address(port)
        mount_oidc(site, Provider(issuer, client, environment.get(secret_env, ""), claim, f"{own}/oidc/return"))
    print_link(audit.folder(home), person, role, address=listening.address(port))
    serve_page(site, listening, listener)


@console_app.command()
def link(
    person: Annotated[str, typer.Argument(help="Whom it lets in; added where nobody is called so.")] = "operator",
    role: Annotated[str, typer.Option(help="viewer, operator or administrator.")] = "administrator",
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Prints a one-time link for a console that runs: for a new person, or one who has lost the password."""
    from undersong_common.pages.serving import print_link
    from undersong_server.operations import audit

    print_link(audit.folder(home), person, role)


@console_app.command()
def people(
    remove: Annotated[str | None, typer.Option(help="Remove this person, with sessions and tokens.")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Who may enter the console, with which role."""
    from undersong_server.operations import audit

    with _accounts(home) as accounts:
        if remove is not None:
            accounts.remove(remove)
            audit.note_command(home, "remove person", remove)
        found = accounts.people()
    if as_json:
        print_json([{"name": each.name, "role": each.role, "created_at": each.created_at} for each in found])
        return
    show_rows(
        ("name", "role", "password", "since"),
        [(each.name, each.role, "yes" if each.has_password else "no", day(each.created_at)) for each in found],
        "nobody may enter yet: undersong console link NAME",
    )


@console_app.command()
def sessions(
    end: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="End this session: its person is logged out.")
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Who is logged in to the console, from where and since when."""
    from undersong_server.operations import audit

    with _accounts(home) as accounts:
        if end is not None:
            accounts.end_number(end)
            audit.note_command(home, "end session", str(end))
        found = accounts.sessions()
    if as_json:
        keys = ("number", "address", "created_at", "seen_at")
        print_json([{"person": each.account.name, **{key: getattr(each, key) for key in keys}} for each in found])
        return
    show_rows(
        ("number", "person", "from", "began", "used last"),
        [
            (str(each.number), each.account.name, each.address, day(each.created_at), day(each.seen_at))
            for each in found
        ],
        "nobody is logged in",
    )


@console_app.command()
def tokens(
    make: Annotated[
        str | None, typer.Option(metavar="PERSON", help="Make a token that reads as this person may; shown this once.")
    ] = None,
    label: Annotated[str, typer.Option(help="With --make: what it is for.")] = "script",
    end: Annotated[str | None, typer.Option(metavar="TOKEN", help="End the token of this name in the list.")] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """The tokens with which scripts read `/api/parties`, `/api/runs` and `/api/runs/NAME` of the console."""
    from undersong_server.operations import audit

    made = ""
    with _accounts(home) as accounts:
        if end is not None:
            accounts.end_token(end)
            audit.note_command(home, "end token", end)
        if make is not None:
            made = accounts.make_token(make, label, days=defaults.TOKEN_DAYS)
            audit.note_command(home, "make token", f"{make}: {label}")
        found = accounts.tokens()
    if as_json:
        print_json({"made": made, "tokens": [asdict(each) for each in found]})
    elif made:
        print(made)
    else:
        show_rows(
            ("token", "person", "what for", "until"),
            [(each.identity, each.account, each.label, day(each.expires_at)) for each in found],
            "no script has a token",
        )


@contextmanager
def _accounts(home: Path) -> Iterator[Accounts]:
    from undersong_common.pages.accounts import Accounts
    from undersong_common.pages.store import PageStore
    from undersong_server.operations import audit

    store = PageStore(audit.folder(home))
    try:
        yield Accounts(store)
    finally:
        store.close()


@console_app.command("audit")
def audit_log(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Who changed what by console or command, and when. Exit code 3 where an entry was changed since."""
    from undersong_server.operations import audit

    found = audit.entries(home)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    show_rows(
        ("number", "when", "who", "what", "about"),
        [(str(each.entry), day(each.at), each.who, each.what, each.about) for each in found],
        "nothing was changed yet",
    )


@console_app.command()
def support(
    out: Annotated[Path, typer.Option("--out", help="The ZIP file to write.")] = Path("undersong-support.zip"),
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Writes how everything stands into a file for whoever helps: no text and no key is in it."""
    from undersong_common.files import replace_file
    from undersong_server.operations import support as operation

    replace_file(out, operation.bundle(home))
    print(f"wrote {out}")
