"""The console as an application: its first screen, and the screens of its other modules."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi.responses import Response

from undersong_common.drill import COORDINATOR_WORDS
from undersong_common.pages.accounts import Role
from undersong_common.pages.site import PageSettings, Site, Visit
from undersong_common.pages.stream import Stream
from undersong_server.console.context import ConsoleContext
from undersong_server.console.oversight import OversightScreens
from undersong_server.console.parties import PartyScreens
from undersong_server.console.runs import RunScreens
from undersong_server.operations import audit, coordinator, enrolment, overview

MENU: tuple[tuple[str, str, Role], ...] = (
    ("/", "Home", "viewer"),
    ("/parties", "Parties", "viewer"),
    ("/runs", "Runs", "viewer"),
    ("/compare", "Compare", "viewer"),
    ("/generators", "Generators", "viewer"),
    ("/audit", "Audit", "viewer"),
    ("/people", "People", "administrator"),
)
MOST_NEEDS = 20


def build(context: ConsoleContext, *, hosts: tuple[str, ...], port: int, tls: bool = False) -> Site:
    """The application. Raises ConfigurationError where ``context.home`` holds no coordinator."""
    facts = coordinator.show(context.home)
    settings = PageSettings(
        title=facts.name,
        hosts=hosts,
        port=port,
        tls=tls,
        folder=audit.folder(context.home),
        menu=MENU,
        packages=("undersong_server.console",),
        notice=COORDINATOR_WORDS if facts.drill else "",
    )
    site = Site(settings)
    Stream(site, context.pulse)
    site.get("/", lambda visit: _home(visit, context))
    PartyScreens(site, context)
    RunScreens(site, context)
    OversightScreens(site, context)
    context.index.runs()  # read once before the first browser waits for it
    return site


def _home(visit: Visit, context: ConsoleContext) -> Response:
    runs = cache(context.index.runs)  # read once for all parts
    parties = cache(lambda: enrolment.parties(context.home))

    def needs() -> dict[str, Any]:
        found = overview.needs(context.home, runs(), parties())
        return {"needs": found[:MOST_NEEDS], "more": max(0, len(found) - MOST_NEEDS)}

    def under_way() -> dict[str, Any]:
        every = runs()
        return {"under_way": [run for run in every if run.status.state in overview.UNDER_WAY][:20], "latest": every[:5]}

    def figures() -> dict[str, Any]:
        enrolled = [each for each in parties() if each.party.state == "enrolled"]
        return {
            "enrolled": len(enrolled),
            "connected": sum(each.connected for each in enrolled),
            "states": context.index.states(runs()),
            "spent": overview.spending(context.home, runs()),
        }

    def facts() -> dict[str, Any]:
        return {"facts": coordinator.show(context.home)}

    parts = {"needs": needs, "under_way": under_way, "figures": figures, "coordinator": facts}
    return visit.page("Home", parts, **context.live("all"))
