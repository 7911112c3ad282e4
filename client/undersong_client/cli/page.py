"""``undersong-party page``: this party's page, for a browser on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undersong_client.cli.options import HomeFolder, checkpoints_folder, home_of, local_time
from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError
from undersong_common.rows import show_rows

PORT = 8701


def mount(app: typer.Typer) -> None:
    """Adds the command to ``undersong-party``."""
    app.command()(page)


def page(
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = PORT,
    person: Annotated[str, typer.Option(help="Whom the one-time link lets in.")] = "hospital",
    role: Annotated[str, typer.Option(help="viewer (reads), operator (decides) or administrator.")] = "administrator",
    link: Annotated[
        bool, typer.Option("--link", help="Print a new link for a page that runs already, and end.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Print what people did on the page, its chain checked, and end.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="The daemon's log file, to show its last lines.")] = None,
    home: HomeFolder = None,
) -> None:
    """Serves the hospital's page to a browser on this machine only, until Ctrl-C, and prints a one-time link.

    A process of its own: whatever becomes of it, the daemon goes on.
    """
    try:
        from undersong_client.page.application import PartyPlaces, build, page_folder
        from undersong_common.pages.serving import Listening, print_link, serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the page needs the package {error.name}", "install it: pip install 'undersong[page]'"
        ) from None
    from undersong_common import tls

    folder = home_of(home)
    PartyHome(folder)
    if audit:
        from undersong_common.pages.audit import FILE_NAME, AuditLog

        done = AuditLog(page_folder(folder) / FILE_NAME)
        show_rows(
            ("number", "when", "who", "what", "about"),
            [(str(each.entry), local_time(each.at), each.who, each.what, each.about) for each in done.entries()],
            "nobody has done anything on the page yet",
        )
        return
    if link:
        print_link(page_folder(folder), person, role)
        return
    tls.only_tls_1_3()  # for `check`, before gRPC is imported
    listening = Listening("127.0.0.1", port)
    listener = listening.open()
    port = listener.getsockname()[1]
    site = build(PartyPlaces(folder, checkpoints_folder(), log), hosts=listening.hosts(port), port=port)
    print_link(page_folder(folder), person, role, address=listening.address(port))
    serve(site, listening, listener)
