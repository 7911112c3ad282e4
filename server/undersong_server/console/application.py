"""The console's application: its first screen, and the routes of the other modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

from fastapi.responses import Response

from undersong_common.drill import COORDINATOR_WORDS
from undersong_common.pages.accounts import Role
from undersong_common.pages.site import PageSettings, Part, Site, Visit
from undersong_common.pages.stream import Stream
from undersong_server.console.context import ConsoleContext
from undersong_server.console.oversight import OversightScreens
from undersong_server.console.parties import PartyScreens
from undersong_server.console.runs import RunScreens
from undersong_server.operations import coordinator, enrolment, overview

MENU: tuple[tuple[str, str, Role], ...] = (
    ("/", "Home", "viewer"),
    ("/parties", "Parties", "viewer"),
    ("/runs", "Runs", "viewer"),
    ("/compare", "Compare", "viewer"),
    ("/generators", "Generators", "viewer"),
    ("/audit", "Audit", "viewer"),
    ("/people", "People", "administrator"),
)
# The console's own actions, by the commands that remedies name.
ACTIONS: Mapping[str, tuple[str, str]] = {
    "undersong invite": ("/parties/invite", "Invite a hospital"),
    "undersong sign": ("/parties/sign", "Sign a request"),
    "undersong parties": ("/parties", "Parties"),
    "undersong run list": ("/runs", "Runs"),
    "undersong run plan": ("/runs/new", "New run"),
    "undersong run resume": ("", "Resume"),
    "undersong run start": ("", "Start"),
    "undersong run generators": ("/generators", "Generators"),
}
MOST_NEEDS = 20


def build(context: ConsoleContext, *, hosts: tuple[str, ...], port: int, tls: bool = False) -> Site:
    """Builds the application. Raises ConfigurationError if ``context.home`` holds no coordinator."""
    facts = coordinator.show(context.home)
    settings = PageSettings(
        title=facts.name,
        hosts=hosts,
        port=port,
        tls=tls,
        folder=coordinator.console_folder(context.home),
        menu=MENU,
        packages=("undersong_server.console",),
        notice=COORDINATOR_WORDS if facts.drill else "",
        actions=ACTIONS,
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
    needs = cache(lambda: overview.needs(context.home, runs(), parties()))
    named = cache(lambda: {need.name for need in needs()})
    others = cache(lambda: [run for run in runs() if run.run not in named()])  # not shown above
    enrolled = cache(lambda: [each for each in parties() if each.party.state == "enrolled"])
    parts: dict[str, Part] = {
        "needs": lambda: {"needs": needs()[:MOST_NEEDS], "more": max(0, len(needs()) - MOST_NEEDS)},
        "under_way": lambda: {
            "under_way": [run for run in others() if run.status.state in overview.UNDER_WAY][:20],
            "latest": others()[:5],
        },
        "figures": lambda: {
            "enrolled": len(enrolled()),
            "connected": sum(each.connected for each in enrolled()),
            "states": Counter(run.status.state for run in runs()),
            "spent": overview.spending(context.home, runs()),
        },
        "coordinator": lambda: {"facts": coordinator.show(context.home)},
    }
    return visit.page("Home", parts, **context.live("all"))
